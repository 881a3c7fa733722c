"""The walk of a take-over: find the chain, given the objects that the members hold. Pure: no I/O.

`begin` and `handle(event)` return the next effects. The shell (`journal/chain.py`) performs each and reports
the result as an event; at most one effect is outstanding. This module alone decides the order. The walks of
readers are in `core/read_walk.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from dos_protocol.errors import StaleGenerationError
from dos_protocol.store_record import StoreRecord, claims_needed
from journal.core.chain import (
    NO_FLOOR,
    ORIGIN,
    Answers,
    ChainState,
    Floor,
    Position,
    SeenSegment,
    SegmentName,
    SegmentSpan,
    SegmentStart,
    base_of,
    check_chain_name,
    doubtful_members,
    parse_segment_name,
    segments_seen,
)
from journal.core.errors import ChainError, EpochUsedTwiceError, LostBytesError, NotEnoughAnswersError
from journal.core.scan import RecordBoundary, SegmentSurvey
from journal.limits import segments_in_chain_max


class WalkPhase(Enum):
    """The phase of a walk."""

    # The phases of a take-over (R4-R7, R13), which requires the claim. If a position is ordered, the chain
    # ends in its segment, even if longer or newer segments exist. Otherwise the head is the segment of the
    # highest epoch, then base, that any trusted member holds with a whole start.
    CHOOSING = auto()
    # The end of the chain is the last whole record in the longest copy of the head.
    MEASURING = auto()
    # Follow the back pointers down to a finished snapshot, to the segment of a proved position, to the
    # segment without a predecessor, or to the lowest one that no start so far has released.
    FOLLOWING = auto()
    # Sync every span on the quorum, the lowest first. No segment may be opened before that (R7).
    SETTLING = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class ReadStart:
    """Read the first record of a segment, and whether a snapshot follows. members: tried in order."""

    segment: str
    length: int
    members: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SurveySegment:
    """Survey the first `length` bytes of a segment. within: also find the last record boundary at or below
    this length. lengths: also return the prefix digest at each of these.
    """

    segment: str
    length: int
    members: tuple[bytes, ...]
    within: int = 0
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FindSnapshot:
    """Find the end of the snapshot that begins a segment, within its first `length` bytes."""

    segment: str
    length: int
    members: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Sync the first `length` bytes, whose prefix digest is `digest`, on the quorum."""

    segment: str
    length: int
    digest: int


@dataclass(frozen=True, slots=True)
class WalkDone:
    state: ChainState


# effect                    event that answers it
# ReadStart(segment, ..)    StartRead      the first record of the segment, None if it is not whole
# SurveySegment(..)         Surveyed       the survey of the first bytes of the segment
# FindSnapshot(..)          SnapshotFound  the end of the snapshot that begins the segment, if finished
# Settle(segment, ..)       Settled        the span is synced on the quorum
# WalkDone(state)           none: the walk is done
Effect = ReadStart | SurveySegment | FindSnapshot | Settle | WalkDone


@dataclass(frozen=True, slots=True)
class StartRead:
    """The answer to ReadStart. start: None if the first record is not whole in that copy. end: its end."""

    segment: str
    start: SegmentStart | None
    end: RecordBoundary = RecordBoundary()  # noqa: RUF009 - a NamedTuple is immutable
    snapshot_follows: bool = False


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The answer to SurveySegment."""

    segment: str
    survey: SegmentSurvey


@dataclass(frozen=True, slots=True)
class SnapshotFound:
    """The answer to FindSnapshot. end: the bytes up to the end of the snapshot; 0 if not finished."""

    segment: str
    end: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to Settle."""

    segment: str


Event = StartRead | Surveyed | SnapshotFound | Settled


