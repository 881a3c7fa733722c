"""Go through the bytes of one segment: survey it, find the end of its snapshot, replay it. Pure: no I/O.

A torn tail is not an error of a survey, because a dead writer leaves one; any other bytes that are not a
record raise. A snapshot is finished if its SNAPSHOT_BEGIN is the second record of the segment, a SNAPSHOT_END
follows, and the number in it is the count of the records between the two. A segment with a finished snapshot
needs no predecessor.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from dos_protocol.digests import PrefixDigest
from journal.core.chain import Position, SegmentSpan, SegmentStart, parse_start
from journal.core.errors import ChainError, StopNotFoundError
from journal.core.record import HEADER_V1, Decoded, Op, Record, RecordDecoder, parse_header_v1, parse_v1
from journal.limits import read_bytes_max, start_read_bytes_max

_STRUCTURE: Final = frozenset({Op.SEGMENT_START, Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END})
"""Operations that are valid only at certain places in a segment."""


class RecordBoundary(NamedTuple):
    """A boundary between records of a segment: the number of bytes before it, and their prefix digest."""

    bytes: int = 0
    digest: int = 0


@dataclass(frozen=True, slots=True)
class SegmentSurvey:
    """The survey of the first bytes of a segment.

    start: None if the first record is not whole. first, last, before_last: the ends of the start record, of
    the last whole record, and of the one before. within: of the last record within the requested length.
    torn_bytes: after `last`. snapshot_end: the offset just past a finished snapshot, or 0. digests: the
    prefix digest at each requested length.
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
    """A check of the record order in one segment. Raises ChainError for a misplaced start, SNAPSHOT_BEGIN or
    SNAPSHOT_END.
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
    """A survey in progress, fed with the bytes of a segment from the front. within, lengths: as of
    `SurveySegment`. `feed` raises CorruptRecordError, UnknownRecordError, ChainError; do not use it then.
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
        """Compute the digests at the needed boundaries only: one at each would cost more than the rest."""
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


_INDEX_WORDS: Final = Struct(f">{HEADER_V1.size}x3Q")
"""Header and ints of an INDEX: the checkpoint, how many records it describes, and their bytes."""


class BytesWanted(NamedTuple):
    """A requested read: at most `max_bytes` bytes from `offset` of the segment."""

    offset: int
    max_bytes: int


class SnapshotSearch:
    """A search by record headers in the first `length` bytes of a segment whose second record is
    SNAPSHOT_BEGIN; bodies are skipped, and so are the records that an INDEX describes. All are verified when
    they are replayed.

    Read the bytes that `wanted` requests and pass them to `take`, until `wanted` is None; `snapshot_end` is
    the offset just past the SNAPSHOT_END, or 0. Raises CorruptRecordError, UnknownRecordError, ChainError.
    """

    def __init__(self, name: str, length: int) -> None:
        self._name = name
        self._length = length
        self._at = 0
        self._records = 0
        self._window = start_read_bytes_max
        self.snapshot_end = 0

    @property
    def wanted(self) -> BytesWanted | None:
        left = self._length - self._at
        if self.snapshot_end or left < HEADER_V1.size:
            return None
        return BytesWanted(self._at, min(left, self._window))

    def take(self, data: bytes) -> None:
        """Pass the bytes from the requested offset. Fewer bytes than a record header have no effect."""
        begin, size = self._at, len(data)
        at = 0
        while size - at >= HEADER_V1.size:
            header = parse_header_v1(data, at, begin, self._name)
            if begin + at + header.bytes > self._length:
                self._length = begin + at  # cut off: nothing whole follows
                break
            if header.op is Op.SNAPSHOT_END:
                if at + header.bytes > size:
                    break
                self._finish(data[at : at + header.bytes], begin + at)
                return
            if header.op is Op.INDEX:
                if size - at < _INDEX_WORDS.size:
                    break
                # Not verified here. Where it leads to must be a record, and the end must have the right
                # count, or the search raises.
                _, records, described = _INDEX_WORDS.unpack_from(data, at)
                self._records += records
                at += described
            self._records += 1
            at += header.bytes
        self._window = read_bytes_max if at <= size else start_read_bytes_max
        self._at = begin + at

    def _finish(self, data: bytes, offset: int) -> None:
        """Check a SNAPSHOT_END: its number must be the count of the records since SNAPSHOT_BEGIN."""
        out: list[tuple[int, Record]] = []
        parsed = parse_v1(data, 0, out, offset, self._name)
        if parsed.fault is not None:
            raise parsed.fault
        between = self._records - 2
        if out[0][1].ints != (between,):
            raise ChainError(
                self._name, offset, f"an end that fits {between} records", f"an end of {out[0][1].ints}"
            )
        self.snapshot_end = offset + len(data)


