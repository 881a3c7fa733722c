"""Aggregates with time windows, tumbling and sliding: replication-transparency, algorithm 3.

Rules of this file: rows to windows, and when a window is over. What is computed is `dataflow.aggregates`',
the state is a `KeyedTable` with the start of the window as one more key column.

Which windows a row belongs to follows from its time alone, and a window is given out once a punctuation says
that none of its rows can come any more: so the output does not depend on the order in which rows came. Times
are whole microseconds and a mark p promises times above p: a window [start, end) is over at p >= end - 1.

A row is late if all its windows are over. It goes to the side output; nothing that was given out is changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataflow.aggregates import Aggregate, check_aggregates, check_are_aggregates, open_all, result_fields
from dataflow.columns import Slots
from dataflow.core.event_time import END
from dataflow.core.plan import Kind
from dataflow.errors import SchemaError
from dataflow.exchange import hashes_of
from dataflow.keyed_table import KeyedTable
from dataflow.operators.base import OperatorContext, OperatorSpec, StateTable
from dataflow.operators.event_time import check_time_column, micros_of, times_of
from dataflow.operators.late import LATE, TimedOperator
from dataflow.state import Hashes

START: Final = "window_start"
STOP: Final = "window_end"
_windows_per_row_max: Final = 1000


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of `size`, one after the other, from 1970-01-01 00:00 UTC + `offset` on. `time` is a timestamp
    column.
    """

    time: str
    size: timedelta
    offset: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        _check(self.size, self.size, self.offset)

    def __str__(self) -> str:
        return f"tumbling {self.time} {self.size} + {self.offset}"


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of `size`, a new one every `slide`: each row is in size / slide of them."""

    time: str
    size: timedelta
    slide: timedelta
    offset: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        _check(self.size, self.slide, self.offset)

    def __str__(self) -> str:
        return f"sliding {self.time} {self.size} every {self.slide} + {self.offset}"


Window: TypeAlias = Tumbling | Sliding


def _check(size: timedelta, slide: timedelta, offset: timedelta) -> None:
    long, step = micros_of(size, "the size of a window"), micros_of(slide, "the slide of a window")
    micros_of(offset, "the offset of windows")
    if not 0 < step <= long:
        raise SchemaError(f"a window has a size above 0 and slides by at most that, not {size} and {slide}")
    if long > _windows_per_row_max * step:
        raise SchemaError(f"a row is in at most {_windows_per_row_max} windows; slide by more than {slide}")


@dataclass(frozen=True, slots=True)
class WindowSpec(OperatorSpec):
    """Aggregates by key and window."""

    kind: ClassVar[Kind] = Kind.WINDOW
    needs_time: ClassVar[bool] = True
    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.window, (Tumbling, Sliding)):
            raise SchemaError(f"a window is Tumbling(...) or Sliding(...), not {self.window!r}")
        check_are_aggregates(dict(self.aggregates))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        columns, named = inputs[0], dict(self.aggregates)
        check_time_column(self.window.time, columns)
        bounds = self.bounds(columns)
        if START in self.keys or STOP in self.keys:
            raise SchemaError(
                f"key columns are named like those of the result, {START!r} and {STOP!r}; rename them with a"
                " map before key_by"
            )
        check_aggregates(named, (*self.keys, *(field.name for field in bounds)), columns)
        keys = [columns.field(name) for name in self.keys]
        schema = pa.schema([*keys, *bounds, *result_fields(named, columns)])
        try:
            KeyedTable(pa.schema([*keys, bounds[0]]), open_all(named, columns))
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return schema

    def bounds(self, columns: pa.Schema) -> list[pa.Field]:
        """The columns that say which window a row is of, in the zone of the time column."""
        kind = pa.timestamp("us", columns.field(self.window.time).type.tz)
        return [pa.field(START, kind), pa.field(STOP, kind)]

    def sides(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {LATE: inputs[0]}

    def detail(self) -> str:
        results = ", ".join(f"{name} {aggregate}" for name, aggregate in self.aggregates)
        return f"key ({', '.join(self.keys)}) window ({self.window}) results ({results})"

    def open(self, context: OperatorContext) -> "WindowOperator":
        assert context.output is not None
        return WindowOperator(self, context.inputs[0], context.output)


class WindowOperator(TimedOperator):
    """State: the table of (key, window start), and how far time was here."""

    def __init__(self, spec: WindowSpec, columns: pa.Schema, output: pa.Schema) -> None:
        super().__init__(columns)
        window = spec.window
        self._spec = spec
        self._output = output
        self._start_type = output.field(START).type
        self._size = micros_of(window.size, "size")
        self._slide = micros_of(window.slide, "slide") if isinstance(window, Sliding) else self._size
        self._offset = micros_of(window.offset, "offset")
        self._accumulators = open_all(dict(spec.aggregates), columns)
        keys = [columns.field(name) for name in spec.keys]
        self._table = KeyedTable(pa.schema([*keys, output.field(START)]), self._accumulators)
        self._windows = _Windows(self)
        self._first_end = END
        """No window that is open ends before this."""

    # --- rows in --------------------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        times = times_of(batch.column(self._spec.window.time), self._spec.window.time)
        if not len(times):
            return ()
        newest = (times - self._offset) // self._slide * self._slide + self._offset
        placed = np.zeros(len(times), np.bool_)
        for back in range(-(-self._size // self._slide)):
            starts = newest - back * self._slide
            ends = starts + self._size
            rows = np.flatnonzero((times < ends) & (ends - 1 > self.mark()))
            if len(rows):
                placed[rows] = True
                self._update(batch, rows, starts[rows])
        if not placed.all():
            self.put_late(batch, np.flatnonzero(~placed))
        return ()

    def _update(self, batch: pa.RecordBatch, rows: Slots, starts: Slots) -> None:
        self._first_end = min(self._first_end, int(starts.min()) + self._size)
        if len(rows) < batch.num_rows:
            batch = batch.take(pa.array(rows))
        keys = [batch.column(name) for name in self._spec.keys]
        windows = pa.array(starts).cast(self._start_type)
        slots = self._table.find_or_add([*keys, windows], hashes_of(batch), self.number_of(starts))
        for (_, aggregate), accumulator in zip(self._spec.aggregates, self._accumulators, strict=True):
            accumulator.update(slots, None if aggregate.column is None else batch.column(aggregate.column))

    def number_of(self, starts: Slots) -> Slots:
        """Windows numbered one after the other."""
        return np.asarray(starts // self._slide)

    # --- windows out ----------------------------------------------------------------------------------------

    def end_step(self) -> Sequence[pa.RecordBatch]:
        self._table.take_touched()
        return ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        if self._first_end - 1 > self.mark(index):
            return ()
        slots = self._table.live()
        ends = self._starts(slots) + self._size
        over = ends - 1 <= self.mark(index)
        self._first_end = int(ends[~over].min(initial=END))
        slots = slots[over]
        if not len(slots):
            return ()
        made = self._results(slots)
        self._table.remove(slots)
        return [made]

    def _starts(self, slots: Slots) -> Slots:
        starts: Slots = self._table.keys(slots)[-1].cast(pa.int64()).to_numpy()
        return starts

    def _results(self, slots: Slots) -> pa.RecordBatch:
        """In the order of windows, then of keys: slots are other ones after a restore."""
        keys = self._table.keys(slots)
        order = _order(keys[-1], self._table.hashes(slots), keys[:-1])
        slots = slots[order]
        keys = [column.take(pa.array(order)) for column in keys]
        stops = pa.array(self._starts(slots) + self._size).cast(self._start_type)
        results = [accumulator.results(slots) for accumulator in self._accumulators]
        return pa.RecordBatch.from_arrays([*keys, stops, *results], schema=self._output)

    # --- state ----------------------------------------------------------------------------------------------

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._windows}

    def restored(self) -> None:
        """Blocks were loaded: any window may be the next to end."""
        self._first_end = min(self._first_end, -END)

    def reset(self) -> None:
        super().reset()
        self._table.reset()
        self._first_end = END

    @property
    def table(self) -> KeyedTable:
        """Its keys and windows."""
        return self._table

    def counters(self) -> dict[str, int]:
        held = sum(accumulator.bytes_held for accumulator in self._accumulators)
        return {
            "windows": len(self._table),
            "late_rows": self.late_rows,
            "state_bytes": self._table.bytes_held + held,
        }


class _Windows:
    """The table of a `WindowOperator`, as its blocks."""

    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator

    def checkpoint(self) -> pa.RecordBatch:
        return self._operator.table.checkpoint()

    def snapshot(self) -> pa.RecordBatch:
        return self._operator.table.snapshot()

    def restore(self, block: pa.RecordBatch) -> None:
        starts = block.column(START).cast(pa.int64()).to_numpy()
        self._operator.table.restore(block, self._operator.number_of(starts))
        self._operator.restored()


def _order(starts: pa.Array, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
    names = [str(index) for index in range(len(keys) + 2)]
    table = pa.table([starts, pa.array(hashes), *keys], names=names)
    order: Slots = pc.sort_indices(table, [(name, "ascending") for name in names]).to_numpy()
    return order
