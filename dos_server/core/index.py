"""The sparse index: which file position holds which logical offset. Rebuilt when an object is loaded, never
stored.

At most 512 entries whatever the object's size: when they are full, every second one goes and the spacing
doubles. A read walks headers from the entry at or before its offset, so the price of the bound is a longer
walk in a larger object. Whoever reads an object from its beginning to its end does not pay it: where the
last read ended is remembered. The first spacing is small, so that a read of a small object made of many small
extents does not begin with most of them.
"""

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from dos_protocol.limits import KIB, digest_block_bytes
from dos_server.limits import index_entries_max

_FIRST_SPACING: Final = 4 * KIB


class ExtentPlace(NamedTuple):
    """Where an extent starts: logical offset, file position, and the link that it has; None: not known."""

    offset: int
    position: int
    link: int | None = None


class FoldPlaces(NamedTuple):
    """From where a prefix digest is read: `last`: an extent at or before the last byte, near it; `first`: one
    at or before the block that the first byte of `last` is in."""

    first: ExtentPlace
    last: ExtentPlace


class SparseIndex:
    """Extent starts as (logical offset, file position, link), ascending. The first extent is always in it."""

    __slots__ = ("_links", "_offsets", "_positions", "_recent", "_spacing")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._positions = array("Q")
        self._links = array("I")
        self._spacing = _FIRST_SPACING
        self._recent: ExtentPlace | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def keeps_from(self) -> int:
        """`add` does nothing for an extent that starts before this offset."""
        return self._offsets[-1] + self._spacing if self._offsets else 0

    def add(self, offset: int, position: int, link: int) -> None:
        """An extent starts there. Kept if it is far enough from the last one kept."""
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

    def find(self, offset: int) -> ExtentPlace:
        """An extent that starts at or before the logical offset; the first one when there is none."""
        place = bisect_right(self._offsets, offset) - 1
        recent = self._recent
        if (
            recent is not None
            and recent.offset <= offset
            and (place < 0 or recent.offset > self._offsets[place])
        ):
            return recent
        if place < 0:
            return ExtentPlace(0, 0)
        return ExtentPlace(self._offsets[place], self._positions[place], self._links[place])

    def fold_places(self, size: int) -> FoldPlaces:
        """Where to read for the prefix digest at a size, above 0."""
        last = self.find(size - 1)
        return FoldPlaces(self.find(last.offset - last.offset % digest_block_bytes), last)

    def remember(self, place: ExtentPlace) -> None:
        """A read ended where that extent starts: the next one may go on there."""
        self._recent = place

    def cut(self, offset: int) -> None:
        """Forget the extents that start at or after the logical offset."""
        self._recent = None
        place = bisect_right(self._offsets, offset - 1) if offset else 0
        del self._offsets[place:]
        del self._positions[place:]
        del self._links[place:]
