"""Workers as Spark jobs: killed, stuck, cancelled and started again, on a real session."""

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from spark_integration.core import jobs as attempts
from spark_integration.launcher import JobsShown, SparkLauncher, TaskFunction, worker_tag
from tests.support import polling

pytestmark = pytest.mark.spark

PATIENCE_S = 30.0
wait_until = partial(polling.until, within_s=PATIENCE_S)


def long_task(directory: Path, worker: int, attempt: int) -> TaskFunction:
    """A task that writes its pid to a file and then runs until the file `go-on` exists."""
    pid_file, go_on = str(directory / f"w{worker}.{attempt}"), str(directory / "go-on")

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import os
        from pathlib import Path

        import pyarrow

        for _ in batches:
            pass
        Path(pid_file + ".tmp").write_text(str(os.getpid()))
        Path(pid_file + ".tmp").rename(pid_file)
        while not Path(go_on).exists():
            time.sleep(0.02)
        yield pyarrow.RecordBatch.from_pydict({"summary": ["{}"]})

    return task


class Watched:
    """A launcher, and what it reported."""

    def __init__(self, spark: SparkSession, region: str, directory: Path) -> None:
        self.directory = directory
        self.ended: list[tuple[int, int, str | None]] = []
        self._changed = threading.Condition()
        self.launcher = SparkLauncher(
            spark,
            region,
            lambda worker, attempt: long_task(directory, worker, attempt),
            self._on_ended,
            shown=JobsShown("dos://h1", {"lines": "source from ()"}, lambda: "it was stopped"),
        )

    def _on_ended(self, worker: int, attempt: int, error: str | None) -> None:
        with self._changed:
            self.ended.append((worker, attempt, error))
            self._changed.notify_all()

    def pid(self, worker: int, attempt: int) -> int:
        path = self.directory / f"w{worker}.{attempt}"
        wait_until(path.exists, f"worker {worker} attempt {attempt} runs")
        return int(path.read_text())

    def wait_ended(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ended) >= count, PATIENCE_S), self.ended


@pytest.fixture
def watched(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Watched]:
    subject = Watched(spark, f"r{abs(hash(request.node.name)) % 10**6}", tmp_path)
    yield subject
    (tmp_path / "go-on").touch()
    assert subject.launcher.close(PATIENCE_S)


def test_a_killed_worker_is_reported_alone_and_can_be_started_again(watched: Watched) -> None:
    watched.launcher.start(0, 0)
    watched.launcher.start(1, 0)
    other = watched.pid(1, 0)
    os.kill(watched.pid(0, 0), signal.SIGKILL)
    watched.wait_ended(1)
    worker, attempt, error = watched.ended[0]
    assert (worker, attempt) == (0, 0)
    assert error is not None
    assert "exited unexpectedly" in error
    watched.launcher.start(0, 1)
    assert watched.pid(0, 1) > 0
    os.kill(other, 0)
    (watched.directory / "go-on").touch()
    watched.wait_ended(3)
    assert sorted(watched.ended[1:]) == [(0, 1, None), (1, 0, None)]


def test_a_stopped_process_is_cancelled_by_tag_and_replaced(watched: Watched) -> None:
    watched.launcher.start(0, 0)
    stuck = watched.pid(0, 0)
    os.kill(stuck, signal.SIGSTOP)
    watched.launcher.cancel(0, 0)
    watched.launcher.start(0, 1)
    assert watched.pid(0, 1) != stuck
    assert [(worker, attempt) for worker, attempt, _ in watched.ended] == [(0, 0)]
    wait_until(lambda: not is_running(stuck), "the stuck process is gone")


