"""Inspect one journal file or object, of any version: its records with their offsets, its first fault, lines
of text or JSON, and counts over time. Pure: no I/O. Bad data never raises: the fault is kept. In lines, every
byte is escaped, so that no record can control a terminal.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from dos_protocol.errors import CorruptDataError, DosError
from journal.core.chain import SegmentStart, parse_segment_name, parse_start, start_of
from journal.core.errors import ChainError, CorruptRecordError, TornRecordError, UnknownRecordError
from journal.core.record import MAGIC, Op, Record, RecordDecoder
from journal.core.scan import SnapshotTracker
from journal.limits import dump_string_bytes_max, timeline_stretches_max

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
    segments: int = 0
    records: int = 0
    bytes: int = 0
    version: int | None = None
    first_offset: int | None = None
    end_offset: int = 0


class Inspector:
    """The inspection of one file, fed with its bytes from the front. `fault`: the first one. If `where` is
    the name of a segment, the start record must agree with it.
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


def record_text(located: Located, *, full: bool = False, when: str = "") -> str:
    """Format a record as its offset, the time `when` if given, its name, and `original_text`."""
    start = " ".join(filter(None, (str(located.offset), when, located.record.op.name)))
    return f"{start} {original_text(located, full=full)}"


def original_text(located: Located, *, full: bool = True) -> str:
    """Format a record like the original dump tool: `version=0 op=1 tag=2 ints=[10] strings=['/w/a', 'x']`."""
    record = located.record
    strings = ", ".join(_quoted(string, full) for string in record.strings)
    flags = f" flags={record.flags:#06x}" if record.flags else ""
    return (
        f"version={located.version} op={record.op.value} "
        f"tag={record.tag}{flags} ints={list(record.ints)} strings=[{strings}]"
    )


def _quoted(string: bytes, full: bool) -> str:
    if full or len(string) <= dump_string_bytes_max:
        return repr(string)[1:]
    return f"{repr(string[:dump_string_bytes_max])[1:]}...[{len(string)} bytes]"


def record_json(located: Located, *, full: bool = False, time_ms: int | None = None) -> str:
    """Format a record as one JSON object. A string is {"bytes": its length, "text": ...} if it is UTF-8,
    otherwise with "hex" instead of "text"; "cut": true if only its beginning is included.
    """
    record = located.record
    line = {
        "segment": located.segment,
        "offset": located.offset,
        "end": located.end,
        "version": located.version,
        "op": record.op.value,
        "name": record.op.name,
        "tag": record.tag,
        "flags": record.flags,
        "ints": record.ints,
        "strings": [_described(string, full) for string in record.strings],
    }
    return msgspec.json.encode(line if time_ms is None else {**line, "timeMs": time_ms}).decode()


def _described(string: bytes, full: bool) -> dict[str, object]:
    part = string if full else string[:dump_string_bytes_max]
    described: dict[str, object] = {"bytes": len(string)}
    try:
        string.decode()
    except UnicodeDecodeError:
        described["hex"] = part.hex()
    else:
        described["text"] = part.decode(errors="ignore")
    if len(part) < len(string):
        described["cut"] = True
    return described


def fault_fields(fault: DosError, base: int = 0) -> dict[str, object]:
    """Return the fields of a fault: kind, segment, offset in it, logical offset, expected, found, hint."""
    fields: dict[str, object] = {"kind": kind_of(fault)}
    if isinstance(fault, CorruptDataError):
        fields["segment"] = fault.where
        fields["offset"] = fault.offset
        fields["logical_offset"] = base + fault.offset
        fields["expected"] = fault.expected
        fields["found"] = fault.found
        fields["hint"] = fault.hint
    else:
        fields["problem"] = str(fault.args[0])
        fields["hint"] = fault.remedy
    return fields


def fault_text(fault: DosError, base: int = 0) -> str:
    fields = fault_fields(fault, base)
    return "\n".join(f"{name.replace('_', ' '):<15} {value}" for name, value in fields.items() if value != "")


