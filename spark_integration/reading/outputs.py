"""The output of a region's sink as a source: a split is a worker's log, a piece the output of one step.

| option | visible part of the log |
|---|---|
| publish="step" | what a quorum holds |
| publish="checkpoint" | what the last committed checkpoint covers |
| read="synced" | what a quorum holds, for either; a reset may roll it back |

Of a region that was restored to an older checkpoint, only output of its present line of history is read. What
the last checkpoint covers is of the line. Above it, a log may still end with output that was taken back, and
only the records show their line.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import pyarrow as pa

from checkpoint import Checkpoint, Publish, decode_output, output_chain, taken_back, worker_directory
from checkpoint.chains.manifest_log import read_manifest, regions_of
from checkpoint.chains.output_reading import PublishedOutput
from checkpoint.errors import NoRegionError, OutputRewoundError
from dos_client import Store
from journal import ChainFollower, LostBytesError, Op, Position, Record, inspect_chain, inspect_chain_at
from spark_integration.core.offsets import BEGINNING, SplitPoint, Vector
from spark_integration.core.options import ReadGuarantee, RewindPolicy, SourceOptions
from spark_integration.core.rewinds import points_on_line
from spark_integration.errors import MalformedOffsetError
from spark_integration.reading.chains import ALL, ChainOrigin, PieceReader
from spark_integration.reading.ranges import ByteRange, epoch_of

EXTRA = pa.schema([("_split", pa.string()), ("_step", pa.int64()), ("_written", pa.timestamp("us", "UTC"))])


class OutputOrigin(ChainOrigin):
    """The output of one sink of a region."""

    steps = True
    times = True

    def __init__(self, store: Store, options: SourceOptions) -> None:
        super().__init__(store, fail_on_loss=options.fail_on_data_loss)
        assert options.output is not None, "the options guarantee it"
        self._region, self._sink = options.directory, options.output
        self._read = options.read
        self.chain = output_chain(self._sink)
        self._output = PublishedOutput(store, self._region, self._sink)
        self._published: dict[str, Publish] = {}
        self._known = False
        self._follows = options.on_rewind is RewindPolicy.FOLLOW
        self._line = 0
        """The line of history that `line` returned last: what is read is of this one."""

    def directory(self, split: str) -> str:
        return worker_directory(self._region, int(split[1:]))

    def extra(self) -> pa.Schema:
        return EXTRA

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
        present = points_on_line(await self._output.last_checkpoint(), self._sink, points, line)
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
                here = points_on_line(checkpoint, self._sink, {split: start[split]}, to.line)
                at, upto = here.points[split], Position(to.epoch, to.size, 0)
                found[split] = await self._with_epoch(split, at, upto) if here.moved else at
        return found

    async def _with_epoch(self, split: str, at: SplitPoint, upto: Position | None) -> SplitPoint:
        """Return a point below a position of its line with the epoch of the segment in which it lies."""
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
        """As `ChainOrigin.records`; ends before the first record that is not of the line."""
        covered = await self.proved(split) if visible_end is ALL else visible_end
        if covered is not None:
            async with aclosing(follower.poll(covered)) as records:
                async for found in records:
                    yield found
        checkpoint = await self._output.last_checkpoint()
        # After a restore, a checkpoint is committed before any step runs. Until then the workers may open
        # their logs several times, each time at the same place: nothing there may be read.
        if visible_end is not ALL or (checkpoint is not None and checkpoint.rewound):
            return
        async with aclosing(follower.poll()) as records:
            async for end, record in records:
                if record.op is Op.OUTPUT:
                    output = decode_output(record.ints, record.strings, where=self.chain, at=end)
                    if output.head.of_line != self._line:
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
        if await self._is_empty(split):
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

    async def _is_empty(self, split: str) -> bool:
        covered = await self.proved(split)
        return covered is not None and covered.size == 0

    async def _covered(self, split: str) -> SplitPoint:
        """Return the point up to which the last checkpoint covers a log, which it has."""
        checkpoint = await self._output.last_checkpoint()
        assert checkpoint is not None, "no checkpoint is older than one that has the log"
        return self._points_in(checkpoint)[split]

    # --- the log --------------------------------------------------------------------------------------------

    async def splits(self) -> list[str]:
        found = await self._output.splits()
        if self._known:
            return found
        if not found:
            known = await regions_of(self.store)
            raise NoRegionError(self._region, known)
        chains = set()
        for split in found:
            view = await self.store.inspect(self.directory(split))
            chains |= {name.split(".")[0] for objects in view.answers.values() for name in objects}
        if self.chain not in chains:
            from dataflow.errors import NoOutputError  # see `core/wording`

            raise NoOutputError(self._region, self._sink)
        self._known = True
        return found

    async def visible_end(self, split: str) -> Position | None:
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
        """Return how far a checkpoint covers each log."""
        points = {}
        for worker, part in checkpoint.outputs().items():
            if (prepared := part.sinks.get(self._sink)) is not None:
                at = msgspec.convert(prepared, Position)
                points[f"w{worker:04d}"] = SplitPoint(at.epoch, at.size, checkpoint.line, checkpoint.step)
        return points

    def data_of(self, record: Record) -> bytes:
        return record.strings[1] if record.op is Op.OUTPUT else b""

    async def _publish(self, split: str) -> Publish | None:
        """Return how the log is published, from its first record; None if there is none yet."""
        proved = await self.proved(split)
        begin = await self.retained_from(split)
        chain = await inspect_chain(
            self.store,
            self.directory(split),
            self.chain,
            measured=False,
            proved=proved,
            floor=begin or None,
        )
        for span in chain.segments[:1]:
            first = ChainFollower(self.store, self.directory(split), self.chain, at=span.base)
            async with aclosing(first.poll(proved=proved)) as records:
                async for end, record in records:
                    if record.op is Op.OUTPUT:
                        output = decode_output(record.ints, record.strings, where=self.chain, at=end)
                        self._published[split] = output.head.publish
                        return output.head.publish
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
