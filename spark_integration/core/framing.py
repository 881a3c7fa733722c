"""Finds the ends of records in a plain byte stream, and the messages in one of Arrow. `reading/decoding`
interprets them.

A record that is incomplete is ignored for now: a writer may be in the middle of it.

    lines, json      each record ends with a newline
    length-prefixed  u32, big-endian: the number of bytes that follow
    journal          the records of a journal, version 0 or 1 (`journal.core.record`)
    arrow            whole IPC streams, one after another (`ArrowMessages`)
"""

import struct
from collections import deque
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from journal import RecordDecoder
from spark_integration.errors import NotReadableError
from spark_integration.limits import OBJECT_RECORD_BYTES_MAX

# A message is (Arrow's "encapsulated message format", from 0.15 on, all little-endian):
#
#     u32  0xFFFFFFFF
#     i32  bytes of metadata, with its padding; 0: the stream ends here, and nothing of this message follows
#          metadata: a flatbuffer, table Message {version i16, header_type u8, header, bodyLength i64, ..}
#          body: bodyLength bytes
#
# The header of a record batch is a table whose first field is its number of rows (i64). In a flatbuffer a
# table begins with the distance back to its vtable: u16 size, u16 size of the table, then for each field its
# offset in the table, 0 if it is left out.
_PREFIX: Final = struct.Struct("<Ii")
_MARK: Final = 0xFFFFFFFF
END_OF_STREAM: Final = _PREFIX.pack(_MARK, 0)
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_LENGTH: Final = 0
_REMEDY: Final = "check the option 'content'; an Arrow file (Feather) is not an Arrow stream"


class MessageKind(IntEnum):
    """The kinds of messages; the numbers are those of `header_type`."""

    END = 0
    SCHEMA = 1
    DICTIONARY = 2
    BATCH = 3


class ArrowMessage(NamedTuple):
    """A message: bytes `begin` to `end` of the object."""

    kind: MessageKind
    begin: int
    end: int
    rows: int = 0


class ArrowMessages:
    """The decoder of one object. It takes the bytes in order from the start of a stream.

    Only boundaries and kinds are determined: pyarrow finds the end of a stream only by reading all of it.
    """

    def __init__(self, name: str, at: int) -> None:
        self._name = name
        self._at = self._fed = at
        self._buffered = b""
        """The bytes from `_at`, where the next message begins."""
        self._awaited: ArrowMessage | None = None
        """The message whose body is incomplete, if there is one; `_buffered` is empty then."""
        self._within = False

    def feed(self, data: bytes) -> list[ArrowMessage]:
        """Return the messages that are now complete. Raises NotReadableError."""
        self._fed += len(data)
        messages: list[ArrowMessage] = []
        rest = self._buffered + data
        if self._awaited is not None:
            if self._awaited.end > self._fed:
                return []
            messages.append(self._awaited)
            rest = data[len(data) - (self._fed - self._awaited.end) :]
            self._at, self._awaited = self._awaited.end, None
        while (message := self._first(rest)) is not None:
            if message.end > self._fed:
                self._awaited, rest = message, b""
                break
            messages.append(message)
            rest = rest[message.end - self._at :]
            self._at = message.end
        self._buffered = rest
        return messages

    def _first(self, data: bytes) -> ArrowMessage | None:
        if len(data) < _PREFIX.size:
            return None
        mark, size = _PREFIX.unpack_from(data)
        if mark != _MARK or not 0 <= size <= OBJECT_RECORD_BYTES_MAX:
            raise self._error("not an Arrow stream, or one from before Arrow 0.15")
        if not size:
            self._within = False
            return ArrowMessage(MessageKind.END, self._at, self._at + _PREFIX.size)
        if len(data) < _PREFIX.size + size:
            return None
        try:
            kind, body, rows = _parsed(data[_PREFIX.size : _PREFIX.size + size])
        except (struct.error, ValueError) as error:
            raise self._error(f"an unreadable message of an Arrow stream: {error}") from error
        if (kind is MessageKind.SCHEMA) == self._within:
            raise self._error(
                "a schema in the middle of an Arrow stream" if self._within else "a stream without a schema"
            )
        self._within = True
        return ArrowMessage(kind, self._at, self._at + _PREFIX.size + size + body, rows)

    def _error(self, problem: str) -> NotReadableError:
        return NotReadableError(f"{self._name}: at byte {self._at}: {problem}", remedy=_REMEDY)


