"""Positions: a size on one line of history. Checkpoints, votes, replays and Spark offsets use them (R12).

After a rollback the same size can lie on two lines of history, so a number alone is ambiguous. The epoch
names the writer of the segment that holds the position, and the digest identifies the bytes below it. Pure:
no I/O.
"""

from collections.abc import Iterable
from typing import Final

import msgspec


class Position(msgspec.Struct, frozen=True, order=False):
    """A point in the history of a chain.

    epoch: the epoch of the segment that holds the byte before the point.
    size: the logical offset: the base of that segment plus the bytes in it.
    digest: the prefix digest of the segment's object up to the point.

    Invariant: `size` is greater than the base of its segment, because every segment begins with a start
    record. So the segment of a position is the one of that epoch with the largest base below `size`. Only
    ORIGIN lies in no segment.
    """

    epoch: int
    size: int
    digest: int

    def __str__(self) -> str:
        return f"{self.epoch:x}:{self.size}"


NO_FLOOR: Final = (0, 0)
"""An (epoch, base) below every segment: nothing is released."""
ORIGIN: Final = Position(0, 0, 0)
"""The beginning of a chain, also of one that was rolled back to nothing."""


def base_of(position: Position, bases: Iterable[int]) -> int | None:
    """Return the base of the position's segment; None if it lies in none of them.

    bases: the bases of the segments of the position's epoch.
    """
    return max((base for base in bases if base < position.size), default=None)