def test_an_attempt_that_was_not_cancelled_keeps_its_slot_while_the_next_one_is_placed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "HOLD_TICKS", 1_000)  # on a busy machine two seconds are less than a start
    watched.launcher.start(0, 0)
    rejected = watched.pid(0, 0)
    watched.launcher.start(0, 1)
    assert watched.pid(0, 1) != rejected
    assert is_running(rejected)
    monkeypatch.setattr(attempts, "HOLD_TICKS", 1)
    watched.wait_ended(1)
    assert watched.ended[0][:2] == (0, 0), "it is canceled after the next one was placed"
    wait_until(lambda: not is_running(rejected), "its process is gone")
    assert watched.launcher.close(PATIENCE_S)


def test_a_cancel_that_comes_before_spark_knows_the_job_is_not_lost(watched: Watched) -> None:
    watched.launcher.start(0, 0)
    watched.launcher.cancel(0, 0)
    watched.wait_ended(1)
    assert watched.ended[0][:2] == (0, 0)
    assert watched.launcher.wait_idle(PATIENCE_S)


def test_jobs_can_be_cancelled_from_outside_by_the_tag_of_the_region_and_worker(
    watched: Watched, spark: SparkSession
) -> None:
    watched.launcher.start(1, 4)
    watched.pid(1, 4)
    spark.sparkContext.cancelJobsWithTag(worker_tag(watched.launcher.region, 1))
    watched.wait_ended(1)
    assert watched.ended[0][:2] == (1, 4)


def test_after_closing_nothing_is_started(watched: Watched) -> None:
    watched.launcher.start(0, 0)
    watched.pid(0, 0)
    assert watched.launcher.close(PATIENCE_S)
    watched.launcher.start(0, 1)
    assert [end[:2] for end in watched.ended] == [(0, 0), (0, 1)]
    assert "closed" in str(watched.ended[1][2])
    assert not (watched.directory / "w0.1").exists()


def pages(spark: SparkSession, what: str) -> list[dict[str, Any]]:
    """What the REST API of Spark's UI lists of this application: `jobs`, `stages`, `sql`."""
    port = urlsplit(spark.sparkContext.uiWebUrl or "").port
    address = f"http://127.0.0.1:{port}/api/v1/applications/{spark.sparkContext.applicationId}/{what}"
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def test_sparks_pages_name_the_job_its_region_and_graph_how_to_stop_it_and_why_it_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    context, region = spark.sparkContext, "shown"
    context.setJobGroup("cell", "a cell of a notebook")
    try:
        watched = Watched(spark, region, tmp_path)
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context._jsc.setLocalProperty(name, None)
    watched.launcher.start(0, 3)
    watched.pid(0, 3)
    wait_until(lambda: jobs_of(spark, region) != [], "Spark lists the job")
    (job,) = jobs_of(spark, region)
    text = f"DOS region {region}, worker 0, attempt 3; to stop: dos region stop dos://h1 {region}"
    assert (job["description"], job["name"], job["status"]) == (text, "graph: lines", "RUNNING")
    assert {f"dos:{region}:w0", f"dos:{region}:w0:a3"} <= set(job["jobTags"])
    (stage,) = [one for one in pages(spark, "stages") if one["stageId"] in job["stageIds"]]
    assert (stage["description"], stage["name"]) == (text, "graph: lines")
    assert f"State: dos region status dos://h1 {region}" in stage["details"]
    assert "lines: source from ()" in stage["details"]
    assert text in [one["description"] for one in pages(spark, "sql?length=10000")]
    context.cancelJobGroup("cell")  # without effect: the job has a group of its own
    watched.launcher.cancel(0, 3)
    watched.wait_ended(1)
    assert watched.ended == [(0, 3, None)], "its own cancel is no error"
    wait_until(lambda: jobs_of(spark, region)[0]["status"] == "FAILED", "Spark lists its end")
    (stage,) = [one for one in pages(spark, "stages") if one["stageId"] in job["stageIds"]]
    assert f"cancelled by DOS region {region}: it was stopped" in stage["failureReason"]
    assert watched.launcher.close(PATIENCE_S)


def jobs_of(spark: SparkSession, region: str) -> list[dict[str, Any]]:
    return [one for one in pages(spark, "jobs") if one.get("jobGroup") == f"dos:{region}"]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
