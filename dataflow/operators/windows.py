"""Aggregates over tumbling and sliding time windows: replication-transparency, algorithm 3.

This file feeds rows into windows and emits results. The aggregates are defined in
`dataflow.operators.aggregates`; `operators/window_assignment.py` defines which windows contain a row
and when they are over.

The windows of a row depend only on its time, and a window is emitted once a punctuation excludes further
rows. The output therefore does not depend on the order of arrival.

A row is late if all of its windows are over. It goes to the side output; results that were emitted do not
change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

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
from dataflow.operators.window_assignment import START, STOP, Sliding, Tumbling, Window, WindowKeys


@dataclass(frozen=True, slots=True)
class WindowSpec(TimedSpec):
    """Aggregates by key and window."""

    kind: ClassVar[OperatorKind] = OperatorKind.WINDOW
    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.window, (Tumbling, Sliding)):
            raise SchemaError(f"a window must be Tumbling(...) or Sliding(...), not {self.window!r}")
        check_are_aggregates(dict(self.aggregates))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        columns, named = inputs[0], dict(self.aggregates)
        check_time_column(self.window.time, columns)
        bounds = self.bounds(columns)
        if START in self.keys or STOP in self.keys:
            raise SchemaError(
                f"key columns may not have the names of result columns, {START!r} and {STOP!r}; rename"
                " them with a map before key_by"
            )
        check_aggregates(named, (*self.keys, *(field.name for field in bounds)), columns)
        keys = [columns.field(name) for name in self.keys]
        schema = pa.schema([*keys, *bounds, *result_fields(named, columns)])
        try:
            WindowKeys(self.keys, self.window, columns, open_all(named, columns))
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return schema

    def bounds(self, columns: pa.Schema) -> list[pa.Field]:
        """Return the columns that hold the bounds of the window, in the time zone of the time column."""
        kind = pa.timestamp("us", columns.field(self.window.time).type.tz)
        return [pa.field(START, kind), pa.field(STOP, kind)]

    def detail(self) -> str:
        results = ", ".join(f"{name} {aggregate}" for name, aggregate in self.aggregates)
        return f"key ({', '.join(self.keys)}) window ({self.window}) results ({results})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        del inputs
        ordered = [name for name, aggregate in self.aggregates if not aggregate.order_independent]
        if not ordered:
            return None
        return ReplicaProblem(
            f"has the result {ordered[0]!r}, whose aggregate may depend on the order of the rows",
            "use another aggregate; or set order_independent = True in its class, if it does not",
        )

    def open(self, context: OperatorContext) -> "WindowOperator":
        assert context.output is not None
        return WindowOperator(self, context.inputs[0], context.output)


class WindowOperator(TimedOperator):
    """Computes the aggregates. State: intermediate results by key and window, and the watermark."""

    def __init__(self, spec: WindowSpec, columns: pa.Schema, output: pa.Schema) -> None:
        super().__init__(columns)
        self._time_name = spec.window.time
        self._output = output
        self._aggregated_columns = [aggregate.column for _, aggregate in spec.aggregates]
        self._accumulators = open_all(dict(spec.aggregates), columns)
        self._keys = WindowKeys(spec.keys, spec.window, columns, self._accumulators)

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        times = times_of(batch.column(self._time_name), self._time_name)
        self.check_times(times)
        in_open_window = np.zeros(len(times), np.bool_)
        for rows, starts in self._keys.open_for(times, self.watermark()):
            in_open_window[rows] = True
            part = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
            slots = self._keys.find_or_add(part, starts)
            for column, accumulator in zip(self._aggregated_columns, self._accumulators, strict=True):
                accumulator.update(slots, None if column is None else part.column(column))
        if not in_open_window.all():
            self.put_late(batch, np.flatnonzero(~in_open_window), times)
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        self._keys.table.take_touched()
        return ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        slots = self._keys.in_order(self._keys.take_closed(self.watermark(index)))
        if not len(slots):
            return ()
        stops = pa.array(self._keys.starts(slots) + self._keys.size).cast(self._keys.start_type)
        results = [accumulator.results(slots) for accumulator in self._accumulators]
        columns = [*self._keys.table.keys(slots), stops, *results]
        made = pa.RecordBatch.from_arrays(columns, schema=self._output)
        self._keys.table.remove(slots)
        return [made]

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._keys}

    def counters(self) -> dict[str, int]:
        held = sum(accumulator.bytes_held for accumulator in self._accumulators)
        return {
            "windows": len(self._keys.table),
            "late_rows": self.late_rows,
            "state_bytes": self._keys.table.bytes_held + held,
        }
