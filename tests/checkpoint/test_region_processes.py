"""Regions of real processes on real servers: killed, stopped, duelling; the result is that of a run without
faults.
"""

import json
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio

from checkpoint.core.region import CheckpointCommitted, RegionState, StateChanged, WorkerLost
from checkpoint.errors import FingerprintMismatchError, RegionFailedError, RegionFencedError
from dos_client import init_store
from tests.checkpoint.toy_region import DriverSpec, ToyRegion
from tests.checkpoint.toy_worker import expected, total
from tests.support.servers import url_of

pytestmark = pytest.mark.process


@pytest.fixture
def new_region(shared_store, tmp_path, region_name):
    """Makes regions of this test's own name."""
    return partial(ToyRegion, shared_store, tmp_path / "r", name=region_name)


@pytest.fixture
def store(three_servers):
    """Servers that the test may kill."""
    trio.run(init_store, url_of(three_servers))
    return url_of(three_servers)


def check_finished(region: ToyRegion) -> None:
    assert region.control.wait(40), (region.control.status(), region.logs())
    status = region.control.status()
    assert (status.state, region.control.exception()) == (RegionState.FINISHED, None), region.logs()
    assert total(region.out) == expected(region.control.spec.workers, region.numbers)


def test_a_region_without_faults_counts_right_and_finishes(new_region) -> None:
    with new_region(workers=3, numbers=5_000) as run:
        check_finished(run)
    checkpoints = [event.checkpoint for event in run.events if isinstance(event, CheckpointCommitted)]
    assert checkpoints == list(range(1, len(checkpoints) + 1))
    states = [event.state for event in run.events if isinstance(event, StateChanged)]
    assert states[-1] is RegionState.FINISHED
    assert RegionState.RUNNING in states


def test_workers_killed_with_their_scratch_lose_and_double_nothing(new_region) -> None:
    # EVIDENCE-OF: P-6, P-7, P-10
    with new_region(numbers=40_000) as run:
        for worker in (0, 1):
            run.wait_checkpoints(2)
            done = len(run.resets)
            run.kill(worker)
            shutil.rmtree(run.folder / f"scratch-{worker}", ignore_errors=True)
            run.wait_for(lambda _, done=done: len(run.resets) > done)
        check_finished(run)
    first, second = run.resets
    assert (first.worker, second.worker) == (0, 1)
    assert first.checkpoint >= 2
    assert first.bytes > 0
    assert second.incarnation == first.incarnation + 1
    assert first.reason.startswith("worker 0 was lost")


def test_a_stopped_worker_is_suspected_fenced_and_replaced(new_region) -> None:
    # EVIDENCE-OF: P-4, P-10
    with new_region(numbers=20_000, suspect_after_s=2.5) as run:
        run.wait_checkpoints(1)
        run.kill(1, signal.SIGSTOP)
        run.wait_for(lambda _: len(run.resets) > 0)
        check_finished(run)
    lost = [event for event in run.events if isinstance(event, WorkerLost)]
    assert "nothing was received from it" in lost[0].reason


def test_a_server_that_dies_for_good_is_not_missed(store, three_servers, tmp_path) -> None:
    # EVIDENCE-OF: P-5, P-10
    with ToyRegion(store, tmp_path / "r", numbers=30_000) as region:
        region.wait_checkpoints(1)
        three_servers[1].kill()
        shutil.rmtree(three_servers[1].data)
        region.wait_checkpoints(2)
        region.kill(0)
        check_finished(region)
    assert len(region.resets) == 1


def test_without_a_quorum_the_region_waits_and_then_continues(store, three_servers, tmp_path) -> None:
    # EVIDENCE-OF: P-10
    with ToyRegion(store, tmp_path / "r", numbers=30_000) as region:
        region.wait_checkpoints(1)
        for server in three_servers[:2]:
            server.kill()
        region.wait_for(lambda _: region.control.status().state is RegionState.WAITING_FOR_STORE)
        gone = [server.location for server in three_servers[:2]]
        region.wait_for(
            lambda _: all(f"{one} is unavailable" in region.control.status().reason for one in gone)
        )
        region.wait_for(lambda _: region.control.status().waiting_s > 0)
        before = region.checkpoints
        for server in three_servers[:2]:
            server.restart()
        region.wait_for(lambda _: region.checkpoints > before)
        check_finished(region)
    assert region.resets == []
    assert not any(isinstance(event, WorkerLost) for event in region.events)
    status = region.control.status()
    assert (status.incarnation, status.reset_attempts, status.waiting_s) == (1, 0, 0)


