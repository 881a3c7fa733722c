"""map_state: user functions that keep something for each key, and are called again at a time they set.

Rules of this file: the calls, and the order of the calls. What a function may return is checked by
`functions.py`, as of every row function.

Theory. What a stateful function gives depends on the order of its calls. So rows wait until a punctuation
passes them and come in an order that follows from them alone (replication-transparency IV-C), and timers take
their place among them: one for time t comes behind all rows up to t and before all later ones, several of one
time by key. When all sources are at their end, every timer that is set comes once more; those set by then
do not.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from checkpoint.core.fingerprint import declared_state
from dataflow.core.event_time import END, Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import OperatorContext, OperatorSpec, StateTable, UserFault
from dataflow.operators.emitting import Emitter
from dataflow.operators.event_time import check_time_column, micros_of, times_of
from dataflow.operators.late import LATE, TimedOperator
from dataflow.operators.python_rows import micros_of_time, rows_of, time_reader
from dataflow.operators.results import FAULTS, batch_of_rows, say, several
from dataflow.schema import check_schema
from dataflow.state.columns import Slots
from dataflow.state.disk_value_store import DiskValueStore
from dataflow.state.key_states import NONE, KeyState, KeyStates
from dataflow.state.keyed_table import KeyedTable
from dataflow.state.migration import Migration, StateHistory, columns_text
from dataflow.state.row_table import RowTable, check_order, check_stored, in_order
from dataflow.state.value_store import Place, check_place
from dataflow.worker.partitioning import hashes_of

Timer: TypeAlias = tuple[int, tuple[Any, ...], int]
"""When, the key, its slot."""


Row: TypeAlias = dict[str, Any]
Emit: TypeAlias = Callable[[str, Any], None]
OnRow: TypeAlias = Callable[[Row, KeyState], Any] | Callable[[Row, KeyState, Emit], Any]
OnTimer: TypeAlias = Callable[[Row, Any, KeyState], Any] | Callable[[Row, Any, KeyState, Emit], Any]
"""The last argument comes where side outputs are declared."""


_rows_at_once: Final = 4_096


class Calls(NamedTuple):
    """What an operator calls, and at its end."""

    on_row: OnRow
    on_timer: OnTimer | None
    close: Callable[[], Any] = lambda: None


@dataclass(frozen=True, slots=True)
class MapStateSpec(OperatorSpec):
    """`on_row(row, state)` and `on_timer(key, time, state)` give rows of `schema`; `state` is kept."""

    kind: ClassVar[OperatorKind] = OperatorKind.MAP_STATE
    needs_time: ClassVar[bool] = True
    keys: tuple[str, ...]
    time: str
    on_row: OnRow
    on_timer: OnTimer | None
    schema: pa.Schema
    state: pa.Schema
    state_version: int = 1
    migrations: tuple[Migration, ...] = ()
    ttl: timedelta | None = None
    state_on: Place = field(default="memory", kw_only=True)
    """Not part of what the state is: a cut is restored to either."""
    side_outputs: tuple[tuple[str, pa.Schema], ...] = field(default=(), kw_only=True)
    """Port, columns, of those that the functions fill."""

    def __post_init__(self) -> None:
        check_place(self.state_on)
        self.states()
        if LATE in dict(self.side_outputs):
            raise SchemaError(f"side output {LATE!r} of map_state has late rows; name yours otherwise")
        if not callable(self.on_row) or not (self.on_timer is None or callable(self.on_timer)):
            raise SchemaError("map_state takes functions as on_row and on_timer")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_time_column(self.time, inputs[0])
        check_order(inputs[0])
        check_stored(inputs[0])
        try:
            self.table(inputs[0], self.states())
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return check_schema(self.schema)

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {LATE: inputs[0], **dict(self.side_outputs)}

    def detail(self) -> str:
        state = declared_state(self.state_version, columns_text(self.state))
        ttl = "" if self.ttl is None else " ttl"
        return f"key ({', '.join(self.keys)}) time ({self.time}) {state}{ttl}"

    def history(self) -> StateHistory:
        """The columns of its state, today and before. Raises SchemaError."""
        return StateHistory(self.state, self.state_version, self.migrations)

    def earlier(self) -> "Sequence[MapStateSpec]":
        history = self.history()
        return [
            replace(self, state=history.columns_of(version), state_version=version, migrations=(), ttl=ttl)
            for version in history.versions
            for ttl in (None, timedelta(days=1))
        ]

    def states(self, scratch: str = "") -> KeyStates:
        """What it keeps, of no key yet. scratch: a directory for a state on disk. Raises SchemaError."""
        ttl = None if self.ttl is None else micros_of(self.ttl, "ttl")
        if ttl == 0:
            raise SchemaError("ttl is a timedelta above 0; leave it out to keep states for ever")
        values = DiskValueStore(self.state, scratch) if self.state_on == "disk" else None
        return KeyStates(self.history(), ttl, values)

    def table(self, columns: pa.Schema, states: KeyStates) -> KeyedTable:
        """Keys of a stream of these columns, with their states. Raises ValueError for columns of one name."""
        keys = pa.schema([columns.field(name) for name in self.keys])
        return KeyedTable(keys, [states], version=self.state_version, upgrade=states.upgrade)

    def calls(self, columns: pa.Schema) -> Calls:
        """The functions that one operator calls, for a stream of these columns."""
        del columns
        return Calls(self.on_row, self.on_timer)

    def open(self, context: OperatorContext) -> "MapStateOperator":
        return MapStateOperator(self, context.inputs[0], context.scratch)


class MapStateOperator(TimedOperator):
    """State: the rows that wait, and what is kept for each key."""

    def __init__(self, spec: MapStateSpec, columns: pa.Schema, scratch: str = "") -> None:
        super().__init__(columns)
        self._spec = spec
        self._time_type = pa.timestamp("us", columns.field(spec.time).type.tz)
        self._read_time = time_reader(self._time_type)
        self._rows = RowTable(columns)
        self._states = spec.states(scratch)
        self._table = spec.table(columns, self._states)
        self.calls = spec.calls(columns)
        self._emitter = Emitter(dict(spec.side_outputs))
        self.more: tuple[Any, ...] = (self._emitter,) if spec.side_outputs else ()
        """What the functions get behind the state."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        batch, times = self.in_time(batch, times_of(batch.column(self._spec.time), self._spec.time))
        self._rows.add(batch, times, hashes_of(batch))
        return ()

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        self._table.change(self._states.date(self.watermark(index)))
        return super().on_punctuation(watermark, index)

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        watermark = self.watermark(index)
        rows = self._rows.take(watermark)
        rows = rows.take(in_order(rows.batch, rows.times))
        keys = [rows.batch.column(name) for name in self._spec.keys]
        slots = self._table.find_or_add(keys, rows.hashes)
        run = _Run(self, watermark, self._due(watermark))
        run.rows(_each(rows.batch), rows.times.tolist(), slots.tolist())
        run.timers_before(watermark if watermark == END else watermark + 1, at_end=watermark == END)
        self._table.take_touched()
        over = self._states.expire(watermark)
        self._table.change(np.concatenate([over, np.array(run.fired, np.int64)]))
        self._forget({*run.called, *over.tolist()})
        self._states.settle()
        made = run.made
        self._emitter.settle()
        return [batch_of_rows(made, [0] * len(made), self._spec.schema)] if made else ()

    def close(self) -> None:
        self._states.close()
        self.calls.close()

    def _due(self, watermark: Watermark) -> list[Timer]:
        """Timers up to the mark, those of keys that are gone left out: they have none."""
        timers = self._states.timers.values
        slots = np.flatnonzero((timers <= watermark) & (timers != NONE))
        return list(zip(timers[slots].tolist(), self.keys_of(slots), slots.tolist(), strict=True))

    def keys_of(self, slots: Slots) -> list[tuple[Any, ...]]:
        """The keys in these slots, which have an order: for null stands `_LAST`."""
        return list(zip(*map(_in_order_of_keys, self._table.keys(slots)), strict=True))

    def _forget(self, called: set[int]) -> None:
        """Keys for which nothing is kept any more."""
        empty = self._states.empty(np.array(sorted(called), np.int64))
        if len(empty):
            self._table.remove(empty)

    # --- what a run asks for --------------------------------------------------------------------------------

    @property
    def states(self) -> KeyStates:
        """By slot."""
        return self._states

    @property
    def spec(self) -> MapStateSpec:
        """As the user wrote it."""
        return self._spec

    def micros(self, time: Any) -> int:
        """A time as the user's functions see it, as microseconds."""
        if time is None:
            return NONE
        if type(time) is datetime:
            return micros_of_time(time)
        try:  # whatever else Arrow takes for a time: one of pandas, an integer
            found: int = pa.scalar(time, self._time_type).cast(pa.int64()).as_py()
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UserFault(f"a timer is a datetime or None, not {time!r:.80}") from error
        return found

    def as_time(self, micros: int) -> Any:
        """The other way."""
        return None if micros == NONE else self._read_time(micros)

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        return super().take_side_output(port) if port == LATE else self._emitter.take(port)

    @property
    def wants_snapshot(self) -> bool:
        return self._table.upgraded

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._table, "~rows": self._rows}

    def reset(self) -> None:
        super().reset()
        self._table.reset()
        self._rows.reset()

    def counters(self) -> dict[str, int]:
        return {
            "keys": len(self._table),
            "rows": len(self._rows),
            "late_rows": self.late_rows,
            "state_bytes": self._rows.bytes_held + self._table.bytes_held,
            **self._states.counters(),
        }


