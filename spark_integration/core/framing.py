"""Finds the ends of records in a plain byte stream. `reading/decoding` interprets the records.

A record that is incomplete is ignored for now: a writer may be in the middle of it.

    lines, json      each record ends with a newline
    length-prefixed  u32, big-endian: the number of bytes that follow
    journal          the records of a journal, version 0 or 1 (`journal.core.record`)
    arrow            whole IPC streams, one after another; `arrow_messages` finds their ends
"""

from collections import deque
from typing import Final, Protocol

from journal import RecordDecoder
from spark_integration.core.arrow_messages import ArrowMessages, MessageKind
from spark_integration.errors import NotReadableError
from spark_integration.limits import OBJECT_RECORD_BYTES_MAX

PREFIX_BYTES: Final = 4


class Framer(Protocol):
    """A decoder of record boundaries. It takes an object's bytes in order, starting at a boundary."""

    def feed(self, data: bytes) -> list[int]:
        """Return the ends of the records that are now complete, as offsets in the object.

        Raises NotReadableError.
        """
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
