"""What lies in watched directories: which files fit the patterns, how large they are, whether gzip is whole.

Rules of this file: calls of the operating system, and what is known of a file. What is read of a file is
`directory.py`'s.
"""

import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dataflow.errors import InputReadError, SchemaError
from dataflow.sources.file_bytes import FileBytes, GzipBytes, PlainBytes, open_regular
from dos_protocol.digests import PrefixDigest, digest64

_mark_bytes: Final = 4 * 1024


class WatchedFiles(NamedTuple):
    """Files that fit `pattern`, which are below the directory `root`."""

    root: str
    pattern: str


class FileSeen(NamedTuple):
    """A file as it lies there. `identity` is another when it was written, or another has taken its name."""

    size: int
    identity: tuple[int, int, int]


@dataclass(slots=True)
class FollowedFile:
    """Invariant: `tail` is what lies before the position, so many bytes of it as prove it."""

    held: FileBytes
    tail: bytes


@dataclass(slots=True)
class FilePart:
    """What a step took of one file."""

    begin: int
    digest: PrefixDigest
    done: bool = False


def watched(entry: str) -> WatchedFiles:
    """What a user means: of a directory, all files in it. Raises SchemaError for one that is not there."""
    path = os.path.abspath(entry)  # noqa: PTH100 - text in, text out
    if os.path.isdir(path):  # noqa: PTH112
        return WatchedFiles(path, os.path.join(glob.escape(path), "*"))  # noqa: PTH118
    root = os.path.dirname(path)  # noqa: PTH120
    while glob.has_magic(root):
        root = os.path.dirname(root)  # noqa: PTH120
    if not os.path.isdir(root):  # noqa: PTH112
        raise SchemaError(
            f"a DirectorySource watches a directory that is there, and {root!r} is none; make it first"
        )
    return WatchedFiles(root, path)


def list_files(places: Sequence[WatchedFiles]) -> dict[str, FileSeen]:
    """The regular files that fit, in the order of their names. Those whose names begin with . or _ are being
    written, and are left out. Raises InputReadError.
    """
    found: dict[str, FileSeen] = {}
    for root, pattern in places:
        if not os.path.isdir(root):  # noqa: PTH112
            raise InputReadError(f"input directory {root!r} is not there any more")
        for path in glob.iglob(pattern, recursive=True):  # noqa: PTH207
            if path not in found and not os.path.basename(path).startswith((".", "_")):  # noqa: PTH119
                seen = _look_at(path)
                if seen is not None:
                    found[path] = seen
    return dict(sorted(found.items()))


def _look_at(path: str) -> FileSeen | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None  # taken away since it was listed
    except OSError as error:
        raise InputReadError(f"input {path!r} cannot be looked at: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileSeen(status.st_size, (status.st_dev, status.st_ino, status.st_mtime_ns))


def gzip_is_whole(path: str) -> bool:
    """Whether a gzip file is worth reading: it ends where one may end. Raises InputReadError."""
    file = GzipBytes(path, open_regular(path))
    try:
        return file.is_whole()
    finally:
        file.close()


def mark_of(path: str) -> int:
    """Tells a file from another: a digest of its size and its last bytes. Raises InputReadError."""
    file = PlainBytes(path, open_regular(path))
    try:
        size = file.size()
        return digest64(file.read(max(0, size - _mark_bytes), _mark_bytes), size)
    finally:
        file.close()


class WholeGzips:
    """Which gzip files are whole, as far as that was judged."""

    def __init__(self) -> None:
        self._judged: dict[str, tuple[int, bool]] = {}
        """File -> its size when it was last judged, and whether it was whole."""

    def forget(self, path: str) -> None:
        """Another file may take the name."""
        self._judged.pop(path, None)

    def is_whole(self, path: str, seen: FileSeen, last: FileSeen | None) -> bool:
        """A file that is being written is judged again when it has stood still. Raises InputReadError."""
        size, whole = self._judged.get(path, (-1, False))
        if size != seen.size and last in (None, seen):
            whole = gzip_is_whole(path)
            self._judged[path] = (seen.size, whole)
        return whole
