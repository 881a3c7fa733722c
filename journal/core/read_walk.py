"""The walks of readers, which take no claim: find the committed part of a chain (R10). Pure: no I/O.

A reader goes down the chain like a take-over (`walk.py`) and settles nothing. The head is the first segment
in rank with a committed start. The end is certain only if nothing beyond it can have been acknowledged:
otherwise the bytes beyond it are counted as `unproved`.
"""

from collections.abc import Mapping

import msgspec

from dos_client import Quorums
from dos_protocol.store_record import StoreRecord
from journal.core.chain import ORIGIN, Answers, Position, SeenSegment, SegmentSpan, SegmentStart
from journal.core.scan import RecordBoundary, SegmentSurvey
from journal.core.walk import (
    ChainWalk,
    Effect,
    Event,
    ReadStart,
    SnapshotFound,
    StartRead,
    SurveySegment,
    WalkDone,
    WalkPhase,
)


def held_by_quorum(quorums: Quorums, seen: SeenSegment, claims: Mapping[bytes, int], filled: Answers) -> int:
    """Return the length of a segment that a quorum holds whose claim is still of this segment's epoch.
    claims: the claim epoch that each member held when it answered. filled: the objects of a joining member.
    """
    # While a member joins, the bytes must be on a quorum of the old and of the new member set: bytes that
    # only the old set holds may be lost when the new one counts (docs/decisions/0010).
    name, held = str(seen.name), _sizes(seen)
    for member, objects in filled.items():
        if name in objects:
            held[member] = objects[name].synced
    epoch = seen.name.epoch
    # R10: a member whose claim is newer may hold bytes that were never acknowledged to the writer of this
    # epoch.
    counting = {member: size for member, size in held.items() if claims.get(member) == epoch}
    return min(quorums.watermark(counting), seen.longest)


def _sizes(seen: SeenSegment) -> dict[bytes, int]:
    return {copy.member: copy.bytes for copy in seen.copies}


class ReadWalkAt(ChainWalk):
    """The walk of a reader to a position that a committed checkpoint names: everything below it is committed,
    even if other segments exist. It may end at the logical offset `floor`. Raises as `ReadWalk`.
    """

    def __init__(self, chain: str, record: StoreRecord, answers: Answers, at: Position, floor: int) -> None:
        super().__init__(chain, record, answers, record.generation)
        self._at = at
        self._floor = floor

    def begin(self) -> list[Effect]:
        self._see(self.answers)
        return self._found(ORIGIN) if self._at == ORIGIN else self._at_position(self._at)

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, StartRead):
            return self._started(event)
        assert isinstance(event, SnapshotFound), "a position is followed down, and nothing else"
        return self._snapshot_known(event.end, self._start)

    def _below(self, start: SegmentStart) -> list[Effect]:
        return self._bottom() if start.base <= self._floor else super()._below(start)

    def _bottom(self) -> list[Effect]:
        return self._found(self._at)


class ReadWalk(ChainWalk):
    """The walk of a reader to the end of the committed part. claims, filled: as of `held_by_quorum`.

    floor: the logical offset from which the caller reads; the walk ends at its segment. It goes below the
    released floor as long as members hold the segments: a reader that was there first is waited for.
    measured: False skips the survey of the head, whose span is then the length that a quorum holds, which may
    end within a record, with digest 0. A chain that is not pipelined is always measured.

    Raises LostBytesError, ChainError, StaleGenerationError.
    """

    def __init__(
        self,
        chain: str,
        record: StoreRecord,
        answers: Answers,
        claims: Mapping[bytes, int],
        filled: Answers,
        *,
        measured: bool = True,
        floor: int | None = None,
    ) -> None:
        super().__init__(chain, record, answers, record.generation)
        self._floor = floor
        self._claims = claims
        self._filled = filled
        self._measured = measured
        self._quorums = Quorums(record)
        self._rank = 0
        self._held = 0
        """How much of the segment of that rank a quorum holds."""

    def begin(self) -> list[Effect]:
        self._see(self.answers)
        return self._choose()

    def _choose(self) -> list[Effect]:
        self.phase = WalkPhase.CHOOSING
        while self._rank < len(self._seen) and not self._seen[self._rank].longest:
            self._rank += 1
        if self._rank < len(self._seen):
            seen = self._seen[self._rank]
            return [ReadStart(str(seen.name), seen.longest, seen.holders(seen.longest))]
        return self._found(None)

    def _head_started(self, event: StartRead) -> list[Effect]:
        """If this start is committed, its segment is the head: find out how much of it is committed."""
        seen = self._seen[self._rank]
        held = self._held = held_by_quorum(self._quorums, seen, self._claims, self._filled)
        # V1: the start of a dead writer that no quorum has must not hide the segments below it. Bytes behind
        # a start prove it, because its writer waited for it (R8).
        if event.start is None or (seen.longest <= event.end.bytes and held < event.end.bytes):
            self._rank += 1
            return self._choose()
        self._check_generation(event.start)
        self._start = event.start
        if event.start.pipelined and held <= event.end.bytes:
            return self._head(event.end, 0)
        if event.start.pipelined and not self._measured:
            self._spans = [SegmentSpan(str(seen.name), seen.name.base, held, 0)]
            self.phase = WalkPhase.FOLLOWING
            return self._started(event)
        length = held if event.start.pipelined else seen.longest
        self.phase = WalkPhase.MEASURING
        return [SurveySegment(str(seen.name), length, seen.holders(length), within=held)]

    def _head_measured(self, survey: SegmentSurvey) -> list[Effect]:
        committed = survey.within
        if not self._start.pipelined:
            # R9: a record was appended after the former one was acknowledged, so whatever follows proves it.
            proved = survey.last if survey.torn_bytes else survey.before_last
            committed = max(committed, proved)
        return self._head(max(committed, survey.first), survey.snapshot_end)

    def _head(self, committed: RecordBoundary, snapshot_end: int) -> list[Effect]:
        head = self._seen[self._rank].name
        self._spans = [SegmentSpan(str(head), head.base, committed.bytes, committed.digest)]
        self.phase = WalkPhase.FOLLOWING
        return self._snapshot_known(snapshot_end, self._start)

    def _below(self, start: SegmentStart) -> list[Effect]:
        if self._floor is not None and start.base <= self._floor:
            return self._bottom()
        return super()._below(start)

    def _reads_released(self, start: SegmentStart) -> bool:
        below = start.predecessor
        if self._floor is None or below is None or below.name not in self._by_name:
            return False
        return self._by_name[below.name].longest >= below.length

    def _bottom(self) -> list[Effect]:
        return self._found(self._spans[0].end)

    def _found(self, end: Position | None) -> list[Effect]:
        # While a claim is ahead of the chain, all bytes beyond the end may have been acknowledged. Otherwise
        # it is what the members that did not answer could have made acknowledged, together with those that
        # hold it.
        (found,) = super()._found(end)
        assert isinstance(found, WalkDone)
        head = found.state.segments[-1] if found.state.segments else None
        claimed = max(self._claims.values(), default=0)
        if head is not None and claimed <= head.end.epoch:
            claimed = 0
        past = 0
        for rank, seen in enumerate(self._seen[: self._rank + 1]):
            most = self._quorums.acknowledged_at_most(_sizes(seen), self.answers.keys())
            if claimed:
                most = seen.longest
            elif rank == self._rank and most <= self._held:  # what is beyond the end is a part of a record
                continue
            past += most if head is None or rank < self._rank else max(most - head.length, 0)
        if not past:
            return [found]
        return [WalkDone(msgspec.structs.replace(found.state, unproved=past, claimed=claimed))]
