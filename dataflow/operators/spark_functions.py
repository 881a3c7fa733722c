"""Functions for Spark's `applyInPandasWithState` and classes written as `StatefulProcessor`, unchanged.

They are called in event-time order, once per row: Spark does not define how many rows a call gets, and one is
the only number that does not depend on how the rows arrived. With `calls="group"` a call gets all rows of its
key that a step releases, except that no call has rows from both sides of a timer or of the end of a time to
live. The watermark during a call is 1 ms before the row's time, or the time of the timer.

With `calls="batch"` they are called as Spark calls them: at the end of a micro-batch, for all rows of a key,
then for timers. The watermark is that of the micro-batch. Without `event_time` above no row is late, whatever
its time is.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, ClassVar, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from dataflow.core.event_time import END, UNKNOWN, is_time
from dataflow.errors import SchemaError
from dataflow.operators.event_time import check_time_column, times_of
from dataflow.operators.map_state import Calls, MapStateSpec
from dataflow.state.key_states import KeyState
from dataflow.state.processor_states import ProcessorHandle
from dataflow.values.python_rows import rows_of
from dataflow.values.spark_rows import (
    UTC_ZONE,
    Frames,
    InSlices,
    SessionTimes,
    SparkRows,
    Tuples,
    batch_of_cells,
    cells_of_frames,
    millis,
    refuse,
    rows_of_rows,
    take_millis,
    time_of,
)
from dos_protocol.errors import text_of

CallsPer: TypeAlias = Literal["row", "group", "batch"]
_TIMEOUTS: Final = ("NoTimeout", "EventTimeTimeout")
_MODES: Final = ("append", "update")


def check_mode(mode: str) -> None:
    """Raise SchemaError for a Spark output mode that is not supported."""
    if not isinstance(mode, str) or mode.lower() not in _MODES:
        raise SchemaError(
            f"output mode {mode!r} is not supported: rows are emitted as they are produced; use 'append'"
        )


def check_calls(calls: str, ttl: timedelta | None) -> None:
    """Raise SchemaError for another word than those of `CallsPer`, and for "batch" with a ttl."""
    if calls not in get_args(CallsPer):
        raise SchemaError(
            "calls must be 'row', a call for each row; 'group', one for the rows of a key that a step"
            f" releases; or 'batch', one for those in a micro-batch; not {calls!r}"
        )
    if calls == "batch" and ttl is not None:
        # It counts from the last call of a key, and those of micro-batches are in no order of time.
        raise SchemaError('ttl needs calls in the order of event time; leave it out, or calls="batch"')


@dataclass(slots=True)
class TimerValues:
    """The times of a call: the watermark, by default 1 ms before the row that was read last, and the
    processing time, if it is known.
    """

    watermark: int
    processing: int | None = None

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802 - these are Spark's names
        """Return the watermark in milliseconds since 1970."""
        return self.watermark

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802
        """Return that of the micro-batch. Raises NotImplementedError if it is not known."""
        if self.processing is None:
            refuse(
                "getCurrentProcessingTimeInMs", "a replay would not repeat it, use getCurrentWatermarkInMs"
            )
        return self.processing


def _watermark_of(state: KeyState, own: int) -> int:
    """Return the watermark of a call in milliseconds. own: if it is not that of a micro-batch."""
    if state.watermark is None or state.watermark == END:
        return own
    return state.watermark // 1_000 if is_time(state.watermark) else 0  # of the first one, as in Spark


class GroupState:
    """The third argument of the function: Spark's `GroupState`, with event time only."""

    def __init__(
        self, tuples: Tuples, state: KeyState, values: TimerValues, timeout: str, *, out: bool
    ) -> None:
        self._tuples = tuples
        self._value = state.value
        self._watermark = watermark = _watermark_of(state, values.watermark)
        self._processing = values.processing
        self._has_event_time = timeout != "NoTimeout" or state.watermark != UNKNOWN
        self._first_timeout = watermark + 1 if state.watermark is None else watermark
        self._timeout = timeout
        self.hasTimedOut = out
        """Whether this call is for a timeout rather than for rows."""
        self.oldTimeoutTimestamp = -1 if state.timer is None else millis(state.timer)
        self.timeout_ms: int | None = None
        """The timeout set in this call. As in Spark, a timeout is valid only until the next call."""

    @property
    def exists(self) -> bool:
        return self._value is not None

    @property
    def get(self) -> tuple[Any, ...]:
        """The state of the key. Raises ValueError if it has none."""
        if self._value is None:
            raise ValueError("the key has no state yet; check `exists` or use `getOption`")
        return self._tuples.to_user(self._value)

    @property
    def getOption(self) -> tuple[Any, ...] | None:  # noqa: N802 - these are Spark's names
        return None if self._value is None else self._tuples.to_user(self._value)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803
        """Set the state. Raises TypeError for None, ValueError for a wrong number of values."""
        if newValue is None:
            raise TypeError("a state must be a tuple, not None; use remove() to delete the state")
        self._value = self._tuples.to_stored(newValue)

    def remove(self) -> None:
        self._value = None

    def setTimeoutTimestamp(self, timestampMs: "int | datetime") -> None:  # noqa: N802,N803
        """Request a call when event time passes this, unless the key gets one before. Raises ValueError."""
        if self._timeout != "EventTimeTimeout":
            raise ValueError(
                f"setTimeoutTimestamp needs timeoutConf 'EventTimeTimeout', not {self._timeout!r}"
            )
        if isinstance(timestampMs, datetime):
            timeout_ms = self._tuples.times.millis(timestampMs)
        else:
            timeout_ms = take_millis(timestampMs)
        if timeout_ms < self._first_timeout:
            raise ValueError(f"timeout {timeout_ms} ms must be after the watermark, {self._watermark} ms")
        self.timeout_ms = timeout_ms

    def setTimeoutDuration(self, durationMs: int) -> None:  # noqa: N802,N803
        """Raise NotImplementedError: processing time is not supported."""
        refuse(
            f"GroupState.setTimeoutDuration({durationMs})", "it is processing time, use setTimeoutTimestamp"
        )

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        """Return the watermark of this call in milliseconds since 1970. Raises NotImplementedError if there
        is none.
        """
        if not self._has_event_time:
            refuse("GroupState.getCurrentWatermarkMs", "the operator has no event time above it")
        return self._watermark

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802
        """Return that of the micro-batch. Raises NotImplementedError if it is not known."""
        if self._processing is None:
            refuse(
                "GroupState.getCurrentProcessingTimeMs",
                "a replay would not repeat it, use getCurrentWatermarkMs",
            )
        return self._processing

    def as_value(self) -> dict[str, Any] | None:
        return self._value


