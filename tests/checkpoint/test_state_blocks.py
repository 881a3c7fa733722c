"""State blocks: what is encoded comes back, folds to the newest, and damage is named."""

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import limits
from checkpoint.chains import state_blocks
from checkpoint.chains.state_blocks import (
    DELETED_COLUMN,
    StateFold,
    block_schema,
    decode_block,
    encode_block,
    hash_range,
    key_columns,
    make_block,
    newest_rows,
    state_version_of,
    with_uid,
)
from checkpoint.errors import UnsupportedKeyTypeError
from checkpoint.key_hash import HASH_COLUMN, hash_keys
from dos_protocol.errors import CorruptDataError


def test_blocks_of_a_former_graph_are_folded_with_the_columns_of_the_last_one() -> None:
    keys = pa.schema([("word", pa.string())])
    count, total = pa.field("n", pa.int64()), pa.field("total", pa.int64())

    def block(*fields: pa.Field, word: str = "a", value: int = 1) -> pa.RecordBatch:
        column = pa.array([word])
        values = [pa.array([value])] * len(fields)
        return make_block(block_schema(keys, pa.schema(fields)), [column], hash_keys([column]), values)

    later = with_uid(total, "_1f-total")
    folded = newest_rows([block(count, total), block(later, count, word="b", value=2)])
    assert folded.schema.names == ["word", "_hash", "total", "n", "_deleted"]
    assert {one["word"]: (one["total"], one["n"]) for one in folded.to_pylist()} == {
        "a": (None, 1),  # the column of that name was another one
        "b": (2, 2),
    }
    renamed = newest_rows([block(count), block(with_uid(total, "n"), word="b")])
    assert {one["word"]: one["total"] for one in renamed.to_pylist()} == {"a": 1, "b": 1}
    with pytest.raises(ValueError, match="lacks the column 'total'"):
        newest_rows([block(count), block(count, total)])
    with pytest.raises(ValueError, match="column 'n' of a block is int64, and was string"):
        newest_rows(
            [
                block(count),
                make_block(
                    block_schema(keys, pa.schema([("n", pa.string())])),
                    [pa.array(["a"])],
                    hash_keys([pa.array(["a"])]),
                    [pa.array(["x"])],
                ),
            ]
        )


WORDS = block_schema(pa.schema([("word", pa.string())]), pa.schema([("count", pa.int64())]))


def words_block(rows):
    """A block of (word, count or None for deleted), each word once."""
    keys = pa.array([word for word, _ in rows], pa.string())
    values = pa.array([count for _, count in rows], pa.int64())
    deleted = np.array([count is None for _, count in rows], np.bool_)
    return make_block(WORDS, [keys], hash_keys([keys]), [values], deleted)


def as_dict(block):
    return dict(zip(block.column("word").to_pylist(), block.column("count").to_pylist(), strict=True))


words = st.none() | st.sampled_from(["", "a", "the", "it", "x" * 20, "é"])
changes = st.lists(
    st.dictionaries(words, st.none() | st.integers(0, 2**40), max_size=6), min_size=1, max_size=8
)


@given(changes)
def test_a_fold_of_blocks_gives_the_newest_value_of_each_key(history) -> None:
    expected: dict = {}
    blocks = []
    for change in history:
        expected.update(change)
        blocks += [decode_block(data) for data in encode_block(words_block(list(change.items())))]
    expected = {word: count for word, count in expected.items() if count is not None}
    fold = StateFold()
    for block in blocks:
        fold.add("counts", block)
    found = fold.take("counts")
    assert (as_dict(found) if found is not None else {}) == expected
    if blocks:
        assert as_dict(newest_rows(blocks)) == expected
        hashes = newest_rows(blocks).column(HASH_COLUMN).to_pylist()
        assert hashes == sorted(hashes)


