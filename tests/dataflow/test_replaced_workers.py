"""Workers of a running region that are replaced by other processes, on real servers and worker processes."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from checkpoint.core.region import CheckpointCommitted, RegionEvent, RegionState, WorkerJoined
from checkpoint.errors import NotReplacedError
from dataflow import Graph, LogSink, RateSource
from tests.dataflow.support import true_counts
from tests.dataflow.test_region_processes import (
    WAIT_S,
    finished,
    hurry,
    kill,
    running,
    slow_word_count,
    texts,
    three_servers,
)
from tests.dataflow.test_rescaled_regions import counting, counts_in
from tests.support.dos_command import dos
from tests.support.polling import until

__all__ = ["texts", "three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_all_workers_are_replaced_one_after_the_other_while_the_region_runs(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    """A process that dies before it takes over leaves the worker that runs."""

    def kill_the_new(event: RegionEvent) -> None:
        if isinstance(event, WorkerJoined) and event.attempt == 2:
            os.kill(event.pid, signal.SIGKILL)

    with counting(texts, shared_store, tmp_path, workers=2) as (control, watch):
        watch.checkpoints(2)
        before = [worker.pid for worker in control.status.workers]
        watch.also = kill_the_new
        with pytest.raises(NotReplacedError, match="no worker was replaced; kept: 0, 1: worker 0 was lost"):
            control.replace(timeout=WAIT_S)
        with pytest.raises(NotReplacedError, match="the region has 2 workers, and no worker 2"):
            control.replace(2, timeout=WAIT_S)
        assert [worker.pid for worker in control.status.workers] == before
        watch.also = lambda _: None
        settled = control.replace(timeout=WAIT_S)
        assert settled.replaced == (0, 1)
        after = [worker.pid for worker in control.status.workers]
        assert not set(before) & set(after)
        assert not control.status.resets, "a replacement is no reset"
        for pid in before:
            until(partial(is_gone, pid), "a replaced process ends on its own", within_s=WAIT_S)
        kill(control, 1, wipe=True)
        control.checkpoint(WAIT_S)
        printed = dos("region", "replace", shared_store, tmp_path.name, "--worker", "1")
        assert printed.stdout.startswith("replaced: 1, in "), printed


def test_a_region_is_handed_over_to_another_driver_which_starts_its_workers_first(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    """One that cannot continue leaves it to the driver that runs it."""
    graph, other = slow_word_count(texts, tmp_path / "out"), Graph("another")
    other.source("rows", RateSource(10)).sink("out", LogSink())
    with running(graph, shared_store, tmp_path, workers=3) as (before, watch):
        watch.checkpoints(2)
        with running(other, shared_store, tmp_path, hand_over=True) as (after, _):
            assert after.wait(WAIT_S)
            assert after.status.state is RegionState.FAILED
            assert "'counts'" in after.status.reason, after.status.reason
        before.checkpoint(WAIT_S)
        assert not before.status.resets
        with running(graph, shared_store, tmp_path, hand_over=True) as (after, newer):
            newer.wait(lambda event: isinstance(event, CheckpointCommitted))
            assert before.wait(WAIT_S)
            assert before.status.state is RegionState.FENCED
            assert len(after.status.workers) == 3, "as many as the region has"
            hurry(tmp_path / "out")
            assert finished(after), after.status
    assert counts_in(tmp_path / "out") == dict(true_counts(texts, 3))
