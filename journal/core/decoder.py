"""Records out of a stream of bytes, however it is cut into pieces.

Rules of this file: it buffers at most one unfinished record and decides, with `record.py`, whether an
ending is torn or corrupt. It does no I/O: whoever reads the bytes hands them in.

A decoder is in one of four states; `feed` and `finish` are the only events:

    READING  whole records come out, the rest waits for more
    ZEROS    a record should begin here and everything since is zero bytes: the tail that a file system
             leaves when a size reached the disk and the data did not (reliability row 8). Nothing is kept
             of it
    FAULTY   the bytes at `offset` are no record. The records before it have been handed out; the next call
             raises
    FINISHED `finish` was called

The fault is raised by the call *after* the one that handed out the last good records, so a caller that
keeps calling can neither miss it nor lose the good prefix.
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
    """See the head of this file."""

    READING = auto()
    ZEROS = auto()
    FAULTY = auto()
    FINISHED = auto()


class RecordDecoder:
    """An incremental decoder of one journal file or segment.

    version: 0, 1, or None to see it from the first bytes. where: the file's or segment's name, for errors.
    offset: stream offset of the first byte that will be fed, which must begin a record.
    """

    def __init__(self, version: int | None = VERSION_1, *, where: str = "journal", offset: int = 0) -> None:
        if version is not None and version not in _PARSERS:
            raise LocalProtocolError(f"records have version 0 or 1, not {version}")
        self.version = version
        self.where = where
        self.offset = offset
        """Stream offset just past the last whole record."""
        self.state = DecoderState.READING
        self._fault: CorruptDataError | None = None
        self._parts: list[bytes] = []
        self._buffered = 0
        self._needed = 1

    @property
    def buffered(self) -> int:
        """Bytes fed past `offset`."""
        return self._buffered

    def feed(self, data: bytes) -> list[Decoded]:
        """Take the next bytes; give back the records that are whole by now.

        Raises the fault (TornRecordError never; CorruptRecordError, UnknownRecordError) once every record
        before it has been handed out, and again at each later call.
        """
        if self.state is DecoderState.FAULTY:
            assert self._fault is not None
            raise self._fault
        if self.state is DecoderState.FINISHED:
            raise LocalProtocolError("this decoder was finished: nothing more can be fed")
        if self.state is DecoderState.ZEROS:
            self._take_zeros(data)
            return []
        self._parts.append(data)
        self._buffered += len(data)
        if self._buffered < self._needed:
            return []
        return self._parse()

    def finish(self) -> TornRecordError | None:
        """Say that the data ends here. None if it ends between two records, else what the tail is.

        Raises the fault, if one is due.
        """
        if self.state is DecoderState.READING and self._buffered:
            self._parse(last=True)  # what was too short to judge while more could come
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
            self._needed = HEADER_V1.size  # whether the version is newer or a bit flipped, its digest says
        elif parsed.fault is not None:
            self._meet_fault(parsed, rest)
            if not out and self.state is DecoderState.FAULTY:
                raise parsed.fault
        return out

    def _meet_fault(self, parsed: ParseResult, rest: bytes) -> None:
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
    """Which version a journal is in, from its first bytes; None if there are too few to tell.

    Version 1 begins with its magic. In version 0 that would be a length of over 3 GiB, far beyond the limit.
    """
    if data[:2] == MAGIC:
        return VERSION_1
    if len(data) < 2 and MAGIC.startswith(data):
        return None
    return 0


def decode_all(
    data: bytes, version: int | None = VERSION_1, *, where: str = "journal"
) -> tuple[list[Decoded], CorruptDataError | None]:
    """Every whole record of `data`, and what is wrong after them (None: nothing). Never raises for bad
    data.
    """
    decoder = RecordDecoder(version, where=where)
    records: list[Decoded] = []
    try:
        records = decoder.feed(data)
        return records, decoder.finish()
    except CorruptDataError as fault:
        return records, fault
