"""Streams of a region that is restored at random, on a store in memory: the source `dos` is called as Spark
calls it, and what it returns is compared with the history of the region.
"""

import logging
import random
import re
from typing import Any

import pytest

from checkpoint import limits
from checkpoint.core.records.outputs import Publish
from checkpoint.errors import OutputRewoundError
from spark_integration.core.offsets import BatchLimits, SplitPoint, offset_of, points_of
from spark_integration.core.options import parse_options
from spark_integration.errors import MalformedOffsetError
from spark_integration.reading import planning
from spark_integration.reading.chains import OutputOrigin
from spark_integration.reading.decoding import decoder_of
from spark_integration.reading.origin import DosPartition
from spark_integration.reading.planning import StreamPlanner
from tests.checkpoint.restored_output_model import COLUMNS, REGION, SINK, WORKERS, RestoredOutputModel, row_of

ACTIONS = 60
STORE_ID = "00" * 16
Rows = dict[str, list[str]]


class Notices(logging.Handler):
    """The warnings of a stream that follows: the last step that is still valid of each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.valid: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(r"it continues after step (\d+) \(onRewind=follow\)", record.getMessage()):
            self.valid.append(int(found[1]))


class ModelStream:
    """A streaming query on the model, which honors errors and warnings. `rows`: by split, as returned."""

    def __init__(self, model: RestoredOutputModel, rng: random.Random, policy: str) -> None:
        self.model, self.rng = model, rng
        self.given = {"path": f"dos://h1/{REGION}", "output": SINK, "onRewind": policy}
        self.notices, self.count = Notices(), 0
        self.rows: Rows = {}
        self.at: dict[str, SplitPoint] | None = None
        self.batch: tuple[Any, Any, Rows] | None = None
        """The last micro-batch, and the rows before it: a query that is restarted runs it again."""
        self.open()

    def open(self, **more: str) -> None:
        self.options = parse_options({**self.given, **more})
        self.origin = OutputOrigin(self.model.store, self.options)  # type: ignore[arg-type]
        self.planner = StreamPlanner(self.origin, self.options, COLUMNS, STORE_ID)

    async def aclose(self) -> None:
        await self.planner.aclose()
        await self.origin.forget()

    async def restart(self) -> None:
        """From its checkpoint, of which the last micro-batch was not committed."""
        await self.aclose()
        self.open()
        if self.batch is not None and self.rng.random() < 0.5:
            start, end, before = self.batch
            self.at, self.rows = start, before
            self.planned = end

    planned: dict[str, SplitPoint] | None = None

    async def poll(self, limits: BatchLimits) -> None:
        logger = logging.getLogger("dos.spark_integration")
        logger.addHandler(self.notices)
        try:
            await self._poll(limits)
        except OutputRewoundError as error:
            assert "follow" not in self.given.values()
            await self._begin_anew(error)
        finally:
            logger.removeHandler(self.notices)
        self.check()

    async def _begin_anew(self, error: OutputRewoundError) -> None:
        """As a new query, as the remedy says."""
        found = re.search(r"discard those after step (\d+), .* startingOffset step:(\d+)$", error.remedy)
        assert found is not None
        assert found[1] == found[2]
        assert int(found[1]) < error.step
        self._discard(int(found[1]))
        await self.aclose()
        self.open(startingOffset=f"step:{found[1]}")
        self.at = self.batch = self.planned = None
        try:
            self.at = await self.planner.initial()
        except MalformedOffsetError:  # restored again meanwhile, to before that
            self.rows = {}
            self.open()

    async def _poll(self, limits: BatchLimits) -> None:
        if self.at is None:
            self.at = await self.planner.initial()
        end, self.planned = self.planned, None
        if end is None:
            end = self.stored(await self.latest(self.at, limits))
        self._discard_noticed()
        self.batch = self.at, end, {split: list(rows) for split, rows in self.rows.items()}
        self.planned = end  # until its rows are written
        for partition in await self.partitions(self.at, end):
            for row in await read(self.model, self.options, partition):
                self.rows.setdefault(partition.split, []).append(row)
        self.at, self.planned = end, None

    async def latest(self, start: dict[str, SplitPoint], limits: BatchLimits) -> dict[str, SplitPoint]:
        return await self.planner.latest(start, limits)

    async def partitions(
        self, start: dict[str, SplitPoint], end: dict[str, SplitPoint]
    ) -> list[DosPartition]:
        return await self.planner.partitions(start, end)

    def _discard_noticed(self) -> None:
        for valid in self.notices.valid:
            self._discard(valid)
        self.notices.valid.clear()

    def stored(self, points: dict[str, SplitPoint]) -> dict[str, SplitPoint]:
        what = self.options.what
        return points_of(offset_of(STORE_ID, what, points), STORE_ID, what)

    def _discard(self, valid: int) -> None:
        self.count += 1
        self.rows = {split: rows[:valid] for split, rows in self.rows.items()}

    def check(self) -> None:
        """What it returned is of one line, without a gap."""
        if self.at is None or self.planned is not None:
            return
        lines = {at.line for at in self.at.values() if at.size}
        assert len(lines) <= 1, "a mix of lines"
        for split, rows in self.rows.items():
            made = list(self.model.rows_by(int(split[1:]), self.at[split].line).values())
            assert rows == made[: len(rows)]


class UnnamedStream(ModelStream):
    """A stream of a PySpark that does not name the beginning of a micro-batch when it requests its end."""

    def open(self, **more: str) -> None:
        super().open(**more)
        self.known: dict[str, SplitPoint] = {}

    async def latest(self, start: dict[str, SplitPoint], limits: BatchLimits) -> dict[str, SplitPoint]:
        self.known = await self.planner.latest(self.known, BatchLimits())
        return self.known

    async def partitions(
        self, start: dict[str, SplitPoint], end: dict[str, SplitPoint]
    ) -> list[DosPartition]:
        self.known = end
        await self.planner.check_beginning(start, end)
        self._discard_noticed()
        return await super().partitions(start, end)


async def read(model: RestoredOutputModel, options: Any, partition: DosPartition) -> list[str]:
    found: list[str] = []
    names = frozenset(COLUMNS.names)
    for part in partition.ranges:
        decoder = decoder_of(options, partition.split, part, names, COLUMNS)
        data = part.data
        if data is None:
            data = await model.store.read(part.directory, part.object, part.begin, part.end - part.begin)
        for batch in [*decoder.feed(data), *decoder.finish()]:
            found += batch.column(0).to_pylist()
    return found


async def read_batch(model: RestoredOutputModel) -> Rows:
    """What `spark.read` returns."""
    options = parse_options({"path": f"dos://h1/{REGION}", "output": SINK})
    origin = OutputOrigin(model.store, options)  # type: ignore[arg-type]
    rows: Rows = {}
    for partition in await planning.planned_partitions(origin, options):
        rows.setdefault(partition.split, []).extend(await read(model, options, partition))
    return rows


def check_batch_rows(model: RestoredOutputModel, rows: Rows) -> None:
    for history in model.history.values():
        made = {
            f"w{worker:04d}": [row_of(line, step, worker) for step, line in enumerate(history, 1)]
            for worker in WORKERS
        }
        if all(found == made[split][: len(found)] for split, found in rows.items()):
            return
    raise AssertionError(f"a mix of lines: {rows}")


async def play(
    publish: Publish,
    policy: str,
    rng: random.Random,
    patch: pytest.MonkeyPatch,
    kind: type[ModelStream] = ModelStream,
) -> int:
    """Run two streams while a region is restored at random. Return how often what they had returned was taken
    back.
    """
    model = RestoredOutputModel(publish, rng)
    await model.open()
    await model.settle()
    patch.setattr(limits, "output_poll_s", rng.choice([0.0, 0.0, 0.01]))  # or the manifest is read late
    streams = [kind(model, rng, policy), kind(model, rng, policy)]

    async def meanwhile() -> None:
        if rng.random() < 0.1:
            await model.happen()

    for _ in range(ACTIONS):
        stream = rng.choice(streams)
        choice = rng.random()
        if choice < 0.6:
            await model.happen()
            continue
        model.store.meanwhile = meanwhile if rng.random() < 0.5 else None
        if choice < 0.9:
            await stream.poll(rng.choice([BatchLimits(), BatchLimits(3)]))
        elif choice < 0.95:
            await stream.restart()
        else:
            check_batch_rows(model, await read_batch(model))
        model.store.meanwhile = None
    patch.setattr(limits, "output_poll_s", 0.0)
    await model.settle()
    present = {
        f"w{worker:04d}": [rows[index] for rows in model.rows(model.line)]
        for index, worker in enumerate(WORKERS)
    }
    for stream in streams:
        for _ in range(4):
            await stream.poll(BatchLimits())
        assert {split: rows for split, rows in stream.rows.items() if rows} == {
            split: rows for split, rows in present.items() if rows
        }
        await stream.aclose()
    return sum(stream.count for stream in streams)
