"""State per key: against a dict, through blocks, with keys that come and go."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import DELETED_COLUMN, decode_block, newest_rows
from checkpoint.key_hash import hash_keys
from dataflow import CallSink, Count, CountWindow, Graph, InputSource, KeyedStream, Stream, Tumbling, limits
from dataflow.state import keyed_table
from dataflow.state.accumulators import CountAccumulator
from dataflow.state.base import Share
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