@dataclass(frozen=True, slots=True)
class GroupStateSpec(MapStateSpec):
    """`on_row` is the user's function of (key, DataFrames, GroupState)."""

    timer_of_watermark_waits: ClassVar[bool] = True
    timeout: str = "NoTimeout"
    time_zone: str = UTC_ZONE
    clock: str | None = None
    """The column with the processing time, which is not given to the function."""

    def __post_init__(self) -> None:
        MapStateSpec.__post_init__(self)
        SessionTimes(self.time_zone, naive=True).tzinfo()
        if self.timeout not in _TIMEOUTS:
            raise SchemaError(
                f"timeoutConf {self.timeout!r} is not supported: time here is event time; use"
                " 'EventTimeTimeout' with setTimeoutTimestamp, or 'NoTimeout'"
            )

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        _check_clock(self, inputs[0])
        return MapStateSpec.output_schema(self, inputs)

    def detail(self) -> str:
        return _with_time_zone(MapStateSpec.detail(self), self.time_zone)

    def calls(self, columns: pa.Schema) -> Calls:
        running = _Function(self, columns)
        return Calls(
            running.on_rows,
            running.on_timer,
            batch_of=batch_of_cells,
            give=lambda batch, times: _GivenFrames(batch, times, self, running).of,
        )


def _check_clock(spec: "_SparkSpec", columns: pa.Schema) -> None:
    """Raise SchemaError if the column of the processing time is no timestamp, or a key."""
    if spec.clock is None:
        return
    if spec.clock in spec.keys:
        raise SchemaError(f"the functions get the key {spec.clock!r}, so clock must be another column")
    check_time_column(spec.clock, columns)


def _key_columns(spec: "_SparkSpec", columns: pa.Schema) -> pa.Schema:
    return pa.schema([columns.field(name) for name in spec.keys])


def _with_time_zone(detail: str, zone: str) -> str:
    return detail if zone == UTC_ZONE else f"{detail} zone {zone}"


@dataclass(slots=True)
class Group:
    """The rows of one key for one call."""

    key: tuple[Any, ...]
    rows: Iterator[Any]
    """`Row`s, or DataFrames."""
    values: TimerValues
    end: int