def _parsed(metadata: bytes) -> tuple[MessageKind, int, int]:
    (root,) = _unpack("<I", metadata, 0)
    kind = MessageKind(_number("<B", metadata, _field(metadata, root, _HEADER_TYPE)))
    if kind is MessageKind.END:
        raise ValueError("no header")
    body = _number("<q", metadata, _field(metadata, root, _BODY_LENGTH))
    rows = 0
    header = _field(metadata, root, _HEADER)
    if kind is MessageKind.BATCH and header is not None:
        table = header + _number("<I", metadata, header)
        rows = _number("<q", metadata, _field(metadata, table, _LENGTH))
    if body < 0 or rows < 0:
        raise ValueError(f"a body of {body} bytes, {rows} rows")
    return kind, body, rows


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a table; None if it is left out."""
    vtable = table - _number("<i", data, table)
    (size,) = _unpack("<H", data, vtable)
    slot = 4 + 2 * number
    offset = _unpack("<H", data, vtable + slot)[0] if slot + 2 <= size else 0
    return table + offset if offset else None


def _number(layout: str, data: bytes, at: int | None) -> int:
    return 0 if at is None else int(_unpack(layout, data, at)[0])


def _unpack(layout: str, data: bytes, at: int) -> tuple[int, ...]:
    if at < 0:
        raise ValueError(f"an offset of {at}")  # struct would count from the end
    return struct.unpack_from(layout, data, at)


PREFIX_BYTES: Final = 4


class Framer(Protocol):
    """A decoder of record boundaries. It takes an object's bytes in order, starting at a boundary."""

    def feed(self, data: bytes) -> list[int]:
        """Return the ends of the records that are now complete, as offsets. Raises NotReadableError."""
        ...

    def rows(self, records: int) -> int:
        """Return the number of rows in the next `records` of these records. Consumes them, in order."""
        ...


class _RowEach:
    """For contents in which each record is one row."""

    def rows(self, records: int) -> int:
        return records


class LineFramer(_RowEach):
    """Records that end with a newline."""

    def __init__(self, name: str, at: int) -> None:
        self._name = name
        self._at = self._end = at

    def feed(self, data: bytes) -> list[int]:
        ends, newline = [], data.find(b"\n")
        while newline >= 0:
            ends.append(self._at + newline + 1)
            newline = data.find(b"\n", newline + 1)
        self._at += len(data)
        self._end = ends[-1] if ends else self._end
        _check_size(self._name, self._end, self._at - self._end)
        return ends


class PrefixFramer(_RowEach):
    """Records with a length prefix."""

    def __init__(self, name: str, at: int) -> None:
        self._name = name
        self._end = at
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        buffered, begin, ends = self._rest + data, 0, []
        while len(buffered) - begin >= PREFIX_BYTES:
            length = int.from_bytes(buffered[begin : begin + PREFIX_BYTES], "big")
            _check_size(self._name, self._end, length)
            if len(buffered) - begin - PREFIX_BYTES < length:
                break
            begin += PREFIX_BYTES + length
            self._end += PREFIX_BYTES + length
            ends.append(self._end)
        self._rest = buffered[begin:]
        return ends


class JournalFramer(_RowEach):
    """Records of a journal."""

    def __init__(self, where: str, at: int) -> None:
        self._decoder = RecordDecoder(None, where=where, offset=at)

    def feed(self, data: bytes) -> list[int]:
        return [end for end, _ in self._decoder.feed(data)]


class ArrowFramer:
    """Records that are whole IPC streams; their rows are those of their batches."""

    def __init__(self, name: str, at: int) -> None:
        self._messages = ArrowMessages(name, at)
        self._rows: deque[int] = deque([0])
        """The rows of each complete record that `rows` has not consumed, then those of the incomplete one."""

    def feed(self, data: bytes) -> list[int]:
        ends = []
        for message in self._messages.feed(data):
            self._rows[-1] += message.rows
            if message.kind is MessageKind.END:
                ends.append(message.end)
                self._rows.append(0)
        return ends

    def rows(self, records: int) -> int:
        return sum(self._rows.popleft() for _ in range(records))


def _check_size(name: str, at: int, size: int) -> None:
    if size > OBJECT_RECORD_BYTES_MAX:
        raise NotReadableError(
            f"{name}: the record at byte {at} has {size} bytes; the maximum is {OBJECT_RECORD_BYTES_MAX}",
            remedy="check that the option 'content' fits what the object holds",
        )
