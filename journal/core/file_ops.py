"""What the file operations of a journal mean: paths, writes, truncations, removals, and where a replay stops.

Rules of this file: values and rules, no file is touched. A tree of files is nothing but the set of its files,
by path: a directory is there for as long as there is a file in it. Any operation may be done twice.

    TRUNCATE ints=[length] strings=[path]          the file has that length; it is made, or filled with zeros
    WRITE    ints=[offset] strings=[path, data]    the same, with the data at that offset
    REMOVE   ints=[] strings=[path]                the file is not there
    MARK     ints=[wall clock, ms since 1970]      what follows was recorded then or up to a second later

A path is bytes, its parts divided by "/". It is *safe* if it has at most 4,096 bytes, is not absolute, and
none of its parts is empty, ".", "..", longer than 255 bytes or holds a zero byte. The original's journals
hold absolute paths: those are refused, or *re-rooted*, which takes them as a program would whose root is the
target: "/w/a" is w/a, "../a" is a.
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
    """The bytes at `offset` are `data`."""

    path: str
    offset: int
    data: bytes


class FileTruncate(msgspec.Struct, frozen=True, gc=False):
    """The file has `length` bytes."""

    path: str
    length: int


class FileRemove(msgspec.Struct, frozen=True, gc=False):
    """The file is not there."""

    path: str


FileOp: TypeAlias = FileWrite | FileTruncate | FileRemove
Paths: TypeAlias = Literal["safe", "re-rooted"]
"""What is done about a path that would lead out of the tree: refused, or taken as below the tree's root."""

_ENCODING: Final = "utf-8", "surrogateescape"
FILE_OPS: Final = frozenset({Op.TRUNCATE, Op.WRITE, Op.REMOVE})


def record_of(op: FileOp) -> Record:
    """The record of an operation. Raises UnsafePathError."""
    path = path_bytes(op.path)
    safe_path(path)
    if isinstance(op, FileWrite):
        return Record(Op.WRITE, ints=(op.offset,), strings=(path, op.data))
    if isinstance(op, FileTruncate):
        return Record(Op.TRUNCATE, ints=(op.length,), strings=(path,))
    return Record(Op.REMOVE, strings=(path,))


def file_op(record: Record, paths: Paths = "safe") -> FileOp:
    """The operation that a record of one of FILE_OPS holds. Raises UnsafePathError; FileConflictError for a
    length that no file can have.
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
    """A path as a record holds it. What is no UTF-8 is as Python's file functions have it."""
    return path.encode(*_ENCODING)


@lru_cache(maxsize=paths_known_max)
def safe_path(raw: bytes) -> str:
    """A path as the operating system takes it. Raises UnsafePathError, which names the rule."""
    if rule := _rule_broken(raw):
        raise UnsafePathError(raw, rule, re_rooting_helps=not _rule_broken(_below_the_root(raw)))
    return raw.decode(*_ENCODING)


@lru_cache(maxsize=paths_known_max)
def re_rooted(raw: bytes) -> str:
    """The path as of a program whose root is the tree. Raises UnsafePathError if even then it is none."""
    path = _below_the_root(raw)
    if rule := _rule_broken(path):
        raise UnsafePathError(raw, f"{rule}, also below the target")
    return path.decode(*_ENCODING)


def _rule_broken(raw: bytes) -> str:
    """'' or which rule of paths is broken."""
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
    """Where a replay stops. `size`: no record that ends above; `wall_ms`: nothing recorded after that moment,
    as far as marks tell: to a second; `cut`, `step`: with the CUT record of that number, or of that step."""

    size: int | None = None
    wall_ms: int | None = None
    cut: int | None = None
    step: int | None = None

    def lies_before(self, end: int, record: Record) -> bool:
        """Whether the replay ends before this record, which ends at logical offset `end`."""
        if self.size is not None and end > self.size:
            return True
        if self.wall_ms is not None:
            return record.op is Op.MARK and record.ints[0] > self.wall_ms
        return self.names_a_cut and record.op is Op.CUT and self._number(record) > self._wanted

    def ends_with(self, record: Record) -> bool:
        """Whether this record is the last one taken. Only what names a cut ends so; it must be found."""
        return self.names_a_cut and record.op is Op.CUT and self._number(record) == self._wanted

    def __str__(self) -> str:
        """What it names, for people."""
        if self.names_a_cut:
            return f"cut {self.cut}" if self.cut is not None else f"a cut of step {self.step}"
        return f"offset {self.size}" if self.size is not None else f"time {self.wall_ms} ms"

    @property
    def names_a_cut(self) -> bool:
        return self.cut is not None or self.step is not None

    @property
    def tells(self) -> Op | None:
        """The records that say where this stop lies; None: offsets do."""
        if self.names_a_cut:
            return Op.CUT
        return Op.MARK if self.wall_ms is not None else None

    def begins_before(self, base: int, first: Record | None) -> bool:
        """Whether the stop lies below a stretch of history that begins at that offset. first: of the records
        that tell (`tells`), the first one in the stretch.
        """
        if self.size is not None:
            return self.size <= base
        if self.names_a_cut:
            return first is None or self._number(first) > self._wanted
        return self.wall_ms is not None and first is not None and first.ints[0] > self.wall_ms

    @property
    def _wanted(self) -> int:
        return (self.cut if self.cut is not None else self.step) or 0

    def _number(self, cut: Record) -> int:
        """What a CUT record says: its number, or its step."""
        place = 0 if self.cut is not None else 1
        return cut.ints[place] if place < len(cut.ints) else 0
