"""Looking over one segment: where its whole records end, and whether it holds a finished snapshot.

Rules of this file: bytes of one segment go in from the front, one `SegmentSurvey` comes out. A torn tail is
an ordinary ending here (it is how a writer's death looks); everything else that is no record raises. What
follows from a survey is `walk.py`'s.

A snapshot is finished if and only if (1) its SNAPSHOT_BEGIN is the segment's second record, (2) a
SNAPSHOT_END follows within the part looked at, and (3) the end's number counts the records between the two.
Then the segment needs no predecessor.
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
"""Records that cannot stand just anywhere in a segment."""


class RecordBoundary(NamedTuple):
    """A boundary between records of a segment: bytes before it, and their prefix digest."""

    bytes: int = 0
    digest: int = 0


@dataclass(frozen=True, slots=True)
class SegmentSurvey:
    """What a segment's first bytes hold.

    start: None if not even the first record is whole. first: the end of the start record. last: the end of
    the last whole record. before_last: the end of the record before that. within: the end of the last
    record that lies within the length asked for. torn_bytes: bytes after `last`. snapshot_end: just past a
    finished snapshot, 0 if there is none. digests: the prefix digest at each length asked for.
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
    """Follows one segment's records; knows whether they are inside a snapshot, and where a finished one
    ended.

    Raises ChainError for records that cannot stand where they stand: a start that is not first, a snapshot
    that begins later than second, an end without a beginning or with another count.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._records = 0
        self._in_snapshot: int | None = None
        """Records since SNAPSHOT_BEGIN; None outside."""
        self.finished_at = 0
        """Offset in the segment just past SNAPSHOT_END; 0 if there was none."""

    @property
    def unfinished(self) -> bool:
        return self._in_snapshot is not None

    def take_all(self, offset: int, decoded: list[Decoded]) -> None:
        """The next records, the first of which begins at `offset` of the segment."""
        if self._records and _STRUCTURE.isdisjoint([record.op for _, record in decoded]):
            self._records += len(decoded)
            if self._in_snapshot is not None:
                self._in_snapshot += len(decoded)
            return
        for end, record in decoded:
            self.take(offset, end, record)
            offset = end

    def take(self, offset: int, end: int, record: Record) -> None:
        """The next record, which lies at [offset, end) of the segment."""
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
    """Takes a segment's bytes from the front and surveys them. Memory: one unfinished record.

    within: look for the last boundary at or below this length too. lengths: take the digest at each of these.
    Raises (from `feed`) CorruptRecordError, UnknownRecordError, ChainError: the segment is then not to be
    used.
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
        """Just past a finished snapshot, as soon as it has been seen; else 0."""
        return self._tracker.finished_at

    def feed(self, data: bytes) -> None:
        """The next bytes of the segment."""
        view, offset = memoryview(data), self._digest.size
        decoded = self._decoder.feed(data)
        if decoded:
            self._tracker.take_all(self._last.bytes, decoded)
            if self._start is None:
                self._start = parse_start(decoded[0][1], self._name)
            self._mark([end for end, _ in decoded], view, offset)
        self._fold(view, offset, offset + len(view))

    def _fold(self, view: memoryview, offset: int, end: int) -> None:
        """Fold the bytes up to `end` of the segment; `view` begins at `offset`."""
        while self._lengths and self._lengths[0] <= end:
            length = self._lengths.popleft()
            self._digest.update(view[self._digest.size - offset : length - offset])
            self._digests[length] = self._digest.value
        self._digest.update(view[self._digest.size - offset : end - offset])

    def _mark(self, ends: list[int], view: memoryview, offset: int) -> None:
        """Take the digests at those boundaries that anyone asks for: a digest at each would cost more than
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
        """No more bytes. Raises as `feed`."""
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
