"""The values that describe a chain: positions, segments, the chain, and which segments are garbage. Pure.

A chain consists of the segments that the back pointers reach from the head. It is a list of spans, the oldest
first; each span is the part of one segment that belongs to the history. Bytes beyond a span, and segments
without a span, were left by writers that died. They are never read (R6).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from dos_protocol.errors import MALFORMED_JSON, BadNameError, LocalProtocolError
from dos_protocol.limits import u64_max
from dos_protocol.messages import ObjectInfo
from dos_protocol.names import SEGMENT_NAME, check_name
from journal.core.errors import ChainError, StopNotFoundError
from journal.core.record import Op, Record
from journal.limits import chain_name_bytes_max


class Position(msgspec.Struct, frozen=True, order=False):
    """A point in the history of a chain. Checkpoints, votes, replays and Spark offsets use it (R12).

    epoch: the epoch of the segment that holds the byte before the point. size: the logical offset: the base
    of that segment plus the bytes in it. digest: the prefix digest there.

    Every segment begins with a start record, so `size` is above the base of its segment, which is the one of
    that epoch with the largest base below `size`. Only ORIGIN lies in no segment.
    """

    # After a rollback the same size can lie on two lines of history, so a number alone is ambiguous.
    epoch: int
    size: int
    digest: int

    def __str__(self) -> str:
        return f"{self.epoch:x}:{self.size}"


NO_FLOOR: Final = (0, 0)
"""An (epoch, base) below every segment: nothing is released."""
ORIGIN: Final = Position(0, 0, 0)
"""The beginning of a chain, also of one that was rolled back to nothing."""


def base_of(position: Position, bases: Iterable[int]) -> int | None:
    """Return the base of the position's segment, of the `bases` of its epoch; None if it lies in none."""
    return max((base for base in bases if base < position.size), default=None)


class SegmentName(NamedTuple):
    chain: str
    epoch: int
    base: int

    @property
    def order(self) -> tuple[int, int]:
        """The order in which a head is chosen: by epoch, then by base (R5)."""
        return self.epoch, self.base

    def __str__(self) -> str:
        return f"{self.chain}.{self.epoch:016x}.{self.base:016x}"


def check_chain_name(chain: str) -> str:
    """Return the name. Raises BadNameError if it is too long for a segment name or has the form of one."""
    check_name(chain)
    if len(chain) > chain_name_bytes_max:
        raise BadNameError(
            f"the name of a chain has at most {chain_name_bytes_max} characters, got {len(chain)}"
        )
    if SEGMENT_NAME.fullmatch(chain):
        raise BadNameError(f"the name of a chain must not look like that of a segment: {chain}")
    return chain


def segment_name(chain: str, epoch: int, base: int) -> str:
    """Return the name of a segment. Raises BadNameError, LocalProtocolError."""
    check_chain_name(chain)
    if not 0 < epoch <= u64_max or not 0 <= base <= u64_max:
        raise LocalProtocolError(
            f"a segment has an epoch from 1 and a base from 0, of 64 bits each, got {epoch} and {base}"
        )
    return str(SegmentName(chain, epoch, base))


@lru_cache(maxsize=1024)
def parse_segment_name(name: str) -> SegmentName | None:
    """Parse the name of a segment. Return None for any other object name."""
    match = SEGMENT_NAME.fullmatch(name)
    if match is None or len(match["chain"]) > chain_name_bytes_max:
        return None
    return SegmentName(match["chain"], int(match["epoch"], 16), int(match["base"], 16))


class Predecessor(msgspec.Struct, frozen=True):
    """The back pointer of a segment: the first `length` bytes of `name`, with prefix digest `digest`."""

    name: str
    length: int
    digest: int


