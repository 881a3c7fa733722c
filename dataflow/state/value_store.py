"""Where what user functions keep for each key lies: the interface, and the values that lie in memory.

Rules of this file: values by slot, no timers, no times. The other place is `state/disk_value_store.py`; an
operator cannot tell which one it has, but for how much memory it takes and how long.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.errors import SchemaError, nearest
from dataflow.state.columns import Slots
from dataflow.state.migration import Value

Place: TypeAlias = Literal["memory", "disk"]
PLACES: Final[tuple[str, ...]] = get_args(Place)


def check_place(place: Any) -> None:
    """Raises SchemaError for what is no place to keep a state."""
    if place not in PLACES:
        near = nearest(place, PLACES) if isinstance(place, str) else ""
        raise SchemaError(f"state_on is {' or '.join(map(repr, PLACES))}, not {place!r:.80}{near}")


class ValueStore(Protocol):
    """A value for each slot, or None. What `get` gave may be changed in place until it is `put` back."""

    def reach(self, slots: int) -> None:
        """Have room for so many; new slots have none."""
        ...

    def clear(self, slots: Slots) -> None:
        """Forget the values of these slots."""
        ...

    def keep(self, slots: Slots) -> None:
        """Slot i takes over what slot slots[i] had; there are no others."""
        ...

    def has(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Which of them have a value."""
        ...

    def get(self, slot: int) -> Value | None:
        """The value of a slot."""
        ...

    def put(self, slot: int, value: Value | None) -> None:
        """Its value from now on, which fits the columns."""
        ...

    def settle(self) -> None:
        """A punctuation's calls are over."""
        ...

    def store(self, slots: Slots) -> list[pa.Array]:
        """The columns of these slots, null where there is no value."""
        ...

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        """What `store` gave, into slots without a value; each of these gets one."""
        ...

    def counters(self) -> dict[str, int]:
        """Numbers for people."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class MemoryValueStore:
    """Python objects in a list."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        self._values: list[Value | None] = []

    def reach(self, slots: int) -> None:
        self._values += [None] * (slots - len(self._values))

    def clear(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._values[slot] = None

    def keep(self, slots: Slots) -> None:
        self._values = [self._values[slot] for slot in slots.tolist()]

    def has(self, slots: Slots) -> npt.NDArray[np.bool_]:
        return np.array([self._values[slot] is not None for slot in slots.tolist()], np.bool_)

    def get(self, slot: int) -> Value | None:
        return self._values[slot]

    def put(self, slot: int, value: Value | None) -> None:
        self._values[slot] = value

    def settle(self) -> None:
        """Nothing waits."""

    def store(self, slots: Slots) -> list[pa.Array]:
        return columns_of([self._values[slot] for slot in slots.tolist()], self._columns)

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        names = self._columns.names
        cells = [column.to_pylist() for column in columns]
        for row, slot in enumerate(slots.tolist()):
            self._values[slot] = {name: column[row] for name, column in zip(names, cells, strict=True)}

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """There are no files."""


def columns_of(values: Sequence[Value | None], columns: pa.Schema) -> list[pa.Array]:
    """Values as Arrow columns, null where there is none."""
    nothing = dict.fromkeys(columns.names)
    rows = [nothing if value is None else value for value in values]
    return [pa.array(list(map(itemgetter(field.name), rows)), field.type) for field in columns]
