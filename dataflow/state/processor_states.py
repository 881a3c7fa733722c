"""What a `StatefulProcessor` keeps for the key of a call, as Spark names it: values, lists, maps, timers.

Rules of this file: one key at a time, in plain values. Which key, and when, is `operators/processor.py`'s.

Each state variable is one column of the operator's state: a struct; a list of structs; a list of structs of
`key` and `value`. The timers are a list of milliseconds.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import pyarrow as pa

from dataflow.errors import SchemaError
from dataflow.operators.group_state import refuse
from dataflow.operators.spark_rows import Tuples
from dataflow.schema import parse_schema

TIMERS: Final = "_timers"
_V = TypeVar("_V", bound="_Variable")


class _Variable:
    """`held`: as it is stored, None for nothing."""

    kind: pa.DataType

    def __init__(self) -> None:
        self.held: Any = None

    def exists(self) -> bool:
        """Whether anything is kept."""
        return bool(self.held)

    def clear(self) -> None:
        """Keep nothing."""
        self.held = None


class ValueState(_Variable):
    """One value."""

    def __init__(self, columns: pa.Schema, *, naive: bool = False) -> None:
        super().__init__()
        self._tuples = Tuples(columns, naive=naive)
        self.kind = pa.struct(list(columns))

    def get(self) -> tuple[Any, ...] | None:
        """What is kept, or None."""
        return None if self.held is None else self._tuples.given(self.held)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803 - these are Spark's names
        """Keep this."""
        self.held = self._tuples.to_keep(newValue)


class ListState(_Variable):
    """A list of values."""

    def __init__(self, columns: pa.Schema, *, naive: bool = False) -> None:
        super().__init__()
        self._tuples = Tuples(columns, naive=naive)
        self.kind = pa.list_(pa.struct(list(columns)))

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Its values in their order."""
        return iter([self._tuples.given(one) for one in self.held or ()])

    def put(self, newState: Iterable[tuple[Any, ...]]) -> None:  # noqa: N803
        """Keep these and no others."""
        self.held = [self._tuples.to_keep(one) for one in newState]

    def appendValue(self, newState: tuple[Any, ...]) -> None:  # noqa: N802,N803
        """One more."""
        self.appendList([newState])

    def appendList(self, newState: Iterable[tuple[Any, ...]]) -> None:  # noqa: N802,N803
        """Some more."""
        self.held = [*(self.held or ()), *(self._tuples.to_keep(one) for one in newState)]


class MapState(_Variable):
    """Values by keys of the user's, in the order in which those came."""

    def __init__(self, keys: pa.Schema, values: pa.Schema, *, naive: bool = False) -> None:
        super().__init__()
        self._keys, self._values = Tuples(keys, naive=naive), Tuples(values, naive=naive)
        entry = [pa.field("key", pa.struct(list(keys))), pa.field("value", pa.struct(list(values)))]
        self.kind = pa.list_(pa.struct(entry))

    def _at(self, key: tuple[Any, ...]) -> int | None:
        wanted = self._keys.to_keep(key)
        return next((at for at, one in enumerate(self.held or ()) if one["key"] == wanted), None)

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        """The value of a key, or None."""
        at = self._at(key)
        return None if at is None else self._values.given(self.held[at]["value"])

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        """Whether it has a value."""
        return self._at(key) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        """Its value from now on."""
        at = self._at(key)
        entry = {"key": self._keys.to_keep(key), "value": self._values.to_keep(value)}
        held = list(self.held or ())
        self.held = [*held, entry] if at is None else [*held[:at], entry, *held[at + 1 :]]

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        """It has no value any more."""
        at = self._at(key)
        if at is not None:
            self.held = [*self.held[:at], *self.held[at + 1 :]]

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Keys with their values."""
        return iter(
            [(self._keys.given(one["key"]), self._values.given(one["value"])) for one in self.held or ()]
        )

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Its keys."""
        return iter([key for key, _ in self.iterator()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Their values."""
        return iter([value for _, value in self.iterator()])


class ProcessorHandle:
    """What `init` gets: Spark's `StatefulProcessorHandle`, with event time only."""

    def __init__(self, *, timers: bool, naive: bool = False) -> None:
        self._naive = naive
        self._variables: dict[str, _Variable] = {}
        self._with_timers = timers
        self._timers: list[int] = []
        self.open = True
        """Whether `init` runs: state variables are made in it alone."""
        self.fired: int | None = None
        """The time of the timer for which this call is."""

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueState:  # noqa: N802,N803
        """A state variable of one value."""
        return self._new(stateName, ValueState(parse_schema(schema), naive=self._naive), ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListState:  # noqa: N802,N803
        """A state variable that is a list."""
        return self._new(stateName, ListState(parse_schema(schema), naive=self._naive), ttlDurationMs)

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> MapState:
        """A state variable that is a map."""
        made = MapState(parse_schema(userKeySchema), parse_schema(valueSchema), naive=self._naive)
        return self._new(stateName, made, ttlDurationMs)

    def _new(self, name: str, variable: _V, ttl: int | None) -> _V:
        if ttl is not None:
            refuse(
                f"ttlDurationMs of state {name!r}",
                "it is processing time; give the operator ttl=timedelta(...)",
            )
        if not self.open or name in self._variables or name == TIMERS:
            raise SchemaError(
                f"state variables are made in init, each of a name of its own, and not {name!r} now"
            )
        self._variables[name] = variable
        return variable

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802,N803
        """Be called when event time has passed this. Raises ValueError for a timer that would fire again and
        again.
        """
        if not self._with_timers:
            raise ValueError("registerTimer needs timeMode 'eventTime', not 'none'")
        if self.fired is not None and expiryTimestampMs <= self.fired:
            raise ValueError(
                f"timer {expiryTimestampMs} ms is not behind the one that fired, {self.fired} ms"
            )
        self._timers = sorted({*self._timers, int(expiryTimestampMs)})

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802,N803
        """Not to be called then."""
        self._timers = [one for one in self._timers if one != expiryTimestampMs]

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """All that are set."""
        return iter(list(self._timers))

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802,N803
        """Refused."""
        refuse(
            f"deleteIfExists({stateName!r})",
            "leave the variable out, count state_version up and give a Migration",
        )

    # --- for the operator -----------------------------------------------------------------------------------

    @property
    def first_timer(self) -> int | None:
        """The next to come."""
        return self._timers[0] if self._timers else None

    def columns(self) -> pa.Schema:
        """The columns of the operator's state. Raises SchemaError if there are none."""
        found = [pa.field(name, variable.kind) for name, variable in self._variables.items()]
        if self._with_timers:
            found.append(pa.field(TIMERS, pa.list_(pa.int64())))
        if not found:
            raise SchemaError(
                "a processor keeps something: its init makes a state variable, or timeMode is 'eventTime'"
            )
        return pa.schema(found)

    def load(self, value: Mapping[str, Any] | None) -> None:
        """Stand at a key."""
        for name, variable in self._variables.items():
            variable.held = None if value is None else value[name]
        self._timers = [] if value is None or not self._with_timers else list(value[TIMERS] or ())

    def store(self) -> dict[str, Any] | None:
        """What is kept for it; None for nothing."""
        value: dict[str, Any] = {name: variable.held for name, variable in self._variables.items()}
        if self._with_timers:
            value[TIMERS] = self._timers
        return value if any(value.values()) else None
