"""From a key to its worker: the hash of a key, the layout of a checkpoint, and layouts for other workers.
Pure.
"""

import heapq
import math
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from checkpoint import limits
from checkpoint.errors import ManifestError, UnsupportedKeyTypeError
from dos_protocol.digests import digest64

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


# A shard is a range of the top bits of `_hash`. Ranges are half-open and count units of `2**(64 -
# shard_bits)`. Senders address instances (operator, shard range, replica); the layout maps them to workers.
# Moving shards means a new layout in a later checkpoint, with the same fields.
class Layout(msgspec.Struct, frozen=True):
    """All ranges of a region. splits: source -> split -> worker, those assigned by hand or permanently."""

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
        """Return (last hash of each range, its worker): the range of h is the first with a last hash >= h."""
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


PlainKind: TypeAlias = Literal[
    "string", "binary", "bool", "int", "uint", "float", "decimal", "date", "timestamp"
]
Kind: TypeAlias = "PlainKind | tuple[Kind, ...]"
"""A tuple: a struct of these fields."""
Value: TypeAlias = "str | bytes | bool | int | float | tuple[Value, ...] | None"

NULL_LENGTH: Final = 0xFFFFFFFF
NAN_BYTES: Final = bytes.fromhex("7ff8000000000000")


# `_hash` is the xxh3-64 of a key's canonical bytes. The functions here are the reference, one key at a time;
# `key_hash.py` has the vectorized form over Arrow arrays, and tests compare both with each other and with
# golden vectors. The bytes decide which worker owns a key, so a released definition never changes.
#
# | kind | canonical bytes |
# |---|---|
# | string | its UTF-8 bytes, unchanged (no normalization) |
# | binary | its bytes |
# | bool | one byte, 0 or 1 |
# | int | 8 bytes, big-endian two's complement; equal for all widths, so widening keeps the hashes |
# | uint | 8 bytes, big-endian |
# | float | 8 bytes, big-endian IEEE 754 double; -0.0 as 0.0, every NaN as 7ff8000000000000 |
# | decimal | 16 bytes, big-endian two's complement of the unscaled value; the scale belongs to the schema |
# | date | days since 1970-01-01, as int |
# | timestamp | ticks since 1970-01-01 in the column's unit, as int; the unit belongs to the schema |
# | null | no bytes |
# | several columns, struct | of each: 4 bytes big-endian length, its bytes; ffffffff alone for null |
#
# Keys are compared by value, not by hash: null and '' share a hash and are different keys.
def canonical_bytes(kind: Kind, value: Value) -> bytes:
    """Return the canonical bytes of one value, an integer for decimal, date and timestamp, a tuple for a
    struct. Raises UnsupportedKeyTypeError, OverflowError.
    """
    if value is None:
        return b""
    if isinstance(kind, tuple) and isinstance(value, tuple) and len(value) == len(kind):
        return _with_lengths(kind, value)
    if kind == "string" and isinstance(value, str):
        return value.encode()
    if kind == "binary" and isinstance(value, bytes):
        return value
    if kind == "bool" and isinstance(value, bool):
        return bytes([value])
    if kind == "float" and isinstance(value, float):
        return NAN_BYTES if math.isnan(value) else struct.pack(">d", value + 0.0)
    if isinstance(value, int) and kind in ("int", "uint", "date", "timestamp", "decimal"):
        return value.to_bytes(16 if kind == "decimal" else 8, "big", signed=kind != "uint")
    raise UnsupportedKeyTypeError(f"no canonical bytes for a {type(value).__name__} as {kind}")


def canonical_key(kinds: Sequence[Kind], values: Sequence[Value]) -> bytes:
    """Return the canonical bytes of a key of one or several columns."""
    if len(kinds) == 1:
        return canonical_bytes(kinds[0], values[0])
    return _with_lengths(kinds, values)


def _with_lengths(kinds: Sequence[Kind], values: Sequence[Value]) -> bytes:
    parts: list[bytes] = []
    for kind, value in zip(kinds, values, strict=True):
        data = canonical_bytes(kind, value)
        length = NULL_LENGTH if value is None else len(data)
        parts.append(length.to_bytes(4, "big") + data)
    return b"".join(parts)


def key_hash(kinds: Sequence[Kind], values: Sequence[Value]) -> int:
    """Return `_hash` of a key."""
    return digest64(canonical_key(kinds, values))


_UNITS: Final = 1 << SHARD_BITS
_FREE: Final = -1
"""The owner of a run that its worker gives up and that no other worker has yet."""


class _Run(NamedTuple):
    """Units `begin` (included) to `end` (excluded), all of one owner."""

    begin: int
    end: int
    owner: int

    @property
    def units(self) -> int:
        return self.end - self.begin


