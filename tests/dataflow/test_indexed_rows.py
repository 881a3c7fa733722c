"""Rows that wait for partners: against a dict that is searched whole, through checkpoints and merges."""

from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import newest_rows
from dataflow import limits
from dataflow.state.indexed_rows import IndexedRows
from dataflow.state.row_table import Rows

COLUMNS = pa.schema([("key", pa.string()), ("n", pa.int32()), ("tags", pa.list_(pa.int64()))])
HASHES = {"a": 1, "b": 1, "c": 2**63, "": 7}
"""Two keys have one hash."""

Given = list[tuple[str, int]]
"""Keys and times."""

_rows = st.lists(st.tuples(st.sampled_from([*HASHES]), st.integers(0, 20)), min_size=1, max_size=6)
_actions = st.lists(
    st.tuples(st.just("add"), _rows)
    | st.tuples(st.just("find"), _rows, st.integers(1, 9))
    | st.tuples(st.just("leave"), st.integers(0, 20))
    | st.tuples(st.sampled_from(["checkpoint", "snapshot", "restore"])),
    max_size=25,
)


def numbered(table: IndexedRows, rows: Given) -> Rows:
    batch = pa.RecordBatch.from_pylist(
        [{"key": key, "n": time, "tags": [time]} for key, time in rows], COLUMNS
    )
    hashes = np.array([HASHES[key] for key, _ in rows], np.uint64)
    return table.numbered(batch, np.array([time for _, time in rows]), hashes)


def pairs(table: IndexedRows, rows: Given, within: int) -> list[tuple[str, int, int]]:
    """Key, time and number of partner of all pairs that the table finds."""
    wanted = numbered(IndexedRows(COLUMNS, ["key"]), rows)
    found = []
    for at, partners in table.near(wanted, table.key_columns(wanted.batch), within):
        assert partners.batch.column("n").to_pylist() == partners.times.tolist()
        assert partners.batch.column("key").to_pylist() == [rows[position][0] for position in at]
        found += [(*rows[position], number) for position, number in zip(at, partners.numbers, strict=True)]
    return sorted(found)


def content(table: IndexedRows) -> list[tuple[int, int, str]]:
    rows = table.all()
    keys = rows.batch.column("key").to_pylist()
    return sorted(zip(rows.numbers.tolist(), rows.times.tolist(), keys, strict=True))


def restored(blocks: list[Any]) -> IndexedRows:
    table = IndexedRows(COLUMNS, ["key"])
    for block in blocks:
        table.restore(block)
    return table


@given(actions=_actions, rows_max=st.sampled_from([4, 1000]), bytes_max=st.sampled_from([150, 1 << 20]))
def test_rows_are_found_by_key_and_time_as_in_a_dict_that_is_searched_whole(
    actions: list[Any], rows_max: int, bytes_max: int
) -> None:
    with mock.patch.multiple(limits, run_rows_max=rows_max, run_bytes_max=bytes_max, runs_alike_max=2):
        table = IndexedRows(COLUMNS, ["key"])
        model: dict[int, tuple[str, int]] = {}
        blocks: list[Any] = []
        left = -1
        for name, *arguments in actions:
            if name == "add":
                rows = numbered(table, arguments[0])
                table.insert(rows)
                model |= dict(zip(rows.numbers.tolist(), arguments[0], strict=True))
            elif name == "find":
                wanted, within = arguments
                assert pairs(table, wanted, within) == sorted(
                    (key, time, number)
                    for key, time in wanted
                    for number, (other, at) in model.items()
                    if key == other and abs(time - at) < within
                )
            elif name == "leave":
                left = max(left, arguments[0])
                table.leave(left)
            elif name == "checkpoint":
                blocks.append(table.checkpoint())
                assert content(restored(blocks)) == content(restored([newest_rows(blocks)])) == content(table)
            elif name == "snapshot":
                assert content(restored([table.snapshot()])) == content(table)
                assert content(restored([*table.snapshot_pieces()])) == content(table)
            else:  # as after a crash: all of the last checkpoint, and of it all can be found
                blocks.append(table.checkpoint())
                table, left = restored(blocks), -1
            model = {number: row for number, row in model.items() if row[1] > left}
            assert len(table) == len(model)
        assert content(table) == sorted((number, time, key) for number, (key, time) in model.items())


def test_a_row_that_has_left_is_not_found_although_its_run_is_not_rewritten_yet() -> None:
    table = IndexedRows(COLUMNS, ["key"])
    table.insert(numbered(table, [("a", time) for time in range(8)]))
    held = table.bytes_held
    table.leave(1)
    assert table.bytes_held == held
    assert pairs(table, [("a", 1)], 2) == [("a", 1, 2)]
    assert len(table) == 6
    table.leave(2)
    assert table.bytes_held < held, "more than a quarter has left"


def test_rows_that_stay_long_are_in_few_runs_and_those_that_left_take_little_memory() -> None:
    table = IndexedRows(COLUMNS, ["key"])
    for step in range(300):  # one row of each step is far ahead of the others
        table.insert(numbered(table, [*[("a", step + n) for n in range(9)], ("c", 1_000)]))
        table.leave(step)
    wanted = numbered(table, [("c", 1_000)])
    runs = [len(rows) for _, rows in table.near(wanted, table.key_columns(wanted.batch), 1)]
    assert sum(runs) == 300
    assert len(runs) <= 10
    held = table.bytes_held
    assert len(table.all()) == 300 + 36  # and those above 299
    assert held < 2 * table.bytes_held
