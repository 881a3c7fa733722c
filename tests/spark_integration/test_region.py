"""A region on a real Spark session: counted right with workers lost, stopped, started again, fenced, refused.

The store is the embedded server of one copy: what three servers add is tested with the client and by the
demo.
"""

import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from typer.testing import CliRunner

from checkpoint.core.region import RegionState
from checkpoint.errors import RegionFailedError, RegionFencedError
from dataflow import FileSink, FileSource, Graph, GraphError, ParquetSink
from dos_cli.main import app as dos_app
from dos_protocol.errors import DosError
from dos_server import embedded
from examples.demo.verdict import judge
from spark_integration import QueryListener, RegionHandle, RegionListener, on_executor, run
from spark_integration.core import session_checks
from spark_integration.errors import ExecutorMismatchError, NotEnoughSlotsError
from tests.spark_integration.stored_data import pretended

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]  # a busy machine is slow, not wrong

PATIENCE_S = 150.0
TEXT = "one two two three three three back\\slash\n" * 50
TRUTH = Counter(TEXT.encode().split())


def split(batch: Any) -> Any:
    words = pc.list_flatten(pc.ascii_split_whitespace(batch["line"]))
    return {"word": words.filter(pc.not_equal(words, ""))}


def split_slowly(batch: Any) -> Any:
    time.sleep(batch.num_rows * 0.001)  # the work that a user function would do; not a wait for anything
    return split(batch)


def word_count(directory: Path, *, passes: int, function: Callable[[Any], Any] = split) -> Graph:
    paths = [directory / "a.txt", directory / "b.txt"]
    for path in paths:
        path.write_text(TEXT)
    graph = Graph("wordcount")
    lines = graph.source("lines", FileSource(paths, repeat=passes))
    words = lines.flat_map("words", function, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(directory / "out"))
    return graph


def slow_word_count(directory: Path, hurry: Path, *, passes: int) -> Graph:
    """`word_count` that is slow until the file `hurry` exists."""

    def split_until_hurried(batch: Any) -> Any:
        return split(batch) if hurry.exists() else split_slowly(batch)

    return word_count(directory, passes=passes, function=split_until_hurried)


def assert_right(directory: Path, passes: int) -> None:
    verdict = judge((directory / "out").glob("part-w*.tsv"), TRUTH, 2 * passes)
    assert verdict.right, verdict


def wait_until(condition: Callable[[], bool], region: RegionHandle) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert region.isActive, f"it has ended: {region.status}"
        assert time.monotonic() < deadline, region.status
        time.sleep(0.02)


def checkpoints(region: RegionHandle, count: int) -> Callable[[], bool]:
    return lambda: region.status.state is RegionState.RUNNING and region.status.checkpoints_committed >= count


Start = Callable[..., RegionHandle]


@pytest.fixture
def start(spark: SparkSession) -> Iterator[Start]:
    """`run` on the shared session; what still runs at the end of a test is stopped."""
    started: list[RegionHandle] = []

    def start_region(graph: Graph, **options: Any) -> RegionHandle:
        started.append(run(spark, graph, **options))
        return started[-1]

    yield start_region
    for region in started:
        if region.isActive:
            region.stop()


@pytest.fixture
def hurry(tmp_path: Path) -> Iterator[Path]:
    """The file that ends the slowness of `slow_word_count`."""
    path = tmp_path / "hurry"
    yield path
    path.touch()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    with embedded.start(tmp_path / "store") as server:
        yield server.url


class Heard(RegionListener):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def onStart(self, start: dict[str, Any]) -> None:
        self.calls.append(("onStart", start))

    def onProgress(self, progress: dict[str, Any]) -> None:
        self.calls.append(("onProgress", progress))

    def onTerminated(self, end: dict[str, Any]) -> None:
        self.calls.append(("onTerminated", end))