class SegmentStart(msgspec.Struct, frozen=True):
    """The content of the start record of a segment. Readers ignore unknown fields.

    generation: that of the store record under which the segment was opened. writer: the writer id of the
    claim. pipelined: whether a record may be sent before the earlier ones are acknowledged; if not, every
    record proves that its predecessor is committed (R9). released: the floor (epoch, base) below which the
    segments may be deleted once this start is acknowledged (R14), and must not be read.
    """

    chain: str
    epoch: int
    base: int
    predecessor: Predecessor | None
    generation: int
    writer: str
    pipelined: bool = True
    released: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET

    @property
    def name(self) -> str:
        return str(SegmentName(self.chain, self.epoch, self.base))

    @property
    def end_below(self) -> Position:
        """The end of the history below this segment; ORIGIN if there is none."""
        below = self.predecessor and parse_segment_name(self.predecessor.name)
        if not self.predecessor or not below:
            return ORIGIN
        return Position(below.epoch, self.base, self.predecessor.digest)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(SegmentStart)


def start_record(start: SegmentStart) -> Record:
    return Record(Op.SEGMENT_START, strings=(_encoder.encode(start),))


# The name of a segment is only a label: it sorts, and it must agree with the start record.
#
#     name   CHAIN.<epoch, 16 hex>.<base, 16 hex>
#     start  Op.SEGMENT_START, ints=[], strings=[JSON of SegmentStart], the first record of every segment
#
# A start is valid if and only if
#
#     (1) its record is whole and valid
#     (2) its op is SEGMENT_START and its one string is the JSON of a SegmentStart
#     (3) chain, epoch and base agree with the name
#     (4) it has a predecessor, or none and base 0
#     (5) the predecessor is a segment of the same chain, lower in (epoch, base), so every walk ends
#     (6) the predecessor's base plus its final length is the base
#     (7) the released floor, if any, is lower than the segment in (epoch, base)
def parse_start(record: Record, name: str) -> SegmentStart:
    """Return the start in the first record of `name`. Raises ChainError, which names the broken rule."""
    start = start_of(record, name)
    if start.name != name:
        raise ChainError(name, 0, "the start record of this segment", f"that of {start.name}"[:200])
    return start


def start_of(record: Record, where: str) -> SegmentStart:
    """Return the start in a record. Checks all rules except that of the object's name. Raises ChainError."""
    if record.op is not Op.SEGMENT_START or record.ints or len(record.strings) != 1:
        raise ChainError(where, 0, "a SEGMENT_START record with one string", f"{record.op.name}")
    try:
        start = _decoder.decode(record.strings[0])
    except MALFORMED_JSON as error:
        raise ChainError(where, 0, "the JSON of a segment start", f"{error}") from error
    _check_predecessor(start, where)
    if start.released and not NO_FLOOR < start.released < (start.epoch, start.base):
        raise ChainError(where, 0, "a release of segments below an earlier one", f"below {start.released}")
    return start


def _check_predecessor(start: SegmentStart, name: str) -> None:
    if start.predecessor is None:
        if start.base:
            raise ChainError(name, 0, f"a predecessor below base {start.base}", "none")
        return
    below = parse_segment_name(start.predecessor.name)
    if below is None or below.chain != start.chain:
        expected = f"a predecessor in chain {start.chain}"
        raise ChainError(name, 0, expected, start.predecessor.name[:200])
    if below.order >= (start.epoch, start.base):
        raise ChainError(name, 0, "a predecessor of an earlier epoch or base", start.predecessor.name)
    if start.predecessor.length <= 0 or below.base + start.predecessor.length != start.base:
        found = f"{below.base} + {start.predecessor.length}"
        raise ChainError(name, 0, f"a predecessor that ends at base {start.base}", found)


Answers = Mapping[bytes, Mapping[str, ObjectInfo]]
"""The objects that the trusted members of a store hold: {server id: {object name: ObjectInfo}}."""


class SegmentSpan(msgspec.Struct, frozen=True):
    """The part of one segment that belongs to a chain: its first `length` bytes, from the logical offset
    `base` on. digest: the prefix digest there. snapshot_end: the bytes up to the end of the finished snapshot
    that the span begins with, or 0. Invariants: 0 < length; snapshot_end <= length.
    """

    name: str
    base: int
    length: int
    digest: int
    snapshot_end: int = 0

    @property
    def segment(self) -> SegmentName:
        parsed = parse_segment_name(self.name)
        assert parsed is not None, "spans are of segments"
        return parsed

    @property
    def end(self) -> Position:
        return Position(self.segment.epoch, self.base + self.length, self.digest)

    def holds(self, position: Position) -> bool:
        """Return whether the position lies in this span: after its first byte, at most at its end."""
        ends_here = self.base < position.size <= self.base + self.length
        return ends_here and self.end.epoch == position.epoch


