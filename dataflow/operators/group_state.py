"""Functions of the shape of Spark's `applyInPandasWithState`, as they are.

Rules of this file: the shape of a call; when it comes, and what is kept, is `map_state`'s.

A function is called for each row, in the order of event time, with a DataFrame of that row: Spark promises
nothing of how many rows a call sees, and one is the only number that does not depend on how they came. The
watermark that it is told is just before the row, or the time of the timeout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

import pyarrow as pa

from dataflow.errors import SchemaError
from dataflow.operators.map_state import Calls, MapStateSpec
from dataflow.operators.spark_rows import Frames, Tuples, millis, plain, rows_of_frames, time_of
from dataflow.state.key_states import KeyState

_TIMEOUTS: Final = ("NoTimeout", "EventTimeTimeout")
_MODES: Final = ("append", "update")


def check_mode(mode: str) -> None:
    """Raises SchemaError for an output mode that Spark has and we have not."""
    if not isinstance(mode, str) or mode.lower() not in _MODES:
        raise SchemaError(f"output mode {mode!r} is not supported: rows go on as they are made; use 'append'")


def refuse(call: str, remedy: str) -> NoReturn:
    """Of a call that no replay could repeat, or that is not built."""
    raise NotImplementedError(f"{call} is not supported here: {remedy}")


class GroupState:
    """What the function gets as its third argument: Spark's `GroupState`, with event time only."""

    def __init__(
        self, columns: pa.Schema, state: KeyState, watermark: int, timeout: str, *, out: bool
    ) -> None:
        self._tuples = Tuples(columns, naive=True)
        self._kept = state.value
        self._watermark = watermark
        self._timeout = timeout
        self.hasTimedOut = out
        """Whether this call is for a timeout, and not for rows."""
        self.oldTimeoutTimestamp = -1 if state.timer is None else millis(state.timer)
        self.timeout_ms: int | None = None
        """What was set in this call: a timeout counts until the next one only, as in Spark."""

    @property
    def exists(self) -> bool:
        """Whether something is kept for the key."""
        return self._kept is not None

    @property
    def get(self) -> tuple[Any, ...]:
        """What is kept. Raises ValueError if there is nothing."""
        if self._kept is None:
            raise ValueError("nothing is kept for this key yet: look at `exists`, or use `getOption`")
        return self._tuples.given(self._kept)

    @property
    def getOption(self) -> tuple[Any, ...] | None:  # noqa: N802 - these are Spark's names
        """What is kept, or None."""
        return None if self._kept is None else self._tuples.given(self._kept)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803
        """Keep this. Raises TypeError for None, ValueError for another number of values."""
        if newValue is None:
            raise TypeError("a state is a tuple, not None; use remove() to keep nothing")
        self._kept = self._tuples.to_keep(newValue)

    def remove(self) -> None:
        """Keep nothing."""
        self._kept = None

    def setTimeoutTimestamp(self, timestampMs: "int | datetime") -> None:  # noqa: N802,N803
        """Be called when event time has passed this, if no call for the key comes before. Raises ValueError
        for a time that has passed.
        """
        if self._timeout != "EventTimeTimeout":
            raise ValueError(
                f"setTimeoutTimestamp needs timeoutConf 'EventTimeTimeout', not {self._timeout!r}"
            )
        wanted = millis(timestampMs) if isinstance(timestampMs, datetime) else int(timestampMs)
        if wanted <= self._watermark:
            raise ValueError(f"timeout {wanted} ms is not behind the watermark, {self._watermark} ms")
        self.timeout_ms = wanted

    def setTimeoutDuration(self, durationMs: int) -> None:  # noqa: N802,N803
        """Refused."""
        refuse(
            f"GroupState.setTimeoutDuration({durationMs})", "it is processing time, use setTimeoutTimestamp"
        )

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        """How far event time is for this call, in milliseconds since 1970."""
        return self._watermark

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802
        """Refused."""
        refuse(
            "GroupState.getCurrentProcessingTimeMs", "no replay would repeat it, use getCurrentWatermarkMs"
        )

    def as_value(self) -> dict[str, Any] | None:
        """As it is kept."""
        return self._kept


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