class HeardQuery(StreamingQueryListener):
    """A listener that was written for Spark's queries."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.progress: list[StreamingQueryProgress] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.calls.append(f"started {event.name}")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.progress.append(event.progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.calls.append(f"terminated {event.exception}")


def test_words_are_counted_right_and_the_handle_tells_of_it(start: Start, tmp_path: Path) -> None:
    heard, query = Heard(), HeardQuery()
    listeners = [heard, QueryListener(query)]
    region = start(word_count(tmp_path, passes=3), data_dir=tmp_path / "data", listeners=listeners)
    assert region.awaitTermination(PATIENCE_S)
    assert region.status.state is RegionState.FINISHED
    assert not region.isActive
    assert region.exception() is None
    assert_right(tmp_path, passes=3)
    assert region.lastProgress is not None
    assert region.lastProgress["final"]
    assert region.lastProgress["name"] == "wordcount"
    assert region.recentProgress[-1] == region.lastProgress
    assert sum(one["numInputRows"] for one in region.recentProgress) == 3 * 2 * 50
    assert [one["name"] for one in region.lastProgress["operators"]][-2:] == ["counts", "out"]
    assert heard.calls[0][0] == "onStart"
    assert [what for call, what in heard.calls if call == "onProgress"] == region.recentProgress
    assert heard.calls[-1][0] == "onTerminated"
    assert heard.calls[-1][1]["state"] == "FINISHED"
    assert query.calls[0] == f"started {region.name}"
    assert query.calls[-1] == "terminated None"
    assert sum(one.numInputRows for one in query.progress) == 3 * 2 * 50
    last = query.progress[-1]
    assert last.batchId == region.status.last_checkpoint
    assert [one.description for one in last.sources] == ["lines"]
    assert [(one.operatorName, one.numRowsTotal) for one in last.stateOperators] == [("counts", len(TRUTH))]
    assert last.sink.description == "out"


def test_a_sink_that_is_removed_is_completed_on_executors(start: Start, tmp_path: Path, store: str) -> None:
    """Its specification comes to them although their graph does not have it."""
    audit = ParquetSink(tmp_path / "audit")

    def lines(*, audited: bool) -> Graph:
        (tmp_path / "a.txt").write_text(TEXT)
        graph = Graph("lines")
        found = graph.source("lines", FileSource([tmp_path / "a.txt"]))
        found.sink("out", FileSink(tmp_path / "out"))
        if audited:
            found.sink("audit", audit)
        return graph

    options = {"store": store, "workers": 1, "checkpoint_interval": 100.0}
    assert start(lines(audited=True), **options).awaitTermination(PATIENCE_S)
    (shown,) = (tmp_path / "audit").glob("part-*.parquet")
    (staging,) = (tmp_path / "audit").glob("_*.staging")
    shown.rename(staging / shown.name.removeprefix("part-"))  # as after a crash before it was published
    region = start(lines(audited=False), **options, removed={"audit": audit})
    assert region.awaitTermination(PATIENCE_S)
    assert region.status.state is RegionState.FINISHED
    assert shown.exists()


def test_a_region_is_asked_for_checkpoints_and_a_reset_is_stopped_from_outside_and_continues(
    start: Start, tmp_path: Path, store: str, hurry: Path
) -> None:
    graph = slow_word_count(tmp_path, hurry, passes=1_500)
    first = start(graph, store=store, checkpoint_interval=3600.0, metrics="127.0.0.1:0")
    wait_until(lambda: first.status.state is RegionState.RUNNING, first)
    assert first.checkpoint(PATIENCE_S) == 1
    first.reset()
    wait_until(lambda: len(first.status.resets) == 1, first)
    assert first.checkpoint(PATIENCE_S) == 2

    def dos(*arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(dos_app, [*arguments, store, "wordcount", "--json"])
        assert done.exit_code == 0, (done.stdout, done.stderr)
        return dict(json.loads(done.stdout))

    shown = dos("region", "status")["status"]
    assert [one["pid"] for one in shown["workers"]] == [one.pid for one in first.status.workers]
    served = [shown["metrics"], *(one["metrics"] for one in shown["workers"])]
    assert len(set(served)) == 3
    for address in served:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
    assert dos("region", "checkpoint")["result"]["checkpoint"] > shown["lastCheckpoint"]
    assert dos("region", "stop")["result"]["state"] == "STOPPED"
    assert first.awaitTermination(PATIENCE_S)
    last_checkpoint = first.status.last_checkpoint
    assert last_checkpoint == dos("checkpoint", "ls")["checkpoints"][-1]["checkpoint"]
    hurry.touch()
    second = start(graph, store=store, checkpoint_interval=0.2)
    assert second.awaitTermination(PATIENCE_S)
    assert second.status.last_checkpoint > last_checkpoint
    assert_right(tmp_path, passes=1_500)


def told_of_resets(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if " was lost: " in one.getMessage()]


# EVIDENCE-OF: P-7, P-10
def test_a_killed_worker_is_started_again_and_the_output_shows_nothing_of_it(
    start: Start, tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    graph = word_count(tmp_path, passes=150, function=split_slowly)
    region = start(graph, store=store, checkpoint_interval=0.2, scratch=tmp_path / "scratch")
    wait_until(checkpoints(region, 2), region)
    os.kill(region.status.workers[1].pid, signal.SIGKILL)
    wait_until(lambda: len(region.status.resets) == 1, region)
    assert "worker 1" in region.status.resets[0].reason or region.status.resets[0].worker == 1
    wait_until(lambda: len(told_of_resets(caplog)) == 2, region)
    lost, runs = told_of_resets(caplog)
    assert lost.startswith(f"region {region.name}: worker 1 was lost: ")
    assert lost.endswith("; it is started again")
    assert runs.startswith(f"region {region.name}: runs again after ")
    assert " s, all workers from checkpoint " in runs
    assert "\n" not in lost + runs, "lines, with no trace"
    assert region.awaitTermination(PATIENCE_S)
    assert_right(tmp_path, passes=150)


# EVIDENCE-OF: P-10
def test_while_the_store_is_unavailable_the_region_waits_names_the_reason_and_continues_automatically(
    start: Start, tmp_path: Path
) -> None:
    graph = word_count(tmp_path, passes=60, function=split_slowly)
    server = embedded.start(tmp_path / "store")
    try:
        region = start(graph, store=server.url, checkpoint_interval=0.2)
        wait_until(checkpoints(region, 1), region)
        pids = [worker.pid for worker in region.status.workers]
        server.stop()
        address = "127.0.0.1:" + str(server.address[1])
        wait_until(lambda: f"{address} is unavailable" in region.status.reason, region)
        assert region.status.state is RegionState.WAITING_FOR_STORE
        wait_until(lambda: region.status.waiting_s > 1, region)
        server = embedded.start(tmp_path / "store", port=server.address[1])
        assert region.awaitTermination(PATIENCE_S)
        assert [worker.pid for worker in region.status.workers] == pids, "nobody was killed"
        assert (region.status.incarnation, region.status.reset_attempts, region.status.resets) == (1, 0, ())
    finally:
        server.stop()
    assert_right(tmp_path, passes=60)


# EVIDENCE-OF: P-4
def test_a_newer_driver_fences_the_older_one(start: Start, tmp_path: Path, store: str, hurry: Path) -> None:
    graph = slow_word_count(tmp_path, hurry, passes=1_500)
    older = start(graph, store=store, checkpoint_interval=0.2)
    wait_until(checkpoints(older, 1), older)
    newer = start(graph, store=store, checkpoint_interval=0.2)
    with pytest.raises(RegionFencedError):
        older.awaitTermination(PATIENCE_S)
    assert older.status.state is RegionState.FENCED
    hurry.touch()
    assert newer.awaitTermination(PATIENCE_S)
    assert_right(tmp_path, passes=1_500)


def fail_at_three(row: dict[str, str]) -> list[str]:
    return [word for word in row["line"].split() if word != "three" or 1 // 0]


def test_a_user_function_that_raises_stops_the_region_with_its_own_traceback(
    start: Start, tmp_path: Path, store: str
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    graph = Graph("failing")
    lines = graph.source("lines", FileSource(tmp_path / "a.txt"))
    words = lines.flat_map("words", fail_at_three, schema="word string")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(tmp_path / "out"))
    region = start(graph, store=store)
    with pytest.raises(RegionFailedError) as failed:
        region.awaitTermination(PATIENCE_S)
    assert "words" in str(failed.value)
    assert "a.txt" in str(failed.value)
    assert "ZeroDivisionError" in failed.value.traceback_text
    assert "fail_at_three" in failed.value.traceback_text
    assert region.status.state is RegionState.FAILED


def end_once(marker: Path, row: dict[str, str]) -> list[str]:
    if not marker.exists():
        marker.touch()
        os._exit(3)
    return row["line"].split()


def test_the_operator_that_ended_its_process_is_named(start: Start, tmp_path: Path, store: str) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    graph = Graph("ending")
    lines = graph.source("lines", FileSource(tmp_path / "a.txt"))
    words = lines.flat_map("words", partial(end_once, tmp_path / "ended"), schema="word string")
    words.sink("out", FileSink(tmp_path / "out"))
    region = start(graph, store=store)
    assert region.awaitTermination(PATIENCE_S)
    (reset,) = region.status.resets
    assert reset.reason.endswith("; operator 'words' was running")


def test_a_wrong_graph_is_refused_before_anything_starts(start: Start, tmp_path: Path) -> None:
    graph = Graph("wrong")
    graph.source("lines", FileSource(__file__)).map("same", len, schema="n int")
    graph.source("same", FileSource(__file__)).sink("out", FileSink(tmp_path / "out"))
    with pytest.raises(GraphError, match="same"):
        start(graph, data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_region_that_would_take_every_slot_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(NotEnoughSlotsError, match=r"local\[6\] has 6 in total: use local\[8\]"):
        start(word_count(tmp_path, passes=1), workers=6, data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def tasks_at_work(spark: SparkSession) -> int:
    """As Spark's own status tracker counts them, which the region asks too."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def test_a_region_gives_up_when_other_jobs_keep_the_slots(
    spark: SparkSession, start: Start, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"

    def occupy(batches: Any) -> Any:
        for batch in batches:
            while not go_on.exists():
                time.sleep(0.02)
            yield batch

    job = InheritableThread(target=spark.range(0, 5, 1, 5).mapInArrow(occupy, "id long").collect)
    job.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while tasks_at_work(spark) < 5:  # Spark counts them a moment after they begin
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(NotEnoughSlotsError, match=r"2 free slots are needed, 1 are free .* of waiting"):
            start(word_count(tmp_path, passes=1), data_dir=tmp_path / "data", start_timeout=1.0)
    finally:
        go_on.touch()
        job.join()
    assert not (tmp_path / "data").exists()


