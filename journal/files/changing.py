"""The local files of a journaled directory, and the records of their changes.

This module knows neither the journal nor threads. The caller requests the record of a change (`recorded`),
appends it to the journal, and then applies the change (`apply`). So an invalid change is rejected before
anything is recorded. Not for concurrent use by several threads.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from dos_protocol.errors import ClosedError, LocalProtocolError
from journal.core.errors import LocalFilesError
from journal.core.file_ops import (
    FileOp,
    FileRemove,
    FileTruncate,
    FileWrite,
    path_bytes,
    record_of,
    safe_path,
)
from journal.core.record import Record
from journal.files.replaying import FileSizes
from journal.files.tree import FileTree
from journal.limits import file_copy_bytes_max, file_write_bytes_max


class ChangingFiles:
    """The files below `path` as of their journal. For each change, call `recorded`, then `apply`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tree = FileTree(path)
        self._broken: LocalFilesError | None = None
        self._files = FileSizes({name: self._tree.size(name) for name in self._tree.paths()})
        self._sizes = self._files.sizes
        self.live_bytes = sum(self._sizes.values())
        """The total size of all files in bytes."""

    def close(self) -> None:
        """Close the open files. No change is possible afterwards."""
        self._tree.close()

    def appending(self, name: str, data: bytes) -> FileWrite:
        """Return the change that appends to a file, which need not exist."""
        return FileWrite(name, self._sizes.get(name, 0), data)

    def removing(self, name: str) -> FileRemove:
        """Return the change that removes a file. Raises FileNotFoundError."""
        self._size(name)
        return FileRemove(name)

    def renaming(self, old: str, new: str) -> Iterator[FileOp]:
        """Yield the changes that rename a file. Apply each one before requesting the next.

        Raises FileNotFoundError.
        """
        size = self._size(old)
        if old == new:
            return
        yield FileTruncate(new, 0)
        for offset in range(0, size, file_copy_bytes_max):
            yield FileWrite(new, offset, _read(self.path, old, offset, size))
        yield FileRemove(old)

    def recorded(self, op: FileOp) -> Record:
        """Return the record of a change, after the check that the change is possible.

        Raises UnsafePathError, FileConflictError, LocalProtocolError; ClosedError after a recorded change
        could not be applied.
        """
        safe_path(path_bytes(op.path))
        if isinstance(op, FileWrite) and op.offset < 0:
            raise LocalProtocolError(f"an offset must be 0 or more, got {op.offset}")
        if isinstance(op, FileTruncate) and op.length < 0:
            raise LocalProtocolError(f"a length must be 0 or more, got {op.length}")
        if self._broken is not None:
            raise ClosedError(
                f"the files in {self.path} are behind their journal: {self._broken.args[0]}",
                remedy=self._broken.remedy,
            )
        if isinstance(op, FileWrite) and len(op.data) > file_write_bytes_max:
            raise LocalProtocolError(
                f"one write has at most {file_write_bytes_max} bytes, because it is made whole or not at"
                f" all; got {len(op.data)}",
                remedy="write the data in pieces",
            )
        record = record_of(op)
        self._tree.check(op)
        return record

    def check_untouched(self, name: str) -> None:
        """Raise LocalFilesError if the size of a file differs from that of its recorded changes.

        Raises FileConflictError if it is not a regular file.
        """
        found, expected = self._tree.size(name), self._sizes.get(name, 0)
        if found != expected:
            raise LocalFilesError(
                f"{name} has {found} bytes and {expected} in its journal: it was changed by other means"
            )

    def apply(self, op: FileOp) -> None:
        """Apply a recorded change.

        Raises LocalFilesError if the operating system rejects it. Then the files are behind their journal,
        and `recorded` accepts no more changes.
        """
        try:
            self._tree.apply(op)
        except Exception as error:
            self._broken = LocalFilesError(f"cannot apply a recorded change to {op.path}: {error}")
            raise self._broken from error
        before = self._sizes.get(op.path, 0)
        self._files.apply(op)
        self.live_bytes += self._sizes.get(op.path, 0) - before

    @property
    def broken(self) -> LocalFilesError | None:
        """The reason why the files are behind their journal; None if they are not."""
        return self._broken

    def sizes(self) -> dict[str, int]:
        """Return the size of each file by path."""
        return dict(self._sizes)

    def snapshot(self) -> Iterator[Record]:
        """Yield the records that create all files."""
        return snapshot_of(self.path, self._sizes)

    def _size(self, name: str) -> int:
        if name not in self._sizes:
            raise FileNotFoundError(f"{name} is not in {self.path}")
        return self._sizes[name]


def sizes_of(root: Path) -> dict[str, int]:
    """Return the size of each file below `root`, by path.

    Raises FileConflictError for what is no regular file, UnsafePathError for a name that no journal has,
    OSError.
    """
    with FileTree(root) as tree:
        return {safe_path(path_bytes(name)): tree.size(name) for name in tree.paths()}


def snapshot_of(root: Path, sizes: Mapping[str, int]) -> Iterator[Record]:
    """Yield the records that create the files of `sizes`, with their content below `root`.

    Raises LocalFilesError for a file that is shorter than its size, OSError.
    """
    for name in sorted(sizes):
        size = sizes[name]
        yield record_of(FileTruncate(name, size))
        for offset in range(0, size, file_copy_bytes_max):
            yield record_of(FileWrite(name, offset, _read(root, name, offset, size)))


def _read(root: Path, name: str, offset: int, size: int) -> bytes:
    with (root / name).open("rb", buffering=0) as file:
        file.seek(offset)
        data = file.read(min(file_copy_bytes_max, size - offset))
    if len(data) != min(file_copy_bytes_max, size - offset):
        raise LocalFilesError(f"{name} has fewer than the {size} bytes in its journal")
    return data