class ChainWalk:
    """The common part of all walks: candidate segments, and the way down the back pointers. For one walk."""

    def __init__(self, chain: str, record: StoreRecord, answers: Answers, generation: int) -> None:
        self.chain = check_chain_name(chain)
        self.generation = generation
        self.record = record
        self.answers = answers
        self.voters = {member.server_id: member.address for member in record.voters}
        self.n, self.qa = len(self.voters), record.ack_quorum
        self.phase = WalkPhase.CHOOSING
        self._seen: list[SeenSegment] = []
        self._by_name: dict[str, SeenSegment] = {}
        self._spans: list[SegmentSpan] = []
        """The spans found so far, the newest first."""

    def _see(self, answers: Answers) -> None:
        self._seen = segments_seen(self.chain, answers)
        self._by_name = {str(seen.name): seen for seen in self._seen}

    def _missing(self, why: Mapping[bytes, str]) -> tuple[str, ...]:
        """Return a text for each member that does not count, with the reason."""
        return tuple(
            f"{address} ({server_id.hex()[:8]}) {why.get(server_id, 'did not answer')}"
            for server_id, address in self.voters.items()
            if server_id in why or server_id not in self.answers
        )

    def _require(self, counted: int, needed: int, purpose: str, why: Mapping[bytes, str]) -> None:
        if counted < needed:
            raise NotEnoughAnswersError(
                f"{counted} of {self.n} members can answer for chain {self.chain}, {purpose} needs {needed}",
                answered=counted,
                needed=needed,
                missing=self._missing(why),
            )

    def _at_position(self, at: Position) -> list[Effect]:
        """End the chain at the ordered position. No other segment or length has an influence (R13)."""
        bases = [seen.name.base for seen in self._seen if seen.name.epoch == at.epoch]
        base = base_of(at, bases)
        if base is None:
            raise LostBytesError(
                f"no reachable member has the segment of position {at} in chain {self.chain}"
            )
        name = str(SegmentName(self.chain, at.epoch, base))
        return self._follow(SegmentSpan(name, base, at.size - base, at.digest))

    def _follow(self, span: SegmentSpan) -> list[Effect]:
        """Add `span` to the chain and request its start."""
        self.phase = WalkPhase.FOLLOWING
        seen = self._by_name.get(span.name)
        held = seen.longest if seen else 0
        # R14: what is not there is lost or superseded, never empty: a replay would begin at a hole.
        if seen is None or held < span.length:
            raise LostBytesError(
                f"chain {self.chain} names {span.length} bytes of {span.name}, reachable members have {held}"
            )
        if len(self._spans) >= segments_in_chain_max:
            raise ChainError(span.name, 0, f"a chain of at most {segments_in_chain_max} segments", "more")
        self._spans.append(span)
        return [ReadStart(span.name, span.length, seen.holders(span.length))]

    def _started(self, event: StartRead) -> list[Effect]:
        """The start of the lowest span is known: find the end of its snapshot, or continue below it."""
        span = self._spans[-1]
        if event.start is None or event.end.bytes > span.length:
            raise ChainError(span.name, 0, f"a whole start record within {span.length} bytes", "none")
        self._check_generation(event.start)
        if event.snapshot_follows and event.end.bytes < span.length:
            members = self._by_name[span.name].holders(span.length)
            self._start = event.start
            return [FindSnapshot(span.name, span.length, members)]
        return self._below(event.start)

    def _snapshot_known(self, snapshot_end: int, start: SegmentStart) -> list[Effect]:
        span = self._spans[-1]
        if 0 < snapshot_end <= span.length:
            self._spans[-1] = SegmentSpan(span.name, span.base, span.length, span.digest, snapshot_end)
            return self._bottom()
        return self._below(start)

    def _below(self, start: SegmentStart) -> list[Effect]:
        """Continue with the predecessor of the segment."""
        if start.predecessor is None:
            return self._bottom()
        below = parse_segment_name(start.predecessor.name)
        assert below is not None, "checked when the start was parsed"
        if below.order < self._released and not self._reads_released(start):
            return self._bottom()
        return self._follow(
            SegmentSpan(
                start.predecessor.name, below.base, start.predecessor.length, start.predecessor.digest
            )
        )

    def _reads_released(self, start: SegmentStart) -> bool:
        """Return whether the walk goes below the released floor, from a segment with this start."""
        del start
        return False

    def _check_generation(self, start: SegmentStart) -> None:
        if start.generation > self.generation:
            held = f"segment {start.name} was opened under store generation {start.generation}, "
            raise StaleGenerationError(f"{held}this client has {self.generation}", actual=start.generation)
        self._released = max(self._released, start.released or NO_FLOOR)

    def begin(self) -> list[Effect]:
        raise NotImplementedError

    def handle(self, event: Event) -> list[Effect]:
        assert not isinstance(event, Settled), "only a take-over settles"
        if isinstance(event, StartRead):
            return self._started(event) if self.phase is WalkPhase.FOLLOWING else self._head_started(event)
        if isinstance(event, SnapshotFound):
            return self._snapshot_known(event.end, self._start)
        return self._head_measured(event.survey)

    def _head_started(self, event: StartRead) -> list[Effect]:
        raise NotImplementedError

    def _head_measured(self, survey: SegmentSurvey) -> list[Effect]:
        raise NotImplementedError

    def _bottom(self) -> list[Effect]:
        raise NotImplementedError

    def _found(self, end: Position | None) -> list[Effect]:
        self.phase = WalkPhase.DONE
        spans = tuple(reversed(self._spans))
        seen = len(segments_seen(self.chain, self.answers))
        return [WalkDone(ChainState(self.chain, spans, end, seen, self._released))]

    _start: SegmentStart
    _released: Floor = NO_FLOOR