def test_keys_that_share_a_hash_are_kept_apart(monkeypatch) -> None:
    def block(rows):
        keys = pa.array([word for word, _ in rows], pa.string())
        values = pa.array([count for _, count in rows], pa.int64())
        return make_block(WORDS, [keys], np.full(len(rows), 7, np.uint64), [values])

    folded = newest_rows([block([("a", 1), ("b", 2)]), block([("a", 3)]), block([("b", 4), ("c", 5)])])
    assert as_dict(folded) == {"a": 3, "b": 4, "c": 5}


def test_nan_keys_and_several_columns_fold() -> None:
    schema = block_schema(
        pa.schema([("f", pa.float64()), ("i", pa.int32())]), pa.schema([("v", pa.string())])
    )

    assert [field.name for field in schema if not field.nullable] == ["_hash", "_deleted"]

    def block(f, i, v):
        keys = [pa.array([f], pa.float64()), pa.array([i], pa.int32())]
        return make_block(schema, keys, hash_keys(keys), [pa.array([v])])

    folded = newest_rows([block(math.nan, 1, "x"), block(math.nan, 1, "y"), block(1.0, None, "z")])
    assert sorted(folded.column("v").to_pylist()) == ["y", "z"]


def test_a_fold_in_bounded_memory_gives_the_same(monkeypatch) -> None:
    monkeypatch.setattr(limits, "state_fold_rows_min", 4)
    fold, history = StateFold(), []
    for number in range(50):
        block = words_block([(f"w{number % 7}", None if number % 11 == 3 else number)])
        history.append(block)
        fold.add("counts", block)
    assert len(fold._blocks["counts"]) < 20
    assert as_dict(fold.take("counts")) == as_dict(newest_rows(history))


def test_a_block_beyond_a_limit_becomes_several(monkeypatch) -> None:
    monkeypatch.setattr(limits, "state_block_rows_max", 10)
    block = words_block([(f"w{number}", number) for number in range(95)])
    encoded = encode_block(block)
    assert len(encoded) >= 10
    assert all(decode_block(data).num_rows <= 10 for data in encoded)
    assert as_dict(newest_rows([decode_block(data) for data in encoded])) == as_dict(block)
    monkeypatch.setattr(limits, "state_block_rows_max", 10**6)
    monkeypatch.setattr(limits, "state_block_bytes_max", 17 * 1024)
    assert len(encode_block(block)) > 1
    assert encode_block(block.slice(0, 0)) == []


def test_a_block_says_on_its_own_what_its_keys_are() -> None:
    block = decode_block(encode_block(words_block([("a", 1)]))[0])
    assert key_columns(block.schema) == ["word"]
    assert block.schema.names == ["word", HASH_COLUMN, "count", DELETED_COLUMN]
    assert block.column(HASH_COLUMN).type == pa.uint64()


def compressed(rows: list[tuple[str, int | None]]) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "state_compressed_bytes_min", 1)
        return encode_block(words_block(rows))[0]


def test_a_large_block_is_compressed_and_reads_the_same_and_a_small_one_is_not() -> None:
    schema = block_schema(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]))
    for count in (1_000, 10_000, 100_000):
        keys = pa.array(range(count), pa.int64())
        block = make_block(schema, [keys], hash_keys([keys]), [keys])
        encoded = encode_block(block)
        size = sum(map(len, encoded))
        if block.nbytes < limits.state_compressed_bytes_min:
            assert size > block.nbytes
        else:
            assert size < 0.8 * block.nbytes, "sorted random hashes are a third of it, and stay"
        assert pa.Table.from_batches(map(decode_block, encoded)).equals(pa.Table.from_batches([block]))


def test_a_damaged_length_of_compressed_data_is_a_named_error() -> None:
    good = compressed([(f"w{number}", number) for number in range(100)])
    prefix = (800).to_bytes(8, "little")  # of the hashes and of the counts, before what is compressed
    at = good.index(prefix)
    for length in (1 << 62, 800 << 24, 799, 801, 0):
        with pytest.raises(CorruptDataError, match="state block"):
            decode_block(good[:at] + length.to_bytes(8, "little") + good[at + 8 :])


