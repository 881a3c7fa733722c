"""The digest of a file that grows, and the point from which it can be computed further. Pure: no I/O.

A checkpoint stores the digest of everything up to a position, and a *resume point*: the prefix digest at an
earlier multiple of 64 KiB. A restore reads only from there, because the digest is chained from block to
block, and the result is still the digest of the whole file (decision 0224).
"""

import errno
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from dataflow import limits
from dataflow.errors import SchemaError
from dos_protocol.digests import Buffer, PrefixDigest, ResumePoint
from dos_protocol.limits import digest_block_bytes

Verify: TypeAlias = Literal["tail", "whole"]
"""How much of a file a restore reads: from the resume point on, or from the beginning."""

BEGINNING: Final = ResumePoint(0, 0)


def check_verify(verify: str) -> None:
    """Raise SchemaError if the value is none of `Verify`."""
    if verify not in ("tail", "whole"):
        raise SchemaError(f"verify must be 'tail' or 'whole', not {verify!r}")


class FileDigest:
    """The prefix digest of the first `size` bytes of a file. Invariant: `resume` is a multiple of 64 KiB, at
    least 64 KiB below `size` (or 0) and less than 128 KiB below it.
    """

    __slots__ = ("_blocks", "_digest", "resume")

    def __init__(self, start: ResumePoint = BEGINNING) -> None:
        self._digest = PrefixDigest(start.size, start.digest)
        self.resume = start
        self._blocks = start
        """The last multiple of 64 KiB."""

    @property
    def size(self) -> int:
        return self._digest.size

    @property
    def value(self) -> int:
        """The prefix digest of the file at `size`."""
        return self._digest.value

    def update(self, data: Buffer) -> None:
        """Add the next bytes of the file."""
        rest = memoryview(data)
        while len(rest):
            room = digest_block_bytes - self._digest.size % digest_block_bytes
            self._digest.update(rest[:room])
            rest = rest[room:]
            if self._digest.size % digest_block_bytes == 0:
                self.resume, self._blocks = self._blocks, ResumePoint(self._digest.size, self._digest.value)

    def read_to(self, size: int, read: Callable[[int, int], Buffer]) -> None:
        """Add the bytes up to `size` that `read(position, count)` returns. Raises OSError if it returns
        nothing.
        """
        while self.size < size:
            block = read(self.size, min(limits.verify_read_bytes, size - self.size))
            if not block:
                raise OSError(errno.EIO, f"it ends at byte {self.size}, expected {size}")
            self.update(block)


def resumed(point: ResumePoint, *, whole: bool) -> FileDigest:
    """Return the digest from which a restore continues: at the resume point, or at 0 if `whole`."""
    return FileDigest() if whole else FileDigest(point)
