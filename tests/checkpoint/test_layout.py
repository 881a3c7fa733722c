"""Which worker owns a key: canonical bytes and hashes of keys, layouts, layouts for other workers, and which
graph may restore a state.
"""

import datetime
import decimal
import itertools
import math
import random
import struct
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.core.records.layout import (
    SHARD_BITS,
    Kind,
    Layout,
    ShardRange,
    Value,
    canonical_bytes,
    canonical_key,
    check_layout,
    even_layout,
    key_hash,
    least_moved,
    moved_units,
    rebalanced,
    state_parts,
)
from checkpoint.errors import ManifestError, UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys, hash_rows, hash_slices, hash_words, kind_of
from tests.checkpoint.manifest_samples import u64

GOLDEN = [
    (("string",), ("",), "", "2d06800538d394c2"),
    (("string",), ("the",), "746865", None),
    (("string",), ("é",), "c3a9", None),
    (("binary",), (b"\x00\xff",), "00ff", None),
    (("bool",), (True,), "01", None),
    (("int",), (-1,), "ffffffffffffffff", None),
    (("int",), (258,), "0000000000000102", None),
    (("uint",), (2**64 - 1,), "ffffffffffffffff", None),
    (("float",), (-0.0,), "0000000000000000", None),
    (("float",), (1.5,), "3ff8000000000000", None),
    (("float",), (math.nan,), "7ff8000000000000", None),
    (("decimal",), (-2,), "ff" * 15 + "fe", None),
    (("date",), (19_000,), "0000000000004a38", None),
    (("timestamp",), (1_000_000,), "00000000000f4240", None),
    (("string",), (None,), "", "2d06800538d394c2"),
    (("string", "int"), ("ab", 1), "00000002" + "6162" + "00000008" + "0000000000000001", None),
    (("string", "string"), ("", None), "00000000" + "ffffffff", None),
    ((("string",),), (("ab",),), "00000002" + "6162", None),
    ((("float", ("int",)),), ((-0.0, None),), "00000008" + "00" * 8 + "ffffffff", None),
]


@pytest.mark.parametrize(("kinds", "values", "hexadecimal", "hashed"), GOLDEN)
def test_canonical_bytes_are_these_for_ever(kinds, values, hexadecimal, hashed) -> None:
    assert canonical_key(kinds, values).hex() == hexadecimal
    assert key_hash(kinds, values) == xxhash.xxh3_64_intdigest(bytes.fromhex(hexadecimal))
    if hashed:
        assert f"{key_hash(kinds, values):016x}" == hashed


def test_a_value_of_another_kind_is_refused() -> None:
    with pytest.raises(UnsupportedKeyTypeError, match="no canonical bytes for a str as int"):
        canonical_bytes("int", "1")


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([]), pa.struct([("a", pa.list_(pa.int8()))]), pa.null()]
)
def test_a_column_without_canonical_bytes_is_refused_by_name(kind) -> None:
    with pytest.raises(UnsupportedKeyTypeError, match="cannot be a key"):
        kind_of(kind)


@given(st.lists(st.binary(max_size=40), max_size=60))
def test_every_length_hashes_as_the_library_does(values) -> None:
    data = np.frombuffer(b"".join(values), np.uint8)
    offsets = np.concatenate([[0], np.cumsum([len(value) for value in values])]).astype(np.int64)
    expected = [xxhash.xxh3_64_intdigest(value) for value in values]
    assert hash_slices(data, offsets).tolist() == expected


def test_lengths_0_to_300_hash_as_the_library_does_also_over_chunk_borders() -> None:
    random = np.random.default_rng(7)
    sizes = np.concatenate([np.arange(300), random.integers(0, 24, 70_000)])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    data = random.integers(0, 256, int(offsets[-1]), dtype=np.uint8)
    whole = data.tobytes()
    expected = [xxhash.xxh3_64_intdigest(whole[a:b]) for a, b in itertools.pairwise(offsets)]
    assert hash_slices(data, offsets).tolist() == expected


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_words_hash_as_their_8_bytes_do(values) -> None:
    expected = [xxhash.xxh3_64_intdigest(struct.pack(">Q", value)) for value in values]
    assert hash_words(np.array(values, np.uint64)).tolist() == expected


