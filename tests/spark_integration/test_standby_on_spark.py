"""Stand-bys on a real Spark session: a killed worker continues in the process that waited."""

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from checkpoint.core.region import RegionState
from spark_integration import RegionHandle, on_executor
from spark_integration.launcher import standby_tag
from tests.spark_integration.test_region import (
    Start,
    assert_right,
    checkpoints,
    hurry,
    slow_word_count,
    start,
    store,
    wait_until,
    word_count,
)

__all__ = ["hurry", "start", "store"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]  # a busy machine is slow, not wrong

PASSES = 3_000


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which each stand-by writes its process id, to a file with its number."""
    make_task, directory = on_executor.make_task, tmp_path / "pids"
    directory.mkdir()

    def noting(expected: on_executor.Expected, graph: bytes, fields: dict[str, Any]) -> Any:
        task, here, number = make_task(expected, graph, fields), str(directory), fields.get("standby")

        def note(batches: Iterable[Any]) -> Iterator[Any]:
            import os
            from pathlib import Path

            if number is not None:
                Path(here, str(number)).write_text(str(os.getpid()))
            yield from task(batches)

        return note

    monkeypatch.setattr(on_executor, "make_task", noting)
    return directory


def waits(region: RegionHandle, pids: Path, number: int) -> int:
    """Wait until the stand-by with this number waits. Return its process id."""
    wait_until(lambda: region._control.standbys.numbers() == [number], region)
    return int((pids / str(number)).read_text())


# EVIDENCE-OF: P-10
def test_a_killed_worker_continues_in_the_process_that_stood_by_and_another_one_waits(
    spark: SparkSession, start: Start, tmp_path: Path, store: str, pids: Path, hurry: Path
) -> None:
    region = start(
        slow_word_count(tmp_path, hurry, passes=PASSES), store=store, checkpoint_interval=0.2, standby=1
    )
    first = waits(region, pids, 1)
    wait_until(lambda: region.status.standbys == 1, region)
    os.kill(region.status.workers[1].pid, signal.SIGKILL)
    wait_until(lambda: len(region.status.resets) == 1 and checkpoints(region, 1)(), region)
    assert [(one.attempt, one.pid) for one in region.status.workers][1] == (2, first)

    second = waits(region, pids, 2)
    assert second != first
    os.kill(second, signal.SIGKILL)
    third = waits(region, pids, 3)
    assert len(region.status.resets) == 1, "the loss of a stand-by is no loss of a worker"

    os.kill(first, signal.SIGKILL)  # the worker that was a stand-by is lost like any other
    wait_until(lambda: len(region.status.resets) == 2 and checkpoints(region, 1)(), region)
    assert [(one.attempt, one.pid) for one in region.status.workers][1] == (3, third)

    waits(region, pids, 4)
    hurry.touch()
    assert region.awaitTermination(150)
    assert_right(tmp_path, PASSES)
    assert jobs_of(spark, region, 4) == ["SUCCEEDED"], "the one that nobody needed ended in order"
    assert list(spark.sparkContext.statusTracker().getActiveJobsIds()) == []


def jobs_of(spark: SparkSession, region: RegionHandle, number: int) -> list[str]:
    """How the jobs of a stand-by are, as Spark's own status tracker shows them."""
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    jobs = tracker.getJobIdsForTag(standby_tag(region.name, number))
    return [tracker.getJobInfo(job).get().status().toString() for job in jobs]


@pytest.mark.long
def test_a_successor_and_an_added_worker_are_stand_bys_and_a_stopped_one_is_canceled(
    start: Start, tmp_path: Path, store: str, pids: Path, hurry: Path
) -> None:
    region = start(
        slow_word_count(tmp_path, hurry, passes=PASSES), store=store, checkpoint_interval=0.2, standby=1
    )
    first = waits(region, pids, 1)
    region.replace(0, timeout=150)
    assert region.status.workers[0].pid == first
    second = waits(region, pids, 2)
    region.scale(3, timeout=150)
    assert region.status.workers[2].pid == second
    assert region.status.resets == ()

    waits(region, pids, 3)
    os.kill(second, signal.SIGSTOP)  # its silence is noticed after 10 s, and its job is canceled
    wait_until(lambda: len(region.status.resets) == 1, region)
    assert region.status.workers[2].pid == int((pids / "3").read_text())
    hurry.touch()
    assert region.awaitTermination(150)
    assert_right(tmp_path, PASSES)


def test_without_a_slot_for_it_the_region_runs_without_a_stand_by_and_says_so_once(
    start: Start, tmp_path: Path, store: str, hurry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = slow_word_count(tmp_path, hurry, passes=PASSES)
    region = start(graph, store=store, checkpoint_interval=0.2, standby=1, spare_slots=4)

    def told() -> list[str]:
        messages = (one.getMessage() for one in caplog.records)
        return [text for text in messages if "without a further stand-by" in text]

    wait_until(lambda: told() != [], region)
    os.kill(region.status.workers[0].pid, signal.SIGKILL)
    wait_until(lambda: len(region.status.resets) == 1 and checkpoints(region, 1)(), region)
    hurry.touch()
    assert region.awaitTermination(150)
    assert region.status.state is RegionState.FINISHED
    (line,) = told()
    assert (
        "2 of 6 slots are in use, and 4 must be left for other jobs: use local[8], or pass standby=0" in line
    )
    assert_right(tmp_path, PASSES)


def test_a_negative_number_is_refused(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="standby"):
        start(word_count(tmp_path, passes=1), standby=-1, data_dir=tmp_path / "data")
    assert not (tmp_path / "data").exists()
