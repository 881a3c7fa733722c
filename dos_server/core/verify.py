"""Verifying an object's extents from end to end, a part at a time: for `dos fsck` and for the scrub.

An extent is good here if its header is, it is the one that comes next, its link is that of the header before
it, its prefix digest is that of the content found below it, and its payload digest matches. A GET checks all
of that but the prefix digest, from an extent on whose link the server knows.

An extent whose link does not match is the wrong one of the two, as long as the root is known. When it is not,
the first extents may as well be those of another time, and all content counts as damaged. When a prefix
digest does not match, content counts as damaged from the last block on that a later header vouched for.

Rules of this file: it sees a file only through `read`, and holds at most one part of it. What damage means is
decided by the callers.
"""

from typing import NamedTuple

from dos_protocol.digests import PrefixDigest
from dos_protocol.limits import digest_block_bytes
from dos_server.core.extent import HeaderFault
from dos_server.core.scan import DamagedExtentError, ReadAt, ReadWindow, payload_of, placed_at
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max

part_bytes_min = extent_header_bytes + extent_payload_bytes_max
"""A part holds at least one extent."""


class VerifiedChain(NamedTuple):
    """How far an object was followed: everything below `offset` was read, and is good.

    `position`: where the file goes on; `fold`: of the content below `offset`, not to be changed; `proven`:
    below it a header that came later vouches for the content; `root`: of the object,
    0 when nobody knows; `link`: of the next extent, None: any.
    """

    offset: int
    position: int
    fold: PrefixDigest
    root: int
    link: int | None
    proven: int = 0


class VerifyGoal(NamedTuple):
    """What is to be there: so much content, which has that digest; None when nobody knows the digest."""

    size: int
    digest: int | None = None


def beginning(root: int) -> VerifiedChain:
    """Nothing was followed yet. `root`: 0 when nobody knows."""
    return VerifiedChain(0, 0, PrefixDigest(), root, root or None)


def verify_part(
    read: ReadAt, seed: int, chain: VerifiedChain, goal: VerifyGoal, part_bytes: int, extents: int
) -> VerifiedChain:
    """Follow the chain through the next part of the file, at least one extent of it, at most so many.

    Raises DamagedExtentError where what is to be there is not.
    """
    window = ReadWindow(read, part_bytes)
    offset, position, fold_, root, link, proven = chain
    fold = fold_.copy()
    end = position + max(part_bytes, part_bytes_min)
    while offset < goal.size and extents and position + extent_header_bytes <= end:
        placed = placed_at(window, seed, position)
        if placed is None or isinstance(placed, HeaderFault):
            fault = "the file ends" if placed is None else placed.value
            raise DamagedExtentError(offset, fault, position, "the header of an extent")
        header = placed.header
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
                f"one of link {link:08x}, behind the extent before it",
            )
        if header.prefix_digest != fold.blocks_digest:
            raise DamagedExtentError(
                proven,
                f"the next header vouches for blocks of digest {header.prefix_digest:016x}",
                position,
                f"the digest of the content read, {fold.blocks_digest:016x}",
            )
        if placed.after > end:
            break
        proven = offset - offset % digest_block_bytes
        payload = payload_of(window, placed)
        if payload is None:
            raise DamagedExtentError(
                offset,
                "the payload digest does not match",
                position + extent_header_bytes,
                f"{header.payload_bytes} bytes of payload digest {header.payload_digest:016x}",
            )
        fold.update(payload)
        offset, position, link, extents = header.end, placed.after, placed.link_after, extents - 1
    if offset == goal.size and goal.digest not in (None, fold.value):
        raise DamagedExtentError(
            proven, f"content of digest {fold.value:016x}", position, f"content of digest {goal.digest:016x}"
        )
    return VerifiedChain(offset, position, fold, root, link, proven)