COLUMNS = {
    "string": (pa.string(), "string", st.text(max_size=30)),
    "large_string": (pa.large_string(), "string", st.text(max_size=30)),
    "binary": (pa.binary(), "binary", st.binary(max_size=30)),
    "bool": (pa.bool_(), "bool", st.booleans()),
    "int32": (pa.int32(), "int", st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), "int", st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), "uint", st.integers(0, 2**64 - 1)),
    "float64": (pa.float64(), "float", st.floats()),
}


@given(st.data())
@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_a_column_hashes_as_its_values_do(name, data) -> None:
    kind, canonical, values = COLUMNS[name]
    column = data.draw(st.lists(st.none() | values, max_size=20))
    start = data.draw(st.integers(0, len(column)))
    array = pa.array(column, kind).slice(start)
    assert hash_keys([array]).tolist() == [key_hash((canonical,), (value,)) for value in column[start:]]
    assert hash_keys([array.dictionary_encode()]).tolist() == hash_keys([array]).tolist()
    assert hash_keys([pa.chunked_array([array, array])]).tolist() == 2 * hash_keys([array]).tolist()


@given(st.data())
def test_a_key_of_several_columns_hashes_as_its_values_do(data) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=2, max_size=4))
    count = data.draw(st.integers(0, 12))
    columns = [data.draw(st.lists(st.none() | COLUMNS[n][2], min_size=count, max_size=count)) for n in names]
    start = data.draw(st.integers(0, count))
    arrays = [pa.array(c, COLUMNS[n][0]).slice(start) for n, c in zip(names, columns, strict=True)]
    kinds = [COLUMNS[n][1] for n in names]
    rows = list(zip(*columns, strict=True))[start:] if count else []
    assert hash_keys(arrays).tolist() == [key_hash(kinds, row) for row in rows]


@given(st.data())
def test_a_struct_hashes_as_its_fields_do_also_as_one_of_several_columns(data) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
    inner, count = data.draw(st.booleans()), data.draw(st.integers(0, 8))
    fields = st.tuples(*(st.none() | COLUMNS[name][2] for name in names))
    kind = pa.struct([(f"f{at}", COLUMNS[name][0]) for at, name in enumerate(names)])
    canonical = tuple(COLUMNS[name][1] for name in names)
    if inner:
        fields, kind, canonical = st.tuples(st.none() | fields), pa.struct([("s", kind)]), (canonical,)
    values = data.draw(st.lists(st.none() | fields, min_size=count, max_size=count))
    start = data.draw(st.integers(0, count))
    array = pa.array([_as_dict(value, kind) for value in values], kind).slice(start)
    assert hash_keys([array]).tolist() == [key_hash((canonical,), (value,)) for value in values[start:]]
    numbers = pa.array(range(count), pa.int64()).slice(start)
    rows = list(zip(values, range(count), strict=True))[start:]
    assert hash_keys([array, numbers]).tolist() == [key_hash((canonical, "int"), row) for row in rows]


def _as_dict(value, kind):
    if not isinstance(value, tuple):
        return value
    return {field.name: _as_dict(one, field.type) for field, one in zip(kind, value, strict=True)}


def test_dates_timestamps_and_decimals_hash_by_their_numbers() -> None:
    day = pa.array([datetime.date(2022, 1, 8), None], pa.date32())
    assert hash_keys([day])[0] == key_hash(("date",), (19_000,))
    moment = pa.array([1_000_000], pa.timestamp("us"))
    assert hash_keys([moment])[0] == key_hash(("timestamp",), (1_000_000,))
    price = pa.array([decimal.Decimal("-0.02"), None, decimal.Decimal("1.00")], pa.decimal128(20, 2))
    assert hash_keys([price]).tolist() == [key_hash(("decimal",), (value,)) for value in (-2, None, 100)]
    assert hash_keys([price.slice(2), day.slice(1)])[0] == key_hash(("decimal", "date"), (100, None))


def test_one_float_has_one_hash() -> None:
    odd_nan = struct.unpack(">d", bytes.fromhex("7ff0000000000123"))[0]
    hashes = hash_keys([pa.array([0.0, -0.0, math.nan, odd_nan])]).tolist()
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3]


TAKES: dict[Kind, tuple[type, ...]] = {
    "string": (str,), "binary": (bytes,), "bool": (bool,), "float": (float,), "int": (int, bool),
    "uint": (int, bool), "date": (int, bool), "timestamp": (int, bool), "decimal": (int, bool),
}  # fmt: skip


