"""The output of a region's sink as a source: a split is a worker's log, a piece the output of one step.

| option | visible part of the log |
|---|---|
| publish="step" | what a quorum holds |
| publish="checkpoint" | what the last committed checkpoint covers |
| read="synced" | what a quorum holds, for either; a reset may roll it back |
"""

from contextlib import aclosing

import msgspec
import pyarrow as pa

from checkpoint import Publish, decode_output, output_chain, worker_directory
from checkpoint.chains.manifest_reading import read_manifest, regions_of
from checkpoint.chains.output_following import PublishedOutput
from checkpoint.errors import NoRegionError
from dos_client import Store
from journal import ChainFollower, Op, Position, Record, inspect_chain
from spark_integration.core.source_offsets import SplitPoint
from spark_integration.core.source_options import ReadGuarantee, SourceOptions
from spark_integration.errors import MalformedOffsetError
from spark_integration.reading.chains import ALL, ChainOrigin, PieceReader

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

    def directory(self, split: str) -> str:
        return worker_directory(self._region, int(split[1:]))

    def extra(self) -> pa.Schema:
        return EXTRA

    def piece_reader(self, split: str, start: SplitPoint) -> PieceReader:
        del start
        return _StepReader(self.directory(split))

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

    async def cut(self, number: int) -> dict[str, SplitPoint]:
        view = await read_manifest(self.store, self._region)
        for cut in view.cuts:
            if cut.cut == number:
                break
        else:
            have = ", ".join(str(cut.cut) for cut in view.cuts[-5:]) or "none"
            raise MalformedOffsetError(
                f"startingOffset checkpoint:{number}: region {self._region!r} has no such checkpoint in its"
                f" manifest; the last are {have}",
                remedy="`dos checkpoint ls` lists them",
            )
        points = {}
        for worker, part in cut.outputs().items():
            if (prepared := part.sinks.get(self._sink)) is not None:
                at = msgspec.convert(prepared, Position)
                points[f"w{worker:04d}"] = SplitPoint(at.epoch, at.size)
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
