"""The values that describe a chain: spans, the state that a walk returns, and the copies on members.

Pure: no I/O. `walk.py` decides the order of a walk. *Answers* are the objects that the trusted members of a
store hold: {server id: {object name: ObjectInfo}}.

A chain consists of the segments that the back pointers reach from the head. It is a list of spans, the oldest
first; each span is the part of one segment that belongs to the history. Bytes beyond a span, and segments
without a span, were left by writers that died. They are never read (R6).
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from dos_protocol.messages import ObjectInfo
from journal.core.errors import StopNotFoundError
from journal.core.position import NO_FLOOR, ORIGIN, Position
from journal.core.segment import SegmentName, parse_segment_name

Answers = Mapping[bytes, Mapping[str, ObjectInfo]]


class SegmentSpan(msgspec.Struct, frozen=True):
    """The part of one segment that belongs to a chain: its first `length` bytes.

    base: the logical offset of its first byte. digest: the prefix digest of the object at `length`.
    snapshot_end: the bytes up to the end of the finished snapshot that the span begins with, 0 if there is
    none. Invariants: 0 < length; snapshot_end <= length.
    """

    name: str
    base: int
    length: int
    digest: int
    snapshot_end: int = 0

    @property
    def end(self) -> Position:
        parsed = parse_segment_name(self.name)
        assert parsed is not None, "spans are made for segments only"
        return Position(parsed.epoch, self.base + self.length, self.digest)

    def holds(self, position: Position) -> bool:
        """Return whether the position lies in this span: after its first byte, at most at its end."""
        ends_here = self.base < position.size <= self.base + self.length
        return ends_here and self.end.epoch == position.epoch


class ChainState(msgspec.Struct, frozen=True):
    """A chain as returned by a walk.

    segments: the spans, the oldest first. The first one has no predecessor, begins with a finished snapshot,
        is the lowest that is not released, or holds the position at which the walk was to end (`proved` of
        `take_over`, the floor of a reader); no later one begins with a finished snapshot.
    end: the end of the chain. None if the journal never existed or, for a reader, if nothing is committed;
        ORIGIN if it was rolled back to nothing.
    seen: the number of segments of this chain on the members, including those that are not part of the chain.
    released: the floor (epoch, base) that the starts name; segments below it may be deleted.
    unproved: for a reader, the durable bytes beyond `end` that may have been acknowledged and cannot be
        proved committed: because a take-over at a higher epoch, `claimed`, has not opened a committed
        segment; or, with claimed = 0, because only members that did not answer know whether they were
        acknowledged.
    """

    chain: str
    segments: tuple[SegmentSpan, ...] = ()
    end: Position | None = None
    seen: int = 0
    released: tuple[int, int] = NO_FLOOR
    unproved: int = 0
    claimed: int = 0

    @property
    def bytes(self) -> int:
        """The number of bytes that a replay of this chain reads."""
        return sum(span.length for span in self.segments)

    @property
    def size(self) -> int:
        """The logical offset of the end, 0 if there is none."""
        return 0 if self.end is None else self.end.size

    @property
    def snapshot_size(self) -> int:
        """The logical offset just past the first snapshot; the beginning of the chain if there is none."""
        return self.segments[0].base + self.segments[0].snapshot_end if self.segments else 0

    @property
    def unproved_text(self) -> str:
        """The message about bytes that are left out because they are unproved; "" if there are none."""
        if not self.unproved:
            return ""
        return (
            f"{self.unproved} more bytes of chain {self.chain} are stored and cannot be proved committed now,"
            f" because {self.unproved_because}, and a checkpoint that names them proves them"
        )

    @property
    def unproved_because(self) -> str:
        """Return why bytes are unproved, and what ends that."""
        if self.claimed:
            return (
                f"a take-over at epoch {self.claimed} did not complete; they are not lost: the next writer"
                " settles them"
            )
        return (
            "only members that did not answer know whether they were acknowledged; they are not lost: these"
            " members prove them when they are back, the next writer settles them"
        )

    def holds(self, position: Position) -> bool:
        """Return whether a position lies on this chain. Its digest is checked only when the chain is read."""
        return position == ORIGIN or self._span_of(position) is not None

    def _span_of(self, position: Position) -> int | None:
        return next((index for index, span in enumerate(self.segments) if span.holds(position)), None)

    def up_to(self, stop: Position) -> "ChainState":
        """Return this chain, shortened to end at `stop`.

        Raises StopNotFoundError if the position is not on this line of history, or lies before its first
        span or inside its first snapshot. Only reading shows whether it is a boundary between records.
        """
        if stop == ORIGIN:
            return ChainState(self.chain, (), ORIGIN, self.seen)
        index = self._span_of(stop)
        if index is None:
            more = f"; {self.unproved_text}" if self.unproved else ""
            raise StopNotFoundError(
                f"position {stop} is not in chain {self.chain}, which {self._extent()}{more}"
            )
        cut = self._cut_span(self.segments[index], stop)
        return ChainState(self.chain, (*self.segments[:index], cut), stop, self.seen)

    def _cut_span(self, span: SegmentSpan, stop: Position) -> SegmentSpan:
        length = stop.size - span.base
        if length == span.length and stop.digest != span.digest:
            raise StopNotFoundError(
                f"position {stop} has digest {stop.digest:016x}, "
                f"chain {self.chain} has {span.digest:016x} there"
            )
        if length < span.snapshot_end and span is self.segments[0] and span.base:
            raise StopNotFoundError(
                f"position {stop} is inside the snapshot that chain {self.chain} begins with, "
                f"up to {self.snapshot_size}"
            )
        finished = span.snapshot_end if span.snapshot_end <= length else 0
        return SegmentSpan(span.name, span.base, length, stop.digest, finished)

    def _extent(self) -> str:
        if not self.segments or self.end is None:
            return "is empty"
        first = self.segments[0].end.epoch
        return f"reaches from {first:x}:{self.segments[0].base} to {self.end}"


class SegmentCopy(NamedTuple):
    """The copy of a segment on one member: the number of its durable bytes."""

    member: bytes
    bytes: int


class SeenSegment(NamedTuple):
    """A segment that at least one member holds, with its copies, the longest first."""

    name: SegmentName
    copies: tuple[SegmentCopy, ...]

    @property
    def longest(self) -> int:
        return self.copies[0].bytes

    def holders(self, length: int) -> tuple[bytes, ...]:
        """Return the members that hold at least `length` bytes of it, the longest copies first."""
        return tuple(copy.member for copy in self.copies if copy.bytes >= length)


def segments_seen(chain: str, answers: Answers) -> list[SeenSegment]:
    """Return every segment of the chain that a member holds, the highest epoch and base first."""
    copies: dict[SegmentName, list[SegmentCopy]] = {}
    for member, objects in answers.items():
        for info in objects.values():
            name = parse_segment_name(info.name)
            if name is not None and name.chain == chain:
                copies.setdefault(name, []).append(SegmentCopy(member, info.synced))
    return [
        SeenSegment(name, tuple(sorted(copies[name], key=lambda copy: (-copy.bytes, copy.member))))
        for name in sorted(copies, key=lambda name: name.order, reverse=True)
    ]


def doubtful_members(chain: str, answers: Answers, head: SegmentName | None) -> list[bytes]:
    """Return the members whose answer about the head does not count (R4).

    On such a member a copy of the head, or of a segment that ranks above it, is damaged or poisoned. The
    member may have acknowledged more bytes of it than it now reports.
    """
    doubtful = []
    for member, objects in answers.items():
        for info in objects.values():
            name = parse_segment_name(info.name)
            if name is None or name.chain != chain or not (info.corrupt or info.poisoned):
                continue
            if head is None or name.order >= head.order:
                doubtful.append(member)
                break
    return doubtful
