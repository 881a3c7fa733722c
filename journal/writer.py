"""Write a chain: open segments, append records, roll to a new segment. Nothing else appends to a journal.

A writer continues a chain that was taken over under the same claim. Readers rely on its order (R7 to R9):
bytes that follow a record prove that the record is committed (R10).

    state   meaning
    OPEN    `append` and `roll` are allowed
    MOVING  a segment is being opened or a snapshot written; nothing else may be appended
    CLOSED  closed, or an opening failed or was cancelled; take the chain over again to continue
"""

import weakref
from collections.abc import Iterable
from enum import Enum, auto
from types import TracebackType

import msgspec

from dos_protocol.errors import ClosedError, LocalProtocolError
from journal.chain import take_over
from journal.core.chain import (
    NO_FLOOR,
    ORIGIN,
    ChainState,
    Floor,
    Position,
    Predecessor,
    SegmentStart,
    below,
    check_chain_name,
    parse_segment_name,
    segment_name,
    start_record,
)
from journal.core.record import Op, Record, encode_v1
from journal.limits import append_bytes_max
from journal.ports import ClaimPort, ObjectWriterPort
from journal.scratch import CacheWriter, Scratch


class WriterState(Enum):
    """The table at the top of this module."""

    OPEN = auto()
    MOVING = auto()
    CLOSED = auto()


_opened: "weakref.WeakKeyDictionary[ClaimPort, set[str]]" = weakref.WeakKeyDictionary()
"""The chains that were opened under each claim: once, because one epoch must be one line of history."""


