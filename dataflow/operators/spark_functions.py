"""Functions for Spark's `applyInPandasWithState` and classes written as `StatefulProcessor`, unchanged.

They are called once per row, in event-time order: Spark does not define how many rows a call gets, and one is
the only number that does not depend on how the rows arrived. The watermark during a call is 1 ms before the
row's time, or the time of the timer.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from dataflow.errors import SchemaError
from dataflow.operators.map_state import Calls, MapStateSpec
from dataflow.state.key_states import KeyState
from dataflow.state.processor_states import ProcessorHandle
from dataflow.values.spark_rows import (
    UTC_ZONE,
    Frames,
    SessionTimes,
    SparkRows,
    Tuples,
    millis,
    refuse,
    rows_of_frames,
    rows_of_rows,
    take_millis,
    time_of,
)
from dos_protocol.errors import text_of

_TIMEOUTS: Final = ("NoTimeout", "EventTimeTimeout")
_MODES: Final = ("append", "update")


def check_mode(mode: str) -> None:
    """Raise SchemaError for a Spark output mode that is not supported."""
    if not isinstance(mode, str) or mode.lower() not in _MODES:
        raise SchemaError(
            f"output mode {mode!r} is not supported: rows are emitted as they are produced; use 'append'"
        )


class GroupState:
    """The third argument of the function: Spark's `GroupState`, with event time only."""

    def __init__(self, tuples: Tuples, state: KeyState, watermark: int, timeout: str, *, out: bool) -> None:
        self._tuples = tuples
        self._value = state.value
        self._watermark = watermark
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
        if timeout_ms <= self._watermark:
            raise ValueError(f"timeout {timeout_ms} ms must be after the watermark, {self._watermark} ms")
        self.timeout_ms = timeout_ms

    def setTimeoutDuration(self, durationMs: int) -> None:  # noqa: N802,N803
        """Raise NotImplementedError: processing time is not supported."""
        refuse(
            f"GroupState.setTimeoutDuration({durationMs})", "it is processing time, use setTimeoutTimestamp"
        )

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        """Return the watermark of this call in milliseconds since 1970."""
        return self._watermark

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802
        """Raise NotImplementedError: processing time is not supported."""
        refuse(
            "GroupState.getCurrentProcessingTimeMs",
            "a replay would not repeat it, use getCurrentWatermarkMs",
        )

    def as_value(self) -> dict[str, Any] | None:
        return self._value


@dataclass(frozen=True, slots=True)
class GroupStateSpec(MapStateSpec):
    """`on_row` is the user's function of (key, DataFrames, GroupState)."""

    timeout: str = "NoTimeout"
    time_zone: str = UTC_ZONE

    def __post_init__(self) -> None:
        MapStateSpec.__post_init__(self)
        SessionTimes(self.time_zone, naive=True).tzinfo()
        if self.timeout not in _TIMEOUTS:
            raise SchemaError(
                f"timeoutConf {self.timeout!r} is not supported: time here is event time; use"
                " 'EventTimeTimeout' with setTimeoutTimestamp, or 'NoTimeout'"
            )

    def detail(self) -> str:
        return _with_time_zone(MapStateSpec.detail(self), self.time_zone)

    def calls(self, columns: pa.Schema) -> Calls:
        group = _Group(self, columns)
        return Calls(group.on_row, group.on_timer)


class _Group:
    def __init__(self, spec: GroupStateSpec, columns: pa.Schema) -> None:
        self._spec = spec
        self._columns = columns
        self._times = SessionTimes(spec.time_zone, naive=True)
        self._frames = Frames(columns, self._times)
        self._tuples = Tuples(spec.state, self._times)
        self._time = columns.field(spec.time).type

    def on_row(self, row: dict[str, Any], state: KeyState) -> Sequence[Any]:
        key = self._times.key({name: row[name] for name in self._spec.keys}, self._columns)
        return self._call(key, [self._frames.of(row)], state, millis(row[self._spec.time]) - 1, out=False)

    def on_timer(self, key: dict[str, Any], time: Any, state: KeyState) -> Sequence[Any]:
        return self._call(self._times.key(key, self._columns), [], state, millis(time), out=True)

    def _call(
        self, key: tuple[Any, ...], frames: list[Any], state: KeyState, watermark: int, *, out: bool
    ) -> Sequence[Any]:
        spec = self._spec
        group = GroupState(self._tuples, state, watermark, spec.timeout, out=out)
        result = spec.on_row(key, iter(frames), group)  # type: ignore[call-arg, arg-type]
        made = list(rows_of_frames(result, spec.schema, self._times))
        state.value = group.as_value()
        state.timer = None if group.timeout_ms is None else time_of(group.timeout_ms, self._time)
        return made


