"""The files of a `DirectorySource` that are open, and whether gzip files on a host are whole.

`input_files.py` and `objects.py` list and open files, `directory.py` decides what is read.
"""

from collections.abc import Sized
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from checkpoint import SplitPosition
from dataflow import limits
from dataflow.errors import InputChangedError, InputReadError
from dataflow.sources.base import SplitDivision
from dataflow.sources.input_files import (
    FileBytes,
    FileSeen,
    GzipBytes,
    InputFiles,
    PlainBytes,
    check_version,
    open_regular,
)
from dos_protocol.digests import PrefixDigest, digest64

_mark_bytes: Final = 4 * 1024
tail_bytes: Final = 4 * 1024
"""How many bytes before a position prove that the file is unchanged."""
_open_files_max: Final = 64


@dataclass(slots=True)
class FollowedFile:
    """An open file. Invariant: `tail` holds the bytes before the position that identify the file."""

    held: FileBytes
    tail: bytes

    def position_after(self, path: str, at: SplitPosition, chunk: bytes, *, done: bool) -> SplitPosition:
        """Return the position after a chunk that was read at `at`. done: the file is finished."""
        self.tail = (self.tail + chunk)[-tail_bytes:]
        version = self.held.version or UNSET
        mark = mark_of(path) if done and not version else digest64(self.tail)
        return SplitPosition(at.position + len(chunk), mark, done, version=version)


class FollowedFiles:
    """The open files of one reader by path, least recently used first."""

    def __init__(self, files: InputFiles) -> None:
        self._files = files
        self._open: dict[str, FollowedFile] = {}

    def opened(self, path: str, at: SplitPosition) -> FollowedFile:
        """Return the open file after verifying the bytes before the position. Raises InputChangedError."""
        file = self._open.pop(path, None)
        if file is None:
            file = FollowedFile(self._files.open(path, at.version or ""), b"")
            size = min(at.position, tail_bytes)
            file.tail = file.held.read(at.position - size, size) if size else b""
            if size and (len(file.tail) < size or digest64(file.tail) != at.digest):
                file.held.close()
                raise InputChangedError(
                    path,
                    at.position,
                    f"{size} bytes with digest {at.digest:016x} before it",
                    f"{len(file.tail)} with {digest64(file.tail):016x}",
                )
        self._open[path] = file
        if len(self._open) > _open_files_max:
            self.close(next(iter(self._open)))
        return file

    def close(self, path: str) -> None:
        """Close a file, if it is open."""
        if path in self._open:
            self._open.pop(path).held.close()

    def close_all(self) -> None:
        """Close all files."""
        for path in [*self._open]:
            self.close(path)


@dataclass(slots=True)
class FilePart:
    """The range that a step read of one file."""

    begin: int
    digest: PrefixDigest
    done: bool = False

    def add(self, chunk: bytes, *, done: bool) -> None:
        self.digest.update(chunk)
        self.done = done

    def division(self) -> SplitDivision:
        end = self.begin + self.digest.size
        return SplitDivision(self.begin, end, self.digest.value, int(self.done))


def gzip_is_complete(path: str) -> bool:
    """Return whether a gzip file is complete enough to read: it ends at the end of a stream. Raises
    InputReadError.
    """
    file = GzipBytes(path, PlainBytes(path, open_regular(path)))
    try:
        return file.is_complete()
    finally:
        file.close()


def mark_of(path: str) -> int:
    """Return a digest of a file's size and last bytes, which identifies it. Raises InputReadError."""
    file = PlainBytes(path, open_regular(path))
    try:
        size = file.size()
        return digest64(file.read(max(0, size - _mark_bytes), _mark_bytes), size)
    finally:
        file.close()


def check_gzip_unchanged(path: str, seen: FileSeen, at: SplitPosition) -> None:
    """Raise InputChangedError if a gzip file that was read is another one now."""
    mark = mark_of(path)
    if mark != at.digest:
        found = f"another file, of {seen.size} bytes ({mark:016x})"
        raise InputChangedError(path, at.position, f"the file that was read ({at.digest:016x})", found)


def check_count(files: Sized) -> None:
    """Raise InputReadError if a worker has more files than a checkpoint can hold."""
    if len(files) > limits.directory_files_max:
        raise InputReadError(
            f"{len(files)} input files exist for one worker, and a checkpoint holds the position of each: the"
            f" maximum is {limits.directory_files_max}",
            remedy='remove files that were read, with gone="forget"; or use more workers',
        )


def check_part(path: str, part: SplitDivision, chunk: bytes, *, more: bool) -> None:
    """Raise InputChangedError if a replay reads other bytes than the recorded step, or bytes after the end
    (`more`) of a file that was whole.
    """
    digest = PrefixDigest()
    digest.update(chunk)
    if digest.value != part.digest or more:
        found = f"{len(chunk)} with {digest.value:016x}" + (", and more after them" if more else "")
        expected = f"{part.end - part.begin} bytes with digest {part.digest:016x}"
        raise InputChangedError(path, part.end, expected, found)


def object_is_ready(path: str, seen: FileSeen, at: SplitPosition) -> bool:
    """Return whether an object was not read to its end. Raises InputChangedError if it was replaced since it
    was read, also by a longer one.
    """
    if at.position or at.done:
        check_version(path, at.position, at.version or "", str(seen.identity))
    return not at.done and seen.size > 0


class CompleteGzips:
    """Remembers which gzip files are whole."""

    def __init__(self) -> None:
        self._checked: dict[str, tuple[int, bool]] = {}
        """File -> its size when it was last checked, and whether it was whole."""

    def forget(self, path: str) -> None:
        """Forget a file; another file may take the name."""
        self._checked.pop(path, None)

    def is_ready(
        self, path: str, seen: FileSeen, last: FileSeen | None, at: SplitPosition, *, ending: bool
    ) -> bool:
        """Return whether the file can be read and was not. Raises InputChangedError if another file has taken
        the name of one that was read; InputReadError.
        """
        if at.done and last != seen:
            check_gzip_unchanged(path, seen, at)
        return not at.done and (ending or self.is_complete(path, seen, last))

    def is_complete(self, path: str, seen: FileSeen, last: FileSeen | None) -> bool:
        """Return whether the file is whole. A file that is being written is checked again when its size has
        stopped changing. Raises InputReadError.
        """
        size, complete = self._checked.get(path, (-1, False))
        if size != seen.size and last in (None, seen):
            complete = gzip_is_complete(path)
            self._checked[path] = (seen.size, complete)
        return complete
