"""Decode records from a stream of bytes, in pieces of any size. Pure: no I/O.

A decoder buffers at most one unfinished record. With `record.py` it decides whether an end is torn or
corrupt. It has four states and two events, `feed` and `finish`:

    state    meaning
    READING  whole records are returned, the rest is buffered
    ZEROS    only zero bytes since the end of the last record: the tail that a file system leaves if a size
             reached the disk and the data did not (reliability row 8). They are counted, not buffered
    FAULTY   the bytes at `offset` are not a record. All earlier records were returned; the next call raises
    FINISHED `finish` was called

A fault is raised by the call *after* the one that returned the last valid records. So the caller receives all
valid records first, and cannot miss the fault if it continues to call.
"""

from enum import Enum, auto
from typing import Final

from dos_protocol.errors import CorruptDataError, LocalProtocolError
from journal.core.errors import CorruptRecordError, TornRecordError, UnknownRecordError
from journal.core.record import ParseResult, Record, parse_v0, parse_v1
from journal.core.record_faults import torn
from journal.core.record_layout import HEADER_V1, MAGIC, VERSION_1

Decoded = tuple[int, Record]
"""(stream offset just past the record, the record)"""

_PARSERS: Final = {VERSION_1: parse_v1, 0: parse_v0}


class DecoderState(Enum):
    """The state of a decoder: the table at the top of this module."""

    READING = auto()
    ZEROS = auto()
    FAULTY = auto()
    FINISHED = auto()


class RecordDecoder:
    """An incremental decoder of one journal file or segment.

    version: 0, 1, or None to detect it from the first bytes. where: the name of the file or segment, for
    errors. offset: the stream offset of the first byte fed, which must be the beginning of a record.
    """

    def __init__(self, version: int | None = VERSION_1, *, where: str = "journal", offset: int = 0) -> None:
        if version is not None and version not in _PARSERS:
            raise LocalProtocolError(f"records have version 0 or 1, not {version}")
        self.version = version
        self.where = where
        self.offset = offset
        """The stream offset just past the last whole record."""
        self.state = DecoderState.READING
        self._fault: CorruptDataError | None = None
        self._parts: list[bytes] = []
        self._buffered = 0
        self._needed = 1

    @property
    def buffered(self) -> int:
        """The number of bytes that were fed beyond `offset`."""
        return self._buffered

    def feed(self, data: bytes) -> list[Decoded]:
        """Feed the next bytes and return the records that are complete.

        Raises CorruptRecordError or UnknownRecordError after every record before the fault was returned, and
        again on each later call. Never raises TornRecordError.
        """
        if self.state is DecoderState.FAULTY:
            assert self._fault is not None
            raise self._fault
        if self.state is DecoderState.FINISHED:
            raise LocalProtocolError("feed was called after finish")
        if self.state is DecoderState.ZEROS:
            self._take_zeros(data)
            return []
        self._parts.append(data)
        self._buffered += len(data)
        if self._buffered < self._needed:
            return []
        return self._parse()

    def finish(self) -> TornRecordError | None:
        """End the data. Return None if it ends between two records, otherwise the error for the torn tail.

        Raises the fault, if there is one.
        """
        if self.state is DecoderState.READING and self._buffered:
            self._parse(last=True)  # judge bytes that were too few while more could follow
        if self.state is DecoderState.FAULTY:
            assert self._fault is not None
            raise self._fault
        zeros = self.state is DecoderState.ZEROS
        self.state = DecoderState.FINISHED
        if zeros:
            hint = "the file's size reached the disk and its data did not; everything before is whole"
            return TornRecordError(self.where, self.offset, "a record", f"{self._buffered} zero bytes", hint)
        if self._buffered:
            return torn(self.where, self.offset, self._needed, self._buffered)
        return None

    def _parse(self, *, last: bool = False) -> list[Decoded]:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if self.version is None:
            self.version = detect_version(data)
            if self.version is None:
                self._needed = len(data) + 1
                self._parts = [data]
                return []
        out: list[Decoded] = []
        parsed = _PARSERS[self.version](data, 0, out, self.offset, self.where)
        rest = data[parsed.end :] if parsed.end else data
        self.offset += parsed.end
        self._parts = [rest] if rest else []
        self._buffered = len(rest)
        self._needed = parsed.needed
        if isinstance(parsed.fault, UnknownRecordError) and len(rest) < HEADER_V1.size and not last:
            # Only the header digest distinguishes a newer version from a flipped bit.
            self._needed = HEADER_V1.size
        elif parsed.fault is not None:
            self._set_fault(parsed, rest)
            if not out and self.state is DecoderState.FAULTY:
                raise parsed.fault
        return out

    def _set_fault(self, parsed: ParseResult, rest: bytes) -> None:
        self._parts = []
        if rest.count(0) == len(rest):
            self.state = DecoderState.ZEROS
        else:
            self.state = DecoderState.FAULTY
            self._fault = parsed.fault

    def _take_zeros(self, data: bytes) -> None:
        if data.count(0) == len(data):
            self._buffered += len(data)
            return
        self.state = DecoderState.FAULTY
        found = f"{self._buffered + len(data) - len(data.lstrip(bytes(1)))} zero bytes, then others"
        self._fault = CorruptRecordError(self.where, self.offset, "a record", found)
        raise self._fault


def detect_version(data: bytes) -> int | None:
    """Return the record version of a journal, given its first bytes; None if they are too few.

    Version 1 begins with its magic. In version 0 these bytes would be a length of over 3 GiB, far above the
    limit.
    """
    if data[:2] == MAGIC:
        return VERSION_1
    if len(data) < 2 and MAGIC.startswith(data):
        return None
    return 0


def decode_all(
    data: bytes, version: int | None = VERSION_1, *, where: str = "journal"
) -> tuple[list[Decoded], CorruptDataError | None]:
    """Return every whole record of `data`, and the fault after them, if any. Never raises for bad data."""
    decoder = RecordDecoder(version, where=where)
    records: list[Decoded] = []
    try:
        records = decoder.feed(data)
        return records, decoder.finish()
    except CorruptDataError as fault:
        return records, fault
