"""The local cache of segments: a restore on the same host reads it, and members that are far behind are
filled from it. One file per segment, with its name and its bytes.

It is never part of an acknowledgement and never fsynced. Its bytes are used only up to a position that a
quorum holds, and only if their prefix digest matches there: it may be deleted, torn, stale or of another
store. A failure to write it is logged once and never stops a journal.
"""

import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from dos_protocol.digests import PrefixDigest
from journal.core.chain import SegmentSpan, parse_segment_name
from journal.limits import scratch_read_bytes_max

logger = logging.getLogger("dos.journal")


class CacheWriter:
    """The writer of one cached segment. After a failure the file is deleted, and it does nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            self._give_up(error)

    def write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    def _give_up(self, error: OSError) -> None:
        logger.warning("scratch: cannot write %s (%s); continuing without it", self._path, error)
        try:
            self.close()
            self._path.unlink(missing_ok=True)
        except OSError:
            logger.debug("scratch: cannot remove %s", self._path, exc_info=True)


class ScratchCopy:
    """A cached segment that the client reads to fill members. Never raises: an unreadable range is None."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        """Return up to `max_bytes` bytes from `offset`, or None if they cannot be read."""
        try:
            with self._path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), max_bytes, offset)
        except OSError:
            return None


class Scratch:
    """A local directory of cached segments. Created if missing. The caller may delete it at any time."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            logger.warning("scratch: cannot create %s (%s); continuing without it", self.directory, error)

    def mirror(self, name: str) -> CacheWriter:
        return CacheWriter(self.directory / name)

    def copy(self, name: str) -> ScratchCopy:
        """Return the cached copy of a segment. Its bytes are unverified."""
        return ScratchCopy(self.directory / name)

    def covers(self, span: SegmentSpan) -> bool:
        """Return whether the local bytes match the length and digest of the span. Reads all of them."""
        fold = PrefixDigest()
        try:
            for chunk in self.read(span):
                fold.update(chunk)
        except OSError:
            return False
        return fold.size == span.length and fold.value == span.digest

    def read(self, span: SegmentSpan) -> Iterator[bytes]:
        """Yield the local bytes of a span, possibly fewer than its length. Raises OSError."""
        left = span.length
        with (self.directory / span.name).open("rb", buffering=0) as file:
            while left and (chunk := file.read(min(left, scratch_read_bytes_max))):
                left -= len(chunk)
                yield chunk

    def keep_only(self, chain: str, names: Collection[str]) -> None:
        """Delete the cached segments of this chain except `names`: the others are not part of the chain."""
        try:
            for path in self.directory.iterdir():
                parsed = parse_segment_name(path.name)
                if parsed is not None and parsed.chain == chain and path.name not in names:
                    path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("scratch: cannot delete old segments in %s (%s)", self.directory, error)
