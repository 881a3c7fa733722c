"""The bytes of an input file by position, plain or decompressed from gzip.

This file calls the operating system and zlib; `objects.py` reads objects of a bucket. `files.py` decides
which bytes are read and verifies that they have not changed. A position in a gzip file refers to the
decompressed content: reading from it decompresses everything before it again. Several concatenated gzip
streams are one file, as in gzip.
"""

import os
import stat
import zlib
from typing import Final, Protocol

from dataflow.errors import InputReadError

GZIP_SUFFIX: Final = ".gz"
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_block_bytes: Final = 256 * 1024


class FileBytes(Protocol):
    """Reads an open file. `read` raises InputReadError; of an object also what `ObjectBytes.read` raises."""

    @property
    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the file; None for an object, whose version each read verifies."""
        ...

    @property
    def version(self) -> str:
        """The version of an object, "" before the first read, and for a file on a host."""
        ...

    def read(self, position: int, count: int) -> bytes:
        """Return `count` bytes from `position` on, fewer at the end of the file. A position below the
        previous one may require reading from the beginning.
        """
        ...

    def size(self) -> int | None:
        """Return the number of bytes; None if only reading can determine it."""
        ...

    def close(self) -> None: ...


class GzipCutShortError(InputReadError):
    """A file ends within its gzip stream. It may still be in the process of being written."""

    remedy = "wait until the file is completely written, or repair it"


def decompressed(path: str, file: FileBytes) -> FileBytes:
    """Return the content of a file: decompressed if its name ends with .gz."""
    return GzipBytes(path, file) if path.endswith(GZIP_SUFFIX) else file


def open_regular(path: str) -> int:
    """Return a descriptor to read a regular file. Raises InputReadError."""
    try:
        # non-blocking, because opening a pipe could wait forever
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputReadError(f"input {path!r} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputReadError(
            f"input {path!r} is not a regular file, so it cannot be replayed from a position"
        )
    return fd


class PlainBytes:
    """The bytes as they are on disk."""

    version: Final = ""

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd = path, fd

    @property
    def identity(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def read(self, position: int, count: int) -> bytes:
        try:
            block = os.pread(self._fd, count, position)
            while len(block) < count and (
                more := os.pread(self._fd, count - len(block), position + len(block))
            ):
                block += more
        except OSError as error:
            raise InputReadError(
                f"input {self._path!r} cannot be read at byte {position}: {error.strerror}"
            ) from error
        return block

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class GzipBytes:
    """Decompresses while reading. Invariant: `_decompressed` is the known content from position `_at` on."""

    def __init__(self, path: str, file: FileBytes) -> None:
        self._path = path
        self._file = file
        self._rewind()

    @property
    def identity(self) -> tuple[int, int] | None:
        return self._file.identity

    @property
    def version(self) -> str:
        return self._file.version

    def _rewind(self) -> None:
        self._consumed = 0
        """Number of compressed bytes consumed."""
        self._at = 0
        self._decompressed = bytearray()
        self._stream = zlib.decompressobj(_GZIP_WINDOW)
        self._in_stream = False
        """Whether the current stream has consumed any byte."""
        self._between = False
        """Whether a stream has ended and no further stream has started."""

    def read(self, position: int, count: int) -> bytes:
        if position < self._at:
            self._rewind()
        while True:
            skip = min(position - self._at, len(self._decompressed))
            del self._decompressed[:skip]
            self._at += skip
            if self._at == position and len(self._decompressed) >= count:
                break
            if not self._decompress():
                break
        return bytes(self._decompressed[:count]) if self._at == position else b""

    def _decompress(self) -> bool:
        """Decompress some more in bounded pieces, whatever the compression ratio. Return whether there was
        more.
        """
        data = self._stream.unconsumed_tail or self._stream.unused_data
        if self._stream.eof:
            self._stream = zlib.decompressobj(_GZIP_WINDOW)
            self._in_stream, self._between = False, True
        while not (data := data.lstrip(b"\0") if self._between else data):  # zero padding may follow a stream
            data = self._file.read(self._consumed, _block_bytes)
            if not data:
                return self._ended()
            self._consumed += len(data)
        self._in_stream, self._between = True, False
        try:
            self._decompressed += self._stream.decompress(data, _block_bytes)
        except zlib.error as error:
            raise InputReadError(
                f"input {self._path!r} is damaged gzip before byte {self._consumed} of the file: {error}",
                remedy="repair it, or rename it without .gz if it is not compressed",
            ) from error
        return True

    def _ended(self) -> bool:
        if self._in_stream:
            raise GzipCutShortError(
                f"input {self._path!r} ends within its gzip stream, at byte {self._consumed} of the file"
            )
        return False

    def is_complete(self) -> bool:
        """Return whether the file ends at the end of a stream; decompresses all of it. A damaged file counts
        as whole, because reading it reports the damage.
        """
        try:
            while self._decompress():
                self._at += len(self._decompressed)
                self._decompressed.clear()
        except GzipCutShortError:
            return False
        except InputReadError:
            return True
        return self._consumed > 0

    def size(self) -> None:
        """Return None: only reading can determine the size."""

    def close(self) -> None:
        self._file.close()
