"""Windows of time or of a number of rows, and aggregates over them.

Times are whole microseconds. A watermark p promises that later times are above p, so a window [start, end) is
over when p >= end - 1 (replication-transparency, algorithm 3, line 6). A window is emitted once no further
rows can arrive, so the output does not depend on the order of arrival. A row is late if all of its windows
are over.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint import ResultNote, TakenPart
from dataflow.core.event_time import END, FIRST_TIME, LAST_TIME, UNKNOWN, Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.aggregates import (
    Aggregate,
    check_aggregates,
    check_are_aggregates,
    check_emit,
    check_none_touched,
    column_uids,
    open_all,
    result_fields,
    result_notes,
)
from dataflow.operators.base import Emit, OperatorContext, ReplicaProblem, StateTable
from dataflow.operators.event_time import TimedOperator, TimedSpec, check_time_column, micros_of, times_of
from dataflow.schema import columns_named
from dataflow.state.accumulators import CountAccumulator
from dataflow.state.base import Share
from dataflow.state.key_index import Slots, hashes_of, position_in_run
from dataflow.state.keyed_table import KeyedTable, SlotValues
from dataflow.state.row_table import Rows, RowTable, check_order, check_stored, in_order

START: Final = "window_start"
STOP: Final = "window_end"
_windows_per_row_max: Final = 1000


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Consecutive windows of `size`, starting at 1970-01-01 00:00 UTC + `offset`. `time` is a timestamp
    column.

        Tumbling("at", timedelta(minutes=5))
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
    """Windows of `size`, with a new one every `slide`: each row is in size / slide windows.

    Example:

        Sliding("at", timedelta(hours=1), slide=timedelta(minutes=10))
    """

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
        raise SchemaError(
            f"a window needs a size above 0 and a slide of at most the size, not {size} and {slide}"
        )
    if long > _windows_per_row_max * step:
        raise SchemaError(
            f"a row may be in at most {_windows_per_row_max} windows; use a slide above {slide}"
        )


class WindowKeys(StateTable):
    """A state table of keys by window, with `values` for each."""

    by_key = True

    def __init__(
        self,
        keys: Sequence[str],
        window: Window,
        columns: pa.Schema,
        values: Sequence[SlotValues],
        uids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """uids: as for `KeyedTable`. Raises ValueError if two columns of the state have one name."""
        self._keys = tuple(keys)
        self.size = micros_of(window.size, "size")
        self._slide = micros_of(window.slide, "slide") if isinstance(window, Sliding) else self.size
        self._offset = micros_of(window.offset, "offset")
        self.start_type = pa.timestamp("us", columns.field(window.time).type.tz)
        fields = [columns.field(name) for name in keys]
        self.table = KeyedTable(
            pa.schema([*fields, (START, self.start_type)]),
            values,
            uids=uids,
            salt_of=lambda block: _starts_in(block) // self._slide,
        )
        self._first_end = END
        """A lower bound of the ends of all open windows."""

    def newest(self, times: npt.NDArray[np.int64]) -> Slots:
        """Return the start of the last window that contains each time."""
        return np.asarray((times - self._offset) // self._slide * self._slide + self._offset)

    def are_closed(self, starts: Slots, watermark: Watermark) -> npt.NDArray[np.bool_]:
        """Return whether each of these windows is over: no more rows can arrive for it."""
        return np.asarray(starts + self.size - 1 <= watermark)

    def open_for(self, times: npt.NDArray[np.int64], watermark: Watermark) -> Iterator[tuple[Slots, Slots]]:
        """Yield rows, each with the start of a window that contains it and is not over; a row may be in
        several.
        """
        newest = self.newest(times)
        if len(newest) and (newest.max() > LAST_TIME - self.size or newest.min() < FIRST_TIME + self.size):
            outside = (newest > LAST_TIME - self.size) | (newest < FIRST_TIME + self.size)
            row = int(np.flatnonzero(outside)[0])
            raise UserFault(
                f"the window of the time {np.datetime64(int(times[row]), 'us')} is not within the years 1 to"
                " 9999",
                row=row,
                remedy="filter such rows or correct their time before the window",
            )
        for back in range(-(-self.size // self._slide)):
            starts = newest - back * self._slide
            rows = np.flatnonzero((times < starts + self.size) & ~self.are_closed(starts, watermark))
            if len(rows):
                yield rows, starts[rows]

    def find_or_add(self, batch: pa.RecordBatch, starts: Slots) -> Slots:
        """Return the slot of the key and window of each row."""
        if not len(starts):
            return np.empty(0, np.int64)
        self._first_end = min(self._first_end, int(starts.min()) + self.size)
        keys = [batch.column(name) for name in self._keys]
        windows = pa.array(starts).cast(self.start_type)
        return self.table.find_or_add([*keys, windows], hashes_of(batch), starts // self._slide)

    def take_closed(self, watermark: Watermark) -> Slots:
        """Return the slots of windows that are over. The caller must remove them."""
        if self._first_end - 1 > watermark:
            return np.empty(0, np.int64)
        slots = self.table.live()
        starts = self.starts(slots)
        closed = self.are_closed(starts, watermark)
        self._first_end = int(starts[~closed].min(initial=END - self.size)) + self.size
        return slots[closed]

    def starts(self, slots: Slots) -> Slots:
        starts: Slots = self.table.keys(slots)[-1].cast(pa.int64()).to_numpy()
        return starts

    def in_order(self, slots: Slots) -> Slots:
        """Sort slots by window, then by key."""
        return self.table.in_order(slots, [pa.array(self.starts(slots))])

    def checkpoint(self) -> pa.RecordBatch:
        return self.table.checkpoint()

    def snapshot(self) -> pa.RecordBatch:
        return self.table.snapshot()

    def snapshot_pieces(self) -> Iterator[pa.RecordBatch]:
        return self.table.snapshot_pieces()

    def restore(self, block: pa.RecordBatch) -> None:
        self._note_starts(block)
        self.table.restore(block)

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        self._note_starts(block)
        self.table.restore_part(block, part, share)

    def parts_restored(self, share: Share) -> None:
        self.table.parts_restored(share)

    def _note_starts(self, block: pa.RecordBatch) -> None:
        self._first_end = min(
            self._first_end, int(_starts_in(block).min(initial=END - self.size)) + self.size
        )


def _starts_in(block: pa.RecordBatch) -> Slots:
    starts: Slots = block.column(START).cast(pa.int64()).to_numpy()
    return starts


@dataclass(frozen=True, slots=True)
class Selection:
    """A function of `map`, of batches, through which event time passes. `columns`: (new name, column).
    `window_time`: the name of one more column, the time of the window of a row: its end less 1 microsecond,
    as in Spark. `zeros`: (name, type) of columns of zeros. `behind_us`: by how much the watermark is held
    back.
    """

    columns: tuple[tuple[str, str], ...]
    window_time: str | None = None
    zeros: tuple[tuple[str, pa.DataType], ...] = ()
    behind_us: int = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = {new: batch.column(old) for new, old in self.columns}
        if self.window_time is not None:
            # The end itself would be in the window that follows.
            stop = batch.column(STOP)
            made[self.window_time] = pa.array(stop.cast(pa.int64()).to_numpy() - 1).cast(stop.type)
        for name, kind in self.zeros:
            made[name] = pa.array(np.zeros(batch.num_rows, np.int64)).cast(kind)
        return pa.RecordBatch.from_pydict(made)

    def lags(self, above: Mapping[str, int]) -> dict[str, int]:
        """Return by how much each column may be behind the watermark. above: the same of the input."""
        lags = {new: above.get(old, above.get("", 0)) + self.behind_us for new, old in self.columns}
        # A window is emitted when the watermark reaches its last microsecond, which is its time.
        return lags if self.window_time is None else {**lags, self.window_time: 0}


@dataclass(frozen=True, slots=True)
class WindowSpec(TimedSpec):
    """Aggregates by key and window. With `updates` and `table` it need not know event time: no window has to
    be over. With `table` none ever is, and no row is late.
    """

    kind: ClassVar[OperatorKind] = OperatorKind.WINDOW
    not_edited: ClassVar[str] = "its windows belong together with its watermark"
    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]
    emit: Emit = "final"

    def __post_init__(self) -> None:
        check_emit(self.emit, ("final", "updates", "table"))
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

    def stored_columns(self, inputs: Sequence[pa.Schema]) -> Sequence[pa.Schema]:
        return [columns_named(inputs[0], (*self.keys, self.window.time))]

    def results(self, inputs: Sequence[pa.Schema]) -> tuple[ResultNote, ...]:
        return result_notes(dict(self.aggregates), inputs[0])

    def detail(self) -> str:
        mode = "" if self.emit == "final" else f" emit ({self.emit})"
        return f"key ({', '.join(self.keys)}) window ({self.window}){mode}"

    @property
    def needs_time(self) -> bool:
        return self.emit == "final"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        del inputs
        if self.emit != "final":
            return ReplicaProblem(f"emits {self.emit}, and replicas make other steps", 'use emit="final"')
        ordered = [name for name, aggregate in self.aggregates if not aggregate.order_independent]
        if not ordered:
            return None
        return ReplicaProblem(
            f"has the result {ordered[0]!r}, whose aggregate may depend on the order of the rows",
            "use another aggregate; or set order_independent = True in its class, if it does not",
        )

    def open(self, context: OperatorContext) -> "WindowOperator":
        assert context.output is not None
        return WindowOperator(self, context.inputs[0], context.output, context.result_uids)


class WindowOperator(TimedOperator):
    """Computes the aggregates. State: intermediate results by key and window, and the watermark."""

    at_checkpoint = "whole"

    def __init__(
        self,
        spec: WindowSpec,
        columns: pa.Schema,
        output: pa.Schema,
        uids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(columns)
        self._time_name = spec.window.time
        self._output = output
        self._aggregated_columns = [aggregate.column for _, aggregate in spec.aggregates]
        self._accumulators = open_all(dict(spec.aggregates), columns)
        uids = column_uids(dict(spec.aggregates), columns, uids)
        self._keys = WindowKeys(spec.keys, spec.window, columns, self._accumulators, uids)
        self._emit = spec.emit

    def watermark(self, index: int = 0) -> Watermark:
        return UNKNOWN if self._emit == "table" else super().watermark(index)

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
        if self._emit == "final":
            self._keys.table.take_touched()
        return ()

    # Before event time advances: a window that changed in the batch, and is over at its end, is emitted.
    def end_batch(self) -> Sequence[pa.RecordBatch]:
        slots = self._keys.table.take_touched()
        return self._results(self._keys.table.live() if self._emit == "table" else slots)

    def drain(self) -> Sequence[pa.RecordBatch]:
        if self._emit == "updates":
            check_none_touched(self._keys.table)
        return ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        slots = self._keys.take_closed(self.watermark(index))
        if not len(slots):
            return ()
        made = self._results(slots) if self._emit == "final" else ()
        self._keys.table.remove(slots)
        return made

    def _results(self, slots: Slots) -> Sequence[pa.RecordBatch]:
        if not len(slots):
            return ()
        slots = self._keys.in_order(slots)
        stops = pa.array(self._keys.starts(slots) + self._keys.size).cast(self._keys.start_type)
        results = [accumulator.results(slots) for accumulator in self._accumulators]
        columns = [*self._keys.table.keys(slots), stops, *results]
        return [pa.RecordBatch.from_arrays(columns, schema=self._output)]

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._keys}

    def counters(self) -> dict[str, int]:
        held = sum(accumulator.bytes_held for accumulator in self._accumulators)
        return {
            "windows": len(self._keys.table),
            "late_rows": self.late_rows,
            "state_bytes": self._keys.table.bytes_held + held,
        }


NUMBER: Final = "window_number"


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
    """Aggregates by key and count window (replication-transparency, algorithm 4). Row number n of its key,
    from 0, in an order of contents, is in the windows k with k * slide <= n < k * slide + size. A window is
    emitted when its last row is counted; one that is not full when all sources have ended is not emitted.
    """

    kind: ClassVar[OperatorKind] = OperatorKind.COUNT_WINDOW
    not_edited: ClassVar[str] = "its windows belong together with its counts and the rows that wait"
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

    def results(self, inputs: Sequence[pa.Schema]) -> tuple[ResultNote, ...]:
        return result_notes(dict(self.aggregates), inputs[0])

    def detail(self) -> str:
        return f"key ({', '.join(self.keys)}) window ({self.window})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "emits results that have no time",
            "use a window of time, Tumbling or Sliding, whose rows have the time window_end",
        )

    def open(self, context: OperatorContext) -> "CountWindowOperator":
        assert context.output is not None
        return CountWindowOperator(self, context.inputs[0], context.output, context.result_uids)


class CountWindowOperator(TimedOperator):
    """State: the waiting rows, the number of counted rows per key, and the windows that are not full."""

    def __init__(
        self,
        spec: CountWindowSpec,
        columns: pa.Schema,
        output: pa.Schema,
        uids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
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
            uids=column_uids(dict(spec.aggregates), columns, uids),
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
        """Return the windows whose last row was counted, by the first row that this call added to them."""
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