def _each(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows, few of them as objects at a time."""
    for begin in range(0, batch.num_rows, _rows_at_once):
        yield from rows_of(batch.slice(begin, _rows_at_once))


class _NullKey:
    """What stands for null among keys that are compared: it comes last, as where `sort` orders rows."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return other is not self


_LAST: Final = _NullKey()


def _in_order_of_keys(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return [_LAST if value is None else value for value in values] if column.null_count else values


class _Run:
    """The calls of one punctuation."""

    def __init__(self, operator: MapStateOperator, watermark: Watermark, timers: Iterable[Timer]) -> None:
        """timers: those that are set for the watermark or before."""
        self._operator = operator
        self._watermark = watermark
        self._timers = list(timers)
        heapq.heapify(self._timers)
        self._set = operator.states.timers.values
        """Of each slot: no slots come while functions are called."""
        self._at_end = False
        states = operator.states
        self._begin, self._check, self._end = states.begin, states.check, states.end
        self.made: list[Any] = []
        self.called: set[int] = set()
        self.fired: list[int] = []
        """The slots whose timers went off: they differ from the last checkpoint, also where no row came."""
        self._keys: dict[int, tuple[Any, ...]] = {}
        """Of the slots that rows came for, once a timer needs one."""

    def rows(self, rows: Iterable[Row], times: Sequence[int], slots: Sequence[int]) -> None:
        """The function of rows for each, and timers that come before one of them."""
        on_row: Callable[..., Any] = self._operator.calls.on_row
        timers, call = self._timers, self._call
        self.called.update(slots)
        for row, time, slot in zip(rows, times, slots, strict=True):
            if timers and timers[0][0] < time:
                self.timers_before(time)
            call(slot, time, on_row, (row,))

    def _call(
        self,
        slot: int,
        time: int,
        function: Callable[..., Any],
        what: tuple[Any, ...],
        key: tuple[Any, ...] | None = None,
    ) -> None:
        """One call. This is what each row costs: nothing here that can be done for many."""
        operator = self._operator
        state = self._begin(slot, time)
        before: int = self._set.item(slot)
        if before != NONE:
            state.timer = operator.as_time(before)
        state.at_end = self._at_end
        try:
            self.made += several(function(*what, state, *operator.more))
        except UserFault:
            raise
        except FAULTS as error:
            raise UserFault(say(error)) from error
        if state.value is not None:
            self._check(state.value)
        self._end(slot, time, state)
        if state.timer is None and before == NONE:
            return
        after = operator.micros(state.timer)
        if after == before:
            return
        self._set[slot] = after
        # A later one waits in its slot for the watermark that reaches it; most are set anew before that.
        if after != NONE and after <= self._watermark:
            heapq.heappush(self._timers, (after, key or self._key_of(slot), slot))

    def _key_of(self, slot: int) -> tuple[Any, ...]:
        if not self._keys:
            slots = np.array(sorted(self.called), np.int64)
            self._keys = dict(zip(slots.tolist(), self._operator.keys_of(slots), strict=True))
        return self._keys[slot]

    def timers_before(self, end: Watermark, *, at_end: bool = False) -> None:
        """All that are set for a time before `end`; at the end of all sources, each of them once."""
        if at_end:
            self._at_end = True
            waiting = sorted(self._timers)
            self._timers.clear()
            for timer in waiting:
                self._fire(*timer)
            return
        while self._timers and self._timers[0][0] < end:
            self._fire(*heapq.heappop(self._timers))

    def _fire(self, time: int, key: tuple[Any, ...], slot: int) -> None:
        operator = self._operator
        if self._set[slot] != time:
            return  # it was set to another time since, or to none
        self._set[slot] = NONE
        self.fired.append(slot)
        on_timer: Callable[..., Any] | None = operator.calls.on_timer
        if on_timer is not None:
            values = [None if value is _LAST else value for value in key]
            named = dict(zip(operator.spec.keys, values, strict=True))
            self.called.add(slot)
            self._call(slot, time, on_timer, (named, operator.as_time(time)), key)