CLOCKS = {
    Op.MARK: 0,
    Op.DIVISION: 1,
    Op.OUTPUT: 1,
    Op.INPUT: 5,
    Op.INPUT_CLOSED: 0,
    Op.CONSUMERS: 0,
    Op.INPUT_MARK: 6,
    Op.DEPLOYMENT: 0,
    Op.REPORT: 0,
}
"""Operation -> the index of the int that holds the wall clock, in ms since 1970."""
_CHECKPOINT_CLOCK = re.compile(rb'"wall_time_ms":(\d{1,18})\b')
"""The wall clock in the JSON of a checkpoint record."""
EVENTS = {
    Op.SEGMENT_START: "segments",
    Op.CHECKPOINT: "checkpoints",
    Op.DIVISION: "steps",
    Op.SNAPSHOT_END: "snapshots",
}
"""Operation -> the name of the event that it counts as."""


@dataclass(slots=True)
class TimelineInterval:
    """The counts of one interval, which begins at ms since 1970 or at a logical offset. `offset`: of its
    first record; -1 without one.
    """

    begin: int
    records: int = 0
    bytes: int = 0
    events: Counter[str] = field(default_factory=Counter)
    offset: int = -1

    def take(self, other: "TimelineInterval") -> None:
        self.records += other.records
        self.bytes += other.bytes
        self.events += other.events
        if other.offset >= 0 and not 0 <= self.offset <= other.offset:
            self.offset = other.offset


class Timeline:
    """The counts of a journal, fed with its records in order. `by_time`: whether intervals are of time; a
    journal without any wall clock (`CLOCKS`) is divided by offset. Memory does not grow with the journal.
    """

    def __init__(self) -> None:
        self._by_time = _Stretches(1000)
        self._by_offset = _Stretches(4096)
        self._now_ms: int | None = None
        self._before_any: TimelineInterval = TimelineInterval(0)
        self._epoch: int | None = None

    def take(self, located: Located) -> None:
        clock = wall_ms(located.record)
        if clock is not None:
            self._now_ms = clock
        one = TimelineInterval(0, 1, located.end - located.offset, offset=located.offset)
        if (event := EVENTS.get(located.record.op)) is not None:
            one.events[event] += 1
        if located.record.op is Op.SEGMENT_START and self._is_another_writers(located.segment):
            one.events["resets"] += 1
        self._by_offset.add(located.offset, one)
        if self._now_ms is None:
            self._before_any.take(one)
        else:
            self._by_time.add(self._now_ms, one)

    def _is_another_writers(self, segment: str) -> bool:
        """Return whether the segment's epoch differs from the one before: the chain was taken over there."""
        name = parse_segment_name(segment)
        before, self._epoch = self._epoch, None if name is None else name.epoch
        return before is not None and self._epoch is not None and before != self._epoch

    @property
    def by_time(self) -> bool:
        return self._now_ms is not None

    def stretches(self, count: int) -> list[TimelineInterval]:
        """Return at most `count` intervals of equal length, including empty ones."""
        if not self.by_time:
            return self._by_offset.equal(count)
        found = self._by_time.equal(count)
        found[0].take(self._before_any)
        return found


class _Stretches:
    def __init__(self, width: int) -> None:
        self._width = width
        self._found: dict[int, TimelineInterval] = {}

    def add(self, at: int, one: TimelineInterval) -> None:
        number = at // self._width
        into = self._found.get(number)
        if into is None:
            into = self._found[number] = TimelineInterval(number * self._width)
            into.take(one)
            while len(self._found) > timeline_stretches_max:
                self._widen(2)
            return
        into.take(one)

    def _widen(self, factor: int) -> None:
        self._width *= factor
        before, self._found = self._found, {}
        for stretch in before.values():
            number = stretch.begin // self._width
            into = self._found.setdefault(number, TimelineInterval(number * self._width))
            into.take(stretch)

    def equal(self, count: int) -> list[TimelineInterval]:
        if not self._found:
            return []
        first, last = min(self._found), max(self._found)
        per = -(-(last - first + 1) // count)
        found = [TimelineInterval((first + n) * self._width) for n in range(0, last - first + 1, per)]
        for number, stretch in self._found.items():
            found[(number - first) // per].take(stretch)
        return found


def wall_ms(record: Record) -> int | None:
    if record.op is Op.CHECKPOINT and record.strings:
        found = _CHECKPOINT_CLOCK.search(record.strings[0])
        return int(found[1]) if found is not None else None
    index = CLOCKS.get(record.op)
    return record.ints[index] if index is not None and index < len(record.ints) else None
