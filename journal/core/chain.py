"""Chains: what a walk over segments finds, and what can be said of it without reading a byte more.

Rules of this file: values and questions about them, no order of doing things (that is `walk.py`'s).
"Answers" are what the members of a store said they hold: {server id: {object name: ObjectInfo}}, already
only those of trusted members.

The chain is what the back pointers reach from the head. So a chain is a list of spans, the oldest first: of
each segment the part that belongs to the history. Bytes past a span's length, and segments without a span,
are leftovers of writers that died; nothing here ever reads them (R6).
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

    digest: prefix digest of the object at `length`. snapshot_end: bytes up to the end of the finished
    snapshot that the span begins with, 0 if there is none. Invariants: 0 < length; snapshot_end <= length.
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


class ChainState(msgspec.Struct, frozen=True):
    """A chain as a walk found it.

    segments: the oldest first; the first has no predecessor or begins with a finished snapshot, none of the
    later ones does the latter. end: None if the journal never existed (or, for a reader, if nothing in it
    is committed); ORIGIN if it was rolled back to nothing. seen: segments of this chain that the members
    named, on the chain or off it. released: segments of the chain below this one, (epoch, base), need not be
    there any more, as its starts say. unproved: for a reader, durable bytes past `end` that cannot be proved
    committed because `claimed`, the epoch of a take-over that has opened no segment that counts, is ahead of
    the chain; 0 and 0 if there are none.
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
        """What a replay of this chain reads."""
        return sum(span.length for span in self.segments)

    @property
    def snapshot_size(self) -> int:
        """The logical offset just past the snapshot the chain begins with; its beginning if there is none."""
        return self.segments[0].base + self.segments[0].snapshot_end if self.segments else 0

    @property
    def unproved_text(self) -> str:
        """What a reader has to know of the bytes that are not shown; "" if there are none."""
        if not self.unproved:
            return ""
        return (
            f"{self.unproved} more bytes of chain {self.chain} are there and cannot be proved committed now,"
            f" because a take-over at epoch {self.claimed} did not complete; they are not lost: the next"
            " writer settles them, and a checkpoint that names them proves them"
        )

    def holds(self, position: Position) -> bool:
        """Whether a position lies on this chain. (Its digest shows when it is read.)"""
        return position == ORIGIN or self._span_of(position) is not None

    def _span_of(self, position: Position) -> int | None:
        for index, span in enumerate(self.segments):
            ends_here = span.base < position.size <= span.base + span.length
            if ends_here and span.end.epoch == position.epoch:
                return index
        return None

    def up_to(self, stop: Position) -> "ChainState":
        """The same chain, ending at `stop`: what was there then.

        Raises StopNotFoundError if the position is not on this line of history, or lies before what the
        chain can still show. Whether it is a boundary between records shows when it is read.
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
    """One member's copy of a segment: how many durable bytes it has."""

    member: bytes
    bytes: int


class SeenSegment(NamedTuple):
    """A segment that at least one member named, with its copies, the longest first."""

    name: SegmentName
    copies: tuple[SegmentCopy, ...]

    @property
    def longest(self) -> int:
        return self.copies[0].bytes

    def holders(self, length: int) -> tuple[bytes, ...]:
        """The members that have at least so many bytes of it, the longest copies first."""
        return tuple(copy.member for copy in self.copies if copy.bytes >= length)


def segments_seen(chain: str, answers: Answers) -> list[SeenSegment]:
    """Every segment of the chain that any member holds durable bytes of, the highest epoch and base first."""
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
    """Members whose answer about the head cannot be relied on (R4): a copy of the head, or of a segment
    that would be before it in rank, is damaged or poisoned there, so they may have held more than they can
    tell.
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