# After "Scale in and out" of Feldera's distributed DBSP design. Its two rules are one here, in units of
# different size:
#
# - *Fixed sharding* (`tolerance` 0): shares differ by at most one of the 65,536 units.
# - *Dynamic sharding* (`tolerance` k): shares are whole shards. There are S of them, a power of two and at
#   least W / k, so no share is more than k (or one unit) above the average. S doubles with the workers. It is
#   never halved below the borders that exist, because that would move up to 4 times as much.
#
# Both move exactly what new workers need, and what leaving workers and too large shares have (`least_moved`).
# The exception is a worker that would have more than `layout_ranges_max` ranges after hundreds of changes:
# then borders are moved onto a coarser grid first.
def rebalanced(layout: Layout, workers: Collection[int], *, tolerance: float = 0.0) -> Layout:
    """Return the layout in which these workers share the hash space evenly, near to `layout`. Splits of a
    leaving worker are no longer assigned. Raises ValueError.
    """
    ids = sorted(set(workers))
    if not 0 < len(ids) <= limits.workers_max:
        raise ValueError(f"a layout has 1 to {limits.workers_max} workers, got {len(ids)}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"the tolerance is at least 0 and below 1, got {tolerance}")
    before = _runs_of(layout)
    unit = _shard_units(before, len(ids), tolerance)
    runs = _divided(before, ids, unit)
    grid = unit
    while _most_ranges(runs) > limits.layout_ranges_max:
        grid *= 2
        runs = _divided(_on_grid(before, grid), ids, unit)
    splits = {
        source: {split: worker for split, worker in assigned.items() if worker in ids}
        for source, assigned in layout.splits.items()
    }
    return Layout(tuple(ShardRange(*run) for run in runs), splits=splits)


def moved_units(before: Layout, after: Layout) -> int:
    """Return how many of the 65,536 units have another worker in `after`."""
    return sum(run.units for run, owner in _overlaps(before, after) if run.owner != owner)


def least_moved(before: Layout, workers: Collection[int], *, tolerance: float = 0.0) -> int:
    """Return how many units at least have another worker in any even layout of these workers."""
    runs, ids = _runs_of(before), sorted(set(workers))
    have = _sizes(runs)
    shares = _shares(have, ids, _shard_units(runs, len(ids), tolerance))
    return sum(max(0, share - have[worker]) for worker, share in shares.items())


class TakenPart(NamedTuple):
    """The state that a worker of a new layout takes over from one worker of the layout before."""

    worker: int
    ranges: tuple[tuple[int, int], ...]
    """Units whose keys it takes over: (begin, end), sorted, the end excluded."""
    stays: bool
    """Whether it takes over what belongs to no key: from itself, and as the heir of a leaving worker."""


def state_parts(before: Layout, after: Layout, *, of_all: bool = False) -> dict[int, tuple[TakenPart, ...]]:
    """Return worker of `after` -> what it takes over, in the order of the workers of `before`. of_all: with a
    part of every worker.
    """
    gained: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for run, owner in _overlaps(before, after):
        gained.setdefault(owner, {}).setdefault(run.owner, []).append((run.begin, run.end))
    workers = before.workers
    heirs = {worker: worker if worker in gained else _heir(worker, gained) for worker in workers}
    return {
        worker: tuple(
            TakenPart(one, tuple(ranges.get(one, ())), heirs[one] == worker)
            for one in workers
            if of_all or one in ranges or heirs[one] == worker
        )
        for worker, ranges in sorted(gained.items())
    }


def _heir(leaving: int, gained: Mapping[int, Mapping[int, Sequence[tuple[int, int]]]]) -> int:
    def units(worker: int) -> int:
        return sum(end - begin for begin, end in gained[worker].get(leaving, ()))

    return max(sorted(gained), key=units)


def _runs_of(layout: Layout) -> list[_Run]:
    """Return the ranges of every operator, in units of 1 / 65,536 of the hash space."""
    assert layout.shard_bits == SHARD_BITS, "every layout that this program makes has these units"
    return [_Run(one.begin, one.end, one.worker) for one in layout.of_operator()]


def _overlaps(before: Layout, after: Layout) -> Iterator[tuple[_Run, int]]:
    """Yield the runs of `before`, divided at the borders of `after`, each with its owner in `after`."""
    old = iter(_runs_of(before))
    run = next(old)
    for new in _runs_of(after):
        while run.begin < new.end:
            end = min(run.end, new.end)
            yield run._replace(end=end), new.owner
            run = run._replace(begin=end) if end < run.end else next(old, _Run(_UNITS, _UNITS, _FREE))


def _shard_units(runs: Iterable[_Run], workers: int, tolerance: float) -> int:
    """Return how many units a shard has: a power of two that divides every border."""
    if not tolerance:
        return 1
    shards = min(1 << math.ceil(math.log2(workers / tolerance)), _UNITS)
    return math.gcd(_UNITS // shards, *(run.begin for run in runs))


def _sizes(runs: Iterable[_Run]) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for run in runs:
        sizes[run.owner] += run.units
    return sizes


def _shares(have: Mapping[int, int], ids: Sequence[int], unit: int) -> dict[int, int]:
    """Return how many units each worker gets. The largest owners keep the larger shares."""
    least, larger = divmod(_UNITS // unit, len(ids))
    by_size = sorted(ids, key=lambda worker: (-have.get(worker, 0), worker))
    return {worker: (least + (place < larger)) * unit for place, worker in enumerate(by_size)}


def _divided(runs: Sequence[_Run], ids: Sequence[int], unit: int) -> list[_Run]:
    """Return the runs of an even layout of these workers."""
    have = _sizes(runs)
    shares = _shares(have, ids, unit)
    lacking = {worker: share - have[worker] for worker, share in shares.items() if share > have[worker]}
    freed = _freed(runs, {owner: have[owner] - shares.get(owner, 0) for owner in have}, lacking)
    extended = _extended(freed, lacking)
    return _joined(sorted([*(run for run in extended if run.owner != _FREE), *_dealt(extended, lacking)]))


def _freed(runs: Sequence[_Run], surplus: Mapping[int, int], lacking: Mapping[int, int]) -> list[_Run]:
    """Return the runs, with what each owner has too much of free: whole runs first, then part of one."""
    owners = [run.owner for run in runs]
    before, after = [0] * len(runs), [0] * len(runs)  # units that are freed at the begin and the end of a run
    places: dict[int, list[int]] = {}
    for place, run in enumerate(runs):
        places.setdefault(run.owner, []).append(place)

    def rank(place: int, side: int) -> int:
        """How good it is to free units there: next to a worker that lacks some, next to free ones, or not."""
        neighbour = place + side
        if not 0 <= neighbour < len(runs):
            return 0
        checkpoint = after[neighbour] if side < 0 else before[neighbour]
        return 2 if owners[neighbour] in lacking else 1 if owners[neighbour] == _FREE or checkpoint else 0

    for owner, own in places.items():
        rest = surplus[owner]
        for place in sorted(
            own, key=lambda place: (-max(rank(place, -1), rank(place, 1)), -runs[place].units)
        ):
            if runs[place].units <= rest:
                owners[place] = _FREE
                rest -= runs[place].units
        if rest > 0:
            left = [place for place in own if owners[place] != _FREE]
            choices = [
                (rank(place, side), runs[place].units, side, place) for place in left for side in (-1, 1)
            ]
            _, _, side, place = max(choices)
            (before if side < 0 else after)[place] = rest
    parts = []
    for (begin, end, _), owner, first, last in zip(runs, owners, before, after, strict=True):
        parts += [
            _Run(begin, begin + first, _FREE),
            _Run(begin + first, end - last, owner),
            _Run(end - last, end, _FREE),
        ]
    return _joined(parts)


def _extended(runs: Sequence[_Run], lacking: dict[int, int]) -> list[_Run]:
    """Give free runs to workers that lack units and have the range before or after them."""
    found: list[_Run] = []
    for place, run in enumerate(runs):
        begin, end, owner = run
        if owner == _FREE:
            if found and (units := min(lacking.get(found[-1].owner, 0), end - begin)):
                lacking[found[-1].owner] -= units
                found.append(_Run(begin, begin + units, found[-1].owner))
                begin += units
            following = runs[place + 1].owner if place + 1 < len(runs) else _FREE
            if units := min(lacking.get(following, 0), end - begin):
                lacking[following] -= units
                found += [_Run(begin, end - units, _FREE), _Run(end - units, end, following)]
                continue
        found.append(_Run(begin, end, owner))
    return _joined(found)


def _dealt(runs: Iterable[_Run], lacking: Mapping[int, int]) -> list[_Run]:
    """Give the free runs to the workers that lack units: the largest run to the one that lacks most."""
    waiting = [(-units, worker) for worker, units in lacking.items() if units]
    heapq.heapify(waiting)
    dealt = []
    for run in sorted((run for run in runs if run.owner == _FREE), key=lambda run: (-run.units, run.begin)):
        begin = run.begin
        while begin < run.end:
            wanted, worker = heapq.heappop(waiting)
            units = min(-wanted, run.end - begin)
            dealt.append(_Run(begin, begin + units, worker))
            begin += units
            if wanted + units:
                heapq.heappush(waiting, (wanted + units, worker))
    return dealt


def _on_grid(runs: Iterable[_Run], unit: int) -> list[_Run]:
    """Move every border to the nearest multiple of `unit`. Runs that become empty are left out."""

    def nearest(border: int) -> int:
        return (border + unit // 2) // unit * unit

    return _joined([_Run(nearest(run.begin), nearest(run.end), run.owner) for run in runs])


def _joined(runs: Iterable[_Run]) -> list[_Run]:
    """Join adjacent runs of one owner, and leave out empty ones."""
    found: list[_Run] = []
    for run in runs:
        if run.begin >= run.end:
            continue
        if found and found[-1].owner == run.owner and found[-1].end == run.begin:
            found[-1] = _Run(found[-1].begin, run.end, run.owner)
        else:
            found.append(run)
    return found


def _most_ranges(runs: Iterable[_Run]) -> int:
    return max(Counter(run.owner for run in runs).values())
