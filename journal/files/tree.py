"""Local trees of files: the operations on them, what two of them differ in, and how one is rebuilt from
records.

Every part of a path is opened without following links, so neither a path nor a link leads out of the root. A
tree is a cache of its journal: nothing is fsynced. Not for several threads.
"""

import errno
import os
import shutil
import stat
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from journal.core.errors import FileConflictError
from journal.core.file_ops import (
    TO_THE_END,
    FileOp,
    FileRemove,
    FilesReplay,
    FileTruncate,
    FileWrite,
    Paths,
    ReplayStop,
)
from journal.limits import file_copy_bytes_max, file_gather_bytes, file_gather_part_bytes, files_open_max

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_A_PLAIN_PATH = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR)


class _GatheredWrites:
    """Gathered consecutive writes to one file: `parts` fill the range from `begin` to `end`."""

    __slots__ = ("begin", "end", "parts")

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.parts: list[bytes] = []


def _close_all(files: OrderedDict[str, int], root: int) -> None:
    while files:
        os.close(files.popitem()[1])
    os.close(root)


class FileTree:
    """The files below `root`, which must exist. A context manager that closes it. gather_bytes: the memory
    for consecutive writes that are gathered; 0 for none. Call `flush` before the files are read.

    Operations raise FileConflictError for a path that leads through a file or a link, or names a directory,
    and OSError; the file may have been created or extended then.
    """

    def __init__(self, root: Path, *, gather_bytes: int = 0) -> None:
        self.root = root
        self._root = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
        self._open: OrderedDict[str, int] = OrderedDict()
        self._finalizer = weakref.finalize(self, _close_all, self._open, self._root)  # also if it is dropped
        self._gather_bytes = gather_bytes
        self._gathered = 0
        self._held: dict[str, _GatheredWrites] = {}
        """Path -> the gathered writes to it."""

    def __enter__(self) -> "FileTree":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files. Gathered writes that were not flushed are dropped."""
        self._held.clear()
        self._finalizer()
        self._root = -1

    def apply(self, op: FileOp) -> None:
        if isinstance(op, FileWrite):
            self.write(op.path, op.offset, op.data)
            return
        self._flush(op.path)
        if isinstance(op, FileTruncate):
            with _length_is_supported(op.path, op.length):
                os.ftruncate(self._file(op.path), op.length)
        else:
            assert isinstance(op, FileRemove)
            self._remove(op.path)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Do the same as `apply(FileWrite(..))`, without the object: most operations are writes."""
        if not self._gather_bytes:
            self._write(path, offset, data)
            return
        held = self._held.get(path)
        if held is None or held.end != offset:
            if held is not None:
                self._flush(path)
            held = self._held[path] = _GatheredWrites(offset)
        size = len(data)
        held.parts.append(data)
        held.end += size
        self._gathered += size + file_gather_part_bytes
        if self._gathered >= self._gather_bytes:
            self.flush()

    def flush(self) -> None:
        for path in list(self._held):
            self._flush(path)

    def size(self, path: str) -> int:
        """Return the size of a file, 0 if it is missing. Raises FileConflictError."""
        try:
            found = os.lstat(self.root / path)
        except FileNotFoundError:
            return 0
        except NotADirectoryError:
            raise FileConflictError(path, "a part of it is a file") from None
        if not stat.S_ISREG(found.st_mode):
            raise FileConflictError(path, "it is not a regular file")
        return found.st_size

    def exists(self, path: str) -> bool:
        return (self.root / path).is_file()

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files, ordered by name."""
        for folder, folders, files in os.walk(self.root):
            folders.sort()
            for name in sorted(files):
                yield str(Path(folder, name).relative_to(self.root))

    def check(self, op: FileOp) -> None:
        """Raise FileConflictError if an operation conflicts with the existing files. Changes nothing."""
        if isinstance(op, FileRemove):
            return
        self.size(op.path)
        for parent in Path(op.path).parents[:-1]:
            try:
                found = os.lstat(self.root / parent)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not stat.S_ISDIR(found.st_mode):
                raise FileConflictError(op.path, f"{parent} is not a directory")

    # --- one file -------------------------------------------------------------------------------------------

    def _flush(self, path: str) -> None:
        held = self._held.pop(path, None)
        if held is not None:
            self._gathered -= held.end - held.begin + len(held.parts) * file_gather_part_bytes
            self._write(path, held.begin, held.parts[0] if len(held.parts) == 1 else b"".join(held.parts))

    def _write(self, path: str, offset: int, data: bytes) -> None:
        file = self._file(path)
        view = memoryview(data)
        with _length_is_supported(path, offset + len(data)):
            while view:
                written = os.pwrite(file, view, offset)
                view, offset = view[written:], offset + written

    def _remove(self, path: str) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            os.close(file)
        parts = path.split("/")
        try:
            folders = self._folders(parts[:-1], make=False)
        except FileNotFoundError:
            return
        try:
            os.unlink(parts[-1], dir_fd=folders[-1])
            for name, folder in zip(reversed(parts[:-1]), reversed(folders[:-1]), strict=True):
                os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.EISDIR:
                raise FileConflictError(path, "it is a directory") from error
            if error.errno != errno.ENOTEMPTY:
                raise
        finally:
            for folder in folders[1:]:
                os.close(folder)

    def _file(self, path: str) -> int:
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        parts = path.split("/")
        folders = self._folders(parts[:-1], make=True)
        try:
            file = os.open(parts[-1], _FILE, 0o644, dir_fd=folders[-1])
        except OSError as error:
            _raise_conflict(path, error)
            raise
        finally:
            for folder in folders[1:]:
                os.close(folder)
        self._open[path] = file
        if len(self._open) > files_open_max:
            os.close(self._open.popitem(last=False)[1])
        return file

    def _folders(self, parts: list[str], *, make: bool) -> list[int]:
        folders = [self._root]
        try:
            for part in parts:
                try:
                    folders.append(os.open(part, _DIRECTORY, dir_fd=folders[-1]))
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(part, 0o755, dir_fd=folders[-1])
                    folders.append(os.open(part, _DIRECTORY, dir_fd=folders[-1]))
        except OSError as error:
            for folder in folders[1:]:
                os.close(folder)
            _raise_conflict("/".join(parts), error)
            raise
        return folders


def _raise_conflict(path: str, error: OSError) -> None:
    if error.errno in _NOT_A_PLAIN_PATH:
        rule = f"it is a directory, or leads through a file or a link: {error.strerror}"
        raise FileConflictError(path, rule) from error


@contextmanager
def _length_is_supported(path: str, length: int) -> Iterator[None]:
    """Raise FileConflictError for a length above the limit of this file system."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise FileConflictError(path, f"this file system has no files of {length:,} bytes") from error


