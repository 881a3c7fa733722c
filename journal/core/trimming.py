"""Which segments nobody needs any more. Pure.

Rules of this file: names and floors. A *floor* is the lowest segment, (epoch, base), that a chain is followed
down to: the one that begins with its newest finished snapshot, or its first. Predecessors lie strictly lower,
so a chain with that floor needs nothing below it, and nothing at or above it is ever said to be garbage.
Whether a floor may be used is not known here: what needs the lower ones must have been released by an
acknowledged record, and the snapshot's end acknowledged (R14, docs/decisions/0110).
"""

from collections.abc import Callable, Iterable, Mapping

from journal.core.segment import parse_segment_name

Floor = tuple[int, int]
"""(epoch, base) of a segment."""
Floors = Mapping[str, Floor]
"""Chain -> its floor. Of a chain that is not named nothing is garbage."""


def below(floors: Floors) -> Callable[[str], bool]:
    """Whether an object of that name is a segment below its chain's floor. Other objects never are."""

    def is_below(name: str) -> bool:
        segment = parse_segment_name(name)
        return segment is not None and segment.chain in floors and segment.order < floors[segment.chain]

    return is_below


def lowest(several: Iterable[Floors]) -> dict[str, Floor]:
    """The floors of chains that several need: the lowest of each, and none of a chain that one of them does
    not name, because that one may need all of it."""
    found = [dict(floors) for floors in several]
    chains = set.intersection(*map(set, found)) if found else set()
    return {chain: min(floors[chain] for floors in found) for chain in sorted(chains)}
