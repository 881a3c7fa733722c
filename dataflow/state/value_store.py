"""Storage of the values that user functions keep for each key: the interface, and values in memory.

Values are stored by slot, without timers or times. The other implementation is `state/disk_value_store.py`;
to an operator they differ only in memory use and speed.
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
from dataflow.values.nested import values_of

StateLocation: TypeAlias = Literal["memory", "disk"]
STATE_LOCATIONS: Final[tuple[str, ...]] = get_args(StateLocation)


def check_state_location(location: Any) -> None:
    """Raise SchemaError if `location` is not "memory" or "disk"."""
    if location not in STATE_LOCATIONS:
        near = nearest(location, STATE_LOCATIONS) if isinstance(location, str) else ""
        raise SchemaError(
            f"state_on is {' or '.join(map(repr, STATE_LOCATIONS))}, not {location!r:.80}{near}"
        )


class ValueStore(Protocol):
    """A value, or None, for each slot.

    A value returned by `get` may be changed in place until it is `put` back.
    """

    def reach(self, slots: int) -> None:
        """Make room for `slots` slots; new slots have no value."""
        ...

    def clear(self, slots: Slots) -> None:
        """Delete the values of these slots."""
        ...

    def keep(self, slots: Slots) -> None:
        """Move the value of slot slots[i] to slot i; drop all other slots."""
        ...

    def has(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return which of the slots have a value."""
        ...

    def get(self, slot: int) -> Value | None:
        """Return the value of a slot."""
        ...

    def put(self, slot: int, value: Value | None) -> None:
        """Set the value of a slot. It must be normalised (`values/columns.py`), and is owned by the store."""
        ...

    def settle(self) -> None:
        """Note that the calls of a punctuation are over."""
        ...

    def store(self, slots: Slots) -> list[pa.Array]:
        """Return the columns of these slots, null where there is no value."""
        ...

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        """Load columns from `store` into slots without a value. Each slot gets one."""
        ...

    def counters(self) -> dict[str, int]:
        """Return numbers for display."""
        ...

    def close(self) -> None:
        """Close all files."""
        ...


class MemoryValueStore:
    """Values as Python objects in a list."""

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
        """Nothing is pending."""

    def store(self, slots: Slots) -> list[pa.Array]:
        return columns_of([self._values[slot] for slot in slots.tolist()], self._columns)

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        names = self._columns.names
        cells = [values_of(column) for column in columns]
        for row, slot in enumerate(slots.tolist()):
            self._values[slot] = {name: column[row] for name, column in zip(names, cells, strict=True)}

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """There are no files."""


def columns_of(values: Sequence[Value | None], columns: pa.Schema) -> list[pa.Array]:
    """Return values as Arrow columns, null where there is no value."""
    nothing = dict.fromkeys(columns.names)
    rows = [nothing if value is None else value for value in values]
    return [pa.array(list(map(itemgetter(field.name), rows)), field.type) for field in columns]
