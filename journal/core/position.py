"""A position: a size *on a line of history*. The vocabulary of cuts, votes, replay and Spark offsets (R12).

After a rollback one size can lie on two lines, so a bare number is not enough: the epoch names the writer
whose segment it lies in, and the digest pins the bytes below it. Rules of this file: the value and where it
lies; nothing that reads.
"""

from collections.abc import Iterable
from typing import Final

import msgspec


class Position(msgspec.Struct, frozen=True, order=False):
    """A point in a chain's history.

    epoch: of the segment that holds the byte before it. size: the logical offset, that segment's base + the
    bytes in it. digest: prefix digest of the segment's object up to there.

    Invariant: `size` is greater than the base of its segment (every segment begins with a start record), so
    the segment of a position is the one of that epoch with the largest base below `size`. ORIGIN alone lies
    in no segment.
    """

    epoch: int
    size: int
    digest: int

    def __str__(self) -> str:
        return f"{self.epoch:x}:{self.size}"


NO_FLOOR: Final = (0, 0)
"""(epoch, base) below every segment: nothing is released."""
ORIGIN: Final = Position(0, 0, 0)
"""Before everything: where a chain begins, or begins anew when it is rolled back to nothing."""


def base_of(position: Position, bases: Iterable[int]) -> int | None:
    """The base of the position's segment among the bases of that epoch's segments; None if it is in none of
    them.
    """
    return max((base for base in bases if base < position.size), default=None)
