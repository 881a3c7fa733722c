"""Replaying the file operations of a journal, up to a stop: what every command and restore has in common.

Rules of this file: records in, operations out. Where the records come from is the caller's, and so is what is
done with an operation: applied to a tree, or only counted.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from journal.core.errors import StopNotFoundError
from journal.core.file_ops import (
    FILE_OPS,
    FileOp,
    FileRemove,
    FileTruncate,
    FileWrite,
    Paths,
    ReplayStop,
    file_op,
    re_rooted,
    safe_path,
)
from journal.core.record import Record
from journal.limits import file_bytes_max
from journal.ops import Op

TO_THE_END: Final = ReplayStop()
_WRITE: Final = Op.WRITE


class FileOperations(Protocol):
    """What operations are applied to."""

    def apply(self, op: FileOp) -> None: ...

    def write(self, path: str, offset: int, data: bytes) -> None:
        """`apply(FileWrite(path, offset, data))`: the one that comes a million times."""
        ...


class FilesReplay:
    """Takes records in order, each with the logical offset just past it, until the stop.

    only: operations on that file alone are handed on. paths: see `journal.core.file_ops`.
    """

    def __init__(
        self,
        files: FileOperations,
        *,
        stop: ReplayStop = TO_THE_END,
        only: str | None = None,
        paths: Paths = "safe",
    ) -> None:
        self.stop = stop
        self.stopped = False
        """The stop was reached: nothing more is taken."""
        self.end = 0
        """Logical offset just past the last record taken."""
        self.records = 0
        self.wall_ms: int | None = None
        """The last mark taken."""
        self.cut: int | None = None
        self.step = 0
        """The last cut taken, and its step; 0 if it says none."""
        self._found = False
        self._files = files
        self._only = only
        self._paths = paths

    @property
    def has_all(self) -> bool:
        """Whether nothing that follows could change anything."""
        return self.stopped or (self.stop.size is not None and self.end >= self.stop.size)

    def take(self, steps: Iterable[tuple[int, Record]]) -> bool:
        """Take records; False once the stop is reached. Raises UnsafePathError, FileConflictError,
        and what the files raise.
        """
        stop, only, paths = self.stop, self._only, self._paths
        write, path_of = self._files.write, safe_path if paths == "safe" else re_rooted
        bounded, count, last = stop != TO_THE_END, 0, self.end
        if self.stopped:
            return False
        try:
            for end, record in steps:
                if bounded and stop.lies_before(end, record):
                    self.stopped = True
                    return False
                last = end
                count += 1
                if record.op is _WRITE and record.ints[0] + len(record.strings[1]) <= file_bytes_max:
                    raw, data = record.strings
                    path = path_of(raw)
                    if only is None or path == only:
                        write(path, record.ints[0], data)
                elif record.op in FILE_OPS:
                    op = file_op(record, paths)
                    if only is None or op.path == only:
                        self._files.apply(op)
                elif self._noted(record):
                    return False
        finally:
            self.end = last
            self.records += count
        return True

    def _noted(self, record: Record) -> bool:
        """Keep what a record says of the moment; whether the stop is reached with it."""
        if record.op is Op.MARK:
            self.wall_ms = record.ints[0]
        elif record.op is Op.CUT and record.ints:
            self.cut, self.step = record.ints[0], record.ints[1] if len(record.ints) > 1 else 0
            if self.stop.ends_with(record):
                self.stopped = self._found = True
        return self.stopped

    def finish(self) -> None:
        """All that there is was taken. Raises StopNotFoundError if it was to end with a cut that is none."""
        if self.stop.names_a_cut and not self._found:
            below = "no cut" if self.cut is None else f"cut {self.cut}"
            if self.cut is not None and self.stop.step is not None:
                below += (
                    f" of step {self.step}" if self.step else ", which says no step: name it as checkpoint:N"
                )
            raise StopNotFoundError(f"the journal has not {self.stop}; the one before is {below}")


class FileSizes:
    """The files that operations leave, without their bytes: path -> length."""

    def __init__(self, sizes: dict[str, int] | None = None) -> None:
        self.sizes: dict[str, int] = {} if sizes is None else sizes

    def apply(self, op: FileOp) -> None:
        """As `FileTree.apply` would, except that conflicts are not seen."""
        if isinstance(op, FileWrite):
            self.write(op.path, op.offset, op.data)
        elif isinstance(op, FileTruncate):
            self.sizes[op.path] = op.length
        else:
            assert isinstance(op, FileRemove)
            self.sizes.pop(op.path, None)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """As `FileTree.write` would."""
        self.sizes[path] = max(self.sizes.get(path, 0), offset + len(data) if data else 0)
