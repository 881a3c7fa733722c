"""The files of a journaled directory on this machine, and how one of them changes: a record, then the file.

Rules of this file: it knows no journal, no thread and no waiting. Whoever changes files asks for the record
of a change, hands it to the journal, and only then has the change made; so what is wrong with a change is
told with nothing recorded. Not for several threads at once.
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
    """The files below `path`, as their journal has them. `recorded`, then `apply`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tree = FileTree(path)
        self._broken: LocalFilesError | None = None
        self._files = FileSizes({name: self._tree.size(name) for name in self._tree.paths()})
        self._sizes = self._files.sizes
        self.live_bytes = sum(self._sizes.values())
        """Bytes in all files."""

    def close(self) -> None:
        """Close what is open. Nothing can be changed any more."""
        self._tree.close()

    def appending(self, name: str, data: bytes) -> FileWrite:
        """The change that adds to the end of a file, which need not be there."""
        return FileWrite(name, self._sizes.get(name, 0), data)

    def removing(self, name: str) -> FileRemove:
        """Raises FileNotFoundError."""
        self._size(name)
        return FileRemove(name)

    def renaming(self, old: str, new: str) -> Iterator[FileOp]:
        """The changes that give a file another name; each is to be made before the next is asked for. Raises
        FileNotFoundError.
        """
        size = self._size(old)
        if old == new:
            return
        yield FileTruncate(new, 0)
        for offset in range(0, size, file_copy_bytes_max):
            yield FileWrite(new, offset, _read(self.path, old, offset, size))
        yield FileRemove(old)

    def recorded(self, op: FileOp) -> Record:
        """The record of a change that can be made. Raises UnsafePathError, FileConflictError,
        LocalProtocolError; ClosedError once a change that was recorded could not be made.
        """
        safe_path(path_bytes(op.path))
        if isinstance(op, FileWrite) and op.offset < 0:
            raise LocalProtocolError(f"an offset is 0 or more: {op.offset}")
        if isinstance(op, FileTruncate) and op.length < 0:
            raise LocalProtocolError(f"a length is 0 or more: {op.length}")
        if self._broken is not None:
            raise ClosedError(
                f"{self.path} is behind its journal: {self._broken}", remedy=self._broken.remedy
            )
        if isinstance(op, FileWrite) and len(op.data) > file_write_bytes_max:
            raise LocalProtocolError(
                f"one write has at most {file_write_bytes_max} bytes, to be there whole or not at all: "
                f"{len(op.data)}",
                remedy="write it in pieces",
            )
        record = record_of(op)
        self._tree.check(op)
        return record

    def check_untouched(self, name: str) -> None:
        """Raise LocalFilesError for a file that is longer or shorter than its changes made it,
        FileConflictError for what is no plain file.
        """
        found, expected = self._tree.size(name), self._sizes.get(name, 0)
        if found != expected:
            raise LocalFilesError(
                f"{name} has {found} bytes, and its journal gave it {expected}: it was changed by other means"
            )

    def apply(self, op: FileOp) -> None:
        """Make a change that is recorded. Raises LocalFilesError if the operating system refuses: then the
        files are behind their journal, and nothing more can be recorded.
        """
        try:
            self._tree.apply(op)
        except Exception as error:
            self._broken = LocalFilesError(f"{op.path} could not follow its journal: {error}")
            raise self._broken from error
        before = self._sizes.get(op.path, 0)
        self._files.apply(op)
        self.live_bytes += self._sizes.get(op.path, 0) - before

    @property
    def broken(self) -> LocalFilesError | None:
        """Why the files are behind their journal, if they are."""
        return self._broken

    def sizes(self) -> dict[str, int]:
        """The files that there are, with their lengths."""
        return dict(self._sizes)

    def snapshot(self) -> Iterator[Record]:
        """All files, from nothing."""
        return snapshot_of(self.path, self._sizes)

    def _size(self, name: str) -> int:
        if name not in self._sizes:
            raise FileNotFoundError(f"{name} is not in {self.path}")
        return self._sizes[name]


def snapshot_of(root: Path, sizes: Mapping[str, int]) -> Iterator[Record]:
    """The records that make these files below `root` from nothing. Raises LocalFilesError for one that has
    fewer bytes than that, OSError.
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
        raise LocalFilesError(f"{name} has fewer than the {size} bytes that its journal gave it")
    return data
