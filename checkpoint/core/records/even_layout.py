"""Layouts: which worker owns which shards of the key hash, and which splits. Each checkpoint contains one.

Pure: ranges of numbers, nothing about sockets or batches. A shard is a range of the top bits of `_hash`
(xxh3-64 of the key's canonical bytes). Ranges are half-open and count units of `2**(64 - shard_bits)`.
Senders address instances (operator, shard range, replica); the layout maps them to workers. Moving shards
means a new layout in a later checkpoint, with the same fields.
"""

from bisect import bisect_right
from typing import Final

import msgspec

from checkpoint import limits
from checkpoint.errors import ManifestError

SHARD_BITS: Final = 16
"""65,536 units: fine enough to move a hundredth of a percent of the keys, coarse enough to list."""


class ShardRange(msgspec.Struct, frozen=True):
    """Units `begin` (included) to `end` (excluded) of one operator's key hashes, owned by one worker."""

    begin: int
    end: int
    worker: int
    operator: str = ""
    """Empty: every keyed operator without ranges of its own."""
    replica: int = 0


class Layout(msgspec.Struct, frozen=True):
    """All ranges of a region.

    `splits`: source -> split -> worker, for splits that are assigned by hand or permanently.
    """

    ranges: tuple[ShardRange, ...]
    shard_bits: int = SHARD_BITS
    splits: dict[str, dict[str, int]] = {}

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of all workers, sorted."""
        return tuple(sorted({one.worker for one in self.ranges}))

    def of_operator(self, operator: str = "", replica: int = 0) -> tuple[ShardRange, ...]:
        """Return the ranges of one operator, sorted by hash: its own, or those of every operator."""
        own = [r for r in self.ranges if r.operator == operator and r.replica == replica]
        if not own and operator:
            return self.of_operator("", replica)
        return tuple(sorted(own, key=lambda r: r.begin))

    def upper_bounds(self, operator: str = "", replica: int = 0) -> tuple[list[int], list[int]]:
        """Return (last hash of each range, its worker), for vectorized lookups.

        The range of hash h is the first one whose last hash is >= h.
        """
        ranges = self.of_operator(operator, replica)
        shift = 64 - self.shard_bits
        return [(r.end << shift) - 1 for r in ranges], [r.worker for r in ranges]

    def worker_of(self, key_hash: int, operator: str = "", replica: int = 0) -> int:
        """Return the worker that owns the shard of this 64-bit hash."""
        ranges = self.of_operator(operator, replica)
        unit = key_hash >> (64 - self.shard_bits)
        return ranges[bisect_right([r.begin for r in ranges], unit) - 1].worker

    def shards_of(self, worker: int, operator: str = "", replica: int = 0) -> tuple[ShardRange, ...]:
        """Return the ranges that one worker owns."""
        return tuple(r for r in self.of_operator(operator, replica) if r.worker == worker)


def even_layout(workers: int) -> Layout:
    """Return the hash space in `workers` ranges whose sizes differ by at most one unit."""
    if not 0 < workers <= limits.workers_max:
        raise ValueError(f"a layout has 1 to {limits.workers_max} workers, got {workers}")
    units = 1 << SHARD_BITS
    bounds = [units * index // workers for index in range(workers + 1)]
    return Layout(tuple(ShardRange(bounds[i], bounds[i + 1], i) for i in range(workers)))


def check_layout(layout: Layout, workers: int, *, checkpoint: int = 0) -> None:
    """Raise ManifestError unless each operator's ranges cover the hash space once, on existing workers."""
    if not 0 < layout.shard_bits <= 32:
        raise ManifestError(
            f"its layout has {layout.shard_bits} shard bits, allowed are 1 to 32", checkpoint=checkpoint
        )
    for operator, replica in sorted({(r.operator, r.replica) for r in layout.ranges}) or [("", 0)]:
        _check_cover(layout, operator, replica, workers, checkpoint)
    for source, splits in layout.splits.items():
        for split, worker in splits.items():
            if not 0 <= worker < workers:
                raise ManifestError(
                    f"split {split!r} of {source!r} belongs to worker {worker}, but there are {workers}",
                    checkpoint=checkpoint,
                )


def _check_cover(layout: Layout, operator: str, replica: int, workers: int, checkpoint: int) -> None:
    name = operator or "every operator"
    expected = 0
    for shard in layout.of_operator(operator, replica):
        if shard.begin != expected or shard.end <= shard.begin:
            raise ManifestError(
                f"shards of {name}: expected a range from {expected}, got {shard.begin}..{shard.end}",
                checkpoint=checkpoint,
            )
        if not 0 <= shard.worker < workers:
            raise ManifestError(
                f"shards of {name} belong to worker {shard.worker}, but there are {workers}",
                checkpoint=checkpoint,
            )
        expected = shard.end
    if expected != 1 << layout.shard_bits:
        raise ManifestError(
            f"shards of {name} end at {expected}, the hash space ends at {1 << layout.shard_bits}",
            checkpoint=checkpoint,
        )


def workers_text(workers: int) -> str:
    """Return the number of workers in words."""
    return "1 worker" if workers == 1 else f"{workers} workers"