class _GivenFrames:
    """The rows of a punctuation as DataFrames, for one call after the other."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        times: Sequence[int],
        spec: "_SparkSpec",
        running: "_Function | _Running",
    ) -> None:
        batch, self._values = _without_clock(batch, times, spec)
        self._slices = InSlices(batch, lambda part: Frames(part, running.times))
        self._keys = InSlices(batch.select(spec.keys), rows_of)
        self._key = running.key

    def of(self, begin: int, end: int) -> Group:
        """Return the rows from `begin` up to `end`. Each DataFrame has at most `InSlices.rows_max`."""
        rows, at = self._keys.of(begin, begin + 1)
        key = self._key(rows[at])
        frames = (slice_.of(first, last) for slice_, first, last in self._slices.each(begin, end))
        return Group(key, frames, self._values(begin), end)


class _GivenRows:
    """The rows of a punctuation as `Row`s, for one call after the other."""

    def __init__(
        self, batch: pa.RecordBatch, times: Sequence[int], spec: "ProcessorSpec", running: "_Running"
    ) -> None:
        batch, self._values = _without_clock(batch, times, spec)
        self._times_stay = spec.per_batch or _has_no_times(spec)
        self._slices = InSlices(batch, rows_of)
        self._rows = SparkRows(batch.schema, running.times)
        self._times = times
        self._keys = spec.keys
        self._running = running

    def of(self, begin: int, end: int) -> Group:
        """Return the rows from `begin` up to `end`, or up to the first one that a timer precedes which the
        processor has set when it reads this row: a call for each row would be after that timer.
        """
        rows, at = self._slices.of(begin, begin + 1)
        key = self._running.key({name: rows[at][name] for name in self._keys})
        values = self._values(begin)
        if end - begin == 1:
            return Group(key, iter((self._rows.of(rows[at]),)), values, end)
        group = Group(key, iter(()), values, end)
        group.rows = self._read(group, begin)
        return group

    def _read(self, group: Group, begin: int) -> Iterator[Any]:
        at = begin
        for rows, first, last in self._slices.each(begin, group.end):
            for row in islice(rows, first, last):
                if self._times_stay:
                    yield self._rows.of(row)
                    continue
                time, timer = self._times[at], self._running.handle.first_timer
                if at > begin and timer is not None and timer * 1_000 < time:
                    group.end = at
                    return
                group.values.watermark = _just_before(time)
                yield self._rows.of(row)
                at += 1


def _without_clock(
    batch: pa.RecordBatch, times: Sequence[int], spec: "_SparkSpec"
) -> tuple[pa.RecordBatch, Callable[[int], TimerValues]]:
    """Return the rows that the functions get, and a function from the first row of a call to its times."""
    if spec.clock is None:
        return batch, lambda begin: TimerValues(_just_before(times[begin]))
    clock = times_of(batch.column(spec.clock), spec.clock)

    def values(begin: int) -> TimerValues:
        if _has_no_times(spec):
            return TimerValues(-1, -1)
        return TimerValues(_just_before(times[begin]), int(clock[begin]) // 1_000)

    return batch.drop_columns([spec.clock]), values


def _has_no_times(spec: "_SparkSpec") -> bool:
    """Whether its calls get no times, as in Spark those of a processor in the time mode "None"."""
    return isinstance(spec, ProcessorSpec) and spec.clock is not None and not spec.timers


def _just_before(time: int) -> int:
    """Return the watermark, in milliseconds, of a call for a row of this time in microseconds."""
    return time // 1_000 - 1


class _Function:
    """The user's function."""

    def __init__(self, spec: GroupStateSpec, columns: pa.Schema) -> None:
        self._spec = spec
        self.times = SessionTimes(spec.time_zone, naive=True)
        self.key = self.times.keys(_key_columns(spec, columns))
        self._tuples = Tuples(spec.state, self.times)
        self._time = columns.field(spec.time).type

    def on_rows(self, given: Group, state: KeyState) -> Sequence[Any]:
        return self._call(given.key, given.rows, state, given.values, out=False)

    def on_timer(self, key: dict[str, Any], time: Any, state: KeyState) -> Sequence[Any]:
        values = TimerValues(millis(time))
        return self._call(self.key(key), iter(()), state, values, out=True)

    def _call(
        self, key: tuple[Any, ...], frames: Iterator[Any], state: KeyState, values: TimerValues, *, out: bool
    ) -> Sequence[Any]:
        spec = self._spec
        group = GroupState(self._tuples, state, values, spec.timeout, out=out)
        result = spec.on_row(key, frames, group)  # type: ignore[call-arg, arg-type]
        made = list(cells_of_frames(result, spec.schema, self.times))
        state.value = group.as_value()
        state.timer = None if group.timeout_ms is None else time_of(group.timeout_ms, self._time)
        return made


ProcessorTakes: TypeAlias = Literal["row", "pandas"]
_TIME_MODES: Final = ("none", "eventtime")


@dataclass(frozen=True, slots=True)
class ExpiredTimerInfo:
    """The timer that expired."""

    expiry: int

    def getExpiryTimeInMs(self) -> int:  # noqa: N802
        """Return its time in milliseconds since 1970."""
        return self.expiry