@pytest.mark.parametrize("value", ["a", b"a", True, 1, 1.0])
@pytest.mark.parametrize("kind", TAKES)
def test_each_kind_of_key_takes_its_own_values_and_null_alone(kind: Kind, value: Value) -> None:
    assert canonical_bytes(kind, None) == b""
    if isinstance(value, TAKES[kind]):
        assert canonical_bytes(kind, value)
    else:
        with pytest.raises(UnsupportedKeyTypeError, match=f"{type(value).__name__} as {kind}"):
            canonical_bytes(kind, value)


def test_one_float_that_is_no_number_is_one_key() -> None:
    assert canonical_bytes("float", math.nan) == canonical_bytes("float", -math.nan)
    assert canonical_bytes("float", -0.0) == canonical_bytes("float", 0.0)


DIGESTS = (
    "b1b2ad3d55e0ca18f0a8b55a531af3fd",
    "1bc889f3a6eda73453e2eb120282f2eb",
    "df35d097e37b3ecd7060fe14e6e3125f",
)
"""Of the three rows of the test below."""
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "ab", "a long string, longer than 16 bytes", None]),
        st.sampled_from([0, 1, -1, None]),
        st.sampled_from([0.0, -0.0, math.nan, 1.5, None]),
        st.sampled_from([True, False, None]),
    ),
    max_size=40,
)


@given(ROWS)
def test_rows_have_the_same_digest_exactly_if_they_are_the_same_as_keys(rows) -> None:
    kinds = ("string", "int", "float", "bool")
    types = (pa.string(), pa.int32(), pa.float64(), pa.bool_())
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(types)]
    digests = hash_rows(columns).tolist()
    assert len(digests) == len(rows)
    for (one, first), (other, second) in itertools.combinations(zip(rows, digests, strict=True), 2):
        same = canonical_key(kinds, one) == canonical_key(kinds, other)
        assert (first[:8] == second[:8]) == same, "each half alone differs"
        assert (first[8:] == second[8:]) == same


