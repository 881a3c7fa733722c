"""Layouts: which shards of the key hash, and which splits, belong to which worker. A layout is part of each
cut.

Rules of this file: ranges of numbers, nothing about sockets or batches. A shard is a range of the top bits
of `_hash` (xxh3-64 of the key's canonical bytes); ranges are half open and counted in units of `2**(64 -
shard_bits)`. Senders address instances (operator, shard range, replica); the layout says which worker runs
them today. Moving shards is a new layout in a later cut, on the same fields.
"""

from bisect import bisect_right
from typing import Final

import msgspec

from checkpoint import limits
from checkpoint.errors import ManifestError

SHARD_BITS: Final = 16
"""65,536 units: fine enough to move a hundredth of a per cent of the keys, coarse enough to list."""


class ShardRange(msgspec.Struct, frozen=True):
    """Units `begin` (included) to `end` (excluded) of one operator's key hashes, held by one worker."""

    begin: int
    end: int
    worker: int
    operator: str = ""
    """'' stands for every keyed operator without ranges of its own."""
    replica: int = 0


class Layout(msgspec.Struct, frozen=True):
    """All ranges of a region. `splits`: source -> split -> worker, for splits that are assigned by hand or
    for good.
    """

    ranges: tuple[ShardRange, ...]
    shard_bits: int = SHARD_BITS
    splits: dict[str, dict[str, int]] = {}

    def of_operator(self, operator: str = "", replica: int = 0) -> tuple[ShardRange, ...]:
        """The ranges of one operator, in order of the hash; those for every operator where it has none of
        its own.
        """
        own = [r for r in self.ranges if r.operator == operator and r.replica == replica]
        if not own and operator:
            return self.of_operator("", replica)
        return tuple(sorted(own, key=lambda r: r.begin))

    def upper_bounds(self, operator: str = "", replica: int = 0) -> tuple[list[int], list[int]]:
        """For vectorised lookups: (last hash of each range, its worker); range of h = first whose last hash
        >= h.
        """
        ranges = self.of_operator(operator, replica)
        shift = 64 - self.shard_bits
        return [(r.end << shift) - 1 for r in ranges], [r.worker for r in ranges]

    def worker_of(self, key_hash: int, operator: str = "", replica: int = 0) -> int:
        """The worker that holds the shard of this 64-bit hash."""
        ranges = self.of_operator(operator, replica)
        unit = key_hash >> (64 - self.shard_bits)
        return ranges[bisect_right([r.begin for r in ranges], unit) - 1].worker

    def shards_of(self, worker: int, operator: str = "", replica: int = 0) -> tuple[ShardRange, ...]:
        """The ranges one worker holds."""
        return tuple(r for r in self.of_operator(operator, replica) if r.worker == worker)


def even_layout(workers: int) -> Layout:
    """The hash space in `workers` ranges whose sizes differ by one unit at most."""
    if not 0 < workers <= limits.workers_max:
        raise ValueError(f"between 1 and {limits.workers_max} workers, not {workers}")
    units = 1 << SHARD_BITS
    bounds = [units * index // workers for index in range(workers + 1)]
    return Layout(tuple(ShardRange(bounds[i], bounds[i + 1], i) for i in range(workers)))


def check_layout(layout: Layout, workers: int, *, cut: int = 0) -> None:
    """Each operator's ranges cover the hash space once, and name workers that exist. Raises ManifestError."""
    if not 0 < layout.shard_bits <= 32:
        raise ManifestError(f"a layout of {layout.shard_bits} shard bits; 1 to 32 are possible", cut=cut)
    for operator, replica in sorted({(r.operator, r.replica) for r in layout.ranges}) or [("", 0)]:
        _check_cover(layout, operator, replica, workers, cut)
    for source, splits in layout.splits.items():
        for split, worker in splits.items():
            if not 0 <= worker < workers:
                raise ManifestError(
                    f"split {split!r} of {source!r} belongs to worker {worker} of {workers}", cut=cut
                )


def _check_cover(layout: Layout, operator: str, replica: int, workers: int, cut: int) -> None:
    name = operator or "every operator"
    expected = 0
    for shard in layout.of_operator(operator, replica):
        if shard.begin != expected or shard.end <= shard.begin:
            raise ManifestError(
                f"shards of {name}: a range {shard.begin}..{shard.end} where {expected} was due", cut=cut
            )
        if not 0 <= shard.worker < workers:
            raise ManifestError(f"shards of {name}: worker {shard.worker} of {workers}", cut=cut)
        expected = shard.end
    if expected != 1 << layout.shard_bits:
        raise ManifestError(
            f"shards of {name} end at {expected}, the hash space at {1 << layout.shard_bits}", cut=cut
        )