def test_a_real_shortage_of_memory_is_no_damage() -> None:
    program = """
import resource
import pyarrow as pa
from checkpoint.chains.state_blocks import block_schema, decode_block, encode_block, make_block
from checkpoint.key_hash import hash_keys

schema = block_schema(pa.schema([("k", pa.int64())]), pa.schema([("text", pa.string())]))
keys = pa.array(range(1_000), pa.int64())
(data,) = encode_block(make_block(schema, [keys], hash_keys([keys]), [pa.array(["x" * 4_000] * 1_000)]))
assert decode_block(data).num_rows == 1_000
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (used, hard))
try:
    decode_block(data, where="a block")
except Exception as error:
    found = error
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
print(type(found).__name__, found, type(found.__cause__).__name__, sep="|")
"""
    # Each large allocation is one of its own, so that none finds memory that was used before.
    malloc = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    env = {**os.environ, **malloc, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    kind, text, cause = done.stdout.strip().split("|")
    assert (kind, cause) == ("MemoryError", "ArrowMemoryError"), done.stderr
    assert text.startswith("a block: too little memory to decode it: ")


@pytest.mark.parametrize("encode", [lambda rows: encode_block(words_block(rows))[0], compressed])
@given(st.data())
def test_damage_is_a_named_error_or_no_damage(encode, data) -> None:
    good = encode([("a", 1), ("the", 2), ("", None)])
    kind = data.draw(st.sampled_from(["checkpoint", "flip"]))
    if kind == "checkpoint":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        at = data.draw(st.integers(0, len(good) - 1))
        bad = good[:at] + bytes([good[at] ^ (1 << data.draw(st.integers(0, 7)))]) + good[at + 1 :]
    try:
        block = decode_block(bad)
    except CorruptDataError:
        return
    assert block.num_columns == 4  # the journal's checksum is what finds a flipped value


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch([pa.array([1])], names=["a"]),
        words_block([("a", 1)]).replace_schema_metadata({b"dos.block": b"2", b"dos.keys": b"1"}),
        words_block([("a", 1)]).replace_schema_metadata({b"dos.block": b"1", b"dos.keys": b"3"}),
        words_block([("a", 1), ("b", 1), ("c", 2)]).take(pa.array([2, 1, 0])),
    ],
)
def test_what_is_no_block_is_refused(batch) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(CorruptDataError):
        decode_block(sink.getvalue().to_pybytes())


def test_reserved_and_double_names_and_odd_key_types_are_refused() -> None:
    with pytest.raises(ValueError, match="_hash and _deleted are reserved"):
        block_schema(pa.schema([("_hash", pa.int64())]), pa.schema([]))
    with pytest.raises(ValueError, match="must differ"):
        block_schema(pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int64())]))
    with pytest.raises(UnsupportedKeyTypeError):
        block_schema(pa.schema([("a", pa.list_(pa.int64()))]), pa.schema([]))