State = TypeVar("State")
Step = tuple[Position, Record]
"""(the position just past the record, the record)"""
_SNAPSHOT_BEGINS_AS: Final = 2
"""The number of the only record in a segment that may be a SNAPSHOT_BEGIN (`SnapshotTracker`)."""


class SpanReplay:
    """The replay of one span. Feed it exactly `span.length` bytes, then call `finish`, which compares length
    and digest with the chain: if that fails, discard everything. stopped: whether the span was shortened to
    end at a stop.

    Returns the start record of the span, then its records, without those of an unfinished snapshot: its
    writer died, and the spans below hold the state that it copied. Raises CorruptRecordError,
    UnknownRecordError, ChainError; if the span ends inside a record, StopNotFoundError if `stopped`,
    otherwise TornRecordError.
    """

    def __init__(self, span: SegmentSpan, *, stopped: bool = False) -> None:
        self._span = span
        self._stopped = stopped
        self._epoch = span.end.epoch
        self._decoder = RecordDecoder(where=span.name)
        self._tracker = SnapshotTracker(span.name)
        self._digest = PrefixDigest()
        self._at = 0
        self._records = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[Step]:
        """Feed the next bytes of the span and return the records that are complete."""
        view, offset = memoryview(data), self._digest.size
        digest, epoch, base = self._digest, self._epoch, self._span.base
        out: list[Step] = []
        for end, record in self._decoded(data):
            digest.update(view[digest.size - offset : end - offset])
            out.append((Position(epoch, base + end, digest.value), record))
        digest.update(view[digest.size - offset :])
        return out

    def feed_plain(self, data: bytes) -> list[Decoded]:
        """Do as `feed`, with logical offsets instead of positions, whose digests cost as much as the rest."""
        base, decoded = self._span.base, self._decoded(data)
        self._digest.update(data)
        return [(base + end, record) for end, record in decoded] if base else decoded

    def _decoded(self, data: bytes) -> list[Decoded]:
        """Return the complete records, in checked order, without those of an unfinished snapshot."""
        decoded = self._decoder.feed(data)
        if decoded and not self._at:
            parse_start(decoded[0][1], self._span.name)
        self._tracker.take_all(self._at, decoded)
        self._at = self._decoder.offset
        before, self._records = self._records, self._records + len(decoded)
        if before < _SNAPSHOT_BEGINS_AS and not self._span.snapshot_end:
            for number, (_, record) in enumerate(decoded[: _SNAPSHOT_BEGINS_AS - before]):
                if record.op is Op.SNAPSHOT_BEGIN:  # unfinished: half of a state is the state of no moment
                    self._skipping = True
                    return decoded[:number]
        return [] if self._skipping else decoded

    def finish(self) -> None:
        """End the span: check its length and digest against those of the chain."""
        span = self._span
        if self._digest.size != span.length:
            raise ChainError(
                span.name, self._digest.size, f"{span.length} bytes, as the chain says", "the end"
            )
        torn = self._decoder.finish()
        # The chain names this digest: other bytes, of a dead writer of the same epoch, are not of this
        # history (R6).
        if self._digest.value != span.digest:
            expected, found = f"prefix digest {span.digest:016x}", f"{self._digest.value:016x}"
            raise ChainError(span.name, span.length, expected, found, "nothing read of this span may be used")
        if torn is not None and self._stopped:
            raise StopNotFoundError(
                f"position {span.end} lies inside the record that begins at {span.base + torn.offset}"
            ) from torn
        if torn is not None:
            raise torn


def fold(
    steps: Iterable[Step], state: State, apply: Callable[[State, Record], State], stop: Position | None = None
) -> State:
    """Apply each record up to `stop` (None: the end). Raises StopNotFoundError if no record ends there."""
    if stop is not None and stop.size == 0:
        return state
    for position, record in steps:
        if stop is not None and (position.size > stop.size):
            break
        state = apply(state, record)
        if position == stop:
            return state
    if stop is not None:
        raise StopNotFoundError(f"no record ends at position {stop}")
    return state
