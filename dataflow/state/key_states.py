"""What user functions keep for each key, in slots: a value of the declared columns, and a timer.

Rules of this file: values and their columns; when a function is called is the operator's, where the values
lie is `state/value_store.py`'s. Timers and times of calls are in memory in any case.

Time to live. With it, each slot also has the event time of the last call that left a value, and the value is
there for calls before that time + ttl. Calls come in the order of event time, so what a function finds
follows from the rows alone; when an expired value is thrown away has no effect but on memory and cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from checkpoint.chains.state_blocks import DELETED_COLUMN, block_schema, key_columns, state_version_of
from dataflow.core.event_time import END, Watermark
from dataflow.state.accumulators import SlotNumbers
from dataflow.state.columns import Slots
from dataflow.state.keyed_table import SlotValues
from dataflow.state.migration import StateHistory
from dataflow.state.value_store import MemoryValueStore, ValueStore, columns_of

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
    """What a `KeyState` has, per slot; timers and times of calls are microseconds."""

    def __init__(
        self, history: StateHistory, ttl: int | None = None, values: ValueStore | None = None
    ) -> None:
        """ttl: in microseconds, or None. values: where they lie, in memory if it is not said."""
        self._history = history
        self.check = history.check
        """Raises UserFault for what is no value."""
        self._schema = history.columns
        self._ttl = ttl
        self._values = MemoryValueStore(history.columns) if values is None else values
        self._slots = 0
        self.timers = SlotNumbers(np.int64, NONE)
        self._called = SlotNumbers(np.int64, NONE)
        """With a time to live: when a call last left a value."""
        self._undated = False
        """Whether values were restored of which no call is known: from before there was a time to live."""

    def fields(self) -> list[pa.Field]:
        numbers = [TIMER] if self._ttl is None else [TIMER, CALLED]
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
        numbers = [self.timers] if self._ttl is None else [self.timers, self._called]
        columns = [*self._values.store(slots), pa.array(self._values.has(slots))]
        return [*columns, *(pa.array(one.values[slots]) for one in numbers)]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        width = len(self._schema)
        is_set = columns[width].to_numpy(zero_copy_only=False)
        self.timers.values[slots] = columns[width + 1].to_numpy()
        if self._ttl is not None:
            self._called.values[slots] = columns[width + 2].to_numpy()
        rows = pa.array(np.flatnonzero(is_set))
        self._values.load(slots[is_set], [column.take(rows) for column in columns[:width]])

    def settle(self) -> None:
        """A punctuation's calls are over. Raises UserFault if what they left cannot be kept."""
        self._values.settle()

    def empty(self, slots: Slots) -> Slots:
        """Those of these slots in which nothing is kept."""
        found: Slots = slots[~self._values.has(slots) & (self.timers.values[slots] == NONE)]
        return found

    def counters(self) -> dict[str, int]:
        """Numbers for people."""
        return self._values.counters()

    def close(self) -> None:
        """Let go of files."""
        self._values.close()

    # --- time to live ---------------------------------------------------------------------------------------

    def begin(self, slot: int, time: int) -> KeyState:
        """What a call for event time `time` finds."""
        if self._ttl is not None:
            called = int(self._called.values[slot])
            if called != NONE and called + self._ttl <= time:
                return KeyState()
        return KeyState(self._values.get(slot))

    def end(self, slot: int, time: int, state: KeyState) -> None:
        """The call is over, and left this."""
        self._values.put(slot, state.value)
        if self._ttl is not None:
            self._called.values[slot] = NONE if state.value is None else time

    def expire(self, watermark: Watermark) -> Slots:
        """Forget the values that no call after `watermark` would find; their slots."""
        if self._ttl is None:
            return np.empty(0, np.int64)
        called = self._called.values[: self._slots]
        begin = watermark if watermark == END else watermark + 1
        over: Slots = np.flatnonzero((called != NONE) & (called <= begin - self._ttl))
        self._values.clear(over)
        self._called.clear(over)
        return over

    def date(self, watermark: Watermark) -> Slots:
        """Values from before there was a time to live count as left at `watermark`; their slots."""
        if not self._undated:
            return np.empty(0, np.int64)
        self._undated = False
        called = self._called.values[: self._slots]
        slots: Slots = np.flatnonzero((called == NONE) & self._values.has(np.arange(self._slots)))
        called[slots] = watermark
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
        made = dict(zip(self._schema.names, columns_of(values, self._schema), strict=True))
        if self._ttl is not None and CALLED not in block.schema.names:
            made[CALLED] = pa.array(np.full(block.num_rows, NONE))
            self._undated = True
        columns = [made[name] if name in made else block.column(name) for name in schema.names]
        return pa.record_batch(columns, schema=schema)
