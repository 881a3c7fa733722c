"""Outputs of regions and input handles as sources: each split is a chain.

The driver scans a chain once, to find where pieces end; each further inspection of a known chain costs one
request to the members. The ranges for tasks are planned from a point by the back pointers, without reading
records. The two origins decide which records are pieces, and what is visible.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa

from checkpoint import (
    INPUT_CHAIN,
    Checkpoint,
    InputSequence,
    Publish,
    decode_output,
    decode_part,
    output_chain,
    producer_directory,
    taken_back,
    worker_directory,
)
from checkpoint.chains.input_log import InputHandle
from checkpoint.chains.manifest_log import read_manifest, regions_of
from checkpoint.chains.output_reading import PublishedOutput, split_of
from checkpoint.chains.visible_log import covered_in
from checkpoint.errors import NoRegionError, OutputRewoundError
from dos_client import Store
from journal import (
    ChainFollower,
    ChainState,
    LostBytesError,
    Op,
    Position,
    Record,
    SegmentSpan,
    TrimmedBytesError,
    inspect_chain,
    inspect_chain_at,
    report_unproved,
    segments_seen,
)
from spark_integration.core.offsets import BEGINNING, SplitPoint, StreamPiece, Vector, points_on_line
from spark_integration.core.options import ReadGuarantee, RewindPolicy, SourceOptions
from spark_integration.errors import MalformedOffsetError, NothingThereError, nearest
from spark_integration.limits import HANDED_BYTES_KEPT, HANDED_BYTES_MAX
from spark_integration.reading.origin import (
    ByteRange,
    Origin,
    Scan,
    base_of,
    end_of,
    epoch_of,
    follows,
    ranges_of,
    resumed,
)


class RecentBytes:
    """At least the last `keep_bytes` that a scan read of the newest object, if it has that many.

    A task of a small micro-batch gets them with its partition, and need not read them from the store.
    """

    def __init__(self, keep_bytes: int) -> None:
        self._keep = keep_bytes
        self._object = ""
        self._begin = 0
        self._data = bytearray()

    def add(self, name: str, offset: int, data: bytes) -> None:
        """Add bytes that were read. Forgets earlier bytes that these do not continue."""
        if name != self._object or offset != self._begin + len(self._data):
            self._object, self._begin, self._data = name, offset, bytearray()
        elif len(self._data) >= self._keep:
            self._forget(len(self._data) - self._keep)
        self._data += data

    def get(self, name: str, begin: int, end: int) -> bytes | None:
        """Return the bytes from `begin` to `end` of an object; None if they are not all kept."""
        first, last = begin - self._begin, end - self._begin
        if name != self._object or first < 0 or last > len(self._data):
            return None
        return bytes(self._data[first:last])

    def _forget(self, size: int) -> None:
        del self._data[:size]
        self._begin += size


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


class ChainOrigin(Origin):
    """A source whose splits are chains."""

    chain: str

    def __init__(self, store: Store, options: SourceOptions) -> None:
        super().__init__(store, options)
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

    async def forget(self) -> None:
        """Forget what scans have found."""
        for tail in self._tails.values():
            await tail.aclose()
        self._tails.clear()
        self.ends.clear()
        self.recent.clear()

    def point(self, epoch: int, size: int, order: int) -> SplitPoint:
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
        """Return a position of the chain in a committed checkpoint; None if no checkpoint has the chain."""
        # Up to there a chain that is visible as far as a quorum holds it is committed, even while the members
        # cannot prove it (see `inspect_chain`).
        del split
        return None

    async def retained_from(self, split: str) -> int:
        """Return the offset below which a checkpoint has released a chain; 0 if none has."""
        del split
        return 0

    @abstractmethod
    def data_of(self, record: Record) -> bytes:
        """Return the Arrow stream in a record; b"" if it has none."""

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
            # A take-over that did not complete keeps the members from proving again what was read, and so was
            # committed, before. Nothing is lost then, and there is nothing new (decision 0216).
            state = await self._chain_between(split, start, Position(start.epoch, start.size, 0))
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

    async def _chain_between(self, split: str, start: SplitPoint, at: Position) -> ChainState:
        """Return the chain up to a committed position, from the segment of the last byte read on."""
        directory = self.directory(split)
        try:
            return await inspect_chain_at(self.store, directory, self.chain, at, floor=max(start.size - 1, 0))
        except LostBytesError:  # the segment is trimmed: if the next one begins at `start`, nothing unread is
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
        self.lost(f"{split} of {self.directory(split)}, chain {self.chain}: {what}")


def _head_begin(spans: tuple[SegmentSpan, ...]) -> SplitPoint:
    """Return the beginning of the newest segment: no piece crosses it."""
    if len(spans) > 1:
        return end_of(spans[:-1])
    return SplitPoint(epoch_of(spans[0].name), spans[0].base) if spans and spans[0].base else BEGINNING


OUTPUT_EXTRA = pa.schema(
    [("_split", pa.string()), ("_step", pa.int64()), ("_written", pa.timestamp("us", "UTC"))]
)


class OutputOrigin(ChainOrigin):
    """The output of one sink of a region: a split is a worker's log, a piece the output of one step.

    With publish="step", or read="synced", what a quorum holds is visible; a reset may roll the latter back.
    Otherwise what the last committed checkpoint covers is.
    """

    steps = times = True
    extra = OUTPUT_EXTRA
    what = "output"

    def __init__(self, store: Store, options: SourceOptions) -> None:
        super().__init__(store, options)
        assert options.output is not None, "the options guarantee it"
        self._region, self._sink = options.directory, options.output
        self._read = options.read
        self.chain = output_chain(self._sink)
        self._output = PublishedOutput(store, self._region, self._sink)
        self._published: dict[str, Publish] = {}
        self._known = False
        self._ended = False
        self._follows = options.on_rewind is RewindPolicy.FOLLOW
        self._line = 0
        """The line of history that `line` returned last: what is read is of this one."""

    async def find(self) -> None:
        """Find under which name the log is stored. Call it first. Raises what reading the manifest raises."""
        await self._output.last_checkpoint()
        self.chain = output_chain(self._output.uid)

    def directory(self, split: str) -> str:
        return worker_directory(self._region, int(split[1:]))

    def piece_reader(self, split: str, start: SplitPoint) -> PieceReader:
        del start
        return _StepReader(self.directory(split))

    # --- lines of history -----------------------------------------------------------------------------------

    async def line(self, *, fresh: bool = False) -> int:
        if fresh:
            try:
                last = (await read_manifest(self.store, self._region)).last
            except NoRegionError:
                last = None
            return 0 if last is None else last.line
        checkpoint = await self._output.last_checkpoint()
        line = 0 if checkpoint is None else checkpoint.line
        if line != self._line:
            await self.forget()
            self._line = line
        return line

    async def continued(self, points: Vector, line: int | None = None) -> tuple[dict[str, SplitPoint], str]:
        present = points_on_line(await self._output.last_checkpoint(), self._output.uid, points, line)
        warning = ""
        if (rewind := present.rewind) is not None:
            first, read = rewind.step + 1, max(present.read, rewind.step + 1)
            error = OutputRewoundError(
                self._region,
                self._sink,
                line=rewind.line,
                checkpoint=rewind.to,
                step=first,
                read=read,
                remedy=f"discard the rows of the steps from {first} on where the query has written them, and"
                ' start it with the option onRewind="follow"; or discard those after step'
                f" {present.complete}, and start a new query with another checkpointLocation and"
                f" startingOffset step:{present.complete}",
            )
            if not self._follows or not rewind.to:
                raise error
            warning = (
                f"{error.args[0]}; {present.steps_text} that this query had read were taken back; it"
                f" continues after step {rewind.step} (onRewind=follow)"
            )
        found = present.points
        for split in present.moved:
            found[split] = await self._with_epoch(split, found[split], await self.proved(split))
        return found, warning

    async def planned(self, start: Vector, end: Vector) -> dict[str, SplitPoint]:
        checkpoint, found = await self._output.last_checkpoint(), dict(start)
        for split, to in end.items():
            if split in start:
                here = points_on_line(checkpoint, self._output.uid, {split: start[split]}, to.line)
                at, upto = here.points[split], Position(to.epoch, to.size, 0)
                found[split] = await self._with_epoch(split, at, upto) if here.moved else at
        return found

    async def _with_epoch(self, split: str, at: SplitPoint, upto: Position | None) -> SplitPoint:
        if at.size == 0 or upto is None or upto.size < at.size:
            return at
        try:
            chain = await inspect_chain_at(
                self.store, self.directory(split), self.chain, upto, floor=at.size - 1
            )
        except LostBytesError:  # trimmed: reading from there reports it
            return at
        spans = [span for span in chain.segments if span.base < at.size <= span.base + span.length]
        return at._replace(epoch=epoch_of(spans[0].name)) if spans else at

    def point(self, epoch: int, size: int, order: int) -> SplitPoint:
        return SplitPoint(epoch, size, self._line, order)

    async def records(
        self, split: str, follower: ChainFollower, visible_end: Position
    ) -> AsyncGenerator[tuple[int, Record]]:
        log = await self._output.log(split)
        if log.line != self._line:
            return  # restored since the plan was made: what the log has now is of the next plan
        by_checkpoint = visible_end is not ALL or log.reopens
        if by_checkpoint and log.covered is None:
            return
        polled = follower.poll(log.covered) if by_checkpoint else follower.poll(proved=log.covered)
        async with aclosing(polled) as records:
            async for end, record in records:
                if record.op is Op.OUTPUT and not log.counts(end, log.output(record, end).head.line):
                    return
                yield end, record

    async def all_ranges(self, split: str) -> list[ByteRange]:
        covered = await self.proved(split)
        ranges = await super().all_ranges(split)
        if await self.visible_end(split) is not ALL:
            return ranges
        size = 0 if covered is None else covered.size
        return [one._replace(above=(size - one.base, self._line)) for one in ranges]

    async def begin(self, split: str) -> SplitPoint:
        covered = await self.proved(split)
        if covered is not None and covered.size == 0:
            return BEGINNING  # other bytes may be there, that were taken back
        return (await super().begin(split))._replace(line=self._line)

    async def end(self, split: str) -> SplitPoint:
        visible_end = await self.visible_end(split)
        if visible_end is None or visible_end is ALL:
            return await super().end(split)
        return await self._covered(split)

    async def tail_begin(self, split: str) -> SplitPoint:
        if await self.proved(split) is None:
            return (await super().tail_begin(split))._replace(line=self._line)
        return await self._covered(split)

    async def data_end(self, split: str) -> SplitPoint:
        return (await super().data_end(split))._replace(line=self._line)

    async def _covered(self, split: str) -> SplitPoint:
        checkpoint = await self._output.last_checkpoint()
        assert checkpoint is not None, "no checkpoint is older than one that has the log"
        return self._points_in(checkpoint)[split]

    # --- the log --------------------------------------------------------------------------------------------

    async def splits(self) -> list[str]:
        found = await self._output.splits()
        await self.find()
        await self._note_end()
        if self._known:
            return found
        if not found:
            known = await regions_of(self.store)
            if self._region in known:
                from dataflow.errors import NoOutputError  # late, as in `errors.nearest`

                raise NoOutputError(self._region, self._sink)
            raise NoRegionError(self._region, known)
        chains = set()
        for split in found:
            view = await self.store.inspect(self.directory(split))
            chains |= {name.split(".")[0] for objects in view.answers.values() for name in objects}
        if self.chain not in chains:
            from dataflow.errors import NoOutputError  # late, as in `errors.nearest`

            raise NoOutputError(self._region, self._sink)
        self._known = True
        return found

    async def _note_end(self) -> None:
        """Log once that the sink was removed: a query has no more rows after the end of its log."""
        checkpoint = await self._output.last_checkpoint()
        ended = None if checkpoint is None else checkpoint.ended.get(self._output.uid)
        if ended is not None and not self._ended:
            self._ended = True
            logger.warning(
                "output %r of region %r has ended: checkpoint %d is the first one without the sink",
                self._sink,
                self._region,
                ended.checkpoint,
            )

    async def visible_end(self, split: str) -> Position | None:
        if (log := await self._output.log(split)).ended:
            return log.covered
        publish = self._published.get(split) or await self._publish(split)
        if publish is None:
            return None
        if publish is Publish.STEP or self._read is ReadGuarantee.SYNCED:
            return ALL
        return await self._output.position(split)

    async def proved(self, split: str) -> Position | None:
        return await self._output.position(split)

    async def retained_from(self, split: str) -> int:
        return await self._output.begin(split)

    async def checkpoint(self, number: int) -> dict[str, SplitPoint]:
        view = await read_manifest(self.store, self._region)
        for checkpoint in view.checkpoints:
            if checkpoint.number == number:
                break
        else:
            have = ", ".join(str(checkpoint.number) for checkpoint in view.checkpoints[-5:]) or "none"
            raise MalformedOffsetError(
                f"startingOffset checkpoint:{number}: region {self._region!r} has no such checkpoint in its"
                f" manifest; the last are {have}",
                remedy="`dos checkpoint ls` lists them",
            )
        assert view.last is not None, "the checkpoint was found"
        if (rewind := taken_back(view.last, checkpoint.line, checkpoint.step)) is not None:
            raise MalformedOffsetError(
                f"startingOffset checkpoint:{number}: region {self._region!r} was restored to checkpoint"
                f" {rewind.to} after it; the output of step {rewind.step + 1} to {checkpoint.step}, which"
                f" checkpoint"
                f" {number} covers, was taken back",
                remedy=f"write checkpoint:{rewind.to} or step:{rewind.step}: other output follows after it",
            )
        return self._points_in(checkpoint)

    def _points_in(self, checkpoint: Checkpoint) -> dict[str, SplitPoint]:
        return {
            split_of(worker): SplitPoint(at.epoch, at.size, checkpoint.line, checkpoint.step)
            for worker, at in covered_in(checkpoint, self._output.uid).items()
        }

    def data_of(self, record: Record) -> bytes:
        return record.strings[1] if record.op is Op.OUTPUT else b""

    async def _publish(self, split: str) -> Publish | None:
        """Return how the log is published, from its first record; None if there is none yet."""
        log = await self._output.log(split)
        chain = await inspect_chain(
            self.store,
            log.directory,
            log.chain,
            measured=False,
            proved=log.covered,
            floor=log.begin or None,
        )
        for span in chain.segments[:1]:
            first = await log.first(self.store, span.base)
            if first is not None:
                self._published[split] = first.head.publish
                return first.head.publish
        return None


class _StepReader(PieceReader):
    """Finds steps: each OUTPUT record is one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def take(self, begin: int, end: int, record: Record) -> bool:
        if record.op is not Op.OUTPUT:
            return False
        output = decode_output(record.ints, record.strings, where=self._name, at=end)
        if output.head.begins:
            return False
        self.rows, self.bytes = output.rows, end - begin
        self.order, self.time_ms = output.step, output.time_ms
        return True


