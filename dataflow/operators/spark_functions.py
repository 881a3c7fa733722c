"""Support for functions written for Spark's `applyInPandasWithState`, unchanged.

This file adapts the signature. `map_state` decides when the function is called and what state is stored.

The function is called once per row, in the order of event time, with a DataFrame of that row. Spark does not
define how many rows a call gets, and one row is the only number that does not depend on how the rows arrived.
The watermark during a call is 1 ms before the row's time, or the time of the timeout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

import pyarrow as pa

from dataflow.errors import SchemaError
from dataflow.operators.map_state import Calls, MapStateSpec
from dataflow.state.key_states import KeyState
from dataflow.values.spark_rows import Frames, Tuples, millis, plain, rows_of_frames, take_millis, time_of

_TIMEOUTS: Final = ("NoTimeout", "EventTimeTimeout")
_MODES: Final = ("append", "update")


def check_mode(mode: str) -> None:
    """Raise SchemaError for a Spark output mode that is not supported."""
    if not isinstance(mode, str) or mode.lower() not in _MODES:
        raise SchemaError(
            f"output mode {mode!r} is not supported: rows are emitted as they are produced; use 'append'"
        )


def refuse(call: str, remedy: str) -> NoReturn:
    """Raise NotImplementedError for a call that a replay could not repeat or that is not implemented."""
    raise NotImplementedError(f"{call} is not supported here: {remedy}")


class GroupState:
    """The third argument of the function: Spark's `GroupState`, with event time only."""

    def __init__(
        self, columns: pa.Schema, state: KeyState, watermark: int, timeout: str, *, out: bool
    ) -> None:
        self._tuples = Tuples(columns, naive=True)
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
        """Whether the key has a state."""
        return self._value is not None

    @property
    def get(self) -> tuple[Any, ...]:
        """The state of the key. Raises ValueError if it has none."""
        if self._value is None:
            raise ValueError("the key has no state yet; check `exists` or use `getOption`")
        return self._tuples.to_user(self._value)

    @property
    def getOption(self) -> tuple[Any, ...] | None:  # noqa: N802 - these are Spark's names
        """The state of the key, or None."""
        return None if self._value is None else self._tuples.to_user(self._value)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803
        """Set the state. Raises TypeError for None, ValueError for a wrong number of values."""
        if newValue is None:
            raise TypeError("a state must be a tuple, not None; use remove() to delete the state")
        self._value = self._tuples.to_stored(newValue)

    def remove(self) -> None:
        """Delete the state."""
        self._value = None

    def setTimeoutTimestamp(self, timestampMs: "int | datetime") -> None:  # noqa: N802,N803
        """Request a call when event time passes this time, unless the key gets a call before. Raises
        ValueError for a time that has passed.
        """
        if self._timeout != "EventTimeTimeout":
            raise ValueError(
                f"setTimeoutTimestamp needs timeoutConf 'EventTimeTimeout', not {self._timeout!r}"
            )
        timeout_ms = millis(timestampMs) if isinstance(timestampMs, datetime) else take_millis(timestampMs)
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
        """Return the state in stored form."""
        return self._value


@dataclass(frozen=True, slots=True)
class GroupStateSpec(MapStateSpec):
    """`on_row` is the user's function of (key, DataFrames, GroupState)."""

    timeout: str = "NoTimeout"

    def __post_init__(self) -> None:
        MapStateSpec.__post_init__(self)
        if self.timeout not in _TIMEOUTS:
            raise SchemaError(
                f"timeoutConf {self.timeout!r} is not supported: time here is event time; use"
                " 'EventTimeTimeout' with setTimeoutTimestamp, or 'NoTimeout'"
            )

    def calls(self, columns: pa.Schema) -> Calls:
        group = _Group(self, columns)
        return Calls(group.on_row, group.on_timer)


class _Group:
    def __init__(self, spec: GroupStateSpec, columns: pa.Schema) -> None:
        self._spec = spec
        self._frames = Frames(columns)
        self._time = columns.field(spec.time).type

    def on_row(self, row: dict[str, Any], state: KeyState) -> Sequence[Any]:
        key = tuple(plain(row[name]) for name in self._spec.keys)
        return self._call(key, [self._frames.of(row)], state, millis(row[self._spec.time]) - 1, out=False)

    def on_timer(self, key: dict[str, Any], time: Any, state: KeyState) -> Sequence[Any]:
        return self._call(tuple(map(plain, key.values())), [], state, millis(time), out=True)

    def _call(
        self, key: tuple[Any, ...], frames: list[Any], state: KeyState, watermark: int, *, out: bool
    ) -> Sequence[Any]:
        spec = self._spec
        group = GroupState(spec.state, state, watermark, spec.timeout, out=out)
        made = list(rows_of_frames(spec.on_row(key, iter(frames), group), spec.schema))  # type: ignore[call-arg, arg-type]
        state.value = group.as_value()
        state.timer = None if group.timeout_ms is None else time_of(group.timeout_ms, self._time)
        return made
