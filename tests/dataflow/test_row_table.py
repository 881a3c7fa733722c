"""Rows that wait: against a dict, through blocks."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.chains.state_blocks import newest_rows
from checkpoint.errors import RecordTooLargeError
from dataflow import limits
from dataflow.state.row_table import RowTable, in_order

COLUMNS = pa.schema([("name", pa.string()), ("tags", pa.list_(pa.int64()))])

_actions = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc")), min_size=1, max_size=5)
    | st.integers(0, 9)
    | st.sampled_from(["checkpoint", "odd"]),
    max_size=20,
)


def content(table: RowTable) -> list[tuple[int, int, str]]:
    rows = table.all()
    names = rows.batch.column("name").to_pylist()
    return sorted(zip(rows.numbers.tolist(), rows.times.tolist(), names, strict=True))


def loaded(blocks: list[Any]) -> RowTable:
    table = RowTable(COLUMNS)
    for block in blocks:
        table.restore(block)
    return table


@given(actions=_actions)
def test_a_table_is_a_dict_and_so_is_what_returns_from_its_blocks(actions: list[Any]) -> None:
    table = RowTable(COLUMNS)
    model: dict[int, tuple[int, str]] = {}
    blocks: list[Any] = []
    count = 0
    for action in actions:
        if isinstance(action, list):
            batch = pa.RecordBatch.from_pylist([{"name": name, "tags": [1]} for _, name in action], COLUMNS)
            table.add(batch, np.array([time for time, _ in action]))
            for time, name in action:
                model[count] = (time, name)
                count += 1
        elif isinstance(action, int):
            taken = table.take(action)
            expected = {number for number, (time, _) in model.items() if time <= action}
            assert set(taken.numbers.tolist()) == expected
            model = {number: row for number, row in model.items() if number not in expected}
        elif action == "odd":
            model = {number: row for number, row in model.items() if number % 2}
            table.keep_only(np.array(list(model), np.int64))
        else:
            blocks.append(table.checkpoint())
            assert content(loaded(blocks)) == content(table)
            assert content(loaded([table.snapshot()])) == content(table)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(limits, "snapshot_piece_rows", 2)
                pieces = list(table.snapshot_pieces())
            assert [piece.num_rows for piece in pieces[:-1]] == [2] * (len(pieces) - 1)
            assert content(loaded(pieces)) == content(table)
            assert content(loaded([newest_rows(blocks)])) == content(table)
        assert content(table) == sorted((number, *row) for number, row in model.items())
        assert len(table) == len(model)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_zeros_of_one_time_are_ordered_by_their_sign_and_not_by_their_arrival(kind: pa.DataType) -> None:
    values = [1.0, 0.0, -0.0, None, float("nan"), -0.0, -1.0]
    orders = []
    for arrived in (values, values[::-1]):
        batch = pa.RecordBatch.from_arrays([pa.array(arrived, kind)], names=["x"])
        order = in_order(batch, np.zeros(len(arrived), np.int64))
        orders.append([repr(arrived[index]) for index in order])
    assert orders[0] == orders[1] == ["-1.0", "-0.0", "-0.0", "0.0", "1.0", "nan", "None"]


def test_rows_whose_text_is_above_2_gib_are_refused_and_no_row_is_left_out() -> None:
    """No memory is touched: both texts are the same bytes, which are zeros."""
    half = (1 << 30) + 1
    text = pa.Array.from_buffers(
        pa.string(),
        1,
        [None, pa.py_buffer(np.array([0, half], np.int32)), pa.py_buffer(np.zeros(half, "u1"))],
    )
    table = RowTable(pa.schema([("text", pa.string())]))
    for time in (1, 2):
        table.add(pa.record_batch([text], names=["text"]), np.array([time]))
    assert len(table) == 2
    with pytest.raises(RecordTooLargeError, match=r"2 rows .* at most 2 GiB") as refused:
        table.all()
    assert "more workers" in refused.value.remedy
