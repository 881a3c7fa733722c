"""Survey one segment: find the end of its whole records, and whether it holds a finished snapshot.

Pure: no I/O. A surveyor takes the bytes of one segment from the front and returns one `SegmentSurvey`. A torn
tail is not an error, because a dead writer leaves one; any other bytes that are not a record raise.

A snapshot is finished if and only if

    (1) its SNAPSHOT_BEGIN is the second record of the segment
    (2) a SNAPSHOT_END follows within the surveyed part
    (3) the number in SNAPSHOT_END is the count of the records between the two

A segment with a finished snapshot needs no predecessor.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from dos_protocol.digests import PrefixDigest
from journal.core.decoder import Decoded, RecordDecoder
from journal.core.errors import ChainError
from journal.core.record import Record
from journal.core.segment import SegmentStart, parse_start
from journal.ops import Op

_STRUCTURE: Final = frozenset({Op.SEGMENT_START, Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END})
"""Operations that are valid only at certain places in a segment."""


class RecordBoundary(NamedTuple):
    """A boundary between records of a segment: the number of bytes before it, and their prefix digest."""

    bytes: int = 0
    digest: int = 0


@dataclass(frozen=True, slots=True)
class SegmentSurvey:
    """The survey of the first bytes of a segment.

    start: None if the first record is not whole.
    first: the end of the start record. last: the end of the last whole record. before_last: the end of the
        record before that. within: the end of the last record within the requested length.
    torn_bytes: the number of bytes after `last`.
    snapshot_end: the offset just past a finished snapshot, 0 if there is none.
    digests: the prefix digest at each requested length.

    Invariants: first <= last; before_last < last; within <= last.
    """

    start: SegmentStart | None
    first: RecordBoundary
    last: RecordBoundary
    before_last: RecordBoundary
    within: RecordBoundary
    torn_bytes: int
    snapshot_end: int
    digests: Mapping[int, int]


class SnapshotTracker:
    """A check of the record order in one segment. It tracks whether a snapshot is open and where one ended.

    Raises ChainError for a misplaced record: a start that is not the first record, a SNAPSHOT_BEGIN that is
    not the second, a SNAPSHOT_END without a begin or with a wrong count.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._records = 0
        self._in_snapshot: int | None = None
        """The number of records since SNAPSHOT_BEGIN; None outside a snapshot."""
        self.finished_at = 0
        """The offset in the segment just past SNAPSHOT_END; 0 if there was none."""

    @property
    def unfinished(self) -> bool:
        return self._in_snapshot is not None

    def take_all(self, offset: int, decoded: list[Decoded]) -> None:
        """Check the next records. The first one begins at `offset` of the segment."""
        if self._records and _STRUCTURE.isdisjoint([record.op for _, record in decoded]):
            self._records += len(decoded)
            if self._in_snapshot is not None:
                self._in_snapshot += len(decoded)
            return
        for end, record in decoded:
            self.take(offset, end, record)
            offset = end

    def take(self, offset: int, end: int, record: Record) -> None:
        """Check the next record, at [offset, end) of the segment."""
        op = record.op
        self._records += 1
        if op is Op.SEGMENT_START:
            if self._records > 1:
                raise ChainError(self._name, offset, "a record within the segment", "another segment's start")
        elif self._records == 1:
            raise ChainError(self._name, offset, "a segment start as the first record", op.name)
        elif op is Op.SNAPSHOT_BEGIN:
            if self._records != 2:
                raise ChainError(
                    self._name, offset, "a snapshot only at a segment's start", "a snapshot's begin"
                )
            self._in_snapshot = 0
        elif op is Op.SNAPSHOT_END:
            if self._in_snapshot is None or record.ints != (self._in_snapshot,):
                counted = "no snapshot begun" if self._in_snapshot is None else f"{self._in_snapshot} records"
                raise ChainError(
                    self._name, offset, f"an end that fits {counted}", f"an end of {record.ints}"
                )
            self._in_snapshot = None
            self.finished_at = end
        elif self._in_snapshot is not None:
            self._in_snapshot += 1


class SegmentSurveyor:
    """A survey in progress, fed with the bytes of a segment from the front. Buffers one unfinished record.

    within: also find the last boundary at or below this length. lengths: also compute the digest at each of
    these. `feed` raises CorruptRecordError, UnknownRecordError, ChainError; the segment must not be used
    then.
    """

    def __init__(self, name: str, *, within: int = 0, lengths: Iterable[int] = ()) -> None:
        self._name = name
        self._decoder = RecordDecoder(where=name)
        self._tracker = SnapshotTracker(name)
        self._digest = PrefixDigest()
        self._within_bytes = within
        self._lengths = deque(sorted(set(lengths)))
        self._digests: dict[int, int] = {}
        self._start: SegmentStart | None = None
        self._first = self._last = self._before_last = self._within = RecordBoundary()

    @property
    def snapshot_end(self) -> int:
        """The offset just past a finished snapshot, as soon as its end was fed; 0 before."""
        return self._tracker.finished_at

    def feed(self, data: bytes) -> None:
        """Feed the next bytes of the segment."""
        view, offset = memoryview(data), self._digest.size
        decoded = self._decoder.feed(data)
        if decoded:
            self._tracker.take_all(self._last.bytes, decoded)
            if self._start is None:
                self._start = parse_start(decoded[0][1], self._name)
            self._mark([end for end, _ in decoded], view, offset)
        self._fold(view, offset, offset + len(view))

    def _fold(self, view: memoryview, offset: int, end: int) -> None:
        """Add the bytes up to `end` of the segment to the digest. `view` begins at `offset`."""
        while self._lengths and self._lengths[0] <= end:
            length = self._lengths.popleft()
            self._digest.update(view[self._digest.size - offset : length - offset])
            self._digests[length] = self._digest.value
        self._digest.update(view[self._digest.size - offset : end - offset])

    def _mark(self, ends: list[int], view: memoryview, offset: int) -> None:
        """Compute the digests at the needed boundaries only: a digest at each would cost more than
        the rest.
        """
        before = ends[-2] if len(ends) > 1 else self._last.bytes
        inside = bisect_right(ends, self._within_bytes)
        wanted = {ends[0], before, ends[-1], ends[inside - 1] if inside else ends[0]}
        marks = {self._last.bytes: self._last}
        for end in sorted(wanted - marks.keys()):
            self._fold(view, offset, end)
            marks[end] = RecordBoundary(end, self._digest.value)
        self._before_last, self._last = marks[before], marks[ends[-1]]
        if not self._first.bytes:
            self._first = marks[ends[0]]
        if inside:
            self._within = marks[ends[inside - 1]]

    def finish(self) -> SegmentSurvey:
        """End the bytes and return the survey. Raises the errors of `feed`."""
        torn = self._decoder.finish()
        return SegmentSurvey(
            start=self._start,
            first=self._first,
            last=self._last,
            before_last=self._before_last,
            within=self._within,
            torn_bytes=self._decoder.buffered if torn else 0,
            snapshot_end=self._tracker.finished_at,
            digests=self._digests,
        )
