"""The sparse index from logical offsets to file positions. Rebuilt when an object is loaded, never stored.

It has at most 512 entries. When it is full, every second entry is dropped and the spacing doubles. A read
walks headers from the entry at or before its offset, so reads of larger objects walk further. A sequential
reader does not pay for this, because the index remembers where the last read ended. The first spacing is
small, so that a read of a small object of many small extents does not walk most of them.
"""

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from dos_protocol.limits import KIB, digest_block_bytes
from dos_server.limits import index_entries_max

_FIRST_SPACING: Final = 4 * KIB


class ExtentStart(NamedTuple):
    """The start of an extent: logical offset, file position, and its link; None if the link is unknown."""

    offset: int
    position: int
    link: int | None = None


class FoldStarts(NamedTuple):
    """Where to read for a prefix digest.

    `last`: an extent at or shortly before the last byte. `first`: one at or before the block that holds the
    first byte of `last`.
    """

    first: ExtentStart
    last: ExtentStart


class SparseIndex:
    """Starts of extents as (logical offset, file position, link), ascending. Includes the first extent."""

    __slots__ = ("_links", "_offsets", "_positions", "_recent", "_spacing")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._positions = array("Q")
        self._links = array("I")
        self._spacing = _FIRST_SPACING
        self._recent: ExtentStart | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def keeps_from(self) -> int:
        """`add` ignores extents that start before this offset."""
        return self._offsets[-1] + self._spacing if self._offsets else 0

    def add(self, offset: int, position: int, link: int) -> None:
        """Add the start of an extent, if it is far enough from the last entry."""
        if offset < self.keeps_from:
            return
        if len(self._offsets) == index_entries_max:
            self._offsets = self._offsets[::2]
            self._positions = self._positions[::2]
            self._links = self._links[::2]
            self._spacing *= 2
            if offset - self._offsets[-1] < self._spacing:
                return
        self._offsets.append(offset)
        self._positions.append(position)
        self._links.append(link)

    def find(self, offset: int) -> ExtentStart:
        """Return the start of an extent at or before the offset; the first extent if there is no entry."""
        index = bisect_right(self._offsets, offset) - 1
        recent = self._recent
        if (
            recent is not None
            and recent.offset <= offset
            and (index < 0 or recent.offset > self._offsets[index])
        ):
            return recent
        if index < 0:
            return ExtentStart(0, 0)
        return ExtentStart(self._offsets[index], self._positions[index], self._links[index])

    def fold_starts(self, size: int) -> FoldStarts:
        """Return where to read for the prefix digest at a size above 0."""
        last = self.find(size - 1)
        return FoldStarts(self.find(last.offset - last.offset % digest_block_bytes), last)

    def remember(self, extent: ExtentStart) -> None:
        """Remember the extent at which a read ended, because the next read may continue there."""
        self._recent = extent

    def cut(self, offset: int) -> None:
        """Drop the entries at or after the logical offset."""
        self._recent = None
        index = bisect_right(self._offsets, offset - 1) if offset else 0
        del self._offsets[index:]
        del self._positions[index:]
        del self._links[index:]
