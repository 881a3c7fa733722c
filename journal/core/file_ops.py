"""The meaning of file operations in a journal (`ARGUMENTS` of `record.py`): paths, writes, truncations,
removals; their replay up to a stop. Pure: no I/O. A directory exists as long as it holds a file. All
operations are idempotent.

A path is bytes with parts separated by "/". It is *safe* if it has at most 4,096 bytes, is not absolute, and
no part is empty, ".", "..", longer than 255 bytes or contains a zero byte. Journals of the original service
hold absolute paths. They are refused or *re-rooted*: resolved with the target as the root directory, so that
"/w/a" is w/a and "../a" is a.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from journal.core.errors import FileConflictError, StopNotFoundError, UnsafePathError
from journal.core.record import Op, Record
from journal.limits import file_bytes_max, file_path_bytes_max, file_path_part_bytes_max, paths_known_max


class FileWrite(msgspec.Struct, frozen=True, gc=False):
    path: str
    offset: int
    data: bytes


class FileTruncate(msgspec.Struct, frozen=True, gc=False):
    path: str
    length: int


class FileRemove(msgspec.Struct, frozen=True, gc=False):
    path: str


FileOp: TypeAlias = FileWrite | FileTruncate | FileRemove
Paths: TypeAlias = Literal["safe", "re-rooted"]
"""How to handle a path that leads out of the tree: refuse it, or resolve it below the root of the tree."""

_ENCODING: Final = "utf-8", "surrogateescape"
FILE_OPS: Final = frozenset({Op.TRUNCATE, Op.WRITE, Op.REMOVE})


def record_of(op: FileOp) -> Record:
    """Return the record of an operation. Raises UnsafePathError."""
    path = path_bytes(op.path)
    safe_path(path)
    if isinstance(op, FileWrite):
        return Record(Op.WRITE, ints=(op.offset,), strings=(path, op.data))
    if isinstance(op, FileTruncate):
        return Record(Op.TRUNCATE, ints=(op.length,), strings=(path,))
    return Record(Op.REMOVE, strings=(path,))


def file_op(record: Record, paths: Paths = "safe") -> FileOp:
    """Return the operation in a record whose op is in FILE_OPS. Raises UnsafePathError, FileConflictError."""
    raw = record.strings[0]
    path = safe_path(raw) if paths == "safe" else re_rooted(raw)
    if record.op is Op.REMOVE:
        return FileRemove(path)
    at = record.ints[0]
    data = record.strings[1] if record.op is Op.WRITE else b""
    if at + len(data) > file_bytes_max:
        raise FileConflictError(path, f"it would have {at + len(data)} bytes, more than {file_bytes_max}")
    return FileWrite(path, at, data) if record.op is Op.WRITE else FileTruncate(path, at)


def path_bytes(path: str) -> bytes:
    """Encode a path for a record. Bytes that are not UTF-8 are those of Python's file functions."""
    return path.encode(*_ENCODING)


@lru_cache(maxsize=paths_known_max)
def safe_path(raw: bytes) -> str:
    """Decode a safe path. Raises UnsafePathError, which names the broken rule."""
    if rule := _rule_broken(raw):
        raise UnsafePathError(raw, rule, re_rooting_helps=not _rule_broken(_below_the_root(raw)))
    return raw.decode(*_ENCODING)


@lru_cache(maxsize=paths_known_max)
def re_rooted(raw: bytes) -> str:
    """Decode a path and resolve it below the root of the tree. Raises UnsafePathError if it stays unsafe."""
    path = _below_the_root(raw)
    if rule := _rule_broken(path):
        raise UnsafePathError(raw, f"{rule}, also below the target")
    return path.decode(*_ENCODING)


def _rule_broken(raw: bytes) -> str:
    if len(raw) > file_path_bytes_max:
        return f"it has {len(raw)} bytes, more than {file_path_bytes_max}"
    if raw.startswith(b"/"):
        return "it is absolute"
    for part in raw.split(b"/"):
        if part in (b"", b".", b".."):
            return f"it has the part {part.decode(*_ENCODING)!r}"
        if len(part) > file_path_part_bytes_max:
            return f"a part has {len(part)} bytes, more than {file_path_part_bytes_max}"
        if b"\0" in part:
            return "it holds a zero byte"
    return ""


