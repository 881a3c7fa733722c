"""The chain writer: opens segments, appends records, rolls. The one way in which a journal grows.

Rules of this file: a writer stands on a chain that was taken over under the same claim, and it obeys

    R7   a segment, also within an epoch, is opened only when all below it is synced on the quorum
    R8   nothing is appended behind a start record before that is synced on the quorum
    R9   in a chain that is not pipelined, nothing is appended before all before it is synced

so that a reader can tell from bytes that follow that what precedes them is committed (R10). States:

    OPEN    append, roll
    MOVING  a segment is being opened or a snapshot written: nothing else may be appended
    CLOSED  closed, or an opening failed or was cancelled midway: take over again to go on
"""

import weakref
from collections.abc import Iterable
from enum import Enum, auto
from types import TracebackType
from typing import ClassVar

import msgspec

from dos_protocol.errors import ClosedError, LocalProtocolError
from journal.chain import take_over
from journal.core.chain import ChainState
from journal.core.position import NO_FLOOR, ORIGIN, Position
from journal.core.record import Record, encode_v1
from journal.core.segment import (
    Predecessor,
    SegmentStart,
    check_chain_name,
    parse_segment_name,
    segment_name,
    start_record,
)
from journal.core.trimming import Floor, below
from journal.limits import append_bytes_max
from journal.ops import Op
from journal.ports import ClaimPort, ObjectWriterPort
from journal.scratch import CacheWriter, Scratch


class WriterState(Enum):
    """See the head of this file."""

    OPEN = auto()
    MOVING = auto()
    CLOSED = auto()


_opened: "weakref.WeakKeyDictionary[ClaimPort, set[str]]" = weakref.WeakKeyDictionary()
"""Chains that had a writer under a claim: one epoch is one line of history, so it is opened once."""


