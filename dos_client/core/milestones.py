"""The prefix digests of an object at every 256 KiB, kept when the bytes themselves are forgotten. Pure.

Rules of this file: digests that are *known*, because the writer computed them over its own bytes, or over
bytes whose digest at the end was the one that is wanted. Nothing that a disk or a member merely says.

Eight bytes for 256 KiB: enough to prove any stretch of a copy, wherever it was read, before one byte of it
is sent to a member that lacks it.
"""

from array import array

from dos_client.limits import milestone_bytes, milestones_max


class Milestones:
    """Digests at multiples of `milestone_bytes`, without a gap. Past `milestones_max` of them nothing more
    is noted: a longer object is proved only so far."""

    __slots__ = ("_digests", "_first")

    def __init__(self) -> None:
        self._first = 0
        self._digests = array("Q")

    def __len__(self) -> int:
        return len(self._digests)

    def note(self, size: int, digest: int) -> None:
        """The prefix of `size` bytes, a multiple of `milestone_bytes`, has this digest. The next one in
        order, or one that is known already."""
        if size % milestone_bytes:
            raise ValueError(f"a milestone stands at a multiple of {milestone_bytes}, not at {size}")
        place = size // milestone_bytes
        if not self._digests:
            self._first = place
        if place == self._first + len(self._digests) and len(self._digests) < milestones_max:
            self._digests.append(digest)

    def at(self, size: int) -> int | None:
        """The digest of that prefix, None where it is not known."""
        place = size // milestone_bytes - self._first
        if size % milestone_bytes or not 0 <= place < len(self._digests):
            return None
        return self._digests[place]


def stretch(offset: int, limit: int) -> tuple[int, int]:
    """Where the bytes at `offset` are proved together: from one milestone to the next, or to `limit`."""
    begin = offset - offset % milestone_bytes
    return begin, min(begin + milestone_bytes, limit)