class ChainWriter:
    """The writer of one chain under one claim. Create it with `open`. Not for several tasks at once.

    Invariants: `synced <= end.size`; every returned position stays readable unless the claim is lost before
    the position is synced.
    """

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
        self._released = self._releases = NO_FLOOR
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
        """Open a new segment after `predecessor`, and return when its start is synced on the quorum.

        predecessor: the result of `take_over` under this claim; None: the journal must not exist yet (R16).
        generation: that of the store record in use. snapshot: records that contain the whole state; not
        waited for. pipelined: whether a record may be appended before the earlier ones are synced. False for
        a manifest.

        Raises LocalProtocolError if this claim may not open the chain, FencedError. After a failure or a
        cancellation the segment may exist or not: take over again with a higher epoch.
        """
        check_chain_name(chain)
        if predecessor is None:
            predecessor = await take_over(claim, chain, generation=generation, scratch=scratch)
            if predecessor.end is not None:
                raise LocalProtocolError(
                    f"chain {chain} exists already and ends at {predecessor.end}",
                    remedy="pass the result of take_over as the predecessor",
                )
        _check_opening(claim, chain, predecessor)
        writer = cls(claim, chain, generation, scratch, pipelined)
        writer._snapshot_size = predecessor.snapshot_size
        writer._segments = len(predecessor.segments)
        writer._released = writer._releases = predecessor.released
        for span in predecessor.segments[:1]:
            writer._floor = span.segment.order
        if scratch is not None:
            scratch.keep_only(chain, {span.name for span in predecessor.segments})
        below = predecessor.segments[-1] if predecessor.segments else None
        back_pointer = Predecessor(below.name, below.length, below.digest) if below is not None else None
        await writer._move(back_pointer, snapshot)
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
        return segment_name(self._chain, self._claim.epoch, self._base)

    @property
    def end(self) -> Position:
        """The position just past the last appended record."""
        return Position(self._claim.epoch, self._base + self._current.size, self._current.digest)

    @property
    def synced(self) -> int:
        """The logical offset up to which the chain is synced on the quorum."""
        return self._base + self._current.synced

    @property
    def floor(self) -> Floor:
        """The (epoch, base) of the lowest segment that a replay to `end` reads."""
        assert self._floor is not None, "a writer that is open has a segment"
        # R14: until the end of a new snapshot is synced on the quorum, a crash leaves a chain whose replay
        # needs the segments that the snapshot replaces.
        if self._replaces is not None and self.synced >= self._snapshot_size:
            self._floor, self._replaces = self._replaces, None
        return self._floor

    @property
    def released(self) -> Floor:
        """The floor that an acknowledged start has released."""
        return self._released

    @property
    def segments(self) -> int:
        """How many segments a replay to `end` reads."""
        return self._segments

    @property
    def bytes_since_snapshot(self) -> int:
        """Bytes that a replay to `end` reads after the newest snapshot, or after the chain's beginning."""
        return self._base + self._current.size - self._snapshot_size

    def append(self, record: Record) -> Position:
        """Append a record to the buffer and return the position just past it. `wait_synced` makes it durable.

        Raises LocalProtocolError, ClosedError, FencedError; nothing was appended then.
        """
        if self._state is not WriterState.OPEN:
            self._refuse()
        # R9: readers of a manifest take what precedes a record for committed; 1 may have both, 2 and 3
        # neither.
        if not self._pipelined and self._current.synced < self._current.size:
            if self._claim.lost is not None:
                raise self._claim.lost
            raise LocalProtocolError(
                f"chain {self._chain} is not pipelined; {self.synced} of {self.end.size} bytes are synced",
                remedy="call wait_synced before each append",
            )
        if record.op is Op.SEGMENT_START or record.op in (Op.SNAPSHOT_BEGIN, Op.SNAPSHOT_END):
            raise LocalProtocolError(
                f"a {record.op.name} record is appended by the writer only", remedy="use open or roll"
            )
        return self._put(record)

    async def wait_synced(self, position: Position | None = None) -> None:
        """Wait until all up to `position` (None: `end`) is synced on the quorum. Raises FencedError."""
        size = self.end.size if position is None else position.size
        if size > self.end.size:
            raise LocalProtocolError(f"{position} is beyond the end of chain {self._chain}, {self.end}")
        if size > self._base:
            await self._current.wait_synced(size - self._base)

    async def wait_room(self) -> None:
        """Wait until few enough bytes are unsynced to append more. Raises FencedError."""
        await self._current.wait_room()

    async def roll(self, snapshot: Iterable[Record] | None = None) -> None:
        """Continue in a new segment of the same epoch, which begins with `snapshot` if one is passed, and is
        not waited for. Nothing else may be appended meanwhile. Raises the errors of `open`; after a failure
        or a cancellation the writer is closed.
        """
        if self._state is not WriterState.OPEN:
            self._refuse()
        self._state = WriterState.MOVING
        await self._guarded_move(snapshot)

    async def release(self, floor: Floor, *, collect: bool = True) -> None:
        """Release all segments of this chain below `floor`, an (epoch, base), for good; `collect`: delete
        them then, in the background, on all members. Every later segment repeats the floor, so the next
        writer completes the deletion.

        The caller guarantees that nothing needs the segments below, that `floor` is on the current line of
        history, and that its snapshot, if any, is whole. Raises the errors of `roll`, and LocalProtocolError
        if `floor` is above the current segment: only what is unfinished could justify it.
        """
        if self._state is not WriterState.OPEN:
            self._refuse()  # the segment that is being opened, or its snapshot, may never be finished
        if floor > (self._claim.epoch, self._base):
            raise LocalProtocolError(
                f"cannot release chain {self._chain} below {floor}: the current segment is"
                f" {(self._claim.epoch, self._base)}"
            )
        if floor > self._released:
            # Two phases: members that deleted before the quorum has the floor would leave a chain that names
            # bytes which nobody has, without a record that says that they were released.
            self._releases = floor
            await self.roll()  # R14: the floor is on the quorum before anything is deleted
        if collect:
            self.collect_released()

    def collect_released(self) -> None:
        """Delete in the background what an acknowledged start has released. Raises FencedError."""
        if self._released != NO_FLOOR:
            self._claim.collect(below({self._chain: self._released}))

    async def aclose(self) -> None:
        """Stop appending. The claim continues to sync the appended records."""
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
                f"chain {self._chain} is opening a segment", remedy="wait until open or roll returns"
            )
        raise ClosedError(f"the writer of chain {self._chain} is closed", remedy="take the chain over again")

    async def _guarded_move(self, snapshot: Iterable[Record] | None) -> None:
        try:
            end = self.end
            await self.wait_synced(end)  # R7: the start of the next segment commits all below it
            below = Predecessor(self.segment, self._current.size, self._current.digest)
        except BaseException:
            await self.aclose()
            raise
        self._base = end.size
        await self._move(below, snapshot)

    async def _move(self, below: Predecessor | None, snapshot: Iterable[Record] | None) -> None:
        """Open a segment after `below`, which is synced on the quorum. Write the snapshot."""
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
            released=msgspec.UNSET if self._releases == NO_FLOOR else self._releases,
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
        await self._object.wait_synced(self._object.size)  # R8: only then may anything follow the start
        self._released = self._releases

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
    if predecessor.chain != chain:
        raise LocalProtocolError(f"the predecessor is of chain {predecessor.chain}, not of chain {chain}")
    if predecessor.end not in (None, ORIGIN) and (
        not predecessor.segments or predecessor.segments[-1].end != predecessor.end
    ):
        raise LocalProtocolError(
            f"the end of chain {chain}, {predecessor.end}, is not the end of its last segment"
        )
    held = [
        parsed.epoch
        for objects in claim.answers.values()
        for name in objects
        if (parsed := parse_segment_name(name)) is not None and parsed.chain == chain
    ]
    if predecessor.end is not None:
        held.append(predecessor.end.epoch)
    # One epoch is one line of history: two writers of one epoch would open one segment with different bytes.
    if held and max(held) >= claim.epoch:
        raise LocalProtocolError(
            f"chain {chain} has a segment of epoch {max(held)}; the epoch of the claim, {claim.epoch}, is not"
            " above it",
            remedy="claim the directory with an epoch above all existing ones",
        )
    chains = _opened.setdefault(claim, set())
    if chain in chains:
        raise LocalProtocolError(
            f"chain {chain} was already opened under this claim; an epoch is one line of history",
            remedy="claim the directory again with a higher epoch, then take over",
        )
    chains.add(chain)
