"""Without a stand-by, a lost worker runs in the process of its predecessor, and then in its own."""

from pathlib import Path

import pytest

from checkpoint.core.region import ResetReport
from dataflow.handle import RegionHandle
from tests.dataflow.test_region_processes import (
    WAIT_S,
    kill,
    texts,
    three_servers,
)
from tests.dataflow.test_rescaled_regions import counting
from tests.support.polling import until

__all__ = ["texts", "three_servers"]
pytestmark = pytest.mark.process


def hosts(control: RegionHandle) -> list[int | None]:
    return [worker.hosted_by for worker in control.status.workers]


def variables(pid: int) -> dict[bytes, bytes]:
    """Return the environment with which a process was started."""
    parts = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {name: value for name, _, value in (part.partition(b"=") for part in parts)}


def test_a_lost_worker_runs_on_its_predecessor_and_returns_to_its_own_process(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    with counting(texts, shared_store, tmp_path, workers=3, recovery="local", standby=0) as (control, watch):
        watch.checkpoints(2)
        before = [worker.pid for worker in control.status.workers]
        seeds = {variables(pid).get(b"PYTHONHASHSEED") for pid in before}
        assert len(seeds - {None}) == len(seeds) == 1, "what is made again must not depend on the process"
        kill(control, 1, wipe=True)
        watch.wait(lambda event: isinstance(event, ResetReport))
        hosted = control.status
        assert [worker.hosted_by for worker in hosted.workers] == [None, 0, None]
        assert hosted.workers[1].pid == before[0], "the next worker of the ring runs it"
        until(lambda: len(control.status.resets) == 2, "the worker has its own process", within_s=WAIT_S)
        assert hosts(control) == [None] * 3
        after = control.status
        assert after.workers[1].pid not in before
        assert [after.workers[0].pid, after.workers[2].pid] == [before[0], before[2]]
        assert after.incarnation == hosted.incarnation
        assert [reset.term - after.incarnation for reset in after.resets] == [1, 2]
        assert after.resets[1].reason == "worker 1 continues in its own process"
        # The loss of a host resets all workers.
        control.checkpoint(WAIT_S)
        kill(control, 1, wipe=False)
        watch.wait(lambda event: isinstance(event, ResetReport), 3)
        assert hosts(control) == [None, 0, None]
        kill(control, 0, wipe=False)
        watch.wait(lambda event: isinstance(event, ResetReport) and not event.term)
        until(lambda: hosts(control) == [None] * 3, "all have their own process", within_s=WAIT_S)


def test_a_worker_leaves_whose_process_runs_another_one_which_gets_its_own(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    with counting(texts, shared_store, tmp_path, workers=3, recovery="local", standby=0) as (control, watch):
        watch.checkpoints(2)
        kill(control, 0, wipe=True)
        watch.wait(lambda event: isinstance(event, ResetReport))
        assert hosts(control) == [2, None, None]
        assert control.scale(2, WAIT_S).workers == 2
        assert hosts(control) == [None, None]
        assert [reset.term > 0 for reset in control.status.resets] in ([True], [True, True])
