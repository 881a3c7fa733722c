"""Walking an object's file: from header to header, reading content, computing digests of prefixes, verifying.

Every byte returned has been verified. The file is read through the caller's `read(position, count)`, which
returns fewer bytes at the end of the file; at most one window of it is in memory.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from dos_protocol.digests import Buffer, PrefixDigest, digest64
from dos_protocol.limits import KIB, digest_block_bytes, payload_bytes_max
from dos_server.core.files.extent import ExtentHeader, HeaderFault, decode_linked, steps_in
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max, index_entries_max

# --- The sparse index --------------------------------------------------------------------------------------


_FIRST_SPACING: Final = 4 * KIB


class ExtentStart(NamedTuple):
    offset: int
    position: int
    link: int | None = None


class FoldStarts(NamedTuple):
    """Where to read for a prefix digest. `last`: an extent shortly before the last byte. `first`: one at or
    before the block that holds the first byte of `last`.
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
        return self._offsets[-1] + self._spacing if self._offsets else 0

    def add(self, offset: int, position: int, link: int) -> None:
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
        self._recent = extent

    def cut(self, offset: int) -> None:
        self._recent = None
        index = bisect_right(self._offsets, offset - 1) if offset else 0
        del self._offsets[index:]
        del self._positions[index:]
        del self._links[index:]


# --- Walks and reads ---------------------------------------------------------------------------------------


ReadAt = Callable[[int, int], bytes]
_HEADER_WINDOW_BYTES: Final = 16 * KIB
_SOME_HEADERS_BYTES: Final = 16 * extent_header_bytes
_PARTS_MAX: Final = 16
"""One copy costs less than more pieces."""
CONTENT_WINDOW_BYTES: Final = payload_bytes_max + extent_payload_bytes_max + 16 * KIB
"""One read of this size serves the largest GET, wherever its extents begin."""


class DamagedExtentError(Exception):
    """Stored bytes are damaged. `offset`: logical; everything below it that was read is good. `what` was
    found there; `expected`, `position`: empty and -1 if unknown.
    """

    def __init__(self, offset: int, what: str, position: int = -1, expected: str = "") -> None:
        super().__init__(f"extent at logical offset {offset}: {what}")
        self.offset = offset
        self.what = what
        self.position = position
        self.expected = expected


class LocatedExtent(NamedTuple):
    position: int
    header: ExtentHeader
    link_after: int

    @property
    def after(self) -> int:
        return self.position + extent_header_bytes + self.header.payload_bytes


class ReadWindow:
    """A read-ahead over `read`, so that small extents do not cost one read each."""

    def __init__(self, read: ReadAt, ahead_bytes: int) -> None:
        self._read = read
        self.ahead_bytes = ahead_bytes
        self._data = memoryview(b"")
        self._position = 0

    def at(self, position: int, count: int) -> memoryview:
        start = position - self._position
        if start < 0 or start + count > len(self._data):
            self._data = memoryview(self._read(position, max(count, self.ahead_bytes)))
            self._position, start = position, 0
        return self._data[start : start + count]


def locate(window: ReadWindow, seed: int, position: int) -> LocatedExtent | HeaderFault | None:
    """Return the header at that position, or its fault; None if fewer than 64 bytes are left."""
    head = window.at(position, extent_header_bytes)
    if len(head) < extent_header_bytes:
        return None
    decoded = decode_linked(head, seed)
    return decoded if isinstance(decoded, HeaderFault) else LocatedExtent(position, *decoded)


def is_whole(payload: Buffer, count: int, digest: int) -> bool:
    """Return whether a payload is the one that its header states."""
    return len(payload) == count and digest64(payload) == digest


def payload_of(window: ReadWindow, located: LocatedExtent) -> memoryview | None:
    """Return the verified payload; None if it is incomplete or its digest does not match."""
    count = located.header.payload_bytes
    payload = window.at(located.position + extent_header_bytes, count)
    if not is_whole(payload, count, located.header.payload_digest):
        return None
    return payload


def walk(window: ReadWindow, seed: int, start: ExtentStart, offset: int) -> Iterator[LocatedExtent]:
    """Yield the extents in order, from the one that holds the logical offset. Raises DamagedExtentError where
    the chain breaks.
    """
    expected, position, link = start
    while True:
        located = locate(window, seed, position)
        if located is None or isinstance(located, HeaderFault):
            what = "the file ends" if located is None else located.value
            raise DamagedExtentError(expected, what)
        header = located.header
        if header.offset != expected:
            raise DamagedExtentError(expected, f"the next header is for offset {header.offset}")
        if link is not None and link != header.link:
            raise DamagedExtentError(expected, "the next header does not follow the one before it")
        expected, link = header.end, located.link_after
        position = located.after
        if header.end > offset:
            yield located


class VerifiedContent(NamedTuple):
    """Verified content, in pieces. `after`: the extent in which a following read begins; None if nothing was
    read.
    """

    parts: list[Buffer]
    after: ExtentStart | None


