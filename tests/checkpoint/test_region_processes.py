"""Regions of real processes on real servers: killed, stopped, duelling; the result is that of a run without
faults.
"""

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import trio

from checkpoint.core.region import CutCommitted, RegionState, ResetReport, StateChanged, WorkerLost
from checkpoint.errors import FingerprintMismatchError, RegionFailedError, RegionFencedError
from dos_client import init_store
from tests.checkpoint.toy_region import DriverSpec, ToyRegion
from tests.checkpoint.toy_worker import expected, total
from tests.support.servers import three_servers, url_of

__all__ = ["three_servers"]
pytestmark = pytest.mark.process


@pytest.fixture
def store(three_servers):
    trio.run(init_store, url_of(three_servers))
    return url_of(three_servers)


def check_finished(region: ToyRegion) -> None:
    assert region.control.wait(40), (region.control.status(), region.logs())
    status = region.control.status()
    assert (status.state, region.control.exception()) == (RegionState.FINISHED, None), region.logs()
    assert total(region.out) == expected(region.control.spec.workers, region.numbers)


def resets(region: ToyRegion) -> list[ResetReport]:
    return [event for event in region.events if isinstance(event, ResetReport)]


def test_a_region_without_faults_counts_right_and_finishes(store, tmp_path) -> None:
    with ToyRegion(store, tmp_path / "r", workers=3, numbers=5_000) as region:
        check_finished(region)
    cuts = [event.cut for event in region.events if isinstance(event, CutCommitted)]
    assert cuts == list(range(1, len(cuts) + 1))
    states = [event.state for event in region.events if isinstance(event, StateChanged)]
    assert states[-1] is RegionState.FINISHED
    assert RegionState.RUNNING in states


def test_workers_killed_with_their_scratch_lose_and_double_nothing(store, tmp_path) -> None:
    # EVIDENCE-OF: P-6, P-7, P-10
    with ToyRegion(store, tmp_path / "r", numbers=40_000) as region:
        for worker in (0, 1):
            region.wait_cuts(2)
            done = len(resets(region))
            region.kill(worker)
            shutil.rmtree(region.folder / f"scratch-{worker}", ignore_errors=True)
            region.wait_for(lambda _, done=done: len(resets(region)) > done)
        check_finished(region)
    first, second = resets(region)
    assert (first.worker, second.worker) == (0, 1)
    assert first.cut >= 2
    assert first.bytes > 0
    assert second.incarnation == first.incarnation + 1
    assert first.reason.startswith("worker 0 was lost")


def test_a_stopped_worker_is_suspected_fenced_and_replaced(store, tmp_path) -> None:
    # EVIDENCE-OF: P-4, P-10
    with ToyRegion(store, tmp_path / "r", numbers=20_000, suspect_after_s=2.5) as region:
        region.wait_cuts(1)
        region.kill(1, signal.SIGSTOP)
        region.wait_for(lambda _: len(resets(region)) > 0)
        check_finished(region)
    lost = [event for event in region.events if isinstance(event, WorkerLost)]
    assert "nothing was heard from it" in lost[0].reason


def test_a_server_that_dies_for_good_is_not_missed(store, three_servers, tmp_path) -> None:
    # EVIDENCE-OF: P-5, P-10
    with ToyRegion(store, tmp_path / "r", numbers=30_000) as region:
        region.wait_cuts(1)
        three_servers[1].kill()
        shutil.rmtree(three_servers[1].data)
        region.wait_cuts(2)
        region.kill(0)
        check_finished(region)
    assert len(resets(region)) == 1


def test_without_a_quorum_the_region_waits_and_then_goes_on(store, three_servers, tmp_path) -> None:
    # EVIDENCE-OF: P-10
    with ToyRegion(store, tmp_path / "r", numbers=30_000) as region:
        region.wait_cuts(1)
        for server in three_servers[:2]:
            server.kill()
        region.wait_for(lambda _: region.control.status().state is RegionState.WAITING_FOR_STORE)
        before = region.cuts
        for server in three_servers[:2]:
            server.restart()
        region.wait_for(lambda _: region.cuts > before)
        check_finished(region)
    assert resets(region) == []
    assert not any(isinstance(event, WorkerLost) for event in region.events)


def test_user_code_that_raises_stops_the_region(store, tmp_path) -> None:
    with ToyRegion(store, tmp_path / "r", fail_at=3_000) as region:
        assert region.control.wait(30)
    error = region.control.exception()
    assert isinstance(error, RegionFailedError)
    assert "operator 'toy' failed in worker" in str(error)
    assert "n[3000]" in str(error)


def test_stop_takes_a_last_cut_and_the_next_run_goes_on_there(store, tmp_path) -> None:
    with ToyRegion(store, tmp_path / "r", numbers=30_000) as region:
        region.wait_cuts(2)
        number = region.control.request_cut()
        assert region.control.wait_cut(number, 20)
        region.control.stop()
        assert region.control.wait(20)
        stopped = region.control.status()
    assert stopped.state is RegionState.STOPPED
    assert stopped.last_cut >= number
    with ToyRegion(store, tmp_path / "r", numbers=30_000) as region:
        region.wait_cuts(1)
        assert region.control.status().last_cut > stopped.last_cut
        region.control.reset()
        region.wait_for(lambda _: len(resets(region)) > 0)
        assert region.control.status().reset_attempts == 0
        check_finished(region)


def test_a_finished_region_runs_again_and_finishes_at_once(store, tmp_path) -> None:
    for _ in range(2):
        with ToyRegion(store, tmp_path / "r", numbers=1_000) as region:
            check_finished(region)
    assert region.cuts == 1


def test_another_graph_under_the_same_name_is_refused_by_operator(store, tmp_path) -> None:
    with ToyRegion(store, tmp_path / "r", numbers=1_000) as region:
        check_finished(region)
    again = ToyRegion(store, tmp_path / "r", numbers=1_000)
    object.__setattr__(again.control.spec, "operators", {"counts": "other"})
    with again:
        assert again.control.wait(30)
    error = again.control.exception()
    assert isinstance(error, FingerprintMismatchError)
    assert error.operators == ("counts",)


def test_of_two_live_drivers_the_newer_fences_the_older(store, tmp_path) -> None:
    # EVIDENCE-OF: P-4
    with ToyRegion(store, tmp_path / "r", numbers=40_000) as older:
        older.wait_cuts(2)
        with ToyRegion(store, tmp_path / "r", numbers=40_000, key="cd" * 32) as newer:
            assert older.control.wait(30)
            assert older.control.status().state is RegionState.FENCED
            assert isinstance(older.control.exception(), RegionFencedError)
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

    def cuts(self) -> list[int]:
        return [line["cut"] for line in self.lines if "cut" in line]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_a_driver_killed_and_started_again_resumes_its_last_cut(store, tmp_path) -> None:
    # EVIDENCE-OF: P-4, P-6, P-10
    spec = DriverSpec(store, str(tmp_path / "r"), 2, 40_000, 0.005)
    Path(spec.folder).mkdir()
    first, second = Driver(spec), None
    try:
        first.wait_for(lambda _: len(first.cuts()) >= 3)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        second = Driver(spec)
        second.wait_for(lambda lines: any("end" in line for line in lines))
        assert second.lines[-1] == {"end": "FINISHED"}
        assert second.cuts()[0] > first.cuts()[-1]
        assert second.cuts()[0] <= first.cuts()[-1] + 2  # at most one whose commit nobody saw
    finally:
        first.close()
        if second is not None:
            second.close()
    assert total(tmp_path / "r" / "out") == expected(2, 40_000)
