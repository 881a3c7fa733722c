"""What the source `dos` returns of a region that is restored to older checkpoints: histories at random on a
store in memory, read as Spark reads, and a query on Spark.
"""

import random
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
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.core.records.lines import restored
from checkpoint.core.records.outputs import Publish
from checkpoint.errors import OutputRewoundError
from checkpoint.maintenance.stopped_region import restore_stopped
from dos_client.blocking import BlockingStore
from dos_protocol.errors import DosError
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core import offsets
from spark_integration.core.offsets import BatchLimits, SplitPoint, points_on_line
from spark_integration.core.options import parse_options
from spark_integration.errors import MalformedOffsetError
from spark_integration.reading import planning
from spark_integration.reading.chains import ChainOrigin, OutputOrigin
from spark_integration.reading.planning import plan_batch
from spark_integration.reading.readers import rows_of
from tests.checkpoint.restored_output_model import SINK, WORKERS, RestoredOutputModel
from tests.checkpoint.test_lines import checkpoint_at
from tests.spark_integration.restored_streams import ModelStream, UnnamedStream, play
from tests.spark_integration.stored_data import write_checkpoints, write_steps
from tests.spark_integration.streaming import N, n, query
from tests.support.planted_source import is_found

SEEDS = 10


# --- pure --------------------------------------------------------------------------------------------------


@given(st.integers(0, 200), st.integers(0, 20), st.integers(0, 20))
def test_a_point_is_moved_if_and_only_if_it_lies_after_the_branch(size: int, step: int, branch: int) -> None:
    kept = [checkpoint_at(1, branch, retained=(1,))]
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
    kept = [checkpoint_at(1, 5, retained=(1,))]
    kept.append(restored(kept, kept[0], 1))
    here = points_on_line(kept[-1], SINK, {"w0007": SplitPoint(1, 30, 0, 4)})
    assert here.points["w0007"].size == 0
    ahead = {"w0000": SplitPoint(9, 900, 2, 90)}
    assert points_on_line(kept[-1], SINK, ahead).points == ahead, "its line is not known yet"


# --- on a store in memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("publish", list(Publish))
@pytest.mark.parametrize("policy", ["fail", "follow"])
@pytest.mark.parametrize("kind", [ModelStream, UnnamedStream])
def test_streams_of_a_region_that_is_restored_at_random_never_return_a_mix(
    kind: type[ModelStream], publish: Publish, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [(play, publish, policy, random.Random(seed), monkeypatch, kind) for seed in range(SEEDS)]
    notices = sum(trio.run(*run) for run in runs)
    assert notices >= SEEDS / 2, "streams ran when output was taken back"


@pytest.mark.parametrize("workers", [1, 2], ids=["joins", "comes back"])
def test_a_stream_continues_past_a_log_that_a_joining_worker_opens_again(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the worker is killed before the first checkpoint of its layout. workers: at first."""
    monkeypatch.setattr(limits, "output_poll_s", 0.0)

    async def main() -> None:
        model = RestoredOutputModel(Publish.STEP, random.Random(1), scales=True)
        model.layout = WORKERS[:workers]
        await model.open()
        await model.settle()
        if workers == 2:
            await model.scale()
            await model.settle()
        stream = ModelStream(model, random.Random(1), "fail")
        await model.scale()
        for _ in range(2):
            await model.open_worker(1)
            await stream.poll(BatchLimits())
            await model.open(model.layout)
        await model.settle()
        await stream.poll(BatchLimits())
        made = {worker: list(model.rows_by(worker, model.line).values()) for worker in WORKERS}
        assert stream.rows == {f"w{worker:04d}": rows for worker, rows in made.items()}
        await stream.aclose()

    trio.run(main)


def ignores_lines_of_points(patch: pytest.MonkeyPatch) -> None:
    """Every point counts as valid on the present line."""
    patch.setattr(offsets, "parting", lambda *_: None)


def reads_logs_to_their_heads(patch: pytest.MonkeyPatch) -> None:
    """What follows the last checkpoint in a log counts, whatever line it is of."""
    patch.setattr(OutputOrigin, "records", ChainOrigin.records)
    patch.setattr(OutputOrigin, "all_ranges", ChainOrigin.all_ranges)


def plans_across_lines(patch: pytest.MonkeyPatch) -> None:
    """A restore while a micro-batch is planned is not noticed."""

    async def once(origin: Any, plan: Any) -> Any:
        return await plan(await origin.line())

    patch.setattr(planning, "on_one_line", once)
    patch.setattr(planning, "on_one_line", once)


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
    runs = (
        partial(trio.run, play, publish, policy, random.Random(seed), monkeypatch)
        for seed in range(10 * SEEDS)
        for publish in Publish
        for policy in ("follow", "fail")
    )
    assert is_found(runs, AssertionError, DosError)


# --- on servers, and on Spark ------------------------------------------------------------------------------


def restore(store: BlockingStore, region: str, to: str) -> None:
    allowed = partial(restore_stopped, allow_republish=True)  # no checkpoint here states its sinks
    store.portal.call(allowed, StoreHost(store.store), region, to)


def test_a_restored_region_is_read_on_its_present_line(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    ends = write_steps(store, name, "out", 0, {step: n(step) for step in range(1, 5)}, N)
    write_checkpoints(store, name, "out", [{0: ends[0]}, {0: ends[1]}], retain=2)
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


def test_a_query_of_a_line_that_is_too_old_to_be_known_is_refused_and_does_not_read_all_again(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "rewinds_kept_max", 1)
    ends = write_steps(store, name, "out", 0, {step: n(step) for step in range(1, 5)}, N)
    write_checkpoints(store, name, "out", [{0: ends[0]}, {0: ends[1]}], retain=2)
    with query(servers, name, output="out") as stream:
        assert stream.batch() == [1, 2, 3, 4]
        read = stream.at
    restore(store, name, "checkpoint:1")
    with query(servers, name, output="out", start=read, onRewind="follow") as stream:
        assert stream.batch() == []
    restore(store, name, "checkpoint:3")
    for policy in ("follow", "fail"):
        with (
            query(servers, name, output="out", start=read, onRewind=policy) as stream,
            pytest.raises(OutputRewoundError, match="more than 1 times since: what was taken back"),
        ):
            stream.batch()


def test_a_query_on_spark_ends_with_a_named_error_or_follows(
    spark: SparkSession, servers: Servers[ThreadedServer], store: BlockingStore, tmp_path: Path
) -> None:
    dos.register(spark)
    ends = write_steps(store, "shop", "out", 0, {1: n(1), 2: n(2), 3: n(3)}, N, publish=Publish.CHECKPOINT)
    write_checkpoints(store, "shop", "out", [{0: ends[0]}, {0: ends[2]}], retain=2)

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
