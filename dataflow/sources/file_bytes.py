"""The bytes of an input file by their position: as they are, or as gzip holds them.

Rules of this file: calls of the operating system and of zlib. Which bytes are read, and the proof that they
are the same, is `files.py`'s. A position in a gzip file is one in what it holds: to stand at one, all
before it is decompressed again. Several gzip streams one behind the other are one file, as gzip has it.
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
    """Reads an open file. `read` raises InputReadError."""

    def read(self, position: int, count: int) -> bytes:
        """Bytes from there on: `count` of them, fewer where it ends. Positions before the last one may cost
        a reading from the beginning.
        """
        ...

    def size(self) -> int | None:
        """How many bytes there are; None: only reading tells."""
        ...

    def close(self) -> None: ...


class GzipCutShortError(InputReadError):
    """A file ends within its gzip stream: perhaps it is still being written."""

    remedy = "wait until it is written whole, or repair it"


def open_bytes(path: str) -> FileBytes:
    """Open a file; names that end with .gz are gzip's. Raises InputReadError, also for what is no regular
    file.
    """
    fd = open_regular(path)
    return GzipBytes(path, fd) if path.endswith(GZIP_SUFFIX) else PlainBytes(path, fd)


def open_regular(path: str) -> int:
    """A descriptor to read a regular file. Raises InputReadError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
    except OSError as error:
        raise InputReadError(f"input {path!r} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputReadError(f"input {path!r} is no regular file, so no position in it can be read again")
    return fd


class PlainBytes:
    """As they are on the disk."""

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd = path, fd

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
    """Decompressed on the way. Invariant: `_held` is what lies from `_at` on, as far as it is known."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._file = PlainBytes(path, fd)
        self._rewind()

    def _rewind(self) -> None:
        self._taken = 0
        """Bytes of the file that went in."""
        self._at = 0
        self._held = bytearray()
        self._stream = zlib.decompressobj(_GZIP_WINDOW)
        self._begun = False
        """Whether the present stream has taken anything."""
        self._between = False
        """Whether a stream has ended, and no other has begun."""

    def read(self, position: int, count: int) -> bytes:
        if position < self._at:
            self._rewind()
        while True:
            skip = min(position - self._at, len(self._held))
            del self._held[:skip]
            self._at += skip
            if self._at == position and len(self._held) >= count:
                break
            if not self._decompress():
                break
        return bytes(self._held[:count]) if self._at == position else b""

    def _decompress(self) -> bool:
        """Some more of it; whether there was more. It comes in small pieces, however well it is packed."""
        data = self._stream.unconsumed_tail or self._stream.unused_data
        if self._stream.eof:
            self._stream = zlib.decompressobj(_GZIP_WINDOW)
            self._begun, self._between = False, True
        while not (data := data.lstrip(b"\0") if self._between else data):  # padding follows a stream
            data = self._file.read(self._taken, _block_bytes)
            if not data:
                return self._ended()
            self._taken += len(data)
        self._begun, self._between = True, False
        try:
            self._held += self._stream.decompress(data, _block_bytes)
        except zlib.error as error:
            raise InputReadError(
                f"input {self._path!r} is damaged gzip before byte {self._taken} of the file: {error}",
                remedy="repair it, or name it without .gz if it is none",
            ) from error
        return True

    def _ended(self) -> bool:
        if self._begun:
            raise GzipCutShortError(
                f"input {self._path!r} ends within its gzip stream, at byte {self._taken} of the file"
            )
        return False

    def is_whole(self) -> bool:
        """Whether it ends where a stream does, for which all of it is decompressed. What is damaged is whole:
        whoever reads it is told.
        """
        try:
            while self._decompress():
                self._at += len(self._held)
                self._held.clear()
        except GzipCutShortError:
            return False
        except InputReadError:
            return True
        return self._taken > 0

    def size(self) -> None:
        """A file that was shorter is found when it is read."""

    def close(self) -> None:
        self._file.close()
