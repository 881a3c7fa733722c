"""Inspect one journal file or object: return its records with their offsets, and keep the first fault.

Pure: no I/O. Bad data never raises: the fault is kept, and all records before it are returned. Any journal is
accepted: version 0 or 1, a plain file of records or a segment with its start.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from dos_protocol.errors import CorruptDataError
from journal.core.decoder import RecordDecoder
from journal.core.errors import ChainError, CorruptRecordError, TornRecordError, UnknownRecordError
from journal.core.record import Record
from journal.core.record_layout import MAGIC
from journal.core.scan import SnapshotTracker
from journal.core.segment import SegmentStart, parse_segment_name, parse_start, start_of
from journal.ops import Op

_SEGMENT_START: Final = Op.SEGMENT_START
EXTENT_MAGIC = b"\xd0\x58"
"""The first bytes of a file in a server's data directory, which holds extents (protocol.md, "Extent")."""


class Located(NamedTuple):
    """A record with the logical offset of its first byte, and the one just past its last byte."""

    segment: str
    offset: int
    end: int
    version: int
    record: Record


@dataclass(slots=True)
class Tally:
    """The counts of an inspection so far."""

    segments: int = 0
    records: int = 0
    bytes: int = 0
    version: int | None = None
    first_offset: int | None = None
    end_offset: int = 0


class Inspector:
    """The inspection of one file, fed with its bytes from the front. `fault` is the first fault, once known.

    where: the name of the file. If it is the name of a segment, the start record must agree with it.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.fault: CorruptDataError | None = None
        self.tally = Tally(segments=1)
        self._decoder = RecordDecoder(None, where=where)
        self._tracker: SnapshotTracker | None = None
        self._base = 0
        self._at = 0
        self._head = b""

    @property
    def logical_base(self) -> int:
        """The logical offset of the first byte: the base of a segment, otherwise 0."""
        return self._base

    def feed(self, data: bytes) -> list[Located]:
        """Feed the next bytes and return the records that are complete and valid."""
        offset = self._base + self._at
        out: list[Located] = []
        for end, record in self.feed_plain(data):
            if record.op is Op.SEGMENT_START:
                offset = self._base  # the first record contains the base of the segment
            out.append(Located(self.where, offset, end, self._decoder.version or 0, record))
            offset = end
        return out

    def feed_plain(self, data: bytes) -> list[tuple[int, Record]]:
        """Feed the next bytes and return the records, each with the logical offset just past it. Faster."""
        if self.fault is not None:
            return []
        if len(self._head) < len(EXTENT_MAGIC):
            self._head = (self._head + data)[: len(EXTENT_MAGIC)]
            if self._head == EXTENT_MAGIC:
                self._refuse_extents()
                return []
        try:
            decoded = self._decoder.feed(data)
        except CorruptDataError as fault:
            self.fault = fault
            return []
        if self._tracker is not None or _SEGMENT_START in [record.op for _, record in decoded]:
            decoded = self._checked(decoded)
        self._count(decoded)
        return [(self._base + end, record) for end, record in decoded] if self._base else decoded

    def finish(self) -> CorruptDataError | None:
        """End the bytes and return the fault, or None."""
        if self.fault is None:
            try:
                self.fault = self._decoder.finish()
            except CorruptDataError as fault:
                self.fault = fault
        return self.fault

    def _checked(self, decoded: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
        """Return the records before the first misplaced one."""
        at = self._at
        for number, (end, record) in enumerate(decoded):
            try:
                self._check(at, end, record)
            except CorruptDataError as fault:
                self.fault = fault
                return decoded[:number]
            at = end
        return decoded

    def _check(self, at: int, end: int, record: Record) -> None:
        if not at and record.op is Op.SEGMENT_START:
            self._begin_segment(record)
        elif record.op is Op.SEGMENT_START and self._tracker is None:
            raise ChainError(self.where, at, "a segment start only as the first record", "one within")
        if self._tracker is not None:
            self._tracker.take(at, end, record)

    def _begin_segment(self, record: Record) -> None:
        """Check the start of a segment, also against the name if that is the name of a segment."""
        start: SegmentStart
        if parse_segment_name(self.where) is not None:
            start = parse_start(record, self.where)
        else:
            start = start_of(record, self.where)
        self._base = start.base
        self._tracker = SnapshotTracker(self.where)

    def _count(self, decoded: list[tuple[int, Record]]) -> None:
        if not decoded:
            return
        tally = self.tally
        if tally.first_offset is None:
            tally.first_offset = self._base
        self._at = decoded[-1][0]
        tally.version = self._decoder.version
        tally.records += len(decoded)
        tally.bytes = self._at
        tally.end_offset = self._base + self._at

    def _refuse_extents(self) -> None:
        hint = (
            "a file of a server's data directory: read it through the server, as dos://HOST/DIRECTORY/OBJECT"
        )
        self.fault = CorruptRecordError(
            self.where, 0, f"a journal, {MAGIC.hex()} or a length", "an extent", hint
        )


def kind_of(fault: Exception) -> str:
    """Return the kind of a fault as one word: torn, version, chain, corrupt or lost."""
    if isinstance(fault, TornRecordError):
        return "torn"
    if isinstance(fault, UnknownRecordError):
        return "version"
    if isinstance(fault, ChainError):
        return "chain"
    return "corrupt" if isinstance(fault, CorruptDataError) else "lost"
