"""What all state tables have in common: their blocks, and how state moves to the workers of another layout.

A worker restores its own state, then receives the stored blocks of other workers, part by part. All that
changes by that is in its next checkpoint, so nothing refers to the workers before.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkpoint import Layout, TakenPart
from checkpoint.chains.state_blocks import slices
from checkpoint.chains.state_index import HashRanges
from checkpoint.key_hash import HASH_COLUMN

Ranges = Sequence[tuple[int, int]]
"""Half-open ranges of the units of a layout."""


def in_ranges(hashes: npt.NDArray[np.uint64], ranges: Ranges, unit_bits: int) -> npt.NDArray[np.bool_]:
    """Return which hashes are in the ranges, which are sorted."""
    if not ranges:
        return np.zeros(len(hashes), np.bool_)
    units = (hashes >> np.uint64(64 - unit_bits)).astype(np.int64)
    begins = np.array([begin for begin, _ in ranges], np.int64)
    ends = np.array([end for _, end in ranges], np.int64)
    at = np.searchsorted(begins, units, "right") - 1
    return np.asarray((at >= 0) & (units < ends[at]))


@dataclass(frozen=True, slots=True)
class Share:
    """The state that one worker takes over, and its ranges in the new layout. stays: it has a state of its
    own.
    """

    parts: tuple[TakenPart, ...]
    """Of other workers, in their order."""
    ranges: tuple[tuple[int, int], ...]
    unit_bits: int
    stays: bool
    worker: int
    workers: int

    @classmethod
    def of(cls, layout: Layout, worker: int, parts: Sequence[TakenPart]) -> "Share":
        """Return the share of a worker. `parts`: including its own, if it stays."""
        ranges = tuple((one.begin, one.end) for one in layout.shards_of(worker))
        others = tuple(part for part in parts if part.worker != worker)
        stays = len(others) < len(parts)
        return cls(others, ranges, layout.shard_bits, stays, worker, len(layout.workers))

    def of_part(self, block: pa.RecordBatch, part: TakenPart) -> pa.RecordBatch:
        """Return the rows of a block whose keys are taken over from this part."""
        kept = in_ranges(block.column(HASH_COLUMN).to_numpy(), part.ranges, self.unit_bits)
        return block if kept.all() else block.filter(pa.array(kept))

    def hashes_of(self, part: TakenPart) -> HashRanges:
        """Return the ranges of the hashes that are taken over from a part."""
        bits = 64 - self.unit_bits
        return [(begin << bits, (end << bits) - 1) for begin, end in part.ranges]

    def owns(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which hashes belong to this worker now."""
        return in_ranges(hashes, self.ranges, self.unit_bits)


@dataclass(slots=True)
class GatheredParts:
    """Blocks of several parts, for a table that needs all of them before it can take any over."""

    blocks: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    """Worker of the layout before -> its blocks, oldest first."""

    def add(self, block: pa.RecordBatch, part: TakenPart) -> None:
        self.blocks.setdefault(part.worker, []).append(block)

    def take(self, parts: Iterable[TakenPart]) -> list[tuple[TakenPart, list[pa.RecordBatch]]]:
        """Remove and return each part with its blocks, in order. Parts without blocks are left out."""
        gathered, self.blocks = self.blocks, {}
        return [(part, gathered[part.worker]) for part in parts if part.worker in gathered]


class StateTable(Protocol):
    """State that is stored as blocks. `Operator.tables` maps a name suffix to each table. What moves to a
    worker of another layout:

    | state | rule |
    |---|---|
    | by key | the rows whose `_hash` is in the ranges of the part; own rows outside of its own are given up |
    | rows that wait, by key | the same, with new numbers: numbers are unique in one worker only |
    | rows that wait, without a key | stay with their worker; those of a leaving worker go to its heir |
    | broadcast tables | whole, from the first part, on a new worker; they are equal everywhere |
    | watermarks | the least of the parts, on a new worker; before an exchange they begin anew (`Circuit`) |
    | totals since the region began | stay with their worker; the heir of a leaving worker adds its totals |
    | a user's operator | as its class declares (`redistribute`) |
    """

    by_key: bool = False
    """Whether `restore_part` takes only rows whose `_hash` is in the ranges of the part: a worker that takes
    over does not read the blocks without such rows.
    """

    def checkpoint(self) -> pa.RecordBatch:
        """Return the changes since the last checkpoint, sorted by `_hash`, and mark them as stored."""
        ...

    def snapshot(self) -> pa.RecordBatch:
        """Return the whole state, sorted by `_hash`, without tombstones. Does not mark anything as stored."""
        ...

    def snapshot_pieces(self) -> Iterator[pa.RecordBatch]:
        """Yield the whole state, unchanged meanwhile, as blocks of bounded size, each on request."""
        yield from slices(self.snapshot())

    def restore(self, block: pa.RecordBatch) -> None:
        """Apply one stored block on top of the current state. Later blocks override earlier ones."""
        ...

    def restore_part(self, block: pa.RecordBatch, part: TakenPart, share: Share) -> None:
        """Take over from one stored block of another worker of the former layout. The blocks of a part come
        oldest first, after the blocks of this worker. On a worker that joins, those of parts may alternate.
        """
        ...

    def parts_restored(self, share: Share) -> None:
        """Complete the take-over, and give up what belongs to others now; the next checkpoint has both."""
        ...
