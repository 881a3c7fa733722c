"""The meaning of file operations in a journal: paths, writes, truncations, removals, the stop of a replay.

Pure: no I/O. A tree of files is a set of files by path. A directory exists as long as it holds a file. All
operations are idempotent.

    TRUNCATE ints=[length] strings=[path]          set the length; create the file or extend it with zeros
    WRITE    ints=[offset] strings=[path, data]    write at the offset; create or zero-extend the file
    REMOVE   ints=[] strings=[path]                remove the file if it exists
    MARK     ints=[wall clock, ms since 1970]      the next records were appended at this time, or up to a
                                                   second later

A path is bytes with parts separated by "/". It is *safe* if it has at most 4,096 bytes, is not absolute, and
no part is empty, ".", "..", longer than 255 bytes or contains a zero byte. Journals of the original service
hold absolute paths. They are refused or *re-rooted*: resolved with the target as the root directory, so that
"/w/a" is w/a and "../a" is a.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec

from journal.core.errors import FileConflictError, UnsafePathError
from journal.core.record import Record
from journal.limits import file_bytes_max, file_path_bytes_max, file_path_part_bytes_max, paths_known_max
from journal.ops import Op


class FileWrite(msgspec.Struct, frozen=True, gc=False):
    """The operation that writes `data` at `offset`."""

    path: str
    offset: int
    data: bytes


class FileTruncate(msgspec.Struct, frozen=True, gc=False):
    """The operation that sets the length of a file to `length` bytes."""

    path: str
    length: int


class FileRemove(msgspec.Struct, frozen=True, gc=False):
    """The operation that removes a file."""

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
    """Return the operation in a record whose op is in FILE_OPS.

    Raises UnsafePathError; FileConflictError for a length that no file can have.
    """
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
    """Decode a path and resolve it below the root of the tree. Raises UnsafePathError if it is
    still unsafe.
    """
    path = _below_the_root(raw)
    if rule := _rule_broken(path):
        raise UnsafePathError(raw, f"{rule}, also below the target")
    return path.decode(*_ENCODING)


def _rule_broken(raw: bytes) -> str:
    """Return the rule of safe paths that is broken, or ''."""
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
    """The stop of a replay. At most one field is set; without any, the replay goes to the end.

    size: before the first record that ends above this logical offset. wall_ms: before the first MARK record
    of a later time, so with a precision of one second. checkpoint, step: after the CHECKPOINT record of this
    number or step.
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
        """Return the text for messages."""
        if self.names_a_checkpoint:
            return (
                f"checkpoint {self.checkpoint}"
                if self.checkpoint is not None
                else f"the checkpoint of step {self.step}"
            )
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
        """Return whether the stop lies below a stretch of history that begins at offset `base`.

        first: the first record of operation `locating_op` in the stretch, None if it has none.
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
        """Return the number or the step of a CHECKPOINT record, whichever this stop names."""
        index = 0 if self.checkpoint is not None else 1
        return checkpoint.ints[index] if index < len(checkpoint.ints) else 0