class ChainWriter:
    """Appends records to one chain under one claim. Make it with `open`. Not for several tasks at once.

    Invariants: `synced <= end.size`; every position that was returned stays readable unless the claim is lost
    before it is synced.
    """

    marks: ClassVar[bool] = True
    rolls: ClassVar[bool] = True
    """What a journaled directory asks of whatever records its changes."""

    def __init__(
        self, claim: ClaimPort, chain: str, generation: int, scratch: Scratch | None, pipelined: bool
    ) -> None:
        self._claim = claim
        self._chain = chain
        self._generation = generation
        self._scratch = scratch
        self._pipelined = pipelined
        self._state = WriterState.MOVING
        self._object: ObjectWriterPort | None = None
        self._mirror: CacheWriter | None = None
        self._base = 0
        self._snapshot_size = 0
        self._floor: Floor | None = None
        self._released: Floor = NO_FLOOR
        self._replaces: Floor | None = None
        self._segments = 0

    @classmethod
    async def open(
        cls,
        claim: ClaimPort,
        chain: str,
        predecessor: ChainState | None,
        generation: int,
        scratch: Scratch | None = None,
        snapshot: Iterable[Record] | None = None,
        *,
        pipelined: bool = True,
    ) -> "ChainWriter":
        """Open a new segment behind `predecessor`, and return once its start is synced on the quorum (R8).

        predecessor: what `take_over` returned under this claim. None: the journal must not exist, which is
        found out first (R16). generation: of the store record in use. snapshot: records that alone give the
        whole state; they are appended between SNAPSHOT_BEGIN and SNAPSHOT_END, and are not waited for.
        pipelined: whether records may be appended before the ones before them are synced (a manifest's may
        not).

        Raises LocalProtocolError for a chain that this claim may not open, FencedError if the claim is
        lost. Failed or cancelled, the segment may exist or not; take over again, with a higher epoch.
        """
        check_chain_name(chain)
        if predecessor is None:
            predecessor = await take_over(claim, chain, generation=generation, scratch=scratch)
            if predecessor.end is not None:
                raise LocalProtocolError(
                    f"chain {chain} exists, to {predecessor.end}",
                    remedy="open it behind what take_over returns",
                )
        _check_opening(claim, chain, predecessor)
        writer = cls(claim, chain, generation, scratch, pipelined)
        writer._snapshot_size = predecessor.snapshot_size
        writer._segments = len(predecessor.segments)
        writer._released = predecessor.released
        for span in predecessor.segments[:1]:
            lowest = parse_segment_name(span.name)
            assert lowest is not None, "spans are of segments"
            writer._floor = lowest.order
        if scratch is not None:
            scratch.keep_only(chain, {span.name for span in predecessor.segments})
        below = predecessor.segments[-1] if predecessor.segments else None
        stands_on = Predecessor(below.name, below.length, below.digest) if below is not None else None
        await writer._move(stands_on, snapshot)
        return writer

    async def __aenter__(self) -> "ChainWriter":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def chain(self) -> str:
        return self._chain

    @property
    def segment(self) -> str:
        """The name of the segment appended to now."""
        return segment_name(self._chain, self._claim.epoch, self._base)

    @property
    def end(self) -> Position:
        """The position just past the last record appended."""
        return Position(self._claim.epoch, self._base + self._current.size, self._current.digest)

    @property
    def synced(self) -> int:
        """The logical offset up to which this chain is synced on the quorum."""
        return self._base + self._current.synced

    @property
    def floor(self) -> Floor:
        """The lowest segment that a replay to `end` reads, (epoch, base). A new snapshot counts once its end
        is synced on the quorum: before that what it replaces is needed (R14).
        """
        assert self._floor is not None, "a writer that is open has a segment"
        if self._replaces is not None and self.synced >= self._snapshot_size:
            self._floor, self._replaces = self._replaces, None
        return self._floor

    @property
    def segments(self) -> int:
        """How many segments a replay to `end` reads."""
        return self._segments

    @property
    def bytes_since_snapshot(self) -> int:
        """What a replay to `end` reads behind the newest snapshot (or the chain's beginning)."""
        return self._base + self._current.size - self._snapshot_size

    def append(self, record: Record) -> Position:
        """Append a record; the position just past it. Buffers and returns at once: see `wait_synced`,
        `wait_room`.

        Raises LocalProtocolError (a record that cannot be; not pipelined and the last record is not synced
        yet), ClosedError, FencedError. Nothing was appended then.
        """
        if self._state is not WriterState.OPEN:
            self._refuse()
        if not self._pipelined and self._current.synced < self._current.size:
            if self._claim.lost is not None:
                raise self._claim.lost
            raise LocalProtocolError(
                f"chain {self._chain} is not pipelined: byte {self.synced} of {self.end.size} is synced",
                remedy="wait_synced before each append",
            )
        if record.op is Op.SEGMENT_START or record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
            raise LocalProtocolError(f"{record.op.name} is the writer's own: see open and roll")
        return self._put(record)

    async def wait_synced(self, position: Position | None = None) -> None:
        """Until everything up to a position of this writer (None: `end`) is synced on the quorum.

        Raises FencedError if the claim is lost before, LocalProtocolError for a position not reached yet.
        """
        size = self.end.size if position is None else position.size
        if size > self.end.size:
            raise LocalProtocolError(f"chain {self._chain} ends at {self.end}, not yet at {position}")
        if size > self._base:
            await self._current.wait_synced(size - self._base)

    async def wait_room(self) -> None:
        """Until few enough bytes are unsynced to append more (back-pressure). Raises FencedError."""
        await self._current.wait_room()

    async def roll(self, snapshot: Iterable[Record] | None = None) -> None:
        """Go on in a new segment of the same epoch, which begins with `snapshot` if one is given.

        First all that was appended is synced on the quorum (R7), then the new start (R8); the snapshot's
        records are appended, not waited for. Nothing else may be appended meanwhile. Raises as `open`;
        failed or cancelled, the writer is closed.
        """
        if self._state is not WriterState.OPEN:
            self._refuse()
        self._state = WriterState.MOVING
        await self._guarded_move(snapshot)

    async def release(self, floor: Floor) -> None:
        """Let go of all segments of this chain below that one, (epoch, base), for ever, in two phases: the
        start of a new segment says so, and is synced on the quorum; only then they are deleted, in the
        background, on all members (R14). Segments that begin later say it again, so that a deletion that a
        crash cut short is taken up by `collect_released` of the next writer.

        The caller answers for it: a finished snapshot begins the segment `floor`, its end is committed, and
        the chain's present line of history leads to it. Raises as `roll`; LocalProtocolError for a floor
        above this segment. What was released stays so.
        """
        if floor > (self._claim.epoch, self._base):
            raise LocalProtocolError(f"chain {self._chain} is written at {self._base}: {floor} is above")
        before, self._released = self._released, max(self._released, floor)
        if self._released != before:
            await self.roll()
        self.collect_released()

    def collect_released(self) -> None:
        """Delete, in the background, what an acknowledged start of this chain says is released. Raises
        FencedError."""
        if self._released != NO_FLOOR:
            self._claim.collect(below({self._chain: self._released}))

    async def aclose(self) -> None:
        """Stop appending. What was appended goes on being synced by the claim; closing does not wait for
        it.
        """
        self._state = WriterState.CLOSED
        if self._object is not None:
            self._object.seal()
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None

    @property
    def _current(self) -> ObjectWriterPort:
        if self._object is None:
            raise ClosedError(f"chain {self._chain} has no open segment")
        return self._object

    def _refuse(self) -> None:
        if self._state is WriterState.MOVING:
            raise LocalProtocolError(
                f"chain {self._chain} is opening a segment: wait for open or roll to return"
            )
        raise ClosedError(f"the writer of chain {self._chain} is closed", remedy="take the chain over again")

    async def _guarded_move(self, snapshot: Iterable[Record] | None) -> None:
        try:
            end = self.end
            await self.wait_synced(end)
            below = Predecessor(self.segment, self._current.size, self._current.digest)
        except BaseException:
            await self.aclose()
            raise
        self._base = end.size
        await self._move(below, snapshot)

    async def _move(self, below: Predecessor | None, snapshot: Iterable[Record] | None) -> None:
        """Open a segment behind `below`, which is synced on the quorum; write the snapshot; be OPEN."""
        try:
            await self._open_segment(below)
            if snapshot is not None:
                await self._write_snapshot(snapshot)
        except BaseException:
            await self.aclose()
            raise
        self._state = WriterState.OPEN

    async def _open_segment(self, below: Predecessor | None) -> None:
        if below is not None:
            parsed = parse_segment_name(below.name)
            assert parsed is not None, "the predecessor is a segment"
            self._base = parsed.base + below.length
        self._generation = max(self._generation, self._claim.store.record.generation)
        start = SegmentStart(
            chain=self._chain,
            epoch=self._claim.epoch,
            base=self._base,
            predecessor=below,
            generation=self._generation,
            writer=self._claim.writer_id.hex(),
            pipelined=self._pipelined,
            released=msgspec.UNSET if self._released == NO_FLOOR else self._released,
        )
        if self._object is not None:
            self._object.seal()
        if self._mirror is not None:
            self._mirror.close()
        self._mirror = self._scratch.mirror(start.name) if self._scratch is not None else None
        local = None if self._scratch is None else self._scratch.copy(start.name)
        self._object = self._claim.open_object(start.name, local)
        self._segments += 1
        self._put(start_record(start))
        if self._floor is None:
            self._floor = self._claim.epoch, self._base
        await self._object.wait_synced(self._object.size)

    async def _write_snapshot(self, snapshot: Iterable[Record]) -> None:
        await self._put_in_snapshot(Record(Op.SNAPSHOT_BEGIN))
        count = 0
        for record in snapshot:
            await self._put_in_snapshot(record)
            count += 1
        await self._put_in_snapshot(Record(Op.SNAPSHOT_END, ints=(count,)))
        self._snapshot_size = self.end.size
        self._segments = 1
        self._replaces = self._claim.epoch, self._base

    async def _put_in_snapshot(self, record: Record) -> None:
        self._put(record)
        if self._pipelined:
            await self._current.wait_room()
        else:
            await self._current.wait_synced(self._current.size)

    def _put(self, record: Record) -> Position:
        data = encode_v1(record)
        current = self._current
        if len(data) <= append_bytes_max:
            current.append(data)
        else:
            for offset in range(0, len(data), append_bytes_max):
                current.append(data[offset : offset + append_bytes_max])
        if self._mirror is not None:
            self._mirror.write(data)
        return Position(self._claim.epoch, self._base + current.size, current.digest)


