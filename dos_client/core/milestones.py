"""The prefix digests of an object at every 256 KiB, kept after the bytes are dropped from memory. Pure: no
I/O.

Only digests that are *known* belong here: the writer computed them over its own bytes, or over bytes whose
digest at the end was verified. A digest that a disk or a member merely reports does not.

Eight bytes per 256 KiB are enough to verify any range of a copy, wherever it was read, before any byte of it
is sent to a member that lacks it.
"""

from array import array

from dos_client.limits import milestone_bytes, milestones_max


class Milestones:
    """Digests at multiples of `milestone_bytes`, without a gap. At most `milestones_max` are kept, so a
    longer object is verified only up to there.
    """

    __slots__ = ("_digests", "_first")

    def __init__(self) -> None:
        self._first = 0
        self._digests = array("Q")

    def __len__(self) -> int:
        return len(self._digests)

    def note(self, size: int, digest: int) -> None:
        """Record the digest of the prefix of `size` bytes, a multiple of `milestone_bytes`.

        It must be the next one in order, or one that is already known. Others are ignored.
        """
        if size % milestone_bytes:
            raise ValueError(f"a milestone must be at a multiple of {milestone_bytes}, got {size}")
        index = size // milestone_bytes
        if not self._digests:
            self._first = index
        if index == self._first + len(self._digests) and len(self._digests) < milestones_max:
            self._digests.append(digest)

    def at(self, size: int) -> int | None:
        """Return the digest of that prefix, or None if it is not known."""
        index = size // milestone_bytes - self._first
        if size % milestone_bytes or not 0 <= index < len(self._digests):
            return None
        return self._digests[index]


def milestone_range(offset: int, limit: int) -> tuple[int, int]:
    """Return the range around `offset` that is verified as a unit: from one milestone to the next, or to
    `limit`.
    """
    begin = offset - offset % milestone_bytes
    return begin, min(begin + milestone_bytes, limit)