class ChainState(msgspec.Struct, frozen=True):
    """A chain as returned by a walk.

    segments: the spans, the oldest first. The first one has no predecessor, begins with a finished snapshot,
    is the lowest that is not released, or holds the position at which the walk was to end; no later one
    begins with a finished snapshot. end: None if the journal never existed or, for a reader, if nothing is
    committed; ORIGIN if it was rolled back to nothing. seen: the number of segments of this chain on the
    members, on the chain or not. released: the floor that the starts name. unproved: for a reader, the
    durable bytes beyond `end` that may have been acknowledged: because a take-over at a higher epoch,
    `claimed`, has not opened a committed segment; or, with claimed = 0, because only members that did not
    answer know.
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
        """Return this chain, shortened to end at `stop`. Raises StopNotFoundError if that is not on this line
        of history, or lies before its first span or inside its first snapshot.
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
    """Return the members whose answer about the head does not count (R4): they have a damaged or poisoned
    copy of it, or of a higher segment.
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


# --- garbage ------------------------------------------------------------------------------------------------
# The caller must ensure that a floor may be used: an acknowledged record released everything that needs the
# lower segments, and the end of the snapshot is acknowledged (R14, docs/decisions/0110). Otherwise a crash
# leaves a chain whose snapshot is not whole, without the segments that it replaces.

Floor = tuple[int, int]
"""The (epoch, base) of the lowest segment that a walk of a chain reaches: the segment that begins with the
newest finished snapshot, or the first one. Predecessors are strictly lower, so the chain needs no segment
below it. A segment at or above the floor is never garbage.
"""
Floors = Mapping[str, Floor]
"""Chain -> its floor. No segment of a chain that is not listed is garbage."""
Gap = tuple[Floor, Floor]
"""A gap in what is needed of a chain: the segments between these two (epoch, base), both excluded. Users that
need a chain only up to a position, as the savepoints of a region, leave gaps above the floor: between the
position of one user and the floor of the next.
"""
Gaps = Mapping[str, Sequence[Gap]]
"""Chain -> its gaps, above its floor."""


def below(floors: Floors) -> Callable[[str], bool]:
    """Return a test of object names: whether it is a segment below its chain's floor."""

    def is_below(name: str) -> bool:
        segment = parse_segment_name(name)
        return segment is not None and segment.chain in floors and segment.order < floors[segment.chain]

    return is_below


def below_or_within(floors: Floors, gaps: Gaps) -> Callable[[str], bool]:
    """Return a test of object names: whether it is a segment below its chain's floor, or in a gap of it."""
    is_below = below(floors)

    def is_unneeded(name: str) -> bool:
        segment = parse_segment_name(name)
        return is_below(name) or (
            segment is not None
            and any(begin < segment.order < end for begin, end in gaps.get(segment.chain, ()))
        )

    return is_unneeded


def gaps_between(needed: Iterable[Gap], floor: Floor) -> list[Gap]:
    """Return the gaps between what several users need of one chain. needed: of each of the others, the lowest
    segment and the highest (epoch, size); floor: everything from it on.
    """
    found: list[Gap] = []
    reached: Floor | None = None
    for begin, end in sorted([*needed, (floor, floor)]):  # the floor may be below others, after a restore
        if reached is not None and begin > reached:
            found.append((reached, begin))
        reached = end if reached is None else max(reached, end)
    return [(begin, end) for begin, end in found if begin < floor]


def lowest(several: Iterable[Floors]) -> dict[str, Floor]:
    """Return the lowest floor of each chain. A chain that one user does not list is omitted."""
    found = [dict(floors) for floors in several]
    chains = set.intersection(*map(set, found)) if found else set()
    return {chain: min(floors[chain] for floors in found) for chain in sorted(chains)}
