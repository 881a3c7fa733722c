"""State per key: against a dict, through blocks, with keys that come and go."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import DELETED_COLUMN, decode_block, encode_block, newest_rows
from checkpoint.key_hash import hash_keys
from dataflow import CallSink, Count, CountWindow, Graph, InputSource, KeyedStream, Stream, Tumbling, limits
from dataflow.errors import SchemaError
from dataflow.operators.aggregates import CountOperator
from dataflow.operators.base import WEIGHT_COLUMN
from dataflow.state import key_index, keyed_table
from dataflow.state.accumulators import CountAccumulator
from dataflow.state.base import Share
from dataflow.state.key_index import KeyIndex, is_key_type, key_column
from dataflow.state.keyed_table import KeyedTable
from dataflow.testing import Trial

KEYS = pa.schema([("key", pa.string()), ("window", pa.int64())])


def made() -> tuple[KeyedTable, CountAccumulator]:
    counts = CountAccumulator("count")
    return KeyedTable(KEYS, [counts], salt_of=lambda block: block.column("window").to_numpy()), counts


def put(table: KeyedTable, counts: CountAccumulator, rows: list[tuple[str, int]]) -> None:
    keys = pa.array([key for key, _ in rows], pa.string())
    windows = pa.array([window for _, window in rows], pa.int64())
    slots = table.find_or_add([keys, windows], hash_keys([keys]), windows.to_numpy())
    counts.update(slots, None)


def drop(table: KeyedTable, window: int) -> None:
    slots = table.live()
    slots = slots[table.keys(slots)[1].to_numpy() <= window]
    table.remove(slots)


def content(table: KeyedTable, counts: CountAccumulator) -> dict[tuple[str, int], int]:
    slots = table.live()
    keys, windows = table.keys(slots)
    found = zip(keys.to_pylist(), windows.to_pylist(), counts.results(slots).to_pylist(), strict=True)
    return {(key, window): count for key, window, count in found}


def loaded(blocks: list[Any]) -> tuple[KeyedTable, CountAccumulator]:
    table, counts = made()
    for block in blocks:
        table.restore(block)
    return table, counts


_row = st.tuples(st.sampled_from("abcd"), st.integers(0, 5))
_actions = st.lists(
    st.lists(_row, min_size=1, max_size=6) | st.integers(0, 5) | st.sampled_from(["checkpoint", "touched"]),
    max_size=25,
)


@given(actions=_actions, few=st.booleans())
def test_a_table_is_a_dict_and_so_is_what_returns_from_its_blocks(actions: list[Any], few: bool) -> None:
    before, rows_before = keyed_table._dead_min, limits.snapshot_piece_rows
    keyed_table._dead_min = 1 if few else before
    limits.snapshot_piece_rows = 2 if few else rows_before
    try:
        table, counts = made()
        model: dict[tuple[str, int], int] = {}
        blocks = []
        for action in actions:
            if isinstance(action, list):
                put(table, counts, action)
                for row in action:
                    model[row] = model.get(row, 0) + 1
            elif isinstance(action, int):
                table.take_touched()
                drop(table, action)
                model = {row: count for row, count in model.items() if row[1] > action}
            elif action == "checkpoint":
                blocks.append(table.checkpoint())
                assert content(*loaded(blocks)) == model
                assert content(*loaded([table.snapshot()])) == model
                assert content(*loaded(list(table.snapshot_pieces()))) == model
                assert content(*loaded([newest_rows(blocks)])) == model
            else:
                table.take_touched()
            assert content(table, counts) == model
            assert len(table) == len(model)
    finally:
        keyed_table._dead_min, limits.snapshot_piece_rows = before, rows_before


def test_keys_that_came_and_went_between_two_checkpoints_leave_no_trace() -> None:
    table, counts = made()
    put(table, counts, [("a", 1), ("b", 2)])
    table.take_touched()
    drop(table, 1)
    assert table.checkpoint().column("key").to_pylist() == ["b"]
    drop(table, 2)
    put(table, counts, [("a", 1)])
    table.take_touched()
    drop(table, 1)
    block = table.checkpoint()
    assert block.column("key").to_pylist() == ["b"]
    assert block.column(DELETED_COLUMN).to_pylist() == [True]


def test_the_memory_of_keys_that_come_and_go_does_not_grow() -> None:
    table, counts = made()
    for window in range(200):
        put(table, counts, [(f"k{n}", window) for n in range(1000)])
        table.take_touched()
        drop(table, window - 1)
    assert len(table) == 1000
    assert len(table._index) <= 20_000


def test_keys_that_move_to_another_worker_leave_the_index_with_the_next_checkpoint() -> None:
    table, counts = made()
    put(table, counts, [(f"key {number}", 0) for number in range(20_000)])
    table.checkpoint()
    table.take_touched()
    share = Share((), ((0, 4),), 4, stays=True, worker=0, workers=4)  # a quarter of the keys
    table.parts_restored(share)
    assert len(table._index) == 20_000, "their tombstones are not stored yet"
    table.checkpoint()
    assert len(table._index) == len(table.live()) == pytest.approx(5_000, rel=0.1)


def test_slots_of_a_step_come_in_the_order_in_which_they_first_came() -> None:
    table, counts = made()
    put(table, counts, [("b", 1), ("a", 1), ("b", 1)])
    put(table, counts, [("c", 1), ("a", 1)])
    touched = table.take_touched()
    assert table.keys(touched)[0].to_pylist() == ["b", "a", "c"]
    assert not len(table.take_touched())
    assert np.array_equal(table.hashes(touched), hash_keys([pa.array(["b", "a", "c"])]))


# --- operators that keep something by key -------------------------------------------------------------------

_hours = Tumbling("at", timedelta(hours=1))


@pytest.mark.parametrize(
    "add",
    [
        lambda keyed: keyed.aggregate("own", n=Count()),
        lambda keyed: keyed.dedup("own"),
        lambda keyed: keyed.aggregate("own", _hours, n=Count()),
        lambda keyed: keyed.aggregate("own", CountWindow("at", 2), n=Count()),
        lambda keyed: keyed.dedup("own", _hours),
        lambda keyed: keyed.count("own"),
    ],
    ids=["aggregate", "dedup", "windows", "count windows", "dedup in windows", "count"],
)
def test_its_snapshot_comes_in_pieces_of_bounded_size(
    add: Callable[[KeyedStream], Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "snapshot_piece_rows", 2)
    graph = Graph("keys")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key string"))
    keyed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "key")
    add(keyed).sink("out", CallSink(print))
    trial, calm = Trial(graph), Trial(graph)
    for one in (trial, calm):
        one.step({"rows": [_named(n, n) for n in range(8)]}, checkpoint=True, snapshot=True)
    pieces = [decode_block(data).num_rows for name, data in trial._blocks[0] if name == "own"]
    assert sum(pieces) >= 7, "the last row may still wait for event time"
    assert max(pieces) == 2
    trial.crash()
    for one in (trial, calm):
        one.step({"rows": [_named(8 + n, n) for n in range(8)]}, end=True)
    assert trial.rows("out")
    assert sorted(map(repr, trial.rows("out"))) == sorted(map(repr, calm.rows("out")))


def _named(second: int, number: int) -> dict[str, Any]:
    return {"at": datetime(2026, 5, 1, 9, 0, second, tzinfo=UTC), "key": f"k{number}"}


# --- the index of keys and the count on it, against a dict and a Counter ------------------------------------


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
    assert not is_key_type(pa.struct([("a", pa.list_(pa.int64()))]))
    assert not is_key_type(pa.struct([]))
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
        made = [row for out in operator.end_batch() for row in out.to_pylist()]
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
    assert [out.to_pylist() for out in operator.end_batch()] == [
        [{"word": "a", "count": 3}, {"word": "b", "count": 1}]
    ]


def test_slots_that_many_rows_touch_are_noted_a_few_times_and_in_their_first_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_index, "_touched_rows_min", 8)
    touched = key_index.TouchedSlots()
    for first in (3, 1):
        for _ in range(100):
            touched.add(np.array([first, 2, 0]), 4)
            assert sum(map(len, touched._batches)) <= 11
    assert touched.take(4).tolist() == [3, 2, 0, 1]
    assert not touched
