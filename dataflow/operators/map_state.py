"""map_state: user functions with a state per key, which are called again at times that they set (timers).

The output of a stateful function depends on the order of its calls. Rows therefore wait until a punctuation
passes them and are processed in an order of their contents (replication-transparency IV-C). A timer for time
t fires after all rows with times up to t and before all later rows; timers of one time fire in the order of
their keys. When all sources have ended, every timer that is set fires once; timers set meanwhile do not.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkpoint import DeclaredState
from dataflow.core.event_time import END, Watermark, is_time
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.base import OperatorContext, OperatorSpec, ReplicaProblem, StateTable
from dataflow.operators.event_time import LATE, TimedOperator, check_time_column, micros_of, times_of
from dataflow.operators.functions import Emitter
from dataflow.schema import check_schema
from dataflow.state.disk_value_store import DiskValueStore
from dataflow.state.given_rows import GivenRows, flags_of, numbers, typed
from dataflow.state.key_index import Slots, hashes_of
from dataflow.state.key_states import (
    CALLED,
    IS_SET,
    NONE,
    TIMER,
    KeyState,
    KeyStates,
    StateLocation,
    check_state_location,
)
from dataflow.state.keyed_table import KeyedTable
from dataflow.state.migration import Migration, StateHistory
from dataflow.state.processor_states import TIMERS
from dataflow.state.row_table import Rows, RowTable, check_order, check_stored, in_order
from dataflow.values.columns import taker
from dataflow.values.python_rows import FAULTS, batch_of_rows, micros_of_time, rows_of, several, time_reader
from dos_protocol.errors import text_of

Timer: TypeAlias = tuple[int, tuple[Any, ...], int]
"""Time, key, slot of the key."""
Row: TypeAlias = dict[str, Any]
Emit: TypeAlias = Callable[[str, Any], None]
OnRow: TypeAlias = Callable[[Row, KeyState], Any] | Callable[[Row, KeyState, Emit], Any]
OnTimer: TypeAlias = Callable[[Row, Any, KeyState], Any] | Callable[[Row, Any, KeyState, Emit], Any]
"""The last argument is passed only if side outputs are declared."""
_rows_per_slice: Final = 4_096


class Given(Protocol):
    """The rows of a key that one call gets."""

    end: int
    """The index of the first row that it does not get: valid after the call."""


def _batch_of_rows(made: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    return batch_of_rows(made, range(len(made)), schema)


class Calls(NamedTuple):
    """The functions that an operator calls; `close` is called when the operator is closed."""

    on_row: OnRow | Callable[[Any, KeyState], Any]
    on_timer: OnTimer | None
    close: Callable[[], Any] = lambda: None
    batch_of: Callable[[Sequence[Any], pa.Schema], pa.RecordBatch] = _batch_of_rows
    """Converts what all calls returned. `row` of its UserFault is an index into that."""
    give: Callable[[pa.RecordBatch, Sequence[int]], Callable[[int, int], Given]] | None = None
    """From rows and their times to a function that returns those of one call, from an index up to another:
    the argument of `on_row`. None: it gets each row as a dict.
    """


class CallGroups(NamedTuple):
    """The rows of a punctuation, divided into calls."""

    rows: Slots
    """Their indices, those of a call together. Within a call they are in the order of time."""
    begins: Slots
    """Where each call begins in `rows`. Calls are in the order of their first rows."""


def call_groups(slots: Slots, times: npt.NDArray[np.int64], *, grouped: bool, ttl: int | None) -> CallGroups:
    """Divide rows, which are in order, into calls for each row; if `grouped`, for the rows of each slot."""
    if not grouped:
        return CallGroups(np.arange(len(slots)), np.arange(len(slots)))
    by_slot = np.argsort(slots, kind="stable")
    slots, times = slots[by_slot], times[by_slot]
    begins = np.diff(slots, prepend=-1) != 0
    if ttl is not None:  # the value that a row left is over before the next row
        begins |= np.diff(times, prepend=times[:1]) >= ttl
    firsts = by_slot[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    order = np.argsort(firsts, kind="stable")
    return CallGroups(by_slot[order], np.flatnonzero(np.diff(firsts[order], prepend=-1) != 0))


@dataclass(frozen=True, slots=True)
class MapStateSpec(OperatorSpec):
    """`on_row(row, state)` and `on_timer(key, time, state)` return rows of `schema`; `state` is per key."""

    kind: ClassVar[OperatorKind] = OperatorKind.MAP_STATE
    not_edited: ClassVar[str] = ""
    timer_of_watermark_waits: ClassVar[bool] = False
    """Whether a timer of the watermark of a micro-batch does not fire with it (`per_batch`)."""
    keys: tuple[str, ...]
    time: str
    on_row: OnRow
    on_timer: OnTimer | None
    schema: pa.Schema
    state: pa.Schema
    state_version: int = 1
    migrations: tuple[Migration, ...] = ()
    ttl: timedelta | None = None
    state_on: StateLocation = field(default="memory", kw_only=True)
    """Where states are held. Not part of the fingerprint: a checkpoint can be restored to either of them."""
    side_outputs: tuple[tuple[str, pa.Schema], ...] = field(default=(), kw_only=True)
    """Port and columns of each side output that the functions write."""
    grouped: bool = field(default=False, kw_only=True)
    """Whether a call gets all rows of a key that a step releases. Like the functions, it is not part of the
    fingerprint.
    """
    per_batch: bool = field(default=False, kw_only=True)
    """Whether a call gets all rows of a key in a micro-batch, when it ends. Then it needs no event time."""
    emitted_time: str | None = field(default=None, kw_only=True)
    """A column of the output that is the event time of operators below: no row may be late there."""

    def __post_init__(self) -> None:
        check_state_location(self.state_on)
        self.states()
        if LATE in dict(self.side_outputs):
            raise SchemaError(
                f"side output {LATE!r} of map_state is reserved for late rows; use another name"
            )
        if not callable(self.on_row) or not (self.on_timer is None or callable(self.on_timer)):
            raise SchemaError("on_row and on_timer of map_state must be functions")

    @property
    def needs_time(self) -> bool:
        return not self.per_batch

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_time_column(self.time, inputs[0])
        check_order(inputs[0])
        check_stored(inputs[0])
        try:
            self.table(inputs[0], self.states())
        except ValueError as error:
            raise SchemaError(str(error)) from None
        if self.emitted_time is not None:
            check_time_column(self.emitted_time, self.schema)
        return check_schema(self.schema)

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return {LATE: inputs[0], **dict(self.side_outputs)}

    def detail(self) -> str:
        return f"key ({', '.join(self.keys)}) time ({self.time})"

    def history(self) -> StateHistory:
        """Return the columns of its state in all versions. Raises SchemaError."""
        return StateHistory(self.state, self.state_version, self.migrations)

    def declared_states(self) -> tuple[DeclaredState, ...]:
        # Values without a time of their own count as stored at the restore, so a ttl may come and go.
        ttl = self.ttl is not None
        return self.history().declared(ttls=(ttl, not ttl))

    def states(self, scratch: str = "") -> KeyStates:
        """Return an empty set of states. scratch: the directory for states on disk. Raises SchemaError."""
        ttl = None if self.ttl is None else micros_of(self.ttl, "ttl")
        if ttl == 0:
            raise SchemaError("ttl must be a timedelta above 0; omit it to keep states forever")
        values = DiskValueStore(self.state, scratch) if self.state_on == "disk" else None
        return KeyStates(self.history(), ttl, values)

    def table(self, columns: pa.Schema, states: KeyStates) -> KeyedTable:
        """Return the table of keys and states for these columns. Raises ValueError for two columns of one
        name.
        """
        keys = pa.schema([columns.field(name) for name in self.keys])
        return KeyedTable(keys, [states], version=self.state_version, upgrade=states.upgrade)

    def calls(self, columns: pa.Schema) -> Calls:
        """Return the functions that one operator calls, for a stream of these columns."""
        del columns
        return Calls(self.on_row, self.on_timer)

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        del inputs
        if not self.grouped and not self.per_batch:
            return None  # calls are in the order of time, equal times by all columns
        return ReplicaProblem(
            "gets the rows of a key that a step releases in one call, and the steps of replicas differ",
            'use calls="row"',
        )

    def open(self, context: OperatorContext) -> "MapStateOperator":
        return MapStateOperator(self, context.inputs[0], context.scratch)

    def edited(self, rows: GivenRows, context: OperatorContext, watermark: Watermark) -> dict[str, pa.Array]:
        """Columns that the framework adds may be left out: they stay as they are."""
        del context
        values = self._given_values(rows)
        is_set = _are_set(rows, values)
        mask = pa.array(is_set)
        made = {name: pc.if_else(mask, one, pa.scalar(None, one.type)) for name, one in values.items()}
        timers = self._timers(rows, made)
        rows.refuse_where(
            (timers != NONE) & (timers != numbers(rows.stored_column(TIMER), NONE)) & (timers <= watermark),
            f"its timer is not above the watermark of the operator, {watermark} us since 1970",
            remedy="set a later time, or no timer",
        )
        rows.refuse_where(
            ~is_set & (timers == NONE),
            "it has neither a state nor a timer",
            remedy="to remove a key, write it with _deleted",
        )
        made |= {IS_SET: mask, TIMER: pa.array(timers)}
        if CALLED in rows.schema.names:
            made[CALLED] = pa.array(_called(rows, is_set, watermark))
        return made

    def _given_values(self, rows: GivenRows) -> dict[str, pa.Array]:
        """Return the columns of the state: as given, or as stored if only timers are given."""
        given = any(name in rows.columns for name in self.state.names if name != TIMERS)
        return {
            name: rows.declared(name)
            if name in rows.columns or (given and name != TIMERS)
            else rows.stored_column(name)
            for name in self.state.names
        }

    def _timers(self, rows: GivenRows, values: Mapping[str, pa.Array]) -> npt.NDArray[np.int64]:
        given = numbers(_micros_given(rows, TIMER), NONE) if TIMER in rows.columns else None
        if TIMERS not in self.state.names:
            return numbers(rows.stored_column(TIMER), NONE) if given is None else given
        firsts = [min(times, default=None) for times in values[TIMERS].fill_null([]).to_pylist()]
        timers = np.array([NONE if first is None else first * 1_000 for first in firsts], np.int64)
        if given is not None:
            rows.refuse_where(
                given != timers,
                f"its {TIMER!r} is not the first of its {TIMERS!r}",
                remedy=f"leave {TIMER!r} out: it follows from {TIMERS!r}",
            )
        return timers


def _are_set(rows: GivenRows, values: Mapping[str, pa.Array]) -> npt.NDArray[np.bool_]:
    # A reader that leaves `_is_set` out sees nulls for a key that has only a timer: written back, it has no
    # state.
    if IS_SET in rows.columns:
        return flags_of(rows.typed(IS_SET))
    was_set = flags_of(rows.stored_column(IS_SET))
    if not any(name in rows.columns for name in values):
        return was_set
    nulls = [value.is_null().to_numpy(zero_copy_only=False) for value in values.values()]
    return np.asarray(~(np.logical_and.reduce(nulls) & (rows.at >= 0) & ~was_set))


def _called(rows: GivenRows, is_set: npt.NDArray[np.bool_], watermark: Watermark) -> npt.NDArray[np.int64]:
    """Return when each state was last left by a call: as given or stored, otherwise the watermark."""
    column = _micros_given(rows, CALLED) if CALLED in rows.columns else rows.stored_column(CALLED)
    called = numbers(column, NONE)
    unknown = is_set & (called == NONE)
    if is_time(watermark):
        called = np.where(unknown, watermark, called)
    else:
        rows.refuse_where(
            unknown,
            f"its state has a time to live, and {CALLED!r} is not given",
            remedy=f"give {CALLED!r}, the time from which it counts",
        )
    return np.where(is_set, called, NONE)


def _micros_given(rows: GivenRows, name: str) -> pa.Array:
    column = rows.columns[name]
    are_times = (
        any(isinstance(value, date) for value in column)
        if isinstance(column, list)
        else pa.types.is_timestamp(column.type)
    )
    if are_times:
        return typed(rows.operator, name, column, pa.timestamp("us", "UTC")).cast(pa.int64())
    return rows.typed(name)


class MapStateOperator(TimedOperator):
    """Calls the functions. State: the waiting rows, and the state of each key."""

    may_repeat: ClassVar[bool] = False
    at_checkpoint = "stored"

    def __init__(self, spec: MapStateSpec, columns: pa.Schema, scratch: str = "") -> None:
        super().__init__(columns)
        self._spec = spec
        self._time_type = pa.timestamp("us", columns.field(spec.time).type.tz)
        self._read_time = time_reader(self._time_type)
        self._zone = self._read_time(0).tzinfo
        self._take_time = taker(pa.field("timer", self._time_type), "the timer")
        self._rows = RowTable(columns)
        self._states = spec.states(scratch)
        self._table = spec.table(columns, self._states)
        self.calls = spec.calls(columns)
        self._emitter = Emitter(dict(spec.side_outputs))
        self.extra_arguments: tuple[Any, ...] = (self._emitter,) if spec.side_outputs else ()
        """The arguments that follow the state."""

    def watermark(self, index: int = 0) -> Watermark:
        watermark = super().watermark(index)
        # In a micro-batch of Spark, which counts milliseconds: a row above the last whole one is not late.
        return watermark // 1_000 * 1_000 if self._spec.per_batch and is_time(watermark) else watermark

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        batch, times = self.in_time(batch, times_of(batch.column(self._spec.time), self._spec.time))
        self._rows.add(batch, times, hashes_of(batch))
        return ()

    # Before event time advances, as in Spark: the calls for rows, and then those for timers.
    def end_batch(self) -> Sequence[pa.RecordBatch]:
        watermark = self.watermark()
        return self._run(self._rows.take(END), watermark, watermark) if self._spec.per_batch else ()

    def on_punctuation(self, watermark: Watermark, index: int = 0) -> Sequence[pa.RecordBatch]:
        former = self.watermark(index)
        self._table.change(self._states.date(former))
        if not self._time.reach(watermark, index):
            return ()
        watermark = self.watermark(index)
        return self._run(self._rows.take(watermark), watermark, former)

    def _run(self, rows: Rows, watermark: Watermark, passed_on: Watermark) -> Sequence[pa.RecordBatch]:
        """Call the functions for these rows, and for the timers that the watermark has passed. passed_on: the
        watermark that operators below know when they get what the calls return.
        """
        rows = rows.take(in_order(rows.batch, rows.times))
        keys = [rows.batch.column(name) for name in self._spec.keys]
        slots = self._table.find_or_add(keys, rows.hashes)
        # Of a function in a micro-batch of Spark, the timer of the watermark waits.
        waits = self._spec.per_batch and self._spec.timer_of_watermark_waits and is_time(watermark)
        fires = watermark - 1 if waits else watermark
        run = _Run(self, fires, self._due(fires), watermark if self._spec.per_batch else None)
        if self.calls.give is None:
            run.rows(_each(rows.batch), rows.times.tolist(), slots.tolist())
        else:
            run.groups(rows, slots)
        run.timers_before(fires if fires == END else fires + 1, at_end=fires == END)
        self._table.take_touched()
        over = self._states.expire(watermark)
        self._table.change(np.concatenate([over, np.array(run.fired, np.int64)]))
        self._forget({*run.called, *over.tolist()})
        self._states.settle()
        self._emitter.settle()
        return run.batches(passed_on)

    def close(self) -> None:
        self._states.close()
        self.calls.close()

    def _due(self, watermark: Watermark) -> list[Timer]:
        """Return the timers up to the watermark. Deleted keys have no timers."""
        timers = self._states.timers.values
        slots = np.flatnonzero((timers <= watermark) & (timers != NONE))
        return list(zip(timers[slots].tolist(), self.keys_of(slots), slots.tolist(), strict=True))

    def keys_of(self, slots: Slots) -> list[tuple[Any, ...]]:
        """Return the keys in these slots in a form that can be compared, from which `_value` returns each."""
        return list(zip(*map(_in_order_of_keys, self._table.keys(slots)), strict=True))

    def _forget(self, called: set[int]) -> None:
        empty = self._states.empty(np.array(sorted(called), np.int64))
        if len(empty):
            self._table.remove(empty)

    # --- Used by a run --------------------------------------------------------------------------------

    @property
    def states(self) -> KeyStates:
        return self._states

    @property
    def spec(self) -> MapStateSpec:
        return self._spec

    def micros(self, time: Any) -> int:
        """Return a time of the user in microseconds. Raises UserFault for one that the time column does not
        hold.
        """
        if time is not None and (type(time) is not datetime or time.tzinfo is not self._zone):
            time = self._take_time(time)
        return NONE if time is None else micros_of_time(time)

    def as_time(self, micros: int) -> Any:
        """Return a time in microseconds as the user's functions see it."""
        return None if micros == NONE else self._read_time(micros)

    def take_side_output(self, port: str) -> Sequence[pa.RecordBatch]:
        return super().take_side_output(port) if port == LATE else self._emitter.take(port)

    @property
    def wants_snapshot(self) -> bool:
        return self._table.upgraded

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._table, "~rows": self._rows}

    def counters(self) -> dict[str, int]:
        return {
            "keys": len(self._table),
            "rows": len(self._rows),
            "late_rows": self.late_rows,
            "state_bytes": self._rows.bytes_held + self._table.bytes_held,
            **self._states.counters(),
        }


