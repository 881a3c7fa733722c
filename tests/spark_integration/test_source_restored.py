"""What the source `dos` returns of a region that is restored to older checkpoints: histories at random on a
store in memory, read as Spark reads, and a query on Spark.
"""

import logging
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import dos
from checkpoint import limits
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.lines import restored
from checkpoint.core.outputs import Publish
from checkpoint.errors import OutputRewoundError
from checkpoint.maintenance.stopped_region import restore_stopped
from dos_client.blocking import BlockingStore
from dos_protocol.errors import DosError
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core import rewinds
from spark_integration.core.admission import BatchLimits
from spark_integration.core.rewinds import points_on_line
from spark_integration.core.source_offsets import SplitPoint, offset_of, points_of
from spark_integration.core.source_options import parse_options
from spark_integration.errors import MalformedOffsetError
from spark_integration.reading import planning, stream_planning
from spark_integration.reading.chains import ChainOrigin
from spark_integration.reading.decoding import decoder_of
from spark_integration.reading.outputs import OutputOrigin
from spark_integration.reading.planning import plan_batch
from spark_integration.reading.ranges import DosPartition
from spark_integration.reading.stream_planning import StreamPlanner
from spark_integration.reading.tasks import rows_of
from tests.checkpoint.restored_output_model import COLUMNS, REGION, SINK, WORKERS, RestoredOutputModel, row_of
from tests.checkpoint.test_lines import cut_at
from tests.spark_integration.stored_data import write_cuts, write_steps
from tests.spark_integration.streaming import N, n, query

SEEDS = 10
ACTIONS = 60
STORE_ID = "00" * 16
Rows = dict[str, list[str]]


# --- pure --------------------------------------------------------------------------------------------------


@given(st.integers(0, 200), st.integers(0, 20), st.integers(0, 20))
def test_a_point_is_moved_if_and_only_if_it_lies_after_the_branch(size: int, step: int, branch: int) -> None:
    kept = [cut_at(1, branch, retained=(1,))]
    kept.append(restored(kept, kept[0], 1))
    here = points_on_line(kept[-1], SINK, {"w0000": SplitPoint(1, size, 0, step)})
    if size <= 10 * branch:
        assert here.points["w0000"] == SplitPoint(1, size, 1, step)
        assert (here.moved, here.rewind) == (frozenset(), None)
        return
    assert here.points["w0000"] == SplitPoint(0, 10 * branch, 1, min(step, branch))
    assert (here.rewind is None) == (0 < step <= branch)
    if here.rewind is not None:
        assert here.steps_text == (f"{step - branch} steps" if step else "an unknown number of steps")


def test_all_output_of_a_worker_that_the_restored_checkpoint_does_not_know_was_taken_back() -> None:
    kept = [cut_at(1, 5, retained=(1,))]
    kept.append(restored(kept, kept[0], 1))
    here = points_on_line(kept[-1], SINK, {"w0007": SplitPoint(1, 30, 0, 4)})
    assert here.points["w0007"].size == 0
    ahead = {"w0000": SplitPoint(9, 900, 2, 90)}
    assert points_on_line(kept[-1], SINK, ahead).points == ahead, "its line is not known yet"


# --- on a store in memory ----------------------------------------------------------------------------------


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
            end = self.stored(await self.planner.latest(self.at, limits))
        for valid in self.notices.valid:
            self._discard(valid)
        self.notices.valid.clear()
        self.batch = self.at, end, {split: list(rows) for split, rows in self.rows.items()}
        self.planned = end  # until its rows are written
        for partition in await self.planner.partitions(self.at, end):
            for row in await read(self.model, self.options, partition):
                self.rows.setdefault(partition.split, []).append(row)
        self.at, self.planned = end, None

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
            expected = self.model.history[self.at[split].line]
            made = [row_of(line, step, int(split[1:])) for step, line in enumerate(expected, 1)]
            assert rows == made[: len(rows)]


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


async def play(publish: Publish, policy: str, rng: random.Random, patch: pytest.MonkeyPatch) -> int:
    model = RestoredOutputModel(publish, rng)
    await model.open()
    await model.settle()
    patch.setattr(limits, "output_poll_s", rng.choice([0.0, 0.0, 0.01]))  # or the manifest is read late
    streams = [ModelStream(model, rng, policy), ModelStream(model, rng, policy)]

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