class TakeOver(ChainWalk):
    """The walk of a writer that holds the claim.

    answers: the answers to the claim, of trusted members only. at: the ordered end of the chain, if any.
    proved: a position on this line that a committed checkpoint names. What precedes its segment was settled
    before that segment was opened (R7, R8), so the walk ends there. released: a floor that an acknowledged
    record elsewhere (a region's manifest) has released.

    Raises NotEnoughAnswersError, LostBytesError, ChainError, StaleGenerationError, EpochUsedTwiceError; spans
    that are settled by then are part of the chain, and nothing else was changed.
    """

    def __init__(
        self,
        chain: str,
        record: StoreRecord,
        answers: Answers,
        *,
        generation: int,
        at: Position | None = None,
        proved: Position | None = None,
        released: Floor = NO_FLOOR,
    ) -> None:
        super().__init__(chain, record, answers, generation)
        self._at = at
        self._proved = proved
        self._released = released
        self._why: dict[bytes, str] = {}
        self._trusted: Answers = answers
        self._rank = 0
        self._to_settle: list[SegmentSpan] = []

    def begin(self) -> list[Effect]:
        self._see(self.answers)
        if self._at == ORIGIN:
            return self._found(ORIGIN)
        if self._at is not None:
            return self._at_position(self._at)
        self._see(self._trusted)
        return self._choose()

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Settled):
            return self._settle_next()
        return super().handle(event)

    def _choose(self) -> list[Effect]:
        """Request the start of the next segment in rank. Without one, the journal never existed (R16)."""
        while self._rank < len(self._seen):
            seen = self._seen[self._rank]
            if self._doubt(seen.name):
                self._see(self._trusted)
                self._rank = 0
            elif seen.longest:
                return [ReadStart(str(seen.name), seen.longest, seen.holders(seen.longest))]
            else:
                self._rank += 1
        self._doubt(None)
        # R16: one member that did not answer may hold the journal, which would be begun again.
        self._require(len(self._trusted), self.n, "creating it", self._why)
        return self._found(None)

    def _doubt(self, head: SegmentName | None) -> bool:
        """Exclude the members whose answer about the head does not count. Return whether there were any."""
        # R4: A's record is on 1 and 2, and 1 is damaged: without this, 1 and 3 look as if it never was.
        doubtful = doubtful_members(self.chain, self._trusted, head)
        for member in doubtful:
            self._why[member] = "holds a damaged copy of the chain's end"
        self._trusted = {m: objects for m, objects in self._trusted.items() if m not in doubtful}
        return bool(doubtful)

    def _head_started(self, event: StartRead) -> list[Effect]:
        seen = self._seen[self._rank]
        if event.start is None:
            self._rank += 1
            return self._choose()
        # R1: with fewer claims, the old writer still has a quorum, and what it acknowledges now is hidden
        # later.
        self._require(len(self._trusted), claims_needed(self.n, self.qa), "taking it over", self._why)
        self.phase = WalkPhase.MEASURING
        lengths = tuple(sorted({copy.bytes for copy in seen.copies if copy.bytes}))
        return [SurveySegment(str(seen.name), seen.longest, seen.holders(seen.longest), lengths=lengths)]

    def _check_one_line(self, seen: SeenSegment, survey: SegmentSurvey) -> None:
        """Raise EpochUsedTwiceError if the copies of the head contradict each other."""
        # An epoch has one writer, so every copy is a prefix of the longest one, unless the epoch was granted
        # twice (decision 0205). Which of two lines was acknowledged cannot be seen: to choose one would lose
        # the other.
        name = str(seen.name)
        held = {copy.member: self._trusted[copy.member][name] for copy in seen.copies if copy.bytes}
        wrong = [member for member, info in held.items() if survey.digests[info.synced] != info.digest]
        if wrong:
            who = ", ".join(f"{self.voters.get(one, '?')} has {held[one].synced} bytes" for one in wrong)
            raise EpochUsedTwiceError(
                f"copies of segment {name} contradict each other: {who} that are not the first bytes of the"
                f" longest copy, of {seen.longest}; epoch {seen.name.epoch} was granted twice, so the disk of"
                " a member went back to an older state"
            )

    def _head_measured(self, survey: SegmentSurvey) -> list[Effect]:
        self._check_one_line(self._seen[self._rank], survey)
        head = self._seen[self._rank].name
        assert survey.start is not None, "the start was read before"
        self._check_generation(survey.start)
        # Below the head the chain itself names length and digest, so members with damaged copies count again.
        self._see(self.answers)
        # R5: the longest copy of the head, cut to whole records: an acknowledged record is on one of the
        # answers.
        self._spans = [SegmentSpan(str(head), head.base, survey.last.bytes, survey.last.digest)]
        self.phase = WalkPhase.FOLLOWING
        return self._snapshot_known(survey.snapshot_end, survey.start)

    def _below(self, start: SegmentStart) -> list[Effect]:
        if self._proved is not None and self._spans[-1].holds(self._proved):
            return self._bottom()
        return super()._below(start)

    def _check_one_writer(self) -> None:
        """Raise EpochUsedTwiceError if the head's epoch has a segment that the chain goes past."""
        # An epoch opens a chain once, and then rolls: each of its segments names the one before. So another
        # one between the head and the bottom has another writer (decision 0205).
        on_chain = {span.name for span in self._spans}
        head, bottom = self._spans[0].segment, self._spans[-1].segment
        for seen in self._seen:
            is_between = bottom.order < seen.name.order < head.order and seen.name.epoch == head.epoch
            if is_between and seen.longest and str(seen.name) not in on_chain:
                who = ", ".join(self.voters.get(copy.member, "?") for copy in seen.copies)
                raise EpochUsedTwiceError(
                    f"segments {head} and {seen.name}, of {who}, are not of one line; epoch {head.epoch} was"
                    " granted twice, so the disk of a member went back to an older state"
                )

    def _bottom(self) -> list[Effect]:
        if self._at is None:
            self._check_one_writer()
        self.phase = WalkPhase.SETTLING
        self._to_settle = list(self._spans)
        return self._settle_next()

    def _settle_next(self) -> list[Effect]:
        # R7, the lowest first: A's record is on one server, B's segment that continues it on a second one;
        # the second and the third cannot find the record.
        if self._to_settle:
            span = self._to_settle.pop()
            return [Settle(span.name, span.length, span.digest)]
        return self._found(self._spans[0].end)