def test_executors_that_do_not_fit_end_the_region_at_once(
    spark: SparkSession, start: Start, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_first = pretended(tmp_path / "seen", "pyarrow", "18.1.0")
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(seen_first))  # of executors alone
    region = start(word_count(tmp_path, passes=1), store=store)
    with pytest.raises(ExecutorMismatchError, match=r"pyarrow is 18\.1\.0, but the driver has \d+"):
        region.awaitTermination(PATIENCE_S)


def test_a_session_that_would_kill_silent_workers_is_refused_with_the_conf(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    confs = {session_checks.IDLE_KILL[0]: "true", session_checks.IDLE_SECONDS[0]: "30"}
    for name, value in confs.items():
        spark.conf.set(name, value)
    try:
        with pytest.raises(DosError, match=r"killOnIdleTimeout=true and .*=30 would make"):
            run(spark, word_count(tmp_path, passes=1), store=store)
    finally:
        for name in confs:
            spark.conf.unset(name)


@pytest.mark.timeout(240)  # five attempts, with a longer pause before each
def test_a_worker_that_cannot_be_dialled_is_named_before_anything_runs(
    start: Start, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_task = on_executor.make_task

    def with_a_wrong_address(expected: on_executor.Expected, graph: bytes, fields: dict[str, Any]) -> Any:
        wrong = {"advertise_host": "127.0.0.99"} if fields["worker"] == 1 else {}
        return make_task(expected, graph, {**fields, **wrong})

    monkeypatch.setattr(on_executor, "make_task", with_a_wrong_address)
    region = start(word_count(tmp_path, passes=1), store=store)
    with pytest.raises(RegionFailedError, match=r"worker 0: .*worker 1.*127\.0\.0\.99"):
        region.awaitTermination(200)
    assert region.status.step == 0
    assert sum(path.stat().st_size for path in (tmp_path / "out").glob("part-w*.tsv")) == 0