@dataclass(frozen=True, slots=True)
class FileChange:
    """The difference of one file: its size before and after, None if missing; the first differing byte."""

    path: str
    before: int | None
    after: int | None
    differs_at: int = 0


def changes_between(before: Path, after: Path) -> list[FileChange]:
    """Return the files that were added, removed or changed, by name. Raises OSError."""
    with FileTree(before) as old, FileTree(after) as new:
        sizes = ({path: tree.size(path) for path in tree.paths()} for tree in (old, new))
        was, now = sizes
    changes = []
    for path in sorted(was.keys() | now.keys()):
        if path not in was or path not in now:
            changes.append(FileChange(path, was.get(path), now.get(path)))
        elif (at := _first_difference(before / path, after / path)) is not None:
            changes.append(FileChange(path, was[path], now[path], at))
    return changes


def _first_difference(one: Path, other: Path) -> int | None:
    at = 0
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            first, second = left.read(file_copy_bytes_max), right.read(file_copy_bytes_max)
            if first != second:
                pairs = enumerate(zip(first, second, strict=False))
                return at + next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))
            if not first:
                return None
            at += len(first)


class Rebuilding:
    """A tree that is being rebuilt: `replay` takes the records, until `put` moves the files to the target. A
    context manager; without `put` it deletes them. `replay.take` raises UnsafePathError, FileConflictError,
    OSError.
    """

    def __init__(
        self, target: Path, *, stop: ReplayStop = TO_THE_END, only: str | None = None, paths: Paths = "safe"
    ) -> None:
        self.target = target.absolute()
        self._temporary = self.target.parent / f".{self.target.name}.rebuilding"
        self._old = self.target.parent / f".{self.target.name}.replaced"
        self._delete_temporary()
        self._temporary.mkdir(parents=True)
        self._tree = FileTree(self._temporary, gather_bytes=file_gather_bytes)
        self.replay = FilesReplay(self._tree, stop=stop, only=only, paths=paths)

    def __enter__(self) -> "Rebuilding":
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.close()
        self._delete_temporary()

    def has_file(self, path: str) -> bool:
        self._tree.flush()
        return (self._temporary / path).is_file()

    def put(self) -> None:
        """Move the tree to the target, replacing whatever is there."""
        self._tree.flush()
        self._tree.close()
        # A crash between the two renames leaves no target; the next rebuilding creates it again.
        if os.path.lexists(self.target):
            self.target.rename(self._old)
        self._temporary.rename(self.target)
        self._delete_temporary()

    def _delete_temporary(self) -> None:
        for path in (self._temporary, self._old):
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)