INPUT_EXTRA = pa.schema(
    [("_split", pa.string()), ("_batch", pa.int64()), ("_written", pa.timestamp("us", "UTC"))]
)


class InputOrigin(ChainOrigin):
    """An input handle: a split is a producer, a piece one of its batches, which is read whole.

    `checkpoint.core.records.inputs` defines which records form a valid batch. A segment of a producer's chain
    begins between two batches; an incomplete batch that a failed producer left at its end does not count.
    """

    chain = INPUT_CHAIN
    times = True
    extra = INPUT_EXTRA
    what = "an input handle"

    def __init__(self, store: Store, options: SourceOptions) -> None:
        super().__init__(store, options)
        assert options.input is not None, "the options guarantee it"
        self._application, self._name = options.directory, options.input
        self._handle = InputHandle(store, self._application, self._name)

    def directory(self, split: str) -> str:
        return producer_directory(self._application, self._name, split)

    def piece_reader(self, split: str, start: SplitPoint) -> PieceReader:
        return _BatchReader(split, self.directory(split), start)

    async def splits(self) -> list[str]:
        found = await self._handle.splits()
        if not found:
            prefix = f"{self._application}.in."
            names = [name.removeprefix(prefix) for name in await self.store.list_directories(prefix)]
            handles = sorted({name.split(".")[0] for name in names})
            handles_text = f"it has {', '.join(handles)}" if handles else "it has none"
            raise NothingThereError(
                f"application {self._application!r} has no input handle {self._name!r} with data"
                f"{nearest(self._name, handles)}; {handles_text}",
                remedy="`dos ls` lists what is in the store; a handle exists once its first producer has"
                " opened it",
            )
        return found

    async def visible_end(self, split: str) -> Position | None:
        del split
        return ALL

    def data_of(self, record: Record) -> bytes:
        return record.strings[0] if record.op is Op.INPUT else b""


class _BatchReader(PieceReader):
    """A batch ends with its last part, if all parts are there."""

    def __init__(self, split: str, where: str, start: SplitPoint) -> None:
        self._line = InputSequence(split, at=start.size, digest=None, bytes_max=-1, where=where)
        self._name = where
        self._rows = 0

    def take(self, begin: int, end: int, record: Record) -> bool:
        if record.op is not Op.INPUT:
            return False
        part = decode_part(record.ints, record.strings, where=self._name, at=end)
        self._rows = part.rows + (self._rows if part.part else 0)
        before = self._line.end
        batches = self._line.batches
        self._line.add(part, begin, end)
        if self._line.batches == batches:
            return False
        self.rows, self.bytes, self.order, self.time_ms = self._rows, end - before, part.time_ms, part.time_ms
        return True
