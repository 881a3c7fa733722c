"""What user functions keep for each key, in slots: a value of the declared columns, and a timer.

Rules of this file: values and their columns; when a function is called is the operator's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from checkpoint.state_blocks import DELETED_COLUMN, block_schema, key_columns, state_version_of
from dataflow.accumulators import SlotNumbers
from dataflow.columns import Slots
from dataflow.core.event_time import END
from dataflow.keyed_table import SlotValues
from dataflow.migration import StateHistory, check_value

TIMER: Final = "_timer"
IS_SET: Final = "_is_set"
NONE: Final = END
"""No timer."""


@dataclass(slots=True)
class KeyState:
    """What a function keeps for one key. It may be changed during the call, and is kept after it."""

    value: dict[str, Any] | None = None
    """A value for each column of the state; None: nothing is kept."""
    timer: Any = None
    """When `on_timer` is to be called: a datetime as those of the time column, or None. One for each key."""


class KeyStates(SlotValues):
    """A `KeyState` per slot; a timer is stored as microseconds."""

    def __init__(self, history: StateHistory) -> None:
        self._history = history
        self._schema = history.columns
        self.states: list[KeyState] = []
        self.timers = SlotNumbers(np.int64, NONE)

    def fields(self) -> list[pa.Field]:
        return [*self._schema, pa.field(IS_SET, pa.bool_()), pa.field(TIMER, pa.int64())]

    def reach(self, slots: int) -> None:
        missing = slots - len(self.states)
        self.states += [KeyState() for _ in range(missing)]
        self.timers.reach(slots)

    def clear(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self.states[slot] = KeyState()
        self.timers.clear(slots)

    def keep(self, slots: Slots) -> None:
        self.states = [self.states[slot] for slot in slots.tolist()]
        self.timers.keep(slots)

    def store(self, slots: Slots) -> list[pa.Array]:
        values = [self.states[slot].value for slot in slots.tolist()]
        is_set = pa.array([value is not None for value in values], pa.bool_())
        return [*_columns_of(values, self._schema), is_set, pa.array(self.timers.values[slots])]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        *values, is_set, _ = [column.to_pylist() for column in columns]
        self.timers.values[slots] = columns[-1].to_numpy()
        for row, slot in enumerate(slots.tolist()):
            value = {f.name: column[row] for f, column in zip(self._schema, values, strict=True)}
            self.states[slot] = KeyState(value if is_set[row] else None)

    def check(self, value: Any) -> None:
        """Raises UserFault for what is no state."""
        if value is not None:
            check_value(value, self._schema)

    def upgrade(self, block: pa.RecordBatch) -> pa.RecordBatch:
        """A block of another version as one of this. Raises UserFault."""
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
        columns = [made[name] if name in made else block.column(name) for name in schema.names]
        return pa.record_batch(columns, schema=schema)


def _columns_of(values: Sequence[dict[str, Any] | None], columns: pa.Schema) -> list[pa.Array]:
    return [
        pa.array([None if value is None else value[field.name] for value in values], field.type)
        for field in columns
    ]