@pytest.mark.parametrize("rows", [3, 700], ids=["one by one", "vectorized"])
def test_digests_are_these_for_ever(rows: int) -> None:
    """States of filters contain them. Also those of a sliced array, of other integer widths and encodings."""
    times = pa.array([7, 8, None] * (rows // 3 + 2), pa.timestamp("us")).slice(3, rows)
    names = pa.array(["a", "a name longer than 16 bytes", None] * (rows // 3 + 2)).slice(3, rows)
    values = pa.array([1.5, -0.0, math.nan] * (rows // 3 + 2)).slice(3, rows)
    expected = [DIGESTS[row % 3] for row in range(rows)]
    for named in (names, names.dictionary_encode(), names.cast(pa.large_string())):
        columns = [times, named, values, pa.array([True] * rows), pa.array([3] * rows, pa.int16())]
        assert [digest.hex() for digest in hash_rows(columns).tolist()] == expected


def test_columns_that_are_swapped_have_another_digest() -> None:
    a, b = pa.array([1, 2, 2]), pa.array([2, 1, 2])
    one, other = hash_rows([a, b]).tolist(), hash_rows([b, a]).tolist()
    assert one[0] == other[1] != one[1]
    assert one[2] == other[2]
    assert len({*one, *other}) == 3


# --- layouts -----------------------------------------------------------------------------------------------


@given(st.integers(1, 200), u64)
def test_every_hash_belongs_to_exactly_one_worker(workers, key_hash) -> None:
    layout = even_layout(workers)
    check_layout(layout, workers)
    owner = layout.worker_of(key_hash)
    last, owners = layout.upper_bounds()
    assert owners[next(i for i, bound in enumerate(last) if bound >= key_hash)] == owner
    (shard,) = layout.shards_of(owner)
    assert shard.begin <= key_hash >> 48 < shard.end
    sizes = [shard.end - shard.begin for shard in layout.ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([(0, 10, 0), (9, 65536, 1)], "expected a range from 10, got 9..65536"),
        ([(0, 10, 0), (11, 65536, 1)], "expected a range from 10"),
        ([(0, 65536, 5)], "belong to worker 5, but there are 2"),
        ([(0, 65536, -1)], "belong to worker -1, but there are 2"),
        ([], "end at 0"),
    ],
)
def test_a_layout_with_holes_overlaps_or_strangers_is_refused(ranges, text) -> None:
    with pytest.raises(ManifestError, match=text):
        check_layout(Layout(tuple(ShardRange(*shard) for shard in ranges)), 2)


def test_an_operator_may_have_ranges_of_its_own() -> None:
    own = (ShardRange(0, 1, 1, "sort"), ShardRange(1, 65536, 0, "sort"))
    layout = Layout((*even_layout(2).ranges, *own), splits={"in": {"a": 1}})
    check_layout(layout, 2)
    assert layout.worker_of(0) == 0
    assert layout.worker_of(0, "sort") == 1
    with pytest.raises(ManifestError, match="split 'a' of 'in' belongs to worker 1, but there are 1"):
        check_layout(Layout(even_layout(1).ranges, splits={"in": {"a": 1}}), 1)


def test_a_region_has_from_one_worker_to_the_limit() -> None:
    for workers in (0, -1, limits.workers_max + 1):
        with pytest.raises(ValueError, match="has 1 to"):
            even_layout(workers)
    for workers in (1, limits.workers_max):
        check_layout(even_layout(workers), workers)


def test_a_layout_has_1_to_32_shard_bits() -> None:
    for bits in (0, 33, -1):
        with pytest.raises(ManifestError, match="shard bits"):
            check_layout(Layout((ShardRange(0, 1, 0),), shard_bits=bits), 1)
    for bits in (1, 32):
        check_layout(Layout((ShardRange(0, 1 << bits, 0),), shard_bits=bits), 1)


# --- layouts for other workers ----------------------------------------------------------------------------


UNITS = 1 << SHARD_BITS
TOLERANCES = st.sampled_from([0.0, 0.05, 0.1, 0.5])


def shares(layout: Layout) -> Counter[int]:
    """Units of each worker."""
    found: Counter[int] = Counter()
    for one in layout.ranges:
        found[one.worker] += one.end - one.begin
    return found


def moved_one_by_one(before: Layout, after: Layout) -> int:
    """The same as `moved_units`, unit by unit."""

    def owners(layout: Layout) -> list[int]:
        return [one.worker for one in layout.of_operator() for _ in range(one.begin, one.end)]

    return sum(old != new for old, new in zip(owners(before), owners(after), strict=True))


def check(before: Layout, after: Layout, workers: set[int], tolerance: float) -> None:
    check_layout(after, max(workers) + 1)  # every unit once
    owned = shares(after)
    assert owned.keys() == workers
    if tolerance:
        finest = len(workers) / UNITS  # one unit more than the average
        assert max(owned.values()) * len(workers) <= UNITS * (1 + max(tolerance, finest))
    else:
        assert max(owned.values()) - min(owned.values()) <= 1
    ranges = Counter(one.worker for one in after.ranges)
    assert max(ranges.values()) <= limits.layout_ranges_max
    assert moved_units(before, after) >= least_moved(before, workers, tolerance=tolerance)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4096), st.integers(1, 4096), TOLERANCES)
def test_any_number_of_workers_becomes_any_other(old: int, new: int, tolerance: float) -> None:
    before = rebalanced(even_layout(1), range(old), tolerance=tolerance)
    after = rebalanced(before, range(new), tolerance=tolerance)
    check(before, after, set(range(new)), tolerance)
    assert moved_units(before, after) == least_moved(before, range(new), tolerance=tolerance)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30), st.integers(1, 20), TOLERANCES)
def test_workers_come_and_go(changes: list[tuple[int, int]], start: int, tolerance: float) -> None:
    """Ids are never used again, several come and go at once, and any of them may leave."""
    rng = random.Random(start)
    workers, next_id = set(range(start)), start
    layout = rebalanced(even_layout(1), workers, tolerance=tolerance)
    for coming, leaving in changes:
        gone = rng.sample(sorted(workers), min(leaving, len(workers) - (coming == 0)))
        workers = workers - set(gone) | set(range(next_id, next_id + coming))
        next_id += coming
        after = rebalanced(layout, workers, tolerance=tolerance)
        check(layout, after, workers, tolerance)
        assert moved_units(layout, after) == moved_one_by_one(layout, after)
        assert moved_units(layout, after) == least_moved(layout, workers, tolerance=tolerance)
        layout = after


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_after_many_changes_a_worker_has_a_bounded_number_of_ranges(
    tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit that is reached soon. The price is that more than the least is moved, now and then."""
    monkeypatch.setattr(limits, "layout_ranges_max", 8)
    rng = random.Random(1)
    workers, next_id = set(range(30)), 30
    layout = rebalanced(even_layout(1), workers, tolerance=tolerance)
    extra = []
    for _ in range(60):
        gone = rng.sample(sorted(workers), rng.randint(1, 4))
        coming = rng.randint(1, 4)
        workers = workers - set(gone) | set(range(next_id, next_id + coming))
        next_id += coming
        after = rebalanced(layout, workers, tolerance=tolerance)
        check(layout, after, workers, tolerance)
        extra.append(moved_units(layout, after) - least_moved(layout, workers, tolerance=tolerance))
        layout = after
    assert 0 < sum(1 for units in extra if units) < len(extra) / 2


@pytest.mark.parametrize(
    ("old", "new", "fixed", "dynamic"),
    [
        (2, 3, 0.3333, 0.3125),
        (4, 5, 0.2, 0.1875),
        (16, 17, 0.0588, 0.0586),
        (3, 2, 0.3333, 0.3125),
        (8, 16, 0.5, 0.5),
        (3, 5, 0.4, 0.3906),
    ],
)
def test_the_shares_that_move(old: int, new: int, fixed: float, dynamic: float) -> None:
    """`hash % workers` moves 0.6667, 0.8, 0.9412, 0.6667, 0.5 and 0.8 of the state."""
    for tolerance, share in ((0.0, fixed), (0.1, dynamic)):
        before = rebalanced(even_layout(1), range(old), tolerance=tolerance)
        after = rebalanced(before, range(new), tolerance=tolerance)
        assert round(moved_units(before, after) / UNITS, 4) == share


def test_shards_double_with_the_workers_and_are_not_halved() -> None:
    """With halved shards, 13 to 12 workers would move 0.1016 of the state instead of 0.0769."""
    large = rebalanced(even_layout(1), range(13), tolerance=0.1)
    small = rebalanced(large, range(12), tolerance=0.1)
    assert moved_units(large, small) / UNITS == pytest.approx(1 / 13, abs=0.005)


def test_the_dynamic_rule_in_any_size_keeps_its_tolerance() -> None:
    worst = 0.0
    for workers in (*range(1, 40), 51, 63, 64, 65, 204, 819, 1638, 4095, 4096):
        owned = shares(rebalanced(even_layout(1), range(workers), tolerance=0.1))
        worst = max(worst, max(owned.values()) * workers / UNITS - 1)
    assert 0.095 < worst <= 0.1


def test_a_layout_of_the_same_workers_is_the_same() -> None:
    for workers in (1, 2, 3, 7, 64):
        layout = even_layout(workers)
        assert rebalanced(layout, range(workers)) == layout


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.sets(st.integers(0, 20), min_size=1, max_size=12), st.booleans())
def test_every_part_of_the_state_has_one_heir(old: int, workers: set[int], of_all: bool) -> None:
    before = even_layout(old)
    after = rebalanced(before, workers)
    parts = state_parts(before, after, of_all=of_all)
    assert parts.keys() == workers
    taken = [
        (a, b, part.worker, worker) for worker in parts for part in parts[worker] for a, b in part.ranges
    ]
    for begin, end, giver, taker in taken:
        middle = (begin + end) // 2 << (64 - SHARD_BITS)
        assert (before.worker_of(middle), after.worker_of(middle)) == (giver, taker)
    assert sum(end - begin for begin, end, _, _ in taken) == UNITS
    heirs = [(part.worker, worker) for worker in parts for part in parts[worker] if part.stays]
    assert sorted(giver for giver, _ in heirs) == list(range(old)), (
        "what belongs to no key is taken over once"
    )
    assert all(giver == taker for giver, taker in heirs if giver in workers)
    for ours in parts.values():
        assert [part.worker for part in ours] == sorted(part.worker for part in ours)
        assert not of_all or len(ours) == old


def test_splits_of_leaving_workers_are_assigned_to_nobody() -> None:
    layout = Layout((ShardRange(0, UNITS, 4),), splits={"orders": {"a": 4, "b": 7}})
    assert rebalanced(layout, [4, 9]).splits == {"orders": {"a": 4}}


def test_what_is_no_layout_is_refused() -> None:
    layout = even_layout(1)
    for workers in (range(0), range(limits.workers_max + 1)):
        with pytest.raises(ValueError, match="1 to 4096 workers"):
            rebalanced(layout, workers)
    for tolerance in (-0.1, 1.0):
        with pytest.raises(ValueError, match="tolerance"):
            rebalanced(layout, [0], tolerance=tolerance)
