"""Aggregates over count windows: replication-transparency, algorithm 4.

This file assigns rows to windows of a fixed number of rows of one key. The aggregates are defined in
`dataflow.operators.aggregates`.

Which rows form a window depends on their order. Rows therefore wait until a punctuation passes them, and are
counted in an order that depends only on their contents (lines 1 to 6, as in `sort.py`). Row number n of its
key, from 0, is in the windows k with k * slide <= n < k * slide + size. A window is emitted when its last row
is counted (lines 7 to 15). A window that is not full when all sources have ended is not emitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.aggregates import (
    Aggregate,
    check_aggregates,
    check_are_aggregates,
    open_all,
    result_fields,
)
from dataflow.operators.base import OperatorContext, ReplicaProblem, StateTable
from dataflow.operators.event_time import check_time_column, times_of
from dataflow.operators.late import TimedOperator, TimedSpec
from dataflow.state.accumulators import CountAccumulator
from dataflow.state.columns import Slots, position_in_run
from dataflow.state.keyed_table import KeyedTable
from dataflow.state.row_table import Rows, RowTable, check_order, check_stored, in_order
from dataflow.worker.partitioning import hashes_of

NUMBER: Final = "window_number"
_windows_per_row_max: Final = 1000


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Windows of `size` rows of one key in the order of the timestamp column `time`. A new window starts
    every `slide` rows, by default every `size` rows.

        CountWindow("at", 100, slide=10)
    """

    time: str
    size: int
    slide: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.step <= self.size:
            raise SchemaError(
                f"a count window needs size >= 1 and 1 <= slide <= size, got {self.size} and {self.slide}"
            )
        if self.size > _windows_per_row_max * self.step:
            raise SchemaError(f"a row may be in at most {_windows_per_row_max} windows; use a larger slide")

    @property
    def step(self) -> int:
        """Number of rows between the starts of successive windows."""
        return self.size if self.slide is None else self.slide

    def __str__(self) -> str:
        return f"count {self.time} {self.size} every {self.step}"


@dataclass(frozen=True, slots=True)
class CountWindowSpec(TimedSpec):
    """Aggregates by key and window."""

    kind: ClassVar[OperatorKind] = OperatorKind.COUNT_WINDOW
    stores_rows: ClassVar[bool] = True
    keys: tuple[str, ...]
    window: CountWindow
    aggregates: tuple[tuple[str, Aggregate], ...]

    def __post_init__(self) -> None:
        check_are_aggregates(dict(self.aggregates))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        columns, named = inputs[0], dict(self.aggregates)
        check_time_column(self.window.time, columns)
        check_order(columns)
        check_stored(columns)
        if NUMBER in self.keys:
            raise SchemaError(f"a key column is named {NUMBER!r} like one of the result; rename it")
        check_aggregates(named, (*self.keys, NUMBER), columns)
        fields = [*(columns.field(name) for name in self.keys), pa.field(NUMBER, pa.int64())]
        schema = pa.schema([*fields, *result_fields(named, columns)])
        try:
            KeyedTable(pa.schema(fields), open_all(named, columns))
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return schema

    def detail(self) -> str:
        results = ", ".join(f"{name} {aggregate}" for name, aggregate in self.aggregates)
        return f"key ({', '.join(self.keys)}) window ({self.window}) results ({results})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "emits results that have no time",
            "use a window of time, Tumbling or Sliding, whose rows have the time window_end",
        )

    def open(self, context: OperatorContext) -> "CountWindowOperator":
        assert context.output is not None
        return CountWindowOperator(self, context.inputs[0], context.output)


class CountWindowOperator(TimedOperator):
    """State: the waiting rows, the number of counted rows per key, and the windows that are not full."""

    def __init__(self, spec: CountWindowSpec, columns: pa.Schema, output: pa.Schema) -> None:
        super().__init__(columns)
        self._spec = spec
        self._output = output
        keys = [columns.field(name) for name in spec.keys]
        self._rows = RowTable(columns)
        self._counts = CountAccumulator("count")
        self._counted = KeyedTable(pa.schema(keys), [self._counts])
        self._accumulators = open_all(dict(spec.aggregates), columns)
        self._windows = KeyedTable(
            pa.schema([*keys, (NUMBER, pa.int64())]),
            self._accumulators,
            salt_of=lambda block: block.column(NUMBER).to_numpy(),
        )

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        name = self._spec.window.time
        batch, times = self.in_time(batch, times_of(batch.column(name), name))
        self._rows.add(batch, times, hashes_of(batch))
        return ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        rows = self._rows.take(self.watermark(index))
        if not len(rows):
            return ()
        rows = rows.take(in_order(rows.batch, rows.times))
        self._count(rows)
        full = self._full()
        if not len(full):
            return ()
        results = [accumulator.results(full) for accumulator in self._accumulators]
        made = pa.RecordBatch.from_arrays([*self._windows.keys(full), *results], schema=self._output)
        self._windows.remove(full)
        return [made]

    def _count(self, rows: Rows) -> None:
        window = self._spec.window
        keys = [rows.batch.column(name) for name in self._spec.keys]
        slots = self._counted.find_or_add(keys, rows.hashes)
        numbers = self._counts.results(slots).to_numpy() + _position_in_group(slots)
        self._counts.update(slots, None)
        for back in range(-(-window.size // window.step)):
            windows = numbers // window.step - back
            inside = np.flatnonzero((windows >= 0) & (numbers < windows * window.step + window.size))
            if len(inside):
                self._update(rows.take(inside), windows[inside])

    def _update(self, rows: Rows, windows: Slots) -> None:
        keys = [rows.batch.column(name) for name in self._spec.keys]
        slots = self._windows.find_or_add([*keys, pa.array(windows)], rows.hashes, windows)
        for (_, aggregate), accumulator in zip(self._spec.aggregates, self._accumulators, strict=True):
            column = None if aggregate.column is None else rows.batch.column(aggregate.column)
            accumulator.update(slots, column)

    def _full(self) -> Slots:
        """Return the windows whose last row was counted, in the order of the first row that this call added
        to them.
        """
        touched = self._windows.take_touched()
        *keys, numbers = self._windows.keys(touched)
        slots = self._counted.find_or_add(keys, self._windows.hashes(touched))
        self._counted.take_touched()
        ends = numbers.to_numpy() * self._spec.window.step + self._spec.window.size
        return np.asarray(touched[self._counts.results(slots).to_numpy() >= ends])

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._windows, "~counts": self._counted, "~rows": self._rows}

    def counters(self) -> dict[str, int]:
        held = sum(accumulator.bytes_held for accumulator in self._accumulators)
        return {
            "keys": len(self._counted),
            "rows": len(self._rows),
            "windows": len(self._windows),
            "late_rows": self.late_rows,
            "state_bytes": self._rows.bytes_held + self._counted.bytes_held + self._windows.bytes_held + held,
        }


def _position_in_group(groups: Slots) -> Slots:
    """Return for each row the number of preceding rows of its group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    positions = np.empty(len(groups), np.int64)
    positions[order] = position_in_run(np.r_[True, ordered[1:] != ordered[:-1]])
    return positions
