"""Where the files of a source are: an interface, and files on the hosts of workers. `objects.py` has those in
buckets.

This file calls the operating system. `files.py` and `directory.py` decide which bytes are read.
"""

import glob
import os
import stat
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from dataflow.errors import InputReadError, SchemaError
from dataflow.sources.file_bytes import FileBytes, PlainBytes, decompressed, open_regular
from dos_protocol.errors import encodable


class WatchedFiles(NamedTuple):
    """Files below the directory `root` that match `pattern`."""

    root: str
    pattern: str


class FileSeen(NamedTuple):
    """The status of a file. `identity` changes when the file is written or replaced; that of an object is
    its version.
    """

    size: int
    identity: tuple[int, int, int] | str


class InputFiles(Protocol):
    """The files that one source can read. All methods block, and raise InputReadError and
    InputUnavailableError.
    """

    versioned: ClassVar[bool]
    """Whether each file has a version. Such a file is complete when it appears, it can be replaced but not
    changed, and each read verifies the version.
    """

    def expand(self, entries: Sequence[str]) -> list[str]:
        """Return paths as they are, and for each pattern the paths that match, sorted."""
        ...

    def watched(self, entry: str) -> WatchedFiles:
        """Parse a path or pattern; a directory means all files in it. Raises SchemaError."""
        ...

    def listing(self, patterns: Sequence[WatchedFiles]) -> dict[str, FileSeen]:
        """Return the files that match, sorted by path. Names that begin with . or _ are skipped."""
        ...

    def open(self, path: str, version: str = "") -> FileBytes:
        """Open a file; a name that ends with .gz is decompressed.

        version: that of the bytes that were read before, "" if none were. Reads of another version raise
        InputChangedError.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        ...

    def check_access(self, path: str) -> None:
        """Raise an error if the place of a file does not exist or denies access. Raises ConnectionError if
        that cannot be determined from this machine.
        """
        ...

    def close(self) -> None:
        """Release what the files shared. They can be opened again."""
        ...


class OpenInputs:
    """The open files of one reader by name, least recently used first. At most `most` stay open."""

    def __init__(self, files: InputFiles, most: int) -> None:
        self._files, self._most = files, most
        self._open: dict[str, FileBytes] = {}

    def opened(self, name: str, path: str, version: str) -> FileBytes:
        """Return the open file of this name, and open it if it is not. As `InputFiles.open`."""
        file = self._open.pop(name, None)
        if file is None:
            file = self._files.open(path, version)
            if len(self._open) >= self._most:
                self.close(next(iter(self._open)))
        self._open[name] = file
        return file

    def close(self, name: str) -> None:
        """Close a file, if it is open."""
        if name in self._open:
            self._open.pop(name).close()

    def close_all(self) -> None:
        """Close all files, and what they share."""
        for name in [*self._open]:
            self.close(name)
        self._files.close()


class LocalFiles:
    """Files on the host of the worker."""

    versioned: ClassVar[bool] = False

    def expand(self, entries: Sequence[str]) -> list[str]:
        return [path for entry in entries for path in _expanded(entry)]

    def watched(self, entry: str) -> WatchedFiles:
        path = os.path.abspath(entry)  # noqa: PTH100 - text in, text out
        if os.path.isdir(path):  # noqa: PTH112
            return WatchedFiles(path, os.path.join(glob.escape(path), "*"))  # noqa: PTH118
        if not glob.has_magic(entry) and not os.path.exists(path):  # noqa: PTH110
            raise SchemaError(
                f"{path!r} of a DirectorySource does not exist; create it first, or name files that come"
                f" later by a pattern such as '{path}*'"
            )
        root = os.path.dirname(path)  # noqa: PTH120
        while glob.has_magic(root):
            root = os.path.dirname(root)  # noqa: PTH120
        if not os.path.isdir(root):  # noqa: PTH112
            raise SchemaError(f"directory {root!r} of a DirectorySource does not exist; create it first")
        return WatchedFiles(root, path)

    def listing(self, patterns: Sequence[WatchedFiles]) -> dict[str, FileSeen]:
        files: dict[str, FileSeen] = {}
        for root, pattern in patterns:
            if not os.path.isdir(root):  # noqa: PTH112
                raise InputReadError(f"input directory {root!r} no longer exists")
            for path in glob.iglob(pattern, recursive=True):  # noqa: PTH207
                if path not in files and not os.path.basename(path).startswith((".", "_")):  # noqa: PTH119
                    status = _status_of(path)
                    if status is not None:
                        files[_checked(path)] = status
        return dict(sorted(files.items()))

    def open(self, path: str, version: str = "") -> FileBytes:
        del version
        return decompressed(path, PlainBytes(path, open_regular(path)))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)  # noqa: PTH110

    def check_access(self, path: str) -> None:
        """Do nothing: the driver need not see the files of workers."""

    def close(self) -> None:
        """Do nothing: each file holds its own descriptor."""


def _expanded(entry: str) -> list[str]:
    path = os.path.abspath(entry)  # noqa: PTH100 - a string in and out; the file need not exist here
    found = glob.glob(path, recursive=True) if glob.has_magic(entry) else [path]  # noqa: PTH207
    if bad := [path for path in found if encodable(path) != path]:
        raise SchemaError(f"the name of input {bad[0]!r} is not UTF-8; rename the file, or move it away")
    return sorted(found)


def _checked(path: str) -> str:
    """Return the path. Raises InputReadError if it is not UTF-8: a checkpoint could not name it."""
    if encodable(path) != path:
        raise InputReadError(
            f"the name of input {path!r} is not UTF-8", remedy="rename the file, or move it away"
        )
    return path


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
