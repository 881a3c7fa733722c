"""dedup: the first row of each key; with a window, the first row of each key in each window.

No row waits. With a window, state is deleted when the window is over (replication-transparency, algorithm 1).
With `within`, the first row of each key until that time after its window: the key is then forgotten.
The output does not depend on the input order if rows that share a key are equal where it matters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from dataflow.core.event_time import END, FIRST_TIME, LAST_TIME, Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, ReplicaProblem, StateTable
from dataflow.operators.event_time import TimedOperator, TimedSpec, check_time_column, micros_of, times_of
from dataflow.operators.windows import START, Tumbling, WindowKeys
from dataflow.schema import columns_named
from dataflow.state.given_rows import GivenRows
from dataflow.state.key_index import SlotArray, Slots, hashes_of
from dataflow.state.keyed_table import KeyedTable, SlotValues

_UNTIL: Final = "_until"
"""The column of the state with the time at which a key is forgotten."""


def _replica_problem(keys: Sequence[str], columns: pa.Schema) -> ReplicaProblem | None:
    others = [name for name in columns.names if name not in keys]
    if not others:
        return None
    return ReplicaProblem(
        f"emits the first row of each key, and rows of one key may differ in {', '.join(map(repr, others))}",
        "add these columns to its key_by, or remove them in a map before",
    )


@dataclass(frozen=True, slots=True)
class DedupSpec(OperatorSpec):
    """Deduplicates by the key of the upstream keyed stream."""

    kind: ClassVar[OperatorKind] = OperatorKind.DEDUP
    not_edited: ClassVar[str] = ""
    keys: tuple[str, ...]

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def stored_columns(self, inputs: Sequence[pa.Schema]) -> Sequence[pa.Schema]:
        return [columns_named(inputs[0], self.keys)]

    def detail(self) -> str:
        return f"key ({', '.join(self.keys)})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        return _replica_problem(self.keys, inputs[0])

    def open(self, context: OperatorContext) -> Operator:
        return DedupOperator(self.keys, context.inputs[0])

    def edited(self, rows: GivenRows, context: OperatorContext, watermark: Watermark) -> dict[str, pa.Array]:
        del rows, context, watermark  # a row is its key
        return {}


@dataclass(frozen=True, slots=True)
class WindowDedupSpec(TimedSpec):
    """Deduplicates by key and window; with `within` by key, for that long after the window."""

    kind: ClassVar[OperatorKind] = OperatorKind.WINDOW_DEDUP
    not_edited: ClassVar[str] = "its windows belong together with its watermark"
    keys: tuple[str, ...]
    window: Tumbling
    within: timedelta | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.window, Tumbling):
            raise SchemaError(f"dedup takes Tumbling(...), not {self.window!r}")
        if self.within is not None:
            micros_of(self.within, "within")

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        check_time_column(self.window.time, inputs[0])
        own = START if self.within is None else _UNTIL
        if own in self.keys:
            raise SchemaError(f"key column {own!r} has the name of a column of the state; rename it")
        return inputs[0]

    def stored_columns(self, inputs: Sequence[pa.Schema]) -> Sequence[pa.Schema]:
        return [columns_named(inputs[0], (*self.keys, self.window.time))]

    def detail(self) -> str:
        within = "" if self.within is None else f" within ({self.within})"
        return f"key ({', '.join(self.keys)}) window ({self.window}){within}"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        if self.within is not None:
            return ReplicaProblem(
                "forgets a key by the time of its first row, and which one is first depends on the order",
                "leave within= out, so that keys are forgotten by windows",
            )
        return _replica_problem(self.keys, inputs[0])

    def open(self, context: OperatorContext) -> Operator:
        if self.within is not None:
            return WithinDedupOperator(self, self.within, context.inputs[0])
        return WindowDedupOperator(self, context.inputs[0])


class KeySeen(SlotValues):
    """One flag per slot: whether a row with this key was seen."""

    def __init__(self) -> None:
        self._seen = SlotArray(np.bool_)
        self._slots = 0

    def new_rows(self, slots: Slots) -> Slots:
        """Return the rows whose slots were not seen before, each slot once, and mark the slots as seen."""
        firsts = np.unique(slots, return_index=True)[1]
        new: Slots = np.sort(firsts[~self._seen.values[slots[firsts]]])
        self._seen.values[slots[new]] = True
        return new

    def fields(self) -> list[pa.Field]:
        return []

    def reach(self, slots: int) -> None:
        self._slots = max(slots, self._slots)
        self._seen.reach(self._slots)

    def clear(self, slots: Slots) -> None:
        self._seen.values[slots] = False

    def keep(self, slots: Slots) -> None:
        kept = self._seen.values[slots]
        self._seen = SlotArray(np.bool_)
        self._slots = len(kept)
        self._seen.reach(self._slots)[: self._slots] = kept

    def store(self, slots: Slots) -> list[pa.Array]:
        del slots
        return []

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        del columns
        self._seen.values[slots] = True


class DedupOperator(Operator):
    """Remembers every key without limit."""

    at_checkpoint = "whole"

    def __init__(self, keys: Sequence[str], columns: pa.Schema) -> None:
        self._keys = tuple(keys)
        self._columns = columns.names
        self._seen = KeySeen()
        self._table = KeyedTable(pa.schema([columns.field(name) for name in keys]), [self._seen])

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        slots = self._table.find_or_add([batch.column(name) for name in self._keys], hashes_of(batch))
        new = self._seen.new_rows(slots)
        return [batch.select(self._columns).take(pa.array(new))] if len(new) else ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        self._table.take_touched()
        return ()

    def tables(self) -> Mapping[str, StateTable]:
        return {"": self._table}

    def counters(self) -> dict[str, int]:
        return {"keys": len(self._table), "state_bytes": self._table.bytes_held}


class WindowDedupOperator(TimedOperator):
    """Remembers the keys of open windows."""

    at_checkpoint = "whole"

    def __init__(self, spec: WindowDedupSpec, columns: pa.Schema) -> None:
        super().__init__(columns)
        self._time_name = spec.window.time
        self._seen = KeySeen()
        self._keys = WindowKeys(spec.keys, spec.window, columns, [self._seen])

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        times = times_of(batch.column(self._time_name), self._time_name)
        self.check_times(times)
        starts = self._keys.newest(times)
        closed = self._keys.are_closed(starts, self.watermark())
        if closed.any():
            self.put_late(batch, np.flatnonzero(closed), times)
            batch, starts = batch.take(pa.array(np.flatnonzero(~closed))), starts[~closed]
        new = self._seen.new_rows(self._keys.find_or_add(batch, starts))
        return [batch.select(self._columns.names).take(pa.array(new))] if len(new) else ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        self._keys.table.take_touched()
        return ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        self._keys.table.remove(self._keys.take_closed(self.watermark(index)))
        return ()

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._keys}

    def counters(self) -> dict[str, int]:
        return {
            "keys": len(self._keys.table),
            "late_rows": self.late_rows,
            "state_bytes": self._keys.table.bytes_held,
        }


class ForgottenAt(SlotValues):
    """One time per slot: the watermark at which the key is forgotten; END if no row of it was seen."""

    def __init__(self) -> None:
        self._times = SlotArray(np.int64, fill=END)
        self.first = END
        """A lower bound of all times."""

    def of(self, slots: Slots) -> Slots:
        times: Slots = self._times.values[slots]
        return times

    def new_rows(self, slots: Slots, times: Slots) -> Slots:
        """Return the rows whose slots were not seen before, each slot once, and set the time of the slots."""
        firsts = np.unique(slots, return_index=True)[1]
        new: Slots = np.sort(firsts[self._times.values[slots[firsts]] == END])
        self._set(slots[new], times[new])
        return new

    def _set(self, slots: Slots, times: Slots) -> None:
        self._times.values[slots] = times
        self.first = min(self.first, int(times.min(initial=END)))

    def fields(self) -> list[pa.Field]:
        return [pa.field(_UNTIL, pa.int64())]

    def reach(self, slots: int) -> None:
        self._times.reach(slots)

    def clear(self, slots: Slots) -> None:
        self._times.values[slots] = END

    def keep(self, slots: Slots) -> None:
        kept = self._times.values[slots]
        self._times = SlotArray(np.int64, fill=END)
        self._times.reach(len(kept))[: len(kept)] = kept

    def store(self, slots: Slots) -> list[pa.Array]:
        return [pa.array(self._times.values[slots])]

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._set(slots, columns[0].to_numpy())


class WithinDedupOperator(TimedOperator):
    """Remembers each key for a time after the window of its first row. Later rows do not prolong it."""

    at_checkpoint = "whole"

    def __init__(self, spec: WindowDedupSpec, within: timedelta, columns: pa.Schema) -> None:
        super().__init__(columns)
        self._time_name = spec.window.time
        self._key_names = spec.keys
        self._size = micros_of(spec.window.size, "size")
        self._offset = micros_of(spec.window.offset, "offset")
        self._within = min(micros_of(within, "within"), LAST_TIME - FIRST_TIME)
        self._until = ForgottenAt()
        self._table = KeyedTable(pa.schema([columns.field(name) for name in spec.keys]), [self._until])

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        times = times_of(batch.column(self._time_name), self._time_name)
        self.check_times(times)
        lasts = (times - self._offset) // self._size * self._size + self._offset + self._size - 1
        late = lasts <= self.watermark()
        if late.any():
            self.put_late(batch, np.flatnonzero(late), times)
            batch, lasts = batch.take(pa.array(np.flatnonzero(~late))), lasts[~late]
        if not batch.num_rows:
            return ()
        slots = self._table.find_or_add([batch.column(name) for name in self._key_names], hashes_of(batch))
        new = self._until.new_rows(slots, lasts + self._within)
        return [batch.select(self._columns.names).take(pa.array(new))] if len(new) else ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        self._table.take_touched()
        return ()

    def time_moved(self, index: int) -> Sequence[pa.RecordBatch]:
        watermark = self.watermark(index)
        if self._until.first > watermark:
            return ()
        slots = self._table.live()
        times = self._until.of(slots)
        self._until.first = int(times[times > watermark].min(initial=END))
        self._table.remove(slots[times <= watermark])
        return ()

    def own_tables(self) -> Mapping[str, StateTable]:
        return {"": self._table}

    def counters(self) -> dict[str, int]:
        return {
            "keys": len(self._table),
            "late_rows": self.late_rows,
            "state_bytes": self._table.bytes_held,
        }
