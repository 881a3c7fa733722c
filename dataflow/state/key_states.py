"""The state that user functions keep for each key, in slots: a value of the declared columns, and a timer.

Timers and call times are always in memory; a `ValueStore` decides where values are. A value is visible to
calls before the event time of the last call that left one + ttl. Calls happen in event-time order, so what a
function finds depends on the rows alone, not on when an expired value is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint.chains.state_blocks import DELETED_COLUMN, block_schema, key_columns, state_version_of
from dataflow.core.event_time import END, Watermark
from dataflow.errors import SchemaError, nearest
from dataflow.state.accumulators import SlotNumbers
from dataflow.state.key_index import Slots
from dataflow.state.keyed_table import SlotValues
from dataflow.state.migration import StateHistory, Value
from dataflow.values.kinds import values_of
from dataflow.values.python_rows import rows_of

# --- where values are ---------------------------------------------------------------------------------------
#
# Storage of the values that user functions keep for each key: the interface, and values in memory.
#
# Values are stored by slot, without timers or times. The other implementation is `state/disk_value_store.py`;
# to an operator they differ only in memory use and speed.

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
    """A value, or None, for each slot. One of `get` may be changed in place until it is `put` back."""

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


# --- the states ---------------------------------------------------------------------------------------------

TIMER: Final = "_timer"
IS_SET: Final = "_is_set"
CALLED: Final = "_called"
NONE: Final = END
"""No timer; no call."""


@dataclass(slots=True)
class KeyState:
    """The state of one key during a call of a user function. Changes are kept after the call."""

    value: dict[str, Any] | None = None
    """A value for each column of the state; None: nothing is kept."""
    timer: Any = None
    """When to call `on_timer`: a datetime like those of the time column, or None. One for each key."""
    at_end: bool = False
    """Whether all sources are at their end: `on_timer` is not called again for this key."""
    watermark: Watermark | None = None
    """That of all calls of a micro-batch (`calls="batch"`); None: a call's own."""


class KeyStates(SlotValues):
    """The fields of `KeyState` by slot. Timers and call times are microseconds."""

    def __init__(
        self, history: StateHistory, ttl: int | None = None, values: ValueStore | None = None
    ) -> None:
        """ttl: in microseconds, or None. values: where values are stored, by default in memory."""
        self._history = history
        self._normalise = history.normalise
        self._schema = history.columns
        self.ttl = ttl
        """Time to live in microseconds, None for ever."""
        self._values = MemoryValueStore(history.columns) if values is None else values
        self._slots = 0
        self.timers = SlotNumbers(np.int64, NONE)
        self._called = SlotNumbers(np.int64, NONE)
        """With a time to live: when a call last left a value."""
        self._undated = False
        """Whether values without a call time were restored, from a version without a time to live."""

    def fields(self) -> list[pa.Field]:
        numbers = [TIMER] if self.ttl is None else [TIMER, CALLED]
        return [*self._schema, pa.field(IS_SET, pa.bool_()), *(pa.field(one, pa.int64()) for one in numbers)]

    def reach(self, slots: int) -> None:
        self._slots = slots
        self._values.reach(slots)
        self.timers.reach(slots)
        self._called.reach(slots)

    def clear(self, slots: Slots) -> None:
        self._values.clear(slots)
        self.timers.clear(slots)
        self._called.clear(slots)

    def keep(self, slots: Slots) -> None:
        self._slots = len(slots)
        self._values.keep(slots)
        self.timers.keep(slots)
        self._called.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        numbers = [self.timers] if self.ttl is None else [self.timers, self._called]
        columns = [*self._values.store(slots), pa.array(self._values.has(slots))]
        return [*columns, *(pa.array(one.values[slots]) for one in numbers)]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        width = len(self._schema)
        is_set = columns[width].to_numpy(zero_copy_only=False)
        self.timers.values[slots] = columns[width + 1].to_numpy()
        if self.ttl is not None:
            self._called.values[slots] = columns[width + 2].to_numpy()
        rows = pa.array(np.flatnonzero(is_set))
        self._values.load(slots[is_set], [column.take(rows) for column in columns[:width]])

    def settle(self) -> None:
        """Note the end of the calls of a punctuation. Raises UserFault if values cannot be stored."""
        self._values.settle()

    def empty(self, slots: Slots) -> Slots:
        """Return those of the slots that keep neither value nor timer."""
        empty_slots: Slots = slots[~self._values.has(slots) & (self.timers.values[slots] == NONE)]
        return empty_slots

    def counters(self) -> dict[str, int]:
        return self._values.counters()

    def close(self) -> None:
        self._values.close()

    # --- time to live ---------------------------------------------------------------------------------------

    def begin(self, slot: int, time: int) -> KeyState:
        if self.ttl is not None:
            called = int(self._called.values[slot])
            if called != NONE and called + self.ttl <= time:
                return KeyState()
        return KeyState(self._values.get(slot))

    def end(self, slot: int, time: int, state: KeyState) -> None:
        """Store the state that a call at event time `time` left, as it will be read back. Raises UserFault
        for a value that the columns do not hold exactly.
        """
        value = state.value
        self._values.put(slot, None if value is None else self._normalise(value))
        if self.ttl is not None:
            self._called.values[slot] = NONE if value is None else time

    def called_until(self, slot: int, time: int) -> None:
        """Note that the last of the rows that the previous call of `end` was for has this time."""
        if self.ttl is not None and self._called.values[slot] != NONE:
            self._called.values[slot] = time

    def expire(self, watermark: Watermark) -> Slots:
        """Delete the values that no call after `watermark` would find; return their slots."""
        if self.ttl is None:
            return np.empty(0, np.int64)
        called = self._called.values[: self._slots]
        begin = watermark if watermark == END else watermark + 1
        over: Slots = np.flatnonzero((called != NONE) & (called <= begin - self.ttl))
        self._values.clear(over)
        self._called.clear(over)
        return over

    def date(self, watermark: Watermark) -> Slots:
        """Set the call time of values stored without one to `watermark`. Return their slots."""
        if not self._undated:
            return np.empty(0, np.int64)
        self._undated = False
        called = self._called.values[: self._slots]
        slots: Slots = np.flatnonzero((called == NONE) & self._values.has(np.arange(self._slots)))
        called[slots] = watermark
        return slots

    # --- older blocks ---------------------------------------------------------------------------------------

    def upgrade(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a block of another version, or with another ttl, to this one. Raises UserFault."""
        version = state_version_of(block.schema)
        before = self._history.columns_of(version)
        kept = ~block.column(DELETED_COLUMN).to_numpy(zero_copy_only=False)
        has_value = kept & block.column(IS_SET).to_numpy(zero_copy_only=False)
        rows = rows_of(block.select(before.names))
        values = [
            self._history.migrated(version, row) if set_ else None
            for row, set_ in zip(rows, has_value.tolist(), strict=True)
        ]
        keys = pa.schema([block.schema.field(name) for name in key_columns(block.schema)])
        schema = block_schema(keys, pa.schema(self.fields()), state_version=self._history.version)
        made = dict(zip(self._schema.names, columns_of(values, self._schema), strict=True))
        if self.ttl is not None and CALLED not in block.schema.names:
            made[CALLED] = pa.array(np.full(block.num_rows, NONE))
            self._undated = True
        columns = [made[name] if name in made else block.column(name) for name in schema.names]
        return pa.record_batch(columns, schema=schema)
