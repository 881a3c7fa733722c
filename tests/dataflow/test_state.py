"""The index of keys and the count on it, against a dict and a Counter."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import decode_block, encode_block
from checkpoint.key_hash import hash_keys
from dataflow.errors import SchemaError
from dataflow.operators.aggregates import CountOperator
from dataflow.operators.base import WEIGHT_COLUMN
from dataflow.state.key_index import KeyIndex, is_key_type, key_column

_strings = st.text(max_size=12)
_keys = {
    pa.string(): _strings,
    pa.binary(): st.binary(max_size=9),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(12, 2): st.decimals(-1000, 1000, places=2),
}


@given(st.data(), st.sampled_from(list(_keys)), st.booleans())
def test_the_index_gives_each_key_one_slot_for_ever(
    data: st.DataObject, kind: pa.DataType, colliding: bool
) -> None:
    """Null is a key. With `colliding`, all keys fall on two hashes: then only the keys tell them apart."""
    index = KeyIndex([kind])
    slots_of: dict[object, int] = {}
    for _ in range(data.draw(st.integers(1, 4))):
        values = data.draw(st.lists(st.none() | _keys[kind], max_size=30))
        column = pa.array([*values, *values[:3]], kind).slice(0, len(values))
        hashes = hash_keys([column]) & np.uint64(1) if colliding else hash_keys([column])
        slots = index.find_or_add([column], hashes)
        for value, slot in zip(column.to_pylist(), slots.tolist(), strict=True):
            assert slots_of.setdefault(value, slot) == slot
        assert index.keys(slots)[0].equals(column)
        assert (index.hashes(slots) == hashes).all()
    assert sorted(slots_of.values()) == list(range(len(index)))


@given(st.lists(st.tuples(st.sampled_from(["a", "", None]), st.none() | st.integers(0, 3)), max_size=60))
def test_keys_of_several_columns_are_distinguished_by_all_of_them(
    rows: list[tuple[str | None, int | None]],
) -> None:
    index = KeyIndex([pa.string(), pa.int64()])
    words = pa.array([row[0] for row in rows], pa.string())
    columns = [words, pa.array([row[1] for row in rows], pa.int64())]
    if rows:
        slots = index.find_or_add(columns, hash_keys(columns))
        assert len(index) == len(set(rows))
        assert [*zip(*(column.to_pylist() for column in index.keys(slots)), strict=True)] == rows


def test_an_index_grows_over_many_batches_and_finds_everything_again() -> None:
    index = KeyIndex([pa.string()])
    starts = range(0, 50_000, 5_000)
    batches = [pa.array([f"key {i}" for i in range(start, start + 7_000)]) for start in starts]
    first = [index.find_or_add([batch], hash_keys([batch])) for batch in batches]
    assert len(index) == 52_000
    for batch, slots in zip(batches, first, strict=True):
        assert (index.find_or_add([batch], hash_keys([batch])) == slots).all()


def test_types_that_cannot_be_keys_are_refused() -> None:
    assert not is_key_type(pa.float64())
    with pytest.raises(SchemaError, match="cannot be a key"):
        key_column(pa.list_(pa.int64()))


OUTPUT = pa.schema([("word", pa.string()), ("count", pa.int64())])


def keyed(words: list[str], weights: list[int] | None = None) -> pa.RecordBatch:
    column = pa.array(words, pa.string())
    batch = pa.record_batch({"word": column, "_hash": pa.array(hash_keys([column]), pa.uint64())})
    return batch if weights is None else batch.append_column(WEIGHT_COLUMN, pa.array(weights, pa.int64()))


_steps = st.lists(
    st.lists(st.lists(st.tuples(st.sampled_from(["a", "b", "c", "dd", ""]), st.integers(1, 5)), max_size=8)),
    max_size=6,
)


@given(_steps, st.sets(st.integers(0, 5)))
def test_a_count_is_a_counter_that_reports_what_changed(
    steps: list[list[list[tuple[str, int]]]], checkpoints: set[int]
) -> None:
    """Weighted batches, several a step. A twin restored from the checkpoints of some steps must agree."""
    model: Counter[str] = Counter()
    changed: set[str] = set()
    operator = CountOperator(["word"], OUTPUT)
    blocks: list[bytes] = []
    for number, step in enumerate(steps):
        order: list[str] = []
        for batch in step:
            for word, weight in batch:
                model[word] += weight
                order += [] if word in order else [word]
            operator.process(keyed([word for word, _ in batch], [weight for _, weight in batch]))
        made = [row for out in operator.end_step() for row in out.to_pylist()]
        assert made == [{"word": word, "count": model[word]} for word in order]
        assert operator.counters()["keys"] == sum(1 for count in model.values() if count)
        changed |= set(order)
        if number in checkpoints:
            block = operator.tables()[""].checkpoint()
            assert set(block.column("word").to_pylist()) == changed
            changed.clear()
            blocks += encode_block(block)
            twin = CountOperator(["word"], OUTPUT)
            for data in blocks:
                twin.tables()[""].restore(decode_block(data))
            whole = {row["word"]: row["count"] for row in twin.tables()[""].snapshot().to_pylist()}
            assert whole == {word: count for word, count in model.items() if count}
            assert twin.tables()[""].checkpoint().num_rows == 0, "what was restored has not changed"
            operator = twin
    rows = operator.tables()[""].snapshot()
    assert (np.diff(rows.column("_hash").to_numpy().astype(object)) >= 0).all()


def test_rows_without_a_weight_count_once_each() -> None:
    operator = CountOperator(["word"], OUTPUT)
    operator.process(keyed(["a", "b", "a", "a"]))
    assert [out.to_pylist() for out in operator.end_step()] == [
        [{"word": "a", "count": 3}, {"word": "b", "count": 1}]
    ]