def _each(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows. Converts a limited number of rows at a time, to bound memory."""
    for begin in range(0, batch.num_rows, _rows_per_slice):
        yield from rows_of(batch.slice(begin, _rows_per_slice))


class _NullKey:
    """Represents null among compared keys: it sorts last, as in `sort`."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return other is not self


_LAST: Final = _NullKey()


@dataclass(frozen=True, slots=True, order=True)
class _Ordered:
    """A key that Python does not order: a number that may be NaN, or a struct."""

    place: tuple[Any, ...]
    value: Any = field(compare=False)


def _place(value: Any) -> tuple[Any, ...]:
    """Return where a value is: numbers, then NaN, then null, as in `sort`; structs by their fields."""
    if value is None:
        return (2,)
    if isinstance(value, dict):
        return (0, tuple(map(_place, value.values())))
    return (0, value) if value == value else (1,)


def _in_order_of_keys(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_floating(column.type) or pa.types.is_struct(column.type):
        return [_Ordered(_place(value), value) for value in values]
    return [_LAST if value is None else value for value in values] if column.null_count else values


def _value(key: Any) -> Any:
    return None if key is _LAST else key.value if type(key) is _Ordered else key


def _check_emitted_time(made: pa.RecordBatch, name: str | None, watermark: Watermark) -> None:
    """Raise UserFault for a row whose time is not above the watermark. Null is allowed."""
    if name is None or not is_time(watermark):
        return
    column = made.column(name)
    times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    # An operator below would drop the row: its window may have been emitted.
    if (row := pc.less_equal(times, watermark).index(True).as_py()) >= 0:
        raise UserFault(
            f"an emitted row has the event time {np.datetime64(times[row].as_py(), 'us')} UTC in"
            f" {name!r}, which is not above the watermark, {np.datetime64(watermark, 'us')} UTC",
            row=row,
            remedy="emit times above timerValues.getCurrentWatermarkInMs(), or null",
        )


class _Run:
    """The calls for one punctuation."""

    def __init__(
        self,
        operator: MapStateOperator,
        watermark: Watermark,
        timers: Iterable[Timer],
        of_calls: Watermark | None,
    ) -> None:
        """timers: those that are set for times up to the watermark. of_calls: see `KeyState.watermark`; if it
        is given, timers come after all rows.
        """
        self._operator = operator
        self._watermark = watermark
        self._of_calls = of_calls
        self._timers = list(timers)
        heapq.heapify(self._timers)
        self._set = operator.states.timers.values
        """The timer of each slot. No slots are added while functions are called."""
        self._at_end = False
        states = operator.states
        self._begin, self._end = states.begin, states.end
        self.made: list[Any] = []
        """What the calls returned."""
        self._made_by: list[tuple[int, int, int]] = []
        """For each call that made rows: the length of `made` after it, its slot, its time."""
        self.called: set[int] = set()
        self.fired: list[int] = []
        """The slots whose timers fired. They differ from the last checkpoint even if no row arrived."""
        self._keys: dict[int, tuple[Any, ...]] = {}
        """The keys of the slots that rows arrived for; filled when a timer first needs one."""

    def rows(self, rows: Iterable[Row], times: Sequence[int], slots: Sequence[int]) -> None:
        """Call the row function for each row, and fire the timers that precede a row."""
        on_row: Callable[..., Any] = self._operator.calls.on_row
        timers, call = self._timers, self._call
        self.called.update(slots)
        for row, time, slot in zip(rows, times, slots, strict=True):
            if timers and timers[0][0] < time:
                self.timers_before(time)
            call(slot, time, on_row, (row,))

    def groups(self, rows: Rows, slots: Slots) -> None:
        """Call the row function for each group of rows, and fire the timers that precede its first row."""
        operator, timers, in_time = self._operator, self._timers, self._of_calls is None
        assert operator.calls.give is not None
        self.called.update(slots.tolist())
        grouped = operator.spec.grouped or not in_time
        groups = call_groups(slots, rows.times, grouped=grouped, ttl=operator.states.ttl)
        order, begins = groups.rows.tolist(), groups.begins.tolist()
        times, slot_of = rows.times[groups.rows].tolist(), slots[groups.rows].tolist()
        give = operator.calls.give(rows.batch.take(pa.array(groups.rows)), times)
        on_row: Callable[..., Any] = operator.calls.on_row
        called_until, set_ = operator.states.called_until, self._set
        waiting = [
            (order[begin], begin, end) for begin, end in zip(begins, [*begins[1:], len(order)], strict=False)
        ]
        # Sorted by the first row, so it is a heap: the rest of a group comes at its place among the others.
        while waiting:
            _, begin, end = heapq.heappop(waiting)
            slot, time = slot_of[begin], times[begin]
            if in_time and timers and timers[0][0] < time:
                self.timers_before(time)
            # The timer comes before the rows that are later, as if each row had its call. NONE is after all.
            timer: int = set_.item(slot) if in_time else NONE
            until = end if timer >= times[end - 1] else bisect_right(times, timer, begin, end)
            assert until > begin, "a timer before the first row has fired"
            given = give(begin, until)
            self._call(slot, time, on_row, (given,))
            called_until(slot, times[given.end - 1])
            if given.end < end:
                heapq.heappush(waiting, (order[given.end], given.end, end))

    def _call(
        self,
        slot: int,
        time: int,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        key: tuple[Any, ...] | None = None,
    ) -> None:
        """Make one call. This is the cost per row, so work that can be batched is done elsewhere."""
        operator = self._operator
        state = self._begin(slot, time)
        before: int = self._set.item(slot)
        if before != NONE:
            state.timer = operator.as_time(before)
        state.at_end, state.watermark = self._at_end, self._of_calls
        count = len(self.made)
        try:
            self.made += several(function(*arguments, state, *operator.extra_arguments))
            self._end(slot, time, state)
            after = operator.micros(state.timer)
        except UserFault as fault:
            raise self._named(fault, slot, time) from fault.__cause__
        except FAULTS as error:
            raise self._named(UserFault(text_of(error)), slot, time) from error
        if len(self.made) > count:
            self._made_by.append((len(self.made), slot, time))
        if after == before:
            return
        self._set[slot] = after
        # A later timer stays in its slot until the watermark reaches it; most are reset before that.
        if after != NONE and after <= self._watermark:
            heapq.heappush(self._timers, (after, key or self._key_of(slot), slot))

    def batches(self, passed_on: Watermark) -> Sequence[pa.RecordBatch]:
        """Return the rows that the calls made. Raises UserFault that names the call."""
        if not self.made:
            return ()
        try:
            made = self._operator.calls.batch_of(self.made, self._operator.spec.schema)
            _check_emitted_time(made, self._operator.spec.emitted_time, passed_on)
            return [made]
        except UserFault as fault:
            _, slot, time = self._made_by[bisect_right(self._made_by, fault.row or 0, key=itemgetter(0))]
            raise self._named(fault, slot, time) from fault.__cause__

    def _named(self, fault: UserFault, slot: int, time: int) -> UserFault:
        (key,) = self._operator.keys_of(np.array([slot]))
        of = ", ".join(f"{name} {value!r}" for name, value in self._named_key(key).items())
        at = self._operator.as_time(time).isoformat()
        return UserFault(f"{fault}; in the call for {of} at {at}", remedy=fault.remedy)

    def _named_key(self, key: tuple[Any, ...]) -> Row:
        return dict(zip(self._operator.spec.keys, map(_value, key), strict=True))

    def _key_of(self, slot: int) -> tuple[Any, ...]:
        if not self._keys:
            slots = np.array(sorted(self.called), np.int64)
            self._keys = dict(zip(slots.tolist(), self._operator.keys_of(slots), strict=True))
        return self._keys[slot]

    def timers_before(self, end: Watermark, *, at_end: bool = False) -> None:
        """Fire all timers set for a time before `end`; at the end of all sources, every timer once."""
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
            return  # it was changed or deleted after it was queued
        self._set[slot] = NONE
        self.fired.append(slot)
        on_timer: Callable[..., Any] | None = operator.calls.on_timer
        if on_timer is not None:
            self.called.add(slot)
            self._call(slot, time, on_timer, (self._named_key(key), operator.as_time(time)), key)
