"""Replay the file operations of a journal, up to a stop. All commands and restores use this module.

The caller supplies the records, and the object that receives the operations: a tree of files, or only counts.
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
    """The receiver of the operations of a replay."""

    def apply(self, op: FileOp) -> None: ...

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Do the same as `apply(FileWrite(path, offset, data))`, without the object: most operations
        are writes.
        """
        ...


class FilesReplay:
    """A replay of records in order, each with the logical offset just past it, until the stop.

    files: receives the operations. only: pass on only the operations on this file. paths: how to handle
    unsafe paths (`journal.core.file_ops`).
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
        """Whether the stop was reached."""
        self.end = 0
        """The logical offset just past the last replayed record."""
        self.records = 0
        self.wall_ms: int | None = None
        """The wall clock of the last replayed MARK record, in ms since 1970."""
        self.checkpoint: int | None = None
        self.step = 0
        """`checkpoint` and `step`: the number of the last replayed checkpoint and its step; the step is 0
        if unknown.
        """
        self._found = False
        self._in_snapshot = False
        self._files = files
        self._only = only
        self._paths = paths

    @property
    def has_all(self) -> bool:
        """Whether no later record can have an effect."""
        return self.stopped or (self.stop.size is not None and self.end >= self.stop.size)

    def take(self, steps: Iterable[tuple[int, Record]]) -> bool:
        """Replay records. Return False when the stop is reached.

        Raises UnsafePathError, FileConflictError, and the errors of the receiver.
        """
        stop, only, paths = self.stop, self._only, self._paths
        write, path_of = self._files.write, safe_path if paths == "safe" else re_rooted
        bounded, count, last = stop != TO_THE_END, 0, self.end
        if self.stopped:
            return False
        try:
            for end, record in steps:
                if bounded and stop.lies_before(end, record) and not self._is_state_before(record, last):
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

    def _is_state_before(self, record: Record, last: int) -> bool:
        """Return whether the replay includes this record although it ends above the offset of the stop.

        The snapshot that begins a stretch holds the state at the beginning of the stretch. So an offset
        within it means that state. A part of a snapshot is the state of no moment.
        """
        if self.stop.size is None:
            return False
        begins = record.op is Op.SEGMENT_START and last == 0
        return begins or self._in_snapshot or (record.op is Op.SNAPSHOT_BEGIN)

    def _noted(self, record: Record) -> bool:
        """Note the time or checkpoint of a record. Return whether the stop is reached with it."""
        if record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
            self._in_snapshot = record.op is Op.SNAPSHOT_BEGIN
        elif record.op is Op.MARK:
            self.wall_ms = record.ints[0]
        elif record.op is Op.CHECKPOINT and record.ints:
            self.checkpoint, self.step = record.ints[0], record.ints[1] if len(record.ints) > 1 else 0
            if self.stop.ends_with(record):
                self.stopped = self._found = True
        return self.stopped

    def finish(self) -> None:
        """End the replay. Raises StopNotFoundError if the stop names a checkpoint that was not found."""
        if self.stop.names_a_checkpoint and not self._found:
            below = "no checkpoint" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
            if self.checkpoint is not None and self.stop.step is not None:
                below += (
                    f" of step {self.step}" if self.step else ", which says no step: name it as checkpoint:N"
                )
            raise StopNotFoundError(f"the journal does not hold {self.stop}; the one before is {below}")


class FileSizes:
    """A receiver of operations that tracks the size of each file only: path -> length."""

    def __init__(self, sizes: dict[str, int] | None = None) -> None:
        self.sizes: dict[str, int] = {} if sizes is None else sizes

    def apply(self, op: FileOp) -> None:
        """Apply an operation as `FileTree.apply` does, without a check for conflicts."""
        if isinstance(op, FileWrite):
            self.write(op.path, op.offset, op.data)
        elif isinstance(op, FileTruncate):
            self.sizes[op.path] = op.length
        else:
            assert isinstance(op, FileRemove)
            self.sizes.pop(op.path, None)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Apply a write as `FileTree.write` does."""
        self.sizes[path] = max(self.sizes.get(path, 0), offset + len(data) if data else 0)
