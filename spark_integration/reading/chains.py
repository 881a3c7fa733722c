"""What outputs of regions and input handles share: each split is a chain.

The driver scans a chain once, to find where pieces end; each further inspection of a known chain costs one
request to the members. The ranges for tasks are planned from a point by the back pointers, without reading
records. `outputs` and `inputs` decide which records are pieces.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa

from dos_client import Store
from journal import (
    ChainFollower,
    ChainState,
    LostBytesError,
    Position,
    Record,
    SegmentSpan,
    TrimmedBytesError,
    inspect_chain,
    inspect_chain_at,
    report_unproved,
    segments_seen,
)
from spark_integration.core.admission import StreamPiece
from spark_integration.core.offsets import BEGINNING, SplitPoint, Vector
from spark_integration.core.recent_bytes import RecentBytes
from spark_integration.errors import DataLossError
from spark_integration.limits import HANDED_BYTES_KEPT, HANDED_BYTES_MAX
from spark_integration.reading.origin import Scan
from spark_integration.reading.ranges import ByteRange, base_of, end_of, epoch_of, follows, ranges_of, resumed

logger = logging.getLogger("dos.spark_integration")


class PieceReader(ABC):
    """Finds records of a chain that end a piece. `rows`, `bytes`, `order`, `time_ms`: of the last one."""

    rows = 0
    bytes = 0
    order = 0
    time_ms = 0

    @abstractmethod
    def take(self, begin: int, end: int, record: Record) -> bool:
        """Process the next record of the chain; return whether a piece ends with it."""


class ChainScan(Scan):
    """A scan of one chain from a point on. `at`: just after the last piece."""

    def __init__(self, origin: "ChainOrigin", split: str, start: SplitPoint) -> None:
        self.at = start
        self._origin = origin
        self._split = split
        self._pieces = origin.piece_reader(split, start)
        self._follower = origin.follower(split, start.size)
        self._poll: AsyncGenerator[tuple[int, Record]] | None = None

    async def next(self) -> StreamPiece | None:
        begin = self._follower.at
        if self._poll is None:
            visible_end = await self._origin.visible_end(self._split)
            if visible_end is None:
                return None
            self._poll = self._origin.records(self._split, self._follower, visible_end)
        async for end, record in self._poll:
            if self._pieces.take(begin, end, record):
                segment = self._follower.segment
                assert segment is not None, "a record was given"
                pieces = self._pieces
                self.at = self._origin.point(epoch_of(segment), end, pieces.order)
                self._origin.ends[self._split] = self.at, segment
                return StreamPiece(self.at, pieces.rows, pieces.bytes, pieces.order, pieces.time_ms)
            begin = end
        if begin != self._follower.at:  # it was stopped before a record that does not belong to the line
            self._follower = self._origin.follower(self._split, begin)
        self._poll = None
        return None

    async def aclose(self) -> None:
        if self._poll is not None:
            await self._poll.aclose()
            self._poll = None


ALL = Position(0, -1, 0)
"""Used as the visible end of a chain: everything that a quorum holds."""


class ChainOrigin(ABC):
    """A source whose splits are chains; the methods are those of `Origin`."""

    chain: str

    def __init__(self, store: Store, *, fail_on_loss: bool = True) -> None:
        self.store = store
        self._fail_on_loss = fail_on_loss
        self._tails: dict[str, ChainScan] = {}
        self.ends: dict[str, tuple[SplitPoint, str]] = {}
        """The end of the last piece scanned of each split, and the segment that holds it."""
        self.recent: dict[str, RecentBytes] = {}
        """The bytes that the scan of each split read last."""

    @abstractmethod
    def directory(self, split: str) -> str:
        """Return the directory of a split's chain."""

    @abstractmethod
    def piece_reader(self, split: str, start: SplitPoint) -> PieceReader:
        """Return a new piece reader that begins at a point."""

    async def line(self, *, fresh: bool = False) -> int:
        """As `Origin.line`: a chain of other data has one line."""
        del fresh
        return 0

    async def continued(self, points: Vector, line: int | None = None) -> tuple[dict[str, SplitPoint], str]:
        """As `Origin.continued`."""
        del line
        return dict(points), ""

    async def planned(self, start: Vector, end: Vector) -> dict[str, SplitPoint]:
        """As `Origin.planned`."""
        del end
        return dict(start)

    async def forget(self) -> None:
        """Forget what scans have found."""
        for tail in self._tails.values():
            await tail.aclose()
        self._tails.clear()
        self.ends.clear()
        self.recent.clear()

    def point(self, epoch: int, size: int, order: int) -> SplitPoint:
        """Return the point after a piece."""
        del order
        return SplitPoint(epoch, size)

    def follower(self, split: str, at: int) -> ChainFollower:
        """Return a follower of a chain whose bytes are kept in `recent`."""
        recent = self.recent[split] = RecentBytes(HANDED_BYTES_KEPT)
        return ChainFollower(self.store, self.directory(split), self.chain, at=at, tap=recent.add)

    async def records(
        self, split: str, follower: ChainFollower, visible_end: Position
    ) -> AsyncGenerator[tuple[int, Record]]:
        """Yield the visible records after those that the follower has returned, each with its end."""
        all_of_it = visible_end is ALL
        proved = await self.proved(split) if all_of_it else None
        async with aclosing(follower.poll(None if all_of_it else visible_end, proved=proved)) as records:
            async for found in records:
                yield found

    @abstractmethod
    async def visible_end(self, split: str) -> Position | None:
        """Return how far the chain is visible: up to a position in a checkpoint, ALL, or None (nothing)."""

    async def proved(self, split: str) -> Position | None:
        """Return a position of the chain in a committed checkpoint; None if no checkpoint has the chain.

        It is for chains that are visible as far as a quorum holds them: up to there the chain is committed
        even while the members cannot prove it (see `inspect_chain`).
        """
        del split
        return None

    async def retained_from(self, split: str) -> int:
        """Return the offset below which a checkpoint has released a chain; 0 if none has."""
        del split
        return 0

    @abstractmethod
    def data_of(self, record: Record) -> bytes:
        """Return the Arrow stream in a record; b"" if it has none."""

    @abstractmethod
    def extra(self) -> pa.Schema:
        """Return the origin columns, see `Origin`."""

    async def all_ranges(self, split: str) -> list[ByteRange]:
        visible_end = await self.visible_end(split)
        chain = await self._inspect(split, visible_end)
        report_unproved(self.directory(split), chain)
        ranges = ranges_of(self.directory(split), chain.segments, BEGINNING)
        return [*ranges[:-1], *(one._replace(at_head=visible_end is ALL) for one in ranges[-1:])]

    async def begin(self, split: str) -> SplitPoint:
        spans = (await self._visible_chain(split)).segments
        if not spans or not spans[0].base:
            return BEGINNING
        return SplitPoint(epoch_of(spans[0].name), spans[0].base)

    async def end(self, split: str) -> SplitPoint:
        visible_end = await self.visible_end(split)
        if visible_end is None:
            return BEGINNING
        if visible_end is not ALL:
            return SplitPoint(visible_end.epoch, visible_end.size)
        tail = self._tails.get(split)
        if tail is None:
            tail = self._tails[split] = ChainScan(self, split, await self.tail_begin(split))
        while await tail.next() is not None:
            pass
        return tail.at

    async def tail_begin(self, split: str) -> SplitPoint:
        """Return a point between two pieces from which the end of a chain is soon found."""
        return _head_begin((await self._visible_chain(split)).segments)

    async def data_end(self, split: str) -> SplitPoint:
        visible_end = await self.visible_end(split)
        if visible_end is None:
            return BEGINNING
        if visible_end is not ALL:
            return SplitPoint(visible_end.epoch, visible_end.size)
        view = await self.store.inspect(self.directory(split))
        ends = [
            SplitPoint(segment.name.epoch, segment.name.base + segment.longest)
            for segment in segments_seen(self.chain, view.answers)
        ]
        return max(ends, default=BEGINNING)

    async def ranges(self, split: str, start: SplitPoint, end: SplitPoint) -> list[ByteRange]:
        if end.place == start.place or end.size == 0:
            return []
        if (known := self._known_range(split, start, end)) is not None:
            return [known]
        try:
            state = await self._chain_between(split, start, Position(end.epoch, end.size, 0))
        except LostBytesError as error:
            self._report_loss(split, f"the data up to {end.size} is gone: {error}")
            return []
        return ranges_of(self.directory(split), state.segments, self._joined(split, state.segments, start))

    def _known_range(self, split: str, start: SplitPoint, end: SplitPoint) -> ByteRange | None:
        """Return the range without a request, if a scan has just shown that it lies in one segment."""
        if split not in self.ends or start.epoch != end.epoch:
            return None  # another writer's bytes: only the chain knows if they are on this line
        scanned, segment = self.ends[split]
        base = base_of(segment)
        if start.size < base or end.epoch != scanned.epoch or end.size > scanned.size:
            return None
        begin, last = start.size - base, end.size - base
        few = last - begin <= HANDED_BYTES_MAX
        data = self.recent[split].get(segment, begin, last) if few else None
        return ByteRange(self.directory(split), segment, begin, last, base, data=data)

    async def scan(self, split: str, start: SplitPoint) -> ChainScan:
        state = await self._visible_chain(split)
        if not follows(state.segments, start):  # the start may be the end, which must then be known exactly
            state = await self._inspect(split, await self.visible_end(split), measured=True)
        if (
            state.unproved
            and not follows(state.segments, start)
            and end_of(state.segments).epoch <= start.epoch
        ):
            state = await self._read_before(split, start)
        return ChainScan(self, split, self._joined(split, state.segments, start))

    async def first_rows(self, split: str) -> AsyncGenerator[bytes]:
        while True:
            try:
                async with aclosing(self._first_rows_of_retained(split)) as rows:
                    async for data in rows:
                        yield data
                return
            except TrimmedBytesError:  # trimmed after the chain was inspected: inspect it again
                continue

    async def _first_rows_of_retained(self, split: str) -> AsyncGenerator[bytes]:
        state = await self._visible_chain(split)
        for span in state.segments[:1]:
            follower = ChainFollower(self.store, self.directory(split), self.chain, at=span.base)
            upto = await self.visible_end(split)
            polled = follower.poll(proved=await self.proved(split)) if upto is ALL else follower.poll(upto)
            async with aclosing(polled) as records:
                async for _, record in records:
                    if data := self.data_of(record):
                        yield data
                        return

    async def _visible_chain(self, split: str) -> ChainState:
        """Return the chain as it is visible now. Its end may lie within a record, see `inspect_chain`."""
        return await self._inspect(split, await self.visible_end(split))

    async def _inspect(
        self, split: str, visible_end: Position | None, *, measured: bool = False
    ) -> ChainState:
        directory = self.directory(split)
        if visible_end is None:
            return ChainState(self.chain)
        floor = await self.retained_from(split)
        if visible_end is ALL:
            return await inspect_chain(
                self.store,
                directory,
                self.chain,
                measured=measured,
                proved=await self.proved(split),
                floor=floor or None,
            )
        return await inspect_chain_at(self.store, directory, self.chain, visible_end, floor=floor)

    async def _read_before(self, split: str, start: SplitPoint) -> ChainState:
        """Return the chain up to a point that was read, and therefore committed, before.

        A take-over that did not complete prevents the members from proving it again. Nothing is lost then,
        and there is nothing new (decision 0216).
        """
        return await self._chain_between(split, start, Position(start.epoch, start.size, 0))

    async def _chain_between(self, split: str, start: SplitPoint, at: Position) -> ChainState:
        """Return the chain up to a committed position, from the segment of the last byte read on.

        That segment may be trimmed, if the next one begins at `start`: nothing unread is missing then.
        """
        directory = self.directory(split)
        try:
            return await inspect_chain_at(self.store, directory, self.chain, at, floor=max(start.size - 1, 0))
        except LostBytesError:
            state = await inspect_chain_at(self.store, directory, self.chain, at, floor=start.size)
            if not state.segments or state.segments[0].base != start.size:
                raise
            return state

    def _joined(self, split: str, spans: tuple[SegmentSpan, ...], start: SplitPoint) -> SplitPoint:
        """Return the point at which reading continues after `start` on these spans."""
        if follows(spans, start):
            return start
        if spans and spans[0].base > start.size:
            self._report_loss(split, f"the data between {start.size} and {spans[0].base} was trimmed")
        else:
            self._report_loss(
                split,
                f"data that was read up to {start.size} was rolled back (its writer had epoch"
                f" {start.epoch}; the chain now ends at {end_of(spans).size})",
            )
        return resumed(spans, start)._replace(line=start.line)

    def _report_loss(self, split: str, what: str) -> None:
        text = f"{split} of {self.directory(split)}, chain {self.chain}: {what}"
        if self._fail_on_loss:
            raise DataLossError(text)
        logger.warning("%s; continuing because of failOnDataLoss=false", text)


def _head_begin(spans: tuple[SegmentSpan, ...]) -> SplitPoint:
    """Return the beginning of the newest segment: no piece crosses it."""
    if len(spans) > 1:
        return end_of(spans[:-1])
    return SplitPoint(epoch_of(spans[0].name), spans[0].base) if spans and spans[0].base else BEGINNING
