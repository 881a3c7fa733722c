"""The state of a keyed operator: keys in slots, values per slot, and what the next checkpoint contains.

    slot is     when
    live        from `find_or_add` to `remove`
    changed     since the last checkpoint
    stored      a block that was handed over contains it

A checkpoint contains the changed slots that are live, and tombstones of stored slots that no longer are.
Slots of a `KeyIndex` are never freed, so when most of them are dead, a new index is built from the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint import TakenPart
from checkpoint.chains.state_blocks import (
    DELETED_COLUMN,
    block_schema,
    key_columns,
    make_block,
    stored_names,
    with_uid,
)
from dataflow.state.base import Share, StateTable
from dataflow.state.key_index import Hashes, KeyIndex, SlotArray, Slots, TouchedSlots, hashes_of, in_pieces
from dataflow.state.row_table import ascending, order_columns

Upgrade: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]

_dead_min: Final = 4096
"""A new index pays off when this many slots, and most of them, are dead."""


class SlotValues(Protocol):
    """The values of an operator by slot."""

    def fields(self) -> list[pa.Field]:
        """Return the columns in which the values are stored."""
        ...

    def reach(self, slots: int) -> None:
        """Make room for `slots` slots; new slots are cleared."""
        ...

    def clear(self, slots: Slots) -> None:
        """Delete the values of these slots."""
        ...

    def keep(self, slots: Slots) -> None:
        """Move the values of slot slots[i] to slot i; drop all other slots."""
        ...

    def store(self, slots: Slots) -> list[pa.Array]:
        """Return the columns of these slots."""
        ...

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        """Load columns from `store` into cleared slots."""
        ...


class KeyedTable(StateTable):
    """The keyed state of one operator on one worker."""

    by_key = True

    def __init__(
        self,
        keys: pa.Schema,
        values: Sequence[SlotValues],
        *,
        version: int = 1,
        upgrade: Upgrade | None = None,
        uids: Mapping[str, str] = MappingProxyType({}),
        salt_of: Callable[[pa.RecordBatch], Slots] | None = None,
    ) -> None:
        """version: of the values, as the user declares it. upgrade: converts blocks of another version, or
        with other columns, to this one. uids: column of a value -> what identifies it in blocks, if that is
        not its name; one that begins with "_" came later, so older blocks lack it. salt_of: returns the
        `salt` of `find_or_add` for the rows of a block. Raises UnsupportedKeyTypeError, and ValueError for
        duplicate column names.
        """
        self._values = tuple(values)
        self._keys = keys
        self._upgrade = upgrade
        self._salt_of = salt_of
        self._columns = [[uids.get(field.name, field.name) for field in one.fields()] for one in values]
        """The columns of each value, by what identifies them in blocks."""
        self._later = {uid for uid in uids.values() if uid.startswith("_")}
        fields = [field for one in values for field in one.fields()]
        fields = [with_uid(field, uids.get(field.name, field.name)) for field in fields]
        self._blocks = block_schema(keys, pa.schema(fields), state_version=version)
        self.upgraded = False
        """Whether blocks of another form were restored, so that a snapshot should follow soon."""
        self._clear_index()

    def _clear_index(self) -> None:
        self._index = KeyIndex([field.type for field in self._keys])
        self._hashes = SlotArray(np.uint64)
        self._live = SlotArray(np.bool_)
        self._changed = SlotArray(np.bool_)
        self._stored = SlotArray(np.bool_)
        self._touched = TouchedSlots()
        self._removed = 0

    def __len__(self) -> int:
        return int(np.count_nonzero(self._of(self._live)))

    @property
    def bytes_held(self) -> int:
        """The memory of the index in bytes, without values."""
        return self._index.bytes_held

    def _of(self, array: SlotArray) -> npt.NDArray[Any]:
        slots = len(self._index)
        return array.reach(slots)[:slots]

    # --- in a step ------------------------------------------------------------------------------------------

    def find_or_add(self, keys: Sequence[pa.Array], hashes: Hashes, salt: Slots | None = None) -> Slots:
        """Return the slot of each row's key, which is live and touched now. hashes: `_hash` of each row.
        salt: numbers that distinguish keys with the same `_hash`, such as the window.
        """
        # Without a salt, the windows of one key would all probe the same cell of the index.
        spread = hashes if salt is None else hashes ^ _mixed(salt)
        slots = self._index.find_or_add(keys, spread)
        self._of(self._hashes)[slots] = hashes
        self._of(self._live)[slots] = True
        self._of(self._changed)[slots] = True
        for one in self._values:
            one.reach(len(self._index))
        self._touched.add(slots, len(self._index))
        return slots

    def take_touched(self) -> Slots:
        """Return the slots touched since the last call, each once, in the order of their first occurrence."""
        return self._touched.take(len(self._index))

    def live(self) -> Slots:
        slots: Slots = np.flatnonzero(self._of(self._live))
        return slots

    def keys(self, slots: Slots) -> list[pa.Array]:
        return self._index.keys(slots)

    def in_order(self, slots: Slots, first: Sequence[pa.Array] = ()) -> Slots:
        """Sort slots by the columns `first`, then by key."""
        # Not by their numbers, which change after a restore.
        columns = [*first, pa.array(self.hashes(slots)), *order_columns(self.keys(slots))]
        return np.asarray(slots[ascending(columns)])

    def hashes(self, slots: Slots) -> Hashes:
        hashes: Hashes = self._of(self._hashes)[slots]
        return hashes

    def change(self, slots: Slots) -> None:
        """Note that the values of these slots changed without `find_or_add`."""
        self._of(self._changed)[slots] = True

    def remove(self, slots: Slots) -> None:
        """Remove these keys. All slots returned before are invalid afterwards, even those of other keys."""
        self._of(self._live)[slots] = False
        self._of(self._changed)[slots] = True
        for one in self._values:
            one.clear(slots)
        self._removed += len(slots)
        self._shrink()

    def _shrink(self) -> None:
        if self._removed < max(_dead_min, len(self._index) // 2):
            return
        self._removed = 0
        live, stored = self._of(self._live), self._of(self._stored)
        kept: Slots = np.flatnonzero(live | stored)
        if 2 * len(kept) > len(self._index) or self._touched:
            return
        keys, spread = self._index.keys(kept), self._index.hashes(kept)
        old = [self._hashes, self._live, self._changed, self._stored]
        states = [self._of(array)[kept] for array in old]
        self._clear_index()
        slots = self._index.find_or_add(keys, spread)
        old_slots: Slots = np.empty(len(kept), np.int64)
        old_slots[slots] = np.arange(len(kept))
        new = [self._hashes, self._live, self._changed, self._stored]
        for array, state in zip(new, states, strict=True):
            self._of(array)[:] = state[old_slots]
        for one in self._values:
            one.keep(kept[old_slots])

    # --- checkpoints ----------------------------------------------------------------------------------------

    def checkpoint(self) -> pa.RecordBatch:
        """Return what changed since the last checkpoint, sorted by `_hash`, and mark it as stored."""
        live, stored, changed = self._of(self._live), self._of(self._stored), self._of(self._changed)
        # A tombstone for a dead slot only if a block has its key: otherwise nothing is to be deleted.
        slots = np.flatnonzero(changed & (live | stored))
        block = self._block(slots, ~live[slots])
        changed[:] = False
        stored[:] = live
        self._removed = int(np.count_nonzero(~live))
        self._shrink()
        return block

    def snapshot(self) -> pa.RecordBatch:
        """Return all live keys, sorted by `_hash`."""
        self.upgraded = False
        slots = self.live()
        return self._block(slots, np.zeros(len(slots), np.bool_))

    def snapshot_pieces(self) -> Iterator[pa.RecordBatch]:
        """Yield the snapshot in several blocks, each built on demand. Nothing may change meanwhile."""
        slots = self.live()
        for piece in in_pieces(slots, self.hashes(slots)):
            yield self._block(piece, np.zeros(len(piece), np.bool_))
        self.upgraded = False

    def _block(self, slots: Slots, deleted: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        values = [column for one in self._values for column in one.store(slots)]
        hashes = self._of(self._hashes)[slots]
        return make_block(self._blocks, self._index.keys(slots), hashes, values, deleted)

    def restore(self, block: pa.RecordBatch) -> None:
        """Apply one stored block to the current content. Later blocks win."""
        slots, has_other_columns = self._load(block)
        # The next checkpoint has them with the present columns: so the newest row of each key has these, and
        # readers of the state need not know what an older row has in a column that it lacks.
        self._of(self._changed)[slots] = has_other_columns
        self._of(self._stored)[slots] = self._of(self._live)[slots]

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        self._load(share.of_part(block, part))

    def parts_restored(self, share: Share) -> None:
        live = self.live()
        self.remove(live[~share.owns(self.hashes(live))])

    def _load(self, block: pa.RecordBatch) -> tuple[Slots, bool]:
        """Put the rows of a block into slots, and return these, which are changed and not stored, and whether
        the graph had other columns when it was written.
        """
        if self._upgrade is not None and not block.schema.equals(self._blocks, check_metadata=True):
            block = self._upgrade(block)
            self.upgraded = True
        columns = [block.column(name) for name in key_columns(block.schema)]
        salt = None if self._salt_of is None else self._salt_of(block)
        slots = self.find_or_add(columns, hashes_of(block), salt)
        self._touched.clear()  # a restore is no step
        for one in self._values:
            one.clear(slots)
        deleted = block.column(DELETED_COLUMN).to_numpy(zero_copy_only=False)
        self._of(self._live)[slots] = ~deleted
        kept = pa.array(np.flatnonzero(~deleted))
        names = stored_names(block.schema)
        for one, columns in zip(self._values, self._columns, strict=True):
            if any(uid not in names and uid in self._later for uid in columns):
                continue  # it came after the block was written, and begins empty
            one.load(slots[~deleted], [block.column(names[uid]).take(kept) for uid in columns])
        return slots, names.keys() != stored_names(self._blocks).keys()


def _mixed(numbers: Slots) -> Hashes:
    """Spread consecutive numbers over all 64 bits (the finalizer of splitmix64)."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