def check_time_mode(mode: str) -> bool:
    """Return whether timers are enabled. Raises SchemaError for a Spark mode that is not supported."""
    if not isinstance(mode, str) or mode.lower() not in _TIME_MODES:
        raise SchemaError(
            f"timeMode {mode!r} is not supported: time here is event time; use 'eventTime' or 'none'"
        )
    return mode.lower() == "eventtime"


def opened(processor: Any, *, timers: bool, times: SessionTimes | None = None) -> tuple[Any, ProcessorHandle]:
    """Return a copy of the processor after `init`, and its handle. Raises what `init` raises."""
    own, handle = copy.deepcopy(processor), ProcessorHandle(timers=timers, times=times)
    own.init(handle)
    handle.open = False
    return own, handle


def state_columns(processor: Any, *, timers: bool) -> pa.Schema:
    """Return the columns of its state. Raises SchemaError."""
    missing = [name for name in ("init", "handleInputRows") if not callable(getattr(processor, name, None))]
    if missing or isinstance(processor, type):
        raise SchemaError(
            f"a processor must be an object with init and handleInputRows, not {processor!r:.80}"
        )
    try:
        return opened(processor, timers=timers)[1].columns()
    except SchemaError:
        raise
    except Exception as error:
        raise SchemaError(f"init of {type(processor).__name__} failed: {text_of(error)}") from error


@dataclass(frozen=True, slots=True)
class ProcessorSpec(MapStateSpec):
    """`on_row` is `processor.handleInputRows`; workers call it on a copy."""

    processor: Any = None
    takes: ProcessorTakes = "row"
    timers: bool = False
    time_zone: str = UTC_ZONE
    clock: str | None = None
    """The column with the processing time, which is not given to the processor."""

    def __post_init__(self) -> None:
        MapStateSpec.__post_init__(self)
        SessionTimes(self.time_zone, naive=True).tzinfo()

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        _check_clock(self, inputs[0])
        return MapStateSpec.output_schema(self, inputs)

    def detail(self) -> str:
        detail = _with_time_zone(MapStateSpec.detail(self), self.time_zone)
        return detail if self.emitted_time is None else f"{detail} emits time ({self.emitted_time})"

    def calls(self, columns: pa.Schema) -> Calls:
        running = _Running(self, columns)
        calls = Calls(running.on_rows, running.on_timer, running.close)
        if self.takes == "pandas":
            return calls._replace(
                batch_of=batch_of_cells,
                give=lambda batch, times: _GivenFrames(batch, times, self, running).of,
            )
        return calls._replace(give=lambda batch, times: _GivenRows(batch, times, self, running).of)


_SparkSpec: TypeAlias = GroupStateSpec | ProcessorSpec


class _Running:
    def __init__(self, spec: ProcessorSpec, columns: pa.Schema) -> None:
        self._spec = spec
        self.times = SessionTimes(spec.time_zone, naive=spec.takes == "pandas")
        self.key = self.times.keys(_key_columns(spec, columns))
        self._time = columns.field(spec.time).type
        self._processor, self.handle = opened(spec.processor, timers=spec.timers, times=self.times)

    def on_rows(self, given: Group, state: KeyState) -> Sequence[Any]:
        self.handle.load(state.value)
        if state.watermark is not None and not _has_no_times(self._spec):
            given.values.watermark = _watermark_of(state, given.values.watermark)
        return self._end(self._processor.handleInputRows(given.key, given.rows, given.values), state)

    def on_timer(self, key: dict[str, Any], time: Any, state: KeyState) -> Sequence[Any]:
        self.handle.load(state.value)
        # At the end of all sources every timer fires once, and this is the only call for the key.
        due = list(self.handle.listTimers()) if state.at_end else [millis(time)]
        made: list[Any] = []
        for expiry in due:
            if expiry not in self.handle.listTimers():
                continue  # the previous timer deleted it, or its time to live expired
            self.handle.deleteTimer(expiry)
            self.handle.fired = expiry
            values, info = TimerValues(_watermark_of(state, expiry)), ExpiredTimerInfo(expiry)
            expired = getattr(self._processor, "handleExpiredTimer", None)
            if expired is not None:
                made += self._end(expired(self.key(key), values, info), state)
        self.handle.fired = None
        self._keep(state)
        return made

    def _end(self, result: Any, state: KeyState) -> Sequence[Any]:
        schema = self._spec.schema
        frames = self._spec.takes == "pandas"
        made = list((cells_of_frames if frames else rows_of_rows)(result, schema, self.times))
        self._keep(state)
        return made

    def _keep(self, state: KeyState) -> None:
        state.value = self.handle.store()
        first = self.handle.first_timer
        state.timer = None if first is None else time_of(first, self._time)

    def close(self) -> None:
        close = getattr(self._processor, "close", None)
        if close is not None:
            close()