def test_many_keys_of_one_hash_are_folded_without_a_loop_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of one key, and rows that wait for one key, carry the hash of the exchange."""

    def compared_one_by_one(*_: object) -> None:
        raise AssertionError("rows were looked at one by one")

    monkeypatch.setattr(state_blocks, "_mark_last_by_key", compared_one_by_one)
    schema = block_schema(pa.schema([("row", pa.int64())]), pa.schema([("n", pa.int64())]))
    hashes = np.full(5, 7, np.uint64)
    numbers = pa.array(range(5), pa.int64())
    old = make_block(schema, [numbers], hashes, [pa.array([0] * 5, pa.int64())])
    new = make_block(
        schema,
        [numbers.slice(2)],
        hashes[2:],
        [pa.array([1] * 3, pa.int64())],
        np.array([False, False, True]),
    )
    rows = {row["row"]: row["n"] for row in newest_rows([old, new]).to_pylist()}
    assert rows == {0: 0, 1: 0, 2: 1, 3: 1}


STRUCT = pa.struct([("x", pa.float64()), ("inner", pa.struct([("y", pa.int64())]))])
_struct_keys = st.none() | st.fixed_dictionaries(
    {
        "x": st.sampled_from([None, 0.0, math.nan, 1.5]),
        "inner": st.none() | st.fixed_dictionaries({"y": st.sampled_from([None, 1])}),
    }
)


def _of_struct(key: Any) -> str:
    return repr(pa.array([key], STRUCT)[0].as_py())


@given(blocks=st.lists(st.lists(_struct_keys, max_size=6, unique_by=_of_struct), min_size=1, max_size=4))
@pytest.mark.parametrize("colliding", [False, True])
def test_struct_keys_fold_as_the_values_they_are(blocks: list[list[Any]], colliding: bool) -> None:
    """With `colliding`, only the values tell the keys apart."""
    schema = block_schema(pa.schema([("k", STRUCT)]), pa.schema([("n", pa.int64())]))
    model: dict[str, int] = {}
    made = []
    for number, keys in enumerate(blocks):
        column = pa.array(keys, STRUCT)
        hashes = np.full(len(keys), 7, np.uint64) if colliding else hash_keys([column])
        made.append(make_block(schema, [column], hashes, [pa.array([number] * len(keys), pa.int64())]))
        model |= {repr(key): number for key in column.to_pylist()}
    found = newest_rows(made).to_pylist()
    assert len(found) == len(model)
    assert {repr(row["k"]): row["n"] for row in found} == model


KEYS, VALUES = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])


def block_of(keys: list[int], deleted: list[bool] | None = None) -> Any:
    column = pa.array(keys, pa.int64())
    gone = np.array(deleted or [False] * len(keys), np.bool_)
    return make_block(block_schema(KEYS, VALUES), [column], hash_keys([column]), [column], gone)


def test_a_state_needs_keys_and_says_its_version_from_the_second_on() -> None:
    with pytest.raises(ValueError, match="column names of a state"):
        block_schema(pa.schema([]), VALUES)
    with pytest.raises(ValueError, match="column names of a state"):
        block_schema(KEYS, KEYS)
    first, second = block_schema(KEYS, VALUES), block_schema(KEYS, VALUES, state_version=2)
    assert (state_version_of(first), state_version_of(second)) == (1, 2)
    assert b"dos.state" not in first.metadata, "blocks of version 1 are as they always were"
    assert second.metadata[b"dos.state"] == b"2"


@pytest.mark.parametrize("keep", [False, True])
def test_a_deleted_key_is_kept_if_that_is_asked_for(keep: bool) -> None:
    found = newest_rows([block_of([1, 2, 3]), block_of([2], [True])], keep_deleted=keep)
    assert sorted(found.column("k").to_pylist()) == ([1, 2, 3] if keep else [1, 3])


@given(st.lists(st.integers(-5, 5), unique=True, min_size=1), st.data())
def test_a_range_of_hashes_has_its_beginning_and_not_its_end(keys: list[int], data: st.DataObject) -> None:
    block = newest_rows([block_of(keys)], keep_deleted=True)
    hashes = block.column(HASH_COLUMN).to_pylist()
    bound = st.sampled_from([0, 1 << 64, *hashes])
    begin, end = sorted((data.draw(bound), data.draw(bound)))
    begin = min(begin, (1 << 64) - 1)
    found = hash_range(block, begin, end).column(HASH_COLUMN).to_pylist()
    assert found == [one for one in hashes if begin <= one < end]


def test_a_block_above_the_limit_is_halved_and_not_one_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "state_block_rows_max", 4)
    sizes = [
        [decode_block(part).num_rows for part in encode_block(block_of(list(range(rows))))]
        for rows in range(10)
    ]
    assert sizes == [[], [1], [2], [3], [4], [2, 3], [3, 3], [3, 4], [4, 4], [4, 2, 3]]