def test_user_code_that_raises_stops_the_region(new_region) -> None:
    with new_region(fail_at=3_000) as run:
        assert run.control.wait(30)
    error = run.control.exception()
    assert isinstance(error, RegionFailedError)
    assert "operator 'toy' failed in worker" in str(error)
    assert "n[3000]" in str(error)


def test_stop_takes_a_last_checkpoint_and_the_next_run_continues_there(new_region) -> None:
    with new_region(numbers=30_000) as run:
        run.wait_checkpoints(2)
        number = run.control.request_checkpoint()
        assert run.control.wait_checkpoint(number, 20)
        run.control.stop()
        assert run.control.wait(20)
        stopped = run.control.status()
    assert stopped.state is RegionState.STOPPED
    assert stopped.last_checkpoint >= number
    with new_region(numbers=30_000) as run:
        run.wait_checkpoints(1)
        assert run.control.status().last_checkpoint > stopped.last_checkpoint
        run.control.reset()
        run.wait_for(lambda _: len(run.resets) > 0)
        assert run.control.status().reset_attempts == 0
        check_finished(run)


def test_a_finished_region_runs_again_and_finishes_at_once(new_region) -> None:
    for _ in range(2):
        with new_region(numbers=1_000) as run:
            check_finished(run)
    assert run.checkpoints == 1


def test_another_graph_under_the_same_name_is_refused_by_operator(new_region) -> None:
    with new_region(numbers=1_000) as run:
        check_finished(run)
    again = new_region(numbers=1_000)
    object.__setattr__(again.control.spec, "operators", {"counts": "other"})
    with again:
        assert again.control.wait(30)
    error = again.control.exception()
    assert isinstance(error, FingerprintMismatchError)
    assert error.operators == ("counts",)


def test_of_two_live_drivers_the_newer_fences_the_older(new_region) -> None:
    # EVIDENCE-OF: P-4
    with new_region(numbers=40_000) as older:
        older.wait_checkpoints(2)
        with new_region(numbers=40_000, key="cd" * 32) as newer:
            assert older.control.wait(30)
            assert older.control.status().state is RegionState.FENCED
            assert isinstance(older.control.exception(), RegionFencedError)
            with pytest.raises(RegionFailedError, match="has the workers that it had: it is FENCED; "):
                older.control.scale(3)
            check_finished(newer)


class Driver:
    """A driver process; its lines are read as they come."""

    def __init__(self, spec: DriverSpec) -> None:
        command = [sys.executable, "-m", "tests.checkpoint.toy_region", msgspec.json.encode(spec).decode()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: list[dict] = []
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(json.loads(line))
                self.changed.notify_all()

    def wait_for(self, predicate, within=40.0) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: predicate(self.lines), within), self.lines

    def checkpoints(self) -> list[int]:
        return [line["checkpoint"] for line in self.lines if "checkpoint" in line]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_a_driver_killed_and_started_again_resumes_its_last_checkpoint(shared_store, tmp_path) -> None:
    # EVIDENCE-OF: P-4, P-6, P-10
    spec = DriverSpec(shared_store, str(tmp_path / "r"), 2, 40_000, 0.005)
    Path(spec.folder).mkdir()
    first, second = Driver(spec), None
    try:
        first.wait_for(lambda _: len(first.checkpoints()) >= 3)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        second = Driver(spec)
        second.wait_for(lambda lines: any("end" in line for line in lines))
        assert second.lines[-1] == {"end": "FINISHED"}
        assert second.checkpoints()[0] > first.checkpoints()[-1]
        assert second.checkpoints()[0] <= first.checkpoints()[-1] + 2  # at most one whose commit nobody saw
    finally:
        first.close()
        if second is not None:
            second.close()
    assert total(tmp_path / "r" / "out") == expected(2, 40_000)
