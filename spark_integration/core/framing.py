"""Records in a plain stream of bytes: where each one ends.

Rules of this file: boundaries alone; what a record says is for `reading/decoding`. A record that is not
finished yet is not there: whoever appends to an object may be in the middle of one.

    lines, json      each ends with a newline
    length-prefixed  u32, big-endian, the number of bytes that follow
    journal          the journal's own records, version 0 or 1 (`journal.core.record`)
    arrow            whole IPC streams, one after another; `arrow_messages` tells where each ends
"""

from collections import deque
from typing import Final, Protocol

from journal.core.decoder import RecordDecoder
from spark_integration.core.arrow_messages import ArrowMessages, MessageKind
from spark_integration.errors import NotReadableError
from spark_integration.limits import OBJECT_RECORD_BYTES_MAX

PREFIX_BYTES: Final = 4


class Framer(Protocol):
    """Takes an object's bytes in order, from a boundary on."""

    def feed(self, data: bytes) -> list[int]:
        """Ends of the records that are whole by now, as offsets in the object. Raises NotReadableError."""
        ...

    def rows(self, records: int) -> int:
        """How many rows the next so many of these records have. Each is asked for once, in order."""
        ...


class _RowEach:
    """Of contents in which a record is a row."""

    def rows(self, records: int) -> int:
        return records


class LineFramer(_RowEach):
    """See the table above."""

    def __init__(self, where: str, at: int) -> None:
        self._where = where
        self._at = self._end = at

    def feed(self, data: bytes) -> list[int]:
        ends, found = [], data.find(b"\n")
        while found >= 0:
            ends.append(self._at + found + 1)
            found = data.find(b"\n", found + 1)
        self._at += len(data)
        self._end = ends[-1] if ends else self._end
        _check_size(self._where, self._end, self._at - self._end)
        return ends


class PrefixFramer(_RowEach):
    """See the table above."""

    def __init__(self, where: str, at: int) -> None:
        self._where = where
        self._end = at
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        held, begin, ends = self._rest + data, 0, []
        while len(held) - begin >= PREFIX_BYTES:
            length = int.from_bytes(held[begin : begin + PREFIX_BYTES], "big")
            _check_size(self._where, self._end, length)
            if len(held) - begin - PREFIX_BYTES < length:
                break
            begin += PREFIX_BYTES + length
            self._end += PREFIX_BYTES + length
            ends.append(self._end)
        self._rest = held[begin:]
        return ends


class JournalFramer(_RowEach):
    """See the table above."""

    def __init__(self, where: str, at: int) -> None:
        self._decoder = RecordDecoder(None, where=where, offset=at)

    def feed(self, data: bytes) -> list[int]:
        return [end for end, _ in self._decoder.feed(data)]


class ArrowFramer:
    """See the table above. A record is a whole stream; its rows are those of its batches."""

    def __init__(self, where: str, at: int) -> None:
        self._messages = ArrowMessages(where, at)
        self._rows: deque[int] = deque([0])
        """Of each record that was found and not asked for yet; the last is that of the one that goes on."""

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


def _check_size(where: str, at: int, size: int) -> None:
    if size > OBJECT_RECORD_BYTES_MAX:
        raise NotReadableError(
            f"{where} has a record of {size} bytes at byte {at}; at most {OBJECT_RECORD_BYTES_MAX} are read",
            remedy="is the option 'content' what the object holds?",
        )
