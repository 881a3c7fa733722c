"""What user functions keep for each key, in slots: a value of the declared columns, and a timer.

Rules of this file: values and their columns; when a function is called is the operator's.

Time to live. With it, each slot also has the event time of the last call that left a value, and the value is
there for calls before that time + ttl. Calls come in the order of event time, so what a function finds
follows from the rows alone; when an expired value is thrown away has no effect but on memory and cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from checkpoint.state_blocks import DELETED_COLUMN, block_schema, key_columns, state_version_of
from dataflow.accumulators import SlotNumbers
from dataflow.columns import Slots
from dataflow.core.event_time import END, Mark
from dataflow.keyed_table import SlotValues
from dataflow.migration import StateHistory, check_value

TIMER: Final = "_timer"
IS_SET: Final = "_is_set"
CALLED: Final = "_called"
NONE: Final = END
"""No timer; not called."""


@dataclass(slots=True)
class KeyState:
    """What a function keeps for one key. It may be changed during the call, and is kept after it."""

    value: dict[str, Any] | None = None
    """A value for each column of the state; None: nothing is kept."""
    timer: Any = None
    """When `on_timer` is to be called: a datetime as those of the time column, or None. One for each key."""
    at_end: bool = False
    """Whether all sources are at their end: `on_timer` is not called again for this key."""


class KeyStates(SlotValues):
    """A `KeyState` per slot; timers and times of calls are microseconds. ttl: in microseconds, or None."""

    def __init__(self, history: StateHistory, ttl: int | None = None) -> None:
        self._history = history
        self._schema = history.columns
        self._ttl = ttl
        self.states: list[KeyState] = []
        self.timers = SlotNumbers(np.int64, NONE)
        self._called = SlotNumbers(np.int64, NONE)
        """With a time to live: when a call last left a value."""
        self._undated = False
        """Whether values were restored of which no call is known: from before there was a time to live."""

    def fields(self) -> list[pa.Field]:
        numbers = [TIMER] if self._ttl is None else [TIMER, CALLED]
        return [*self._schema, pa.field(IS_SET, pa.bool_()), *(pa.field(one, pa.int64()) for one in numbers)]

    def reach(self, slots: int) -> None:
        missing = slots - len(self.states)
        self.states += [KeyState() for _ in range(missing)]
        self.timers.reach(slots)
        self._called.reach(slots)

    def clear(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self.states[slot] = KeyState()
        self.timers.clear(slots)
        self._called.clear(slots)

    def keep(self, slots: Slots) -> None:
        self.states = [self.states[slot] for slot in slots.tolist()]
        self.timers.keep(slots)
        self._called.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        values = [self.states[slot].value for slot in slots.tolist()]
        is_set = pa.array([value is not None for value in values], pa.bool_())
        numbers = [self.timers] if self._ttl is None else [self.timers, self._called]
        columns = _columns_of(values, self._schema)
        return [*columns, is_set, *(pa.array(one.values[slots]) for one in numbers)]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        width = len(self._schema)
        *values, is_set = [column.to_pylist() for column in columns[: width + 1]]
        self.timers.values[slots] = columns[width + 1].to_numpy()
        if self._ttl is not None:
            self._called.values[slots] = columns[width + 2].to_numpy()
        for row, slot in enumerate(slots.tolist()):
            value = {f.name: column[row] for f, column in zip(self._schema, values, strict=True)}
            self.states[slot] = KeyState(value if is_set[row] else None)

    def check(self, value: Any) -> None:
        """Raises UserFault for what is no state."""
        if value is not None:
            check_value(value, self._schema)

    # --- time to live ---------------------------------------------------------------------------------------

    def begin(self, slot: int, time: int) -> KeyState:
        """What a call for event time `time` finds."""
        state = self.states[slot]
        called = int(self._called.values[slot])
        if self._ttl is not None and called != NONE and called + self._ttl <= time:
            state.value = None
        return state

    def end(self, slot: int, time: int) -> None:
        """The call is over."""
        if self._ttl is not None:
            self._called.values[slot] = NONE if self.states[slot].value is None else time

    def expire(self, mark: Mark) -> Slots:
        """Forget the values that no call after `mark` would find; their slots."""
        if self._ttl is None:
            return np.empty(0, np.int64)
        called = self._called.values[: len(self.states)]
        begin = mark if mark == END else mark + 1
        over: Slots = np.flatnonzero((called != NONE) & (called <= begin - self._ttl))
        for slot in over.tolist():
            self.states[slot].value = None
        self._called.clear(over)
        return over

    def date(self, mark: Mark) -> Slots:
        """Values from before there was a time to live count as left at `mark`; their slots."""
        if not self._undated:
            return np.empty(0, np.int64)
        self._undated = False
        called = self._called.values[: len(self.states)]
        has_value = [state.value is not None for state in self.states]
        slots: Slots = np.flatnonzero((called == NONE) & np.array(has_value, np.bool_))
        called[slots] = mark
        return slots

    # --- older blocks ---------------------------------------------------------------------------------------

    def upgrade(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """A block of another version as one of this; or of the time before there was a time to live, or with
        one that is not asked for any more. Raises UserFault.
        """
        version = state_version_of(block.schema)
        before = self._history.columns_of(version)
        kept = ~block.column(DELETED_COLUMN).to_numpy(zero_copy_only=False)
        held = kept & block.column(IS_SET).to_numpy(zero_copy_only=False)
        rows = block.select(before.names).to_pylist()
        values = [
            self._history.migrated(version, row) if set_ else None
            for row, set_ in zip(rows, held.tolist(), strict=True)
        ]
        keys = pa.schema([block.schema.field(name) for name in key_columns(block.schema)])
        schema = block_schema(keys, pa.schema(self.fields()), state_version=self._history.version)
        made = dict(zip(self._schema.names, _columns_of(values, self._schema), strict=True))
        if self._ttl is not None and CALLED not in block.schema.names:
            made[CALLED] = pa.array(np.full(block.num_rows, NONE))
            self._undated = True
        columns = [made[name] if name in made else block.column(name) for name in schema.names]
        return pa.record_batch(columns, schema=schema)


def _columns_of(values: Sequence[dict[str, Any] | None], columns: pa.Schema) -> list[pa.Array]:
    return [
        pa.array([None if value is None else value[field.name] for value in values], field.type)
        for field in columns
    ]
