"""Support for classes written as Spark's `StatefulProcessor`, unchanged.

This file adapts the signatures. `map_state` decides when a method is called and what state is stored.

Each operator uses its own copy of the processor: `init` is called when it opens, `close` when it closes.
`init` of another copy is called where the graph is built, to learn the state variables, as in Spark.
`handleInputRows` is called once per row, in the order of event time (`group_state.py` has the reason).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from dataflow.errors import SchemaError
from dataflow.operators.map_state import Calls, MapStateSpec
from dataflow.operators.spark_functions import refuse
from dataflow.state.key_states import KeyState
from dataflow.state.processor_states import ProcessorHandle
from dataflow.values.spark_rows import Frames, Row, millis, plain, rows_of_frames, rows_of_rows, time_of
from dos_protocol.errors import text_of

Takes: TypeAlias = Literal["row", "pandas"]
_MODES: Final = ("none", "eventtime")


@dataclass(frozen=True, slots=True)
class TimerValues:
    """The watermark of a call."""

    watermark: int

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802 - these are Spark's names
        """Return the watermark in milliseconds since 1970: 1 ms before the row's time, or the time of the
        timer.
        """
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
    if not isinstance(mode, str) or mode.lower() not in _MODES:
        raise SchemaError(
            f"timeMode {mode!r} is not supported: time here is event time; use 'eventTime' or 'none'"
        )
    return mode.lower() == "eventtime"


def opened(processor: Any, *, timers: bool, naive: bool = False) -> tuple[Any, ProcessorHandle]:
    """Return a copy of the processor after `init`, and its handle. Raises what `init` raises."""
    own, handle = copy.deepcopy(processor), ProcessorHandle(timers=timers, naive=naive)
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
    takes: Takes = "row"
    timers: bool = False

    def calls(self, columns: pa.Schema) -> Calls:
        running = _Running(self, columns)
        return Calls(running.on_row, running.on_timer, running.close)


class _Running:
    def __init__(self, spec: ProcessorSpec, columns: pa.Schema) -> None:
        self._spec = spec
        self._frames = Frames(columns)
        self._time = columns.field(spec.time).type
        self._processor, self._handle = opened(
            spec.processor, timers=spec.timers, naive=spec.takes == "pandas"
        )

    def on_row(self, row: dict[str, Any], state: KeyState) -> Sequence[Any]:
        self._handle.load(state.value)
        key = self._key({name: row[name] for name in self._spec.keys})
        given = self._frames.of(row) if self._spec.takes == "pandas" else Row.of(row)
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
        return tuple(map(plain, key.values()) if self._spec.takes == "pandas" else key.values())

    def _end(self, result: Any, state: KeyState) -> Sequence[Any]:
        schema = self._spec.schema
        frames = self._spec.takes == "pandas"
        made = list(rows_of_frames(result, schema) if frames else rows_of_rows(result, schema.names))
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