@pytest.mark.parametrize("publish", list(Publish))
@pytest.mark.parametrize("policy", ["fail", "follow"])
def test_streams_of_a_region_that_is_restored_at_random_never_return_a_mix(
    publish: Publish, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices = sum(trio.run(play, publish, policy, random.Random(seed), monkeypatch) for seed in range(SEEDS))
    assert notices >= SEEDS / 2, "streams ran when output was taken back"


def ignores_lines_of_points(patch: pytest.MonkeyPatch) -> None:
    """Every point counts as valid on the present line."""
    patch.setattr(rewinds, "parting", lambda *_: None)


def reads_logs_to_their_heads(patch: pytest.MonkeyPatch) -> None:
    """What follows the last checkpoint in a log counts, whatever line it is of."""
    patch.setattr(OutputOrigin, "records", ChainOrigin.records)
    patch.setattr(OutputOrigin, "all_ranges", ChainOrigin.all_ranges)


def plans_across_lines(patch: pytest.MonkeyPatch) -> None:
    """A restore while a micro-batch is planned is not noticed."""

    async def once(origin: Any, plan: Any) -> Any:
        return await plan(await origin.line())

    patch.setattr(planning, "on_one_line", once)
    patch.setattr(stream_planning, "on_one_line", once)


@pytest.mark.parametrize(
    "bug",
    [
        ignores_lines_of_points,
        reads_logs_to_their_heads,
        plans_across_lines,
    ],
)
def test_the_random_restores_find_planted_bugs_of_streams(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    for seed in range(10 * SEEDS):
        for publish in Publish:
            for policy in ("follow", "fail"):
                try:
                    trio.run(play, publish, policy, random.Random(seed), monkeypatch)
                except (AssertionError, DosError):
                    return
    pytest.fail("not found")


# --- on servers, and on Spark ------------------------------------------------------------------------------


def restore(store: BlockingStore, region: str, to: str) -> None:
    allowed = partial(restore_stopped, allow_republish=True)  # no checkpoint here states its sinks
    store.portal.call(allowed, StoreHost(store.store), region, to)


def test_a_restored_region_is_read_on_its_present_line(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    ends = write_steps(store, name, "out", 0, {step: n(step) for step in range(1, 5)}, N)
    write_cuts(store, name, "out", [{0: ends[0]}, {0: ends[1]}], retain=2)
    with (
        query(servers, name, output="out", onRewind="follow") as follows,
        query(servers, name, output="out", maxRowsPerTrigger="1") as before,
        query(servers, name, output="out") as after,
    ):
        assert (after.batch(), follows.batch(), before.batch()) == ([1, 2, 3, 4], [1, 2, 3, 4], [1])
        planned = after.at
        assert planned["splits"]["w0000"] == {
            "epoch": 1, "size": ends[3].size, "line": 0, "step": 4
        }  # fmt: skip
    restore(store, name, "checkpoint:1")
    options = parse_options({"path": f"{servers.url}/{name}", "output": "out"})

    def read_all() -> list[int]:
        found = [batch for one in plan_batch(options, N, ()) for batch in rows_of(options, N, (), one)]
        return [row["n"] for batch in found for row in batch.to_pylist()]

    assert read_all() == [1], "no worker has opened its log since"
    with query(servers, name, output="out", start=planned, onRewind="follow") as follows:
        assert follows.batch() == []
        assert "3 steps that this query had read were taken back; it continues after step 1" in caplog.text
        write_steps(store, name, "out", 0, {2: n(22), 3: n(33)}, N, epoch=9, back_to=ends[0], line=1)
        # Without a checkpoint of the new line nothing of it is known to stay.
        assert follows.batch() == []
    old = {**planned, "version": 1, "splits": {"w0000": {"epoch": 1, "size": ends[3].size}}}
    for start in (planned, old):
        with (
            query(servers, name, output="out", start=start) as stream,
            pytest.raises(
                OutputRewoundError, match=rf"'out' of region '{name}' .* checkpoint 1: .* step 2 on"
            ),
        ):
            stream.batch()
    with query(servers, name, output="out", start=before.at) as stream:
        assert stream.batch() == [], "it had read nothing that was taken back"
    with (
        pytest.raises(
            MalformedOffsetError, match=r"checkpoint:2: .* restored to checkpoint 1 .* step 2 to 2"
        ),
        query(servers, name, output="out", startingOffset="checkpoint:2"),
    ):
        pass
    with query(servers, name, output="out", startingOffset="checkpoint:1") as stream:
        assert stream.batch() == []


def test_a_query_on_spark_ends_with_a_named_error_or_follows(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore, tmp_path: Path
) -> None:
    dos.register(spark)
    ends = write_steps(store, "shop", "out", 0, {1: n(1), 2: n(2), 3: n(3)}, N, publish=Publish.CUT)
    write_cuts(store, "shop", "out", [{0: ends[0]}, {0: ends[2]}], retain=2)

    def run(**options: str) -> list[int]:
        stream = spark.readStream.format("dos").options(output="out", **options).load(f"{servers.url}/shop")
        sink = stream.writeStream.format("parquet").option("path", str(tmp_path / "t"))
        sink = sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        sink.start().awaitTermination()
        return sorted(pq.read_table(tmp_path / "t").column("n").to_pylist())

    assert run() == [1, 2, 3]
    restore(store, "shop", "checkpoint:1")
    with pytest.raises(StreamingQueryException, match=r"OutputRewoundError.*from step 2 on was taken"):
        run()
    assert run(onRewind="follow") == [1, 2, 3]
    assert run() == [1, 2, 3], "it continues on the present line"
