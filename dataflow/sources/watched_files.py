"""The content of watched directories: the files that match the patterns, their sizes, and whether gzip files
are whole.

This file calls the operating system. `directory.py` reads the files.
"""

import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from checkpoint import SplitPosition
from dataflow.errors import InputChangedError, InputReadError, SchemaError
from dataflow.sources.file_bytes import FileBytes, GzipBytes, PlainBytes, open_bytes, open_regular
from dos_protocol.digests import PrefixDigest, digest64

_mark_bytes: Final = 4 * 1024
tail_bytes: Final = 4 * 1024
"""How many bytes before a position prove that the file is unchanged."""
_open_files_max: Final = 64


class WatchedFiles(NamedTuple):
    """Files below the directory `root` that match `pattern`."""

    root: str
    pattern: str


class FileSeen(NamedTuple):
    """The status of a file. `identity` changes when the file is written or replaced."""

    size: int
    identity: tuple[int, int, int]


@dataclass(slots=True)
class FollowedFile:
    """An open file. Invariant: `tail` holds the bytes before the position that identify the file."""

    held: FileBytes
    tail: bytes


class FollowedFiles:
    """The open files of one reader by path, least recently used first."""

    def __init__(self) -> None:
        self._open: dict[str, FollowedFile] = {}

    def opened(self, path: str, at: SplitPosition) -> FollowedFile:
        """Return the open file after verifying the bytes before the position. Raises InputChangedError."""
        file = self._open.pop(path, None)
        if file is None:
            file = FollowedFile(open_bytes(path), b"")
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


def watched(entry: str) -> WatchedFiles:
    """Parse a path or pattern; a directory means all files in it. Raises SchemaError if the directory does
    not exist.
    """
    path = os.path.abspath(entry)  # noqa: PTH100 - text in, text out
    if os.path.isdir(path):  # noqa: PTH112
        return WatchedFiles(path, os.path.join(glob.escape(path), "*"))  # noqa: PTH118
    root = os.path.dirname(path)  # noqa: PTH120
    while glob.has_magic(root):
        root = os.path.dirname(root)  # noqa: PTH120
    if not os.path.isdir(root):  # noqa: PTH112
        raise SchemaError(f"directory {root!r} of a DirectorySource does not exist; create it first")
    return WatchedFiles(root, path)


def list_files(patterns: Sequence[WatchedFiles]) -> dict[str, FileSeen]:
    """Return the regular files that match, sorted by name. Names that begin with . or _ are skipped: these
    files are still being written. Raises InputReadError.
    """
    files: dict[str, FileSeen] = {}
    for root, pattern in patterns:
        if not os.path.isdir(root):  # noqa: PTH112
            raise InputReadError(f"input directory {root!r} no longer exists")
        for path in glob.iglob(pattern, recursive=True):  # noqa: PTH207
            if path not in files and not os.path.basename(path).startswith((".", "_")):  # noqa: PTH119
                status = _status_of(path)
                if status is not None:
                    files[path] = status
    return dict(sorted(files.items()))


def _status_of(path: str) -> FileSeen | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None  # removed since it was listed
    except OSError as error:
        raise InputReadError(f"input {path!r} cannot be examined: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileSeen(status.st_size, (status.st_dev, status.st_ino, status.st_mtime_ns))


def gzip_is_complete(path: str) -> bool:
    """Return whether a gzip file is complete enough to read: it ends at the end of a stream. Raises
    InputReadError.
    """
    file = GzipBytes(path, open_regular(path))
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


class CompleteGzips:
    """Remembers which gzip files are whole."""

    def __init__(self) -> None:
        self._checked: dict[str, tuple[int, bool]] = {}
        """File -> its size when it was last checked, and whether it was whole."""

    def forget(self, path: str) -> None:
        """Forget a file; another file may take the name."""
        self._checked.pop(path, None)

    def is_complete(self, path: str, seen: FileSeen, last: FileSeen | None) -> bool:
        """Return whether the file is whole. A file that is being written is checked again when its size has
        stopped changing. Raises InputReadError.
        """
        size, complete = self._checked.get(path, (-1, False))
        if size != seen.size and last in (None, seen):
            complete = gzip_is_complete(path)
            self._checked[path] = (seen.size, complete)
        return complete
