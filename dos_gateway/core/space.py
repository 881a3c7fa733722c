"""The segments of the chain that hold bodies: which bytes live, what is copied forward, what is released."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from dos_gateway.limits import alive_share_max, deletions_bytes, segment_bytes, slack_bytes


def alive_in(room: int) -> int:
    """Return below how many bytes in files a chain is kept shorter than this."""
    return max(int((room - slack_bytes) * alive_share_max), 0)


def room_for_files(max_bytes: int, live_bytes: int) -> int:
    """Return how many more bytes files may have. The chain itself may be longer for a moment, up to where new
    files are refused: what is dead in it is given back.
    """
    return max(alive_in(max_bytes - deletions_bytes) - live_bytes, 0)


class BodyExtent(NamedTuple):
    """A part of a body: `size` bytes of the chain from the logical offset `at` on, with their xxh3-64."""

    at: int
    size: int
    digest: int


class SegmentNote(NamedTuple):
    """A segment of the chain: its first `length` bytes, with their prefix digest; 0 and 0 while it grows."""

    epoch: int
    base: int
    length: int
    digest: int


class BodySegments:
    """The segments from the lowest one that is not released on, in order, and the live bytes in each.

    Invariant: `live_bytes` is the sum over all files of the sizes of their extents.
    """

    def __init__(self, notes: Iterable[SegmentNote] = ()) -> None:
        self._notes: list[SegmentNote] = []
        self._bases: list[int] = []
        self._files: dict[int, set[int]] = {}
        self.live_bytes = 0
        for note in notes:
            self.open(note)

    @property
    def notes(self) -> tuple[SegmentNote, ...]:
        return tuple(self._notes)

    def open(self, note: SegmentNote) -> None:
        """Add the next segment. The one below it is complete, or gets its end now."""
        if self._notes and self._notes[-1].base >= note.base:
            return  # it is known: a snapshot names it, and the chain has it
        self._notes.append(note)
        self._bases.append(note.base)

    def close(self, length: int, digest: int) -> None:
        """Give the newest segment its end."""
        self._notes[-1] = self._notes[-1]._replace(length=length, digest=digest)

    def segment_at(self, offset: int) -> SegmentNote:
        return self._notes[bisect_right(self._bases, offset) - 1]

    def add(self, file: int, extents: Iterable[BodyExtent]) -> None:
        for extent in extents:
            self._files.setdefault(self.segment_at(extent.at).base, set()).add(file)
            self.live_bytes += extent.size

    def drop(self, file: int, extents: Iterable[BodyExtent]) -> None:
        for extent in extents:
            base = self.segment_at(extent.at).base
            held = self._files.get(base, set())
            held.discard(file)
            if not held:
                self._files.pop(base, None)
            self.live_bytes -= extent.size

    def bytes_up_to(self, end: int) -> int:
        """Return the bytes of the chain that are not released, up to its end."""
        return end - self._notes[0].base if self._notes else 0

    def to_empty(
        self, end: int, pinned: int | None, limit: tuple[int, int], room: int | None = None
    ) -> list[SegmentNote]:
        """Return the lowest segments that go, if the chain is too long for what lives in it: the files in the
        first are copied, and nothing lives in the others. So the space for the copies is bounded.

        pinned: the lowest offset of a piece of an upload that is not finished. limit: the (epoch, base) of
        the newest snapshot that is acknowledged; a replay needs what follows (R14). room: the length from
        which on new files are refused.
        """
        going: list[SegmentNote] = []
        long = 2 * self.live_bytes + slack_bytes
        if room is not None:
            # Shortly before files are refused, also less is given back.
            least = int(self.live_bytes / alive_share_max) + slack_bytes
            long = min(long, max(room - 2 * segment_bytes, least))
        if self.bytes_up_to(end) <= long:
            return going
        for note, above in pairwise(self._notes):
            is_pinned = pinned is not None and pinned < above.base
            if is_pinned or above[:2] > limit or (going and note.base in self._files):
                break
            going.append(note)
        return going

    def files_in(self, segment: SegmentNote) -> list[int]:
        """Return the files with bytes in a segment."""
        return sorted(self._files.get(segment.base, ()))

    def floor_above(self, segment: SegmentNote) -> tuple[int, int]:
        """Return the floor (epoch, base) with which all segments up to this one are released."""
        above = self._notes[self._bases.index(segment.base) + 1]
        return above.epoch, above.base

    def forget_below(self, floor: tuple[int, int]) -> None:
        """Forget the segments that are released."""
        while self._notes and self._notes[0][:2] < floor:
            assert self._notes[0].base not in self._files, "a released segment holds no live bytes"
            del self._notes[0], self._bases[0]
