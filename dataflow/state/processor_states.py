"""The state variables of a `StatefulProcessor` for the key of a call, with Spark's names.

Each is one column of the operator's state: a struct; a list of structs; a list of structs of `key` and
`value`. The timers are a list of milliseconds.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import pyarrow as pa

from dataflow.errors import SchemaError
from dataflow.schema import parse_schema
from dataflow.values.spark_rows import UTC_ZONE, SessionTimes, Tuples, refuse, take_millis

TIMERS: Final = "_timers"
_V = TypeVar("_V", bound="_Variable")


class _Variable:
    """A state variable. `held`: its stored form, None for nothing."""

    kind: pa.DataType

    def __init__(self) -> None:
        self.held: Any = None

    def exists(self) -> bool:
        return bool(self.held)

    def clear(self) -> None:
        self.held = None


class ValueState(_Variable):
    """A state variable with one value."""

    def __init__(self, columns: pa.Schema, times: SessionTimes) -> None:
        super().__init__()
        self._tuples = Tuples(columns, times)
        self.kind = pa.struct(list(columns))

    def get(self) -> tuple[Any, ...] | None:
        return None if self.held is None else self._tuples.to_user(self.held)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803 - these are Spark's names
        self.held = self._tuples.to_stored(newValue)


class ListState(_Variable):
    """A state variable with a list of values."""

    def __init__(self, columns: pa.Schema, times: SessionTimes) -> None:
        super().__init__()
        self._tuples = Tuples(columns, times)
        self.kind = pa.list_(pa.struct(list(columns)))

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over the values, in order."""
        return iter([self._tuples.to_user(one) for one in self.held or ()])

    def put(self, newState: Iterable[tuple[Any, ...]]) -> None:  # noqa: N803
        self.held = [self._tuples.to_stored(one) for one in newState]

    def appendValue(self, newState: tuple[Any, ...]) -> None:  # noqa: N802,N803
        self.appendList([newState])

    def appendList(self, newState: Iterable[tuple[Any, ...]]) -> None:  # noqa: N802,N803
        self.held = [*(self.held or ()), *(self._tuples.to_stored(one) for one in newState)]


class MapState(_Variable):
    """A state variable with values by user key, in order of insertion."""

    def __init__(self, keys: pa.Schema, values: pa.Schema, times: SessionTimes) -> None:
        super().__init__()
        self._keys, self._values = Tuples(keys, times), Tuples(values, times)
        entry = [pa.field("key", pa.struct(list(keys))), pa.field("value", pa.struct(list(values)))]
        self.kind = pa.list_(pa.struct(entry))

    def _at(self, key: tuple[Any, ...]) -> int | None:
        wanted = self._keys.to_stored(key)
        return next((at for at, one in enumerate(self.held or ()) if one["key"] == wanted), None)

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        at = self._at(key)
        return None if at is None else self._values.to_user(self.held[at]["value"])

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        return self._at(key) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        at = self._at(key)
        entry = {"key": self._keys.to_stored(key), "value": self._values.to_stored(value)}
        held = list(self.held or ())
        self.held = [*held, entry] if at is None else [*held[:at], entry, *held[at + 1 :]]

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        at = self._at(key)
        if at is not None:
            self.held = [*self.held[:at], *self.held[at + 1 :]]

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Return an iterator over keys and values."""
        return iter(
            [(self._keys.to_user(one["key"]), self._values.to_user(one["value"])) for one in self.held or ()]
        )

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter([key for key, _ in self.iterator()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([value for _, value in self.iterator()])


class ProcessorHandle:
    """The argument of `init`: Spark's `StatefulProcessorHandle`, with event time only."""

    def __init__(self, *, timers: bool, times: SessionTimes | None = None) -> None:
        self._times = times or SessionTimes(UTC_ZONE, naive=False)
        self._variables: dict[str, _Variable] = {}
        self._with_timers = timers
        self._timers: list[int] = []
        self.open = True
        """Whether `init` runs; state variables may be created only there."""
        self.fired: int | None = None
        """The time of the timer for which this call is made."""

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueState:  # noqa: N802,N803
        return self._new(stateName, ValueState(parse_schema(schema), self._times), ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListState:  # noqa: N802,N803
        return self._new(stateName, ListState(parse_schema(schema), self._times), ttlDurationMs)

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> MapState:
        made = MapState(parse_schema(userKeySchema), parse_schema(valueSchema), self._times)
        return self._new(stateName, made, ttlDurationMs)

    def _new(self, name: str, variable: _V, ttl: int | None) -> _V:
        if ttl is not None:
            refuse(
                f"ttlDurationMs of state {name!r}",
                "it is processing time; pass ttl=timedelta(...) to the operator",
            )
        if not self.open or name in self._variables or name == TIMERS:
            raise SchemaError(
                f"state variables are made in init, with unique names; cannot make {name!r} now"
            )
        self._variables[name] = variable
        return variable

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802,N803
        """Set a timer, which fires after the watermark has passed it. Raises ValueError if it fired again and
        again.
        """
        if not self._with_timers:
            raise ValueError("registerTimer needs timeMode 'eventTime', not 'none'")
        expiry = take_millis(expiryTimestampMs)
        if self.fired is not None and expiry <= self.fired:
            raise ValueError(f"timer {expiry} ms is not after the one that fired, {self.fired} ms")
        self._timers = sorted({*self._timers, expiry})

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802,N803
        self._timers = [one for one in self._timers if one != expiryTimestampMs]

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """Return an iterator over the times of all timers."""
        return iter(list(self._timers))

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802,N803
        """Not supported: raises."""
        refuse(
            f"deleteIfExists({stateName!r})",
            "leave out the variable, increment state_version and add a Migration",
        )

    # --- for the operator -----------------------------------------------------------------------------------

    @property
    def first_timer(self) -> int | None:
        """The time of the next timer, None for none."""
        return self._timers[0] if self._timers else None

    def columns(self) -> pa.Schema:
        """Return the columns of the operator's state. Raises SchemaError if there are none."""
        found = [pa.field(name, variable.kind) for name, variable in self._variables.items()]
        if self._with_timers:
            found.append(pa.field(TIMERS, pa.list_(pa.int64())))
        if not found:
            raise SchemaError(
                "a processor needs state: make a state variable in init, or use timeMode 'eventTime'"
            )
        return pa.schema(found)

    def load(self, value: Mapping[str, Any] | None) -> None:
        for name, variable in self._variables.items():
            variable.held = None if value is None else value[name]
        self._timers = [] if value is None or not self._with_timers else list(value[TIMERS] or ())

    def store(self) -> dict[str, Any] | None:
        """Return the state of the key; None for nothing."""
        value: dict[str, Any] = {name: variable.held for name, variable in self._variables.items()}
        if self._with_timers:
            value[TIMERS] = self._timers
        return value if any(value.values()) else None