def _below_the_root(raw: bytes) -> bytes:
    parts: list[bytes] = []
    for part in raw.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


@dataclass(frozen=True, slots=True)
class ReplayStop:
    """The stop of a replay: at most one field is set. size: before the first record that ends above this
    logical offset. wall_ms: before the first MARK record of a later time. checkpoint, step: after that
    CHECKPOINT record.
    """

    size: int | None = None
    wall_ms: int | None = None
    checkpoint: int | None = None
    step: int | None = None

    def lies_before(self, end: int, record: Record) -> bool:
        """Return whether the replay stops before this record, which ends at logical offset `end`."""
        if self.size is not None and end > self.size:
            return True
        if self.wall_ms is not None:
            return record.op is Op.MARK and record.ints[0] > self.wall_ms
        return self.names_a_checkpoint and record.op is Op.CHECKPOINT and self._number(record) > self._wanted

    def ends_with(self, record: Record) -> bool:
        """Return whether this record is the last one to replay: only for a stop at a CHECKPOINT record."""
        return self.names_a_checkpoint and record.op is Op.CHECKPOINT and self._number(record) == self._wanted

    def __str__(self) -> str:
        if self.checkpoint is not None:
            return f"checkpoint {self.checkpoint}"
        if self.step is not None:
            return f"the checkpoint of step {self.step}"
        return f"offset {self.size}" if self.size is not None else f"time {self.wall_ms} ms"

    @property
    def names_a_checkpoint(self) -> bool:
        return self.checkpoint is not None or self.step is not None

    @property
    def locating_op(self) -> Op | None:
        """The operation of the records that locate this stop; None if offsets locate it."""
        if self.names_a_checkpoint:
            return Op.CHECKPOINT
        return Op.MARK if self.wall_ms is not None else None

    def begins_before(self, base: int, first: Record | None) -> bool:
        """Return whether the stop lies below a stretch of history that begins at offset `base`. first: its
        first record of operation `locating_op`, if any.
        """
        if self.size is not None:
            return self.size <= base
        if self.names_a_checkpoint:
            return first is None or self._number(first) > self._wanted
        return self.wall_ms is not None and first is not None and first.ints[0] > self.wall_ms

    @property
    def _wanted(self) -> int:
        return (self.checkpoint if self.checkpoint is not None else self.step) or 0

    def _number(self, checkpoint: Record) -> int:
        index = 0 if self.checkpoint is not None else 1
        return checkpoint.ints[index] if index < len(checkpoint.ints) else 0


TO_THE_END: Final = ReplayStop()
_WRITE: Final = Op.WRITE


class FileOperations(Protocol):
    def apply(self, op: FileOp) -> None: ...

    def write(self, path: str, offset: int, data: bytes) -> None: ...


class FilesReplay:
    """A replay of records in order, each with the logical offset just past it, until the stop. files:
    receives the operations; only: those on this file; paths: how to handle unsafe paths.
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
        """Replay records. Return False at the stop. Raises UnsafePathError, FileConflictError."""
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
        if self.stop.size is None:
            return False
        begins = record.op is Op.SEGMENT_START and last == 0
        return begins or self._in_snapshot or (record.op is Op.SNAPSHOT_BEGIN)

    def _noted(self, record: Record) -> bool:
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
        if isinstance(op, FileWrite):
            self.write(op.path, op.offset, op.data)
        elif isinstance(op, FileTruncate):
            self.sizes[op.path] = op.length
        else:
            assert isinstance(op, FileRemove)
            self.sizes.pop(op.path, None)

    def write(self, path: str, offset: int, data: bytes) -> None:
        self.sizes[path] = max(self.sizes.get(path, 0), offset + len(data) if data else 0)
