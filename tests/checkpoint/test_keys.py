"""Canonical key bytes: golden vectors, and the vectorised hash against the definition and the library."""

import datetime
import decimal
import itertools
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.core.records.layout import Kind, Value, canonical_bytes, canonical_key, key_hash
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import hash_keys, hash_rows, hash_slices, hash_words, kind_of

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


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int8())]), pa.null()])
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
