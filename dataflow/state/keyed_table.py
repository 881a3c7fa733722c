"""The state of a keyed operator: keys in slots, values per slot, and what of it the next cut takes.

Rules of this file: which slots live, changed, and are known to the journal; what the values are is the
business of `SlotValues`. It is the one place where keyed state becomes blocks
(`checkpoint.chains.state_blocks`) and comes back.

A slot is *live* from `find_or_add` to `remove`; *changed* since the last cut; *stored* if blocks that were
handed over hold it. A cut takes the changed slots that live, and tombstones of those that are stored and no
longer live: a key that came and went between two cuts leaves no trace. Slots of the `KeyIndex` never go
away by themselves, so when most of them are dead, a new index is made of the others.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint.chains.state_blocks import DELETED_COLUMN, block_schema, key_columns, make_block
from dataflow.state.columns import Slots
from dataflow.state.key_index import Hashes, KeyIndex, SlotArray, in_pieces
from dataflow.worker.partitioning import hashes_of

Upgrade: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]

_dead_min: Final = 4096
"""A new index pays when so many slots are dead, and more than live."""


class SlotValues(Protocol):
    """What an operator keeps for each slot."""

    def fields(self) -> list[pa.Field]:
        """The columns in which it is stored."""
        ...

    def reach(self, slots: int) -> None:
        """Have room for so many; new slots are as cleared."""
        ...

    def clear(self, slots: Slots) -> None:
        """Forget the values of these slots."""
        ...

    def keep(self, slots: Slots) -> None:
        """Slot i takes over what slot slots[i] had; there are no others."""
        ...

    def store(self, slots: Slots) -> list[pa.Array]:
        """The columns of these slots."""
        ...

    def load(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        """What `store` gave, into cleared slots."""
        ...


class KeyedTable:
    """See the top of this file."""

    def __init__(
        self,
        keys: pa.Schema,
        values: Sequence[SlotValues],
        *,
        version: int = 1,
        upgrade: Upgrade | None = None,
    ) -> None:
        """version: of the values, as their user declares it. upgrade: makes blocks of another version, or
        with other columns, ones of this.

        Raises UnsupportedKeyTypeError, and ValueError for columns of one name.
        """
        self._values = tuple(values)
        self._keys = keys
        self._upgrade = upgrade
        fields = pa.schema([field for one in values for field in one.fields()])
        self._blocks = block_schema(keys, fields, state_version=version)
        self.upgraded = False
        """Whether other blocks than those of today were restored: better replaced by a snapshot soon."""
        self._clear_index()

    def _clear_index(self) -> None:
        self._index = KeyIndex([field.type for field in self._keys])
        self._hashes = SlotArray(np.uint64)
        self._live = SlotArray(np.bool_)
        self._changed = SlotArray(np.bool_)
        self._stored = SlotArray(np.bool_)
        self._touched: list[Slots] = []
        self._place_of = SlotArray(np.int64, fill=-1)
        self._place = 0
        self._removed = 0

    def reset(self) -> None:
        """Forget all keys."""
        for one in self._values:
            one.keep(np.empty(0, np.int64))
        self.upgraded = False
        self._clear_index()

    def __len__(self) -> int:
        return int(np.count_nonzero(self._of(self._live)))

    @property
    def bytes_held(self) -> int:
        """Of the index, without values."""
        return self._index.bytes_held

    def _of(self, array: SlotArray) -> npt.NDArray[Any]:
        slots = len(self._index)
        return array.reach(slots)[:slots]

    # --- in a step ------------------------------------------------------------------------------------------

    def find_or_add(self, keys: Sequence[pa.Array], hashes: Hashes, apart: Slots | None = None) -> Slots:
        """The slot of each row's key, live from now on, touched in this step.

        hashes: `_hash` of each row, which the blocks carry. apart: numbers that tell the keys of one `_hash`
        apart (the window, for one): without them such keys would all look at the same cell of the index.
        """
        spread = hashes if apart is None else hashes ^ _mixed(apart)
        slots = self._index.find_or_add(keys, spread)
        self._of(self._hashes)[slots] = hashes
        self._of(self._live)[slots] = True
        self._of(self._changed)[slots] = True
        for one in self._values:
            one.reach(len(self._index))
        self._touched.append(slots)
        return slots

    def take_touched(self) -> Slots:
        """The slots of the step, each once, in the order in which they first came."""
        if not self._touched:
            return np.empty(0, np.int64)
        came = np.concatenate(self._touched)
        self._touched = []
        first = self._of(self._place_of)
        # One array serves as the mark and as the place: writing backwards leaves the first place of each.
        places = np.arange(self._place, self._place + len(came))
        first[came[::-1]] = places[::-1]
        self._place += len(came)
        touched: Slots = came[first[came] == places]
        return touched

    def live(self) -> Slots:
        """All live slots."""
        slots: Slots = np.flatnonzero(self._of(self._live))
        return slots

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The key columns of these slots."""
        return self._index.keys(slots)

    def hashes(self, slots: Slots) -> Hashes:
        """`_hash` of these slots."""
        hashes: Hashes = self._of(self._hashes)[slots]
        return hashes

    def change(self, slots: Slots) -> None:
        """Their values changed without `find_or_add`."""
        self._of(self._changed)[slots] = True

    def remove(self, slots: Slots) -> None:
        """These keys go away. Slots that were handed out are void after this, also those of other keys."""
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
        came_from: Slots = np.empty(len(kept), np.int64)
        came_from[slots] = np.arange(len(kept))
        new = [self._hashes, self._live, self._changed, self._stored]
        for array, state in zip(new, states, strict=True):
            self._of(array)[:] = state[came_from]
        for one in self._values:
            one.keep(kept[came_from])

    # --- cuts -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> pa.RecordBatch:
        """What changed since the last cut, sorted by `_hash`; from here on it counts as handed over."""
        live, stored, changed = self._of(self._live), self._of(self._stored), self._of(self._changed)
        slots = np.flatnonzero(changed & (live | stored))
        block = self._block(slots, ~live[slots])
        changed[:] = False
        stored[:] = live
        self._removed = int(np.count_nonzero(~live))
        self._shrink()
        return block

    def snapshot(self) -> pa.RecordBatch:
        """All live keys, sorted by `_hash`."""
        self.upgraded = False
        slots = self.live()
        return self._block(slots, np.zeros(len(slots), np.bool_))

    def snapshot_pieces(self) -> Iterator[pa.RecordBatch]:
        """The same in several blocks, each made when it is asked for: nothing may change meanwhile."""
        slots = self.live()
        for piece in in_pieces(slots, self.hashes(slots)):
            yield self._block(piece, np.zeros(len(piece), np.bool_))
        self.upgraded = False

    def _block(self, slots: Slots, deleted: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        values = [column for one in self._values for column in one.store(slots)]
        hashes = self._of(self._hashes)[slots]
        return make_block(self._blocks, self._index.keys(slots), hashes, values, deleted)

    def restore(self, block: pa.RecordBatch, apart: Slots | None = None) -> None:
        """Take one stored block on top of what is there. Later blocks win. `apart` as in `find_or_add`."""
        if self._upgrade is not None and not block.schema.equals(self._blocks, check_metadata=True):
            block = self._upgrade(block)
            self.upgraded = True
        columns = [block.column(name) for name in key_columns(block.schema)]
        slots = self.find_or_add(columns, hashes_of(block), apart)
        self._touched = []
        self._of(self._changed)[slots] = False
        for one in self._values:
            one.clear(slots)
        deleted = block.column(DELETED_COLUMN).to_numpy(zero_copy_only=False)
        self._of(self._live)[slots] = ~deleted
        self._of(self._stored)[slots] = ~deleted
        kept = pa.array(np.flatnonzero(~deleted))
        for one in self._values:
            stored = [block.column(field.name).take(kept) for field in one.fields()]
            one.load(slots[~deleted], stored)


def _mixed(numbers: Slots) -> Hashes:
    """Numbers next to each other, far from each other (the finalizer of splitmix64)."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB))