def read_part(
    read: ReadAt, seed: int, extent: ExtentStart, start: int, end: int, extents_max: int | None = None
) -> VerifiedContent:
    """Return the verified content from start to end, at most `extents_max` extents of it. The caller ensures
    that end <= synced size. Raises DamagedExtentError.
    """
    if start >= end:
        return VerifiedContent([], None)
    # Before the start only headers are read, unless that would be little beside what is asked for: a GET that
    # continues the last one begins with its extent, and costs one read.
    if start - extent.offset > min(end - start, extent_payload_bytes_max):
        first = next(walk(ReadWindow(read, _HEADER_WINDOW_BYTES), seed, extent, start))
        extent = ExtentStart(first.header.offset, first.position, first.header.link)
    expected, position, link = extent
    parts: list[Buffer] = []
    read_bytes = 0
    while True:
        data, at = memoryview(read(position, end - expected + _SOME_HEADERS_BYTES)), 0
        read_bytes += len(data)
        for count, own_link, offset, _, _, digest, next_link in steps_in(data, seed):
            if offset != expected or link not in (None, own_link):
                break
            begin, after = at + extent_header_bytes, offset + count
            if after > start:
                payload = data[begin : begin + count]
                if len(payload) < count:  # the last one, which is longer than what is asked for
                    payload = memoryview(read(position + begin, count))
                    read_bytes += len(payload)
                if not is_whole(payload, count, digest):
                    break
                parts.append(payload[max(start - offset, 0) : end - offset])
            if after >= end or len(parts) == extents_max:
                following = ExtentStart(after, position + begin + count, next_link)
                if after > end:
                    following = ExtentStart(offset, position + at, own_link)
                return VerifiedContent(_pieces(parts, read_bytes), following)
            expected, link, at = after, next_link, begin + count
        if not at:
            raise _damage(read, seed, ExtentStart(expected, position, link))
        position += at


def _pieces(parts: list[Buffer], read_bytes: int) -> list[Buffer]:
    # Pieces keep in memory all that was read, and what they have is all that is accounted for.
    if len(parts) > _PARTS_MAX or read_bytes > 1.25 * sum(map(len, parts)):
        return [b"".join(parts)]
    return parts


def _damage(read: ReadAt, seed: int, extent: ExtentStart) -> DamagedExtentError:
    """Return what is wrong with an extent that is not valid."""
    try:
        next(walk(ReadWindow(read, extent_header_bytes), seed, extent, extent.offset))
    except DamagedExtentError as error:
        return error
    return DamagedExtentError(extent.offset, "the payload digest does not match")


def read_content(read: ReadAt, seed: int, extent: ExtentStart, start: int, end: int) -> bytes:
    return b"".join(read_part(read, seed, extent, start, end).parts)


def prefix_fold(read: ReadAt, seed: int, starts: FoldStarts, size: int) -> PrefixDigest:
    """Return the prefix digest of the first `size` bytes, ready to be continued. Raises DamagedExtentError.

    Reads less than an extent plus a block, and the headers between two places of the index at most twice.
    """
    if size == 0:
        return PrefixDigest()
    first, last = starts
    window = ReadWindow(read, _HEADER_WINDOW_BYTES)
    header = next(walk(window, seed, last, size - 1)).header
    block_start = header.offset - header.offset % digest_block_bytes
    fold = PrefixDigest(block_start, header.prefix_digest)
    fold.update(read_content(read, seed, last if last.offset <= block_start else first, block_start, size))
    return fold


# --- Verifying from end to end -----------------------------------------------------------------------------


part_bytes_min = extent_header_bytes + extent_payload_bytes_max
"""A part holds at least one extent."""


class VerifiedChain(NamedTuple):
    """How far an object was verified: everything below `offset` was read and is good. `fold` must not be
    changed. `link`: of the next extent, None if any is accepted. `proven`: below this size, a later header
    confirms the content.
    """

    offset: int
    position: int
    fold: PrefixDigest
    root: int
    link: int | None
    proven: int = 0


class VerifyGoal(NamedTuple):
    size: int
    digest: int | None = None


def beginning(root: int) -> VerifiedChain:
    return VerifiedChain(0, 0, PrefixDigest(), root, root or None)


def verify_part(
    read: ReadAt, seed: int, chain: VerifiedChain, goal: VerifyGoal, part_bytes: int, extents: int
) -> VerifiedChain:
    """Verify the next part of the file: at least one extent, at most `extents`. Return the chain after it.
    Raises DamagedExtentError.
    """
    window = ReadWindow(read, part_bytes)
    offset, position, fold_, root, link, proven = chain
    fold = fold_.copy()
    end = position + max(part_bytes, part_bytes_min)
    while offset < goal.size and extents and position + extent_header_bytes <= end:
        located = locate(window, seed, position)
        if located is None or isinstance(located, HeaderFault):
            fault = "the file ends" if located is None else located.value
            raise DamagedExtentError(offset, fault, position, "the header of an extent")
        header = located.header
        if header.offset != offset or header.end > goal.size:
            raise DamagedExtentError(
                offset,
                f"an extent of the bytes from {header.offset} to {header.end}",
                position,
                f"one that begins at {offset} and ends at {goal.size} at most",
            )
        if link is not None and link != header.link:
            raise DamagedExtentError(
                offset if root else 0,
                f"an extent of link {header.link:08x}",
                position,
                f"one of link {link:08x}, which follows the extent before it",
            )
        if header.prefix_digest != fold.blocks_digest:
            raise DamagedExtentError(
                proven,
                f"the next header vouches for blocks of digest {header.prefix_digest:016x}",
                position,
                f"the digest of the content read, {fold.blocks_digest:016x}",
            )
        if located.after > end:
            break
        proven = offset - offset % digest_block_bytes
        payload = payload_of(window, located)
        if payload is None:
            raise DamagedExtentError(
                offset,
                "the payload digest does not match",
                position + extent_header_bytes,
                f"{header.payload_bytes} bytes of payload digest {header.payload_digest:016x}",
            )
        fold.update(payload)
        offset, position, link, extents = header.end, located.after, located.link_after, extents - 1
    if offset == goal.size and goal.digest not in (None, fold.value):
        raise DamagedExtentError(
            proven, f"content of digest {fold.value:016x}", position, f"content of digest {goal.digest:016x}"
        )
    return VerifiedChain(offset, position, fold, root, link, proven)