def _with_time_zone(detail: str, zone: str) -> str:
    return detail if zone == UTC_ZONE else f"{detail} zone {zone}"


ProcessorTakes: TypeAlias = Literal["row", "pandas"]
_TIME_MODES: Final = ("none", "eventtime")


@dataclass(frozen=True, slots=True)
class TimerValues:
    """The watermark of a call."""

    watermark: int

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802 - these are Spark's names
        """Return the watermark in milliseconds since 1970."""
        return self.watermark

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802
        """Raise NotImplementedError: processing time is not supported."""
        refuse("getCurrentProcessingTimeInMs", "a replay would not repeat it, use getCurrentWatermarkInMs")


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

    def __post_init__(self) -> None:
        MapStateSpec.__post_init__(self)
        SessionTimes(self.time_zone, naive=True).tzinfo()

    def detail(self) -> str:
        return _with_time_zone(MapStateSpec.detail(self), self.time_zone)

    def calls(self, columns: pa.Schema) -> Calls:
        running = _Running(self, columns)
        return Calls(running.on_row, running.on_timer, running.close)


class _Running:
    def __init__(self, spec: ProcessorSpec, columns: pa.Schema) -> None:
        self._spec = spec
        self._columns = columns
        self._times = SessionTimes(spec.time_zone, naive=spec.takes == "pandas")
        self._given = (
            Frames(columns, self._times) if spec.takes == "pandas" else SparkRows(columns, self._times)
        )
        self._time = columns.field(spec.time).type
        self._processor, self._handle = opened(spec.processor, timers=spec.timers, times=self._times)

    def on_row(self, row: dict[str, Any], state: KeyState) -> Sequence[Any]:
        self._handle.load(state.value)
        key = self._key({name: row[name] for name in self._spec.keys})
        given = self._given.of(row)
        values = TimerValues(millis(row[self._spec.time]) - 1)
        return self._end(self._processor.handleInputRows(key, iter([given]), values), state)

    def on_timer(self, key: dict[str, Any], time: Any, state: KeyState) -> Sequence[Any]:
        self._handle.load(state.value)
        # At the end of all sources every timer fires once, and this is the only call for the key.
        due = list(self._handle.listTimers()) if state.at_end else [millis(time)]
        made: list[Any] = []
        for expiry in due:
            if expiry not in self._handle.listTimers():
                continue  # the previous timer deleted it, or its time to live expired
            self._handle.deleteTimer(expiry)
            self._handle.fired = expiry
            values, info = TimerValues(expiry), ExpiredTimerInfo(expiry)
            expired = getattr(self._processor, "handleExpiredTimer", None)
            if expired is not None:
                made += self._end(expired(self._key(key), values, info), state)
        self._handle.fired = None
        self._keep(state)
        return made

    def _key(self, key: dict[str, Any]) -> tuple[Any, ...]:
        return self._times.key(key, self._columns)

    def _end(self, result: Any, state: KeyState) -> Sequence[Any]:
        schema = self._spec.schema
        frames = self._spec.takes == "pandas"
        made = list((rows_of_frames if frames else rows_of_rows)(result, schema, self._times))
        self._keep(state)
        return made

    def _keep(self, state: KeyState) -> None:
        state.value = self._handle.store()
        first = self._handle.first_timer
        state.timer = None if first is None else time_of(first, self._time)

    def close(self) -> None:
        close = getattr(self._processor, "close", None)
        if close is not None:
            close()