def _check_opening(claim: ClaimPort, chain: str, predecessor: ChainState) -> None:
    """Raise LocalProtocolError unless this claim may open the chain behind `predecessor`."""
    if predecessor.chain != chain:
        raise LocalProtocolError(f"chain {chain} cannot stand on chain {predecessor.chain}")
    if predecessor.end not in (None, ORIGIN) and (
        not predecessor.segments or predecessor.segments[-1].end != predecessor.end
    ):
        raise LocalProtocolError(f"chain {chain} does not end where its last segment does: {predecessor.end}")
    held = [
        parsed.epoch
        for objects in claim.answers.values()
        for name in objects
        if (parsed := parse_segment_name(name)) is not None and parsed.chain == chain
    ]
    if predecessor.end is not None:
        held.append(predecessor.end.epoch)
    if held and max(held) >= claim.epoch:
        raise LocalProtocolError(
            f"chain {chain} has a segment of epoch {max(held)}, the claim has {claim.epoch}",
            remedy="claim the directory with an epoch above all seen",
        )
    chains = _opened.setdefault(claim, set())
    if chain in chains:
        raise LocalProtocolError(
            f"chain {chain} was opened under this claim already: an epoch is one line of history",
            remedy="claim the directory again with a higher epoch, then take over",
        )
    chains.add(chain)
