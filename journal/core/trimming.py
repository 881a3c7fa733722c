"""Decide which segments are garbage, given the floors of their chains. Pure: no I/O.

A *floor* is the (epoch, base) of the lowest segment that a walk of a chain reaches: the segment that begins
with the newest finished snapshot, or the first segment. Predecessors are strictly lower, so the chain needs
no segment below its floor. A segment at or above the floor is never garbage.

Users of a chain that need it only up to a position, as the savepoints of a region, leave *gaps* above the
floor: the segments above the position (epoch, size) of one user and below the floor of the next.

The caller must ensure that a floor may be used: an acknowledged record released everything that needs the
lower segments, and the end of the snapshot is acknowledged (R14, docs/decisions/0110).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from journal.core.segment import parse_segment_name

Floor = tuple[int, int]
"""The (epoch, base) of a segment."""
Floors = Mapping[str, Floor]
"""Chain -> its floor. No segment of a chain that is not listed is garbage."""
Gap = tuple[Floor, Floor]
"""A gap in what is needed of a chain: the segments between these two (epoch, base), both excluded."""
Gaps = Mapping[str, Sequence[Gap]]
"""Chain -> its gaps, above its floor."""


def below(floors: Floors) -> Callable[[str], bool]:
    """Return a test of object names: whether it is a segment below its chain's floor."""

    def is_below(name: str) -> bool:
        segment = parse_segment_name(name)
        return segment is not None and segment.chain in floors and segment.order < floors[segment.chain]

    return is_below


def below_or_within(floors: Floors, gaps: Gaps) -> Callable[[str], bool]:
    """Return a test of object names: whether it is a segment below its chain's floor, or in a gap of it."""
    is_below = below(floors)

    def is_unneeded(name: str) -> bool:
        segment = parse_segment_name(name)
        return is_below(name) or (
            segment is not None
            and any(begin < segment.order < end for begin, end in gaps.get(segment.chain, ()))
        )

    return is_unneeded


def gaps_between(needed: Iterable[Gap], floor: Floor) -> list[Gap]:
    """Return the gaps between what several users need of one chain. floor: everything from it on is needed.

    needed: of each of the other users, the lowest segment and the highest (epoch, size) that it needs. What
    lies below all of them is in no gap.
    """
    found: list[Gap] = []
    reached: Floor | None = None
    for begin, end in sorted([*needed, (floor, floor)]):  # the floor may be below others, after a restore
        if reached is not None and begin > reached:
            found.append((reached, begin))
        reached = end if reached is None else max(reached, end)
    return [(begin, end) for begin, end in found if begin < floor]


def lowest(several: Iterable[Floors]) -> dict[str, Floor]:
    """Combine the floors of several users: the lowest floor of each chain.

    A chain that is missing in one of them is omitted, because that user may need all of it.
    """
    found = [dict(floors) for floors in several]
    chains = set.intersection(*map(set, found)) if found else set()
    return {chain: min(floors[chain] for floors in found) for chain in sorted(chains)}
