"""Verifying an object's extents from end to end, one part at a time, for `dos fsck` and the scrub.

An extent is good if

1. its header is valid and is for the next logical offset,
2. its link is that of the header before it,
3. its prefix digest is that of the content found below it,
4. its payload digest matches.

A GET makes the same checks except the prefix digest, starting from an extent whose link the server knows.

If a link does not match and the root is known, the extent with that link is the damaged one. If the root is
unknown, the first extents may as well be the foreign ones, and all content counts as damaged. If a prefix
digest does not match, content counts as damaged from the last block on that a later header confirmed.

The file is read only through `read`, at most one part of it in memory. The callers decide what to do about
damage.
"""

from typing import NamedTuple

from dos_protocol.digests import PrefixDigest
from dos_protocol.limits import digest_block_bytes
from dos_server.core.files.extent import HeaderFault
from dos_server.core.files.scan import DamagedExtentError, ReadAt, ReadWindow, locate, payload_of
from dos_server.limits import extent_header_bytes, extent_payload_bytes_max

part_bytes_min = extent_header_bytes + extent_payload_bytes_max
"""A part holds at least one extent."""


class VerifiedChain(NamedTuple):
    """How far an object was verified: everything below `offset` was read and is good.

    `position`: the file position there. `fold`: of the content below `offset`; must not be changed. `root`:
    of the object, 0 if unknown. `link`: of the next extent, None if any is accepted. `proven`: content below
    this size is confirmed by the prefix digest of a later header.
    """

    offset: int
    position: int
    fold: PrefixDigest
    root: int
    link: int | None
    proven: int = 0


class VerifyGoal(NamedTuple):
    """The content that should be there: its size, and its digest, or None if the digest is unknown."""

    size: int
    digest: int | None = None


def beginning(root: int) -> VerifiedChain:
    """Return the chain before the first extent. `root`: 0 if unknown."""
    return VerifiedChain(0, 0, PrefixDigest(), root, root or None)


def verify_part(
    read: ReadAt, seed: int, chain: VerifiedChain, goal: VerifyGoal, part_bytes: int, extents: int
) -> VerifiedChain:
    """Verify the next part of the file: at least one extent, at most `extents`. Return the chain after it.

    Raises DamagedExtentError where the content that should be there is not.
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
