"""The local cache of segments: a mirror of what is appended and read, so that a restore on the same host
reads a disk.

Rules of this file: the scratch is a cache and nothing else. It is never part of an acknowledgement, it is
never fsynced, and what it holds is used only up to a position the quorum has vouched for, and only if the
prefix digest of the local bytes agrees there. So it may be wiped, torn, stale or of another store at any
time: then it is not used. Failing to write it is logged once and never stops a journal.

One file per segment, with the segment's name, holding the segment's bytes from the first on. Writes go
to the page cache from the calling thread: no sync, no queue. So the file may be read while it is written,
and what is read is what was appended: members that are far behind are filled from it (`ScratchCopy`), by a
client that proves every stretch by digest before it sends it.
"""

import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from dos_protocol.digests import PrefixDigest
from journal.core.chain import SegmentSpan
from journal.core.segment import parse_segment_name
from journal.limits import scratch_read_bytes_max

log = logging.getLogger("dos.journal")


class CacheWriter:
    """One segment being written to the cache. Never raises: after a failure it does nothing, and the file
    is gone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            self._give_up(error)

    def write(self, data: bytes) -> None:
        """The segment's next bytes."""
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Keep what was written, for as long as it lasts."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """The file is not worth keeping."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _give_up(self, error: OSError) -> None:
        log.warning("scratch: cannot write %s (%s); going on without it", self._path, error)
        try:
            self.close()
            self._path.unlink(missing_ok=True)
        except OSError:
            log.debug("scratch: cannot remove %s", self._path, exc_info=True)


class ScratchCopy:
    """A cached segment as the client reads it to fill members. Raises nothing: what is not there is None."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def size(self) -> int:
        """How many bytes there are, 0 when none."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def read(self, offset: int, max_bytes: int) -> bytes | None:
        """Bytes from `offset`, fewer at the end; None when they cannot be read."""
        try:
            with self._path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), max_bytes, offset)
        except OSError:
            return None


class Scratch:
    """A directory of cached segments. Made if it is not there; the caller owns it and may delete it at any
    time.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("scratch: cannot make %s (%s); going on without it", self.directory, error)

    def mirror(self, name: str) -> CacheWriter:
        """Begin to cache a segment, from its first byte."""
        return CacheWriter(self.directory / name)

    def copy(self, name: str) -> ScratchCopy:
        """The cached bytes of a segment, for whoever proves them."""
        return ScratchCopy(self.directory / name)

    def covers(self, span: SegmentSpan) -> bool:
        """Whether the local bytes agree with the span. Reads them all once."""
        fold = PrefixDigest()
        try:
            for chunk in self.read(span):
                fold.update(chunk)
        except OSError:
            return False
        return fold.size == span.length and fold.value == span.digest

    def read(self, span: SegmentSpan) -> Iterator[bytes]:
        """The local bytes of a span, as many as there are. Raises OSError."""
        left = span.length
        with (self.directory / span.name).open("rb", buffering=0) as file:
            while left and (chunk := file.read(min(left, scratch_read_bytes_max))):
                left -= len(chunk)
                yield chunk

    def keep_only(self, chain: str, names: Collection[str]) -> None:
        """Delete this chain's cached segments but those: what is off the chain will not be read again."""
        try:
            for path in self.directory.iterdir():
                parsed = parse_segment_name(path.name)
                if parsed is not None and parsed.chain == chain and path.name not in names:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("scratch: cannot tidy %s (%s)", self.directory, error)
