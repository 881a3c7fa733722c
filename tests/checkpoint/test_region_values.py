"""Values of a region: their defaults, and the names of its directories."""

import pytest

from checkpoint.core.links.messages import Counters
from checkpoint.core.records.divisions import DivisionFold
from checkpoint.core.records.manifest import SplitPosition
from checkpoint.core.region import WorkerStatus, region_of_worker, worker_directory


def test_what_a_record_leaves_out_is_nothing() -> None:
    counters = Counters()
    assert (counters.step, counters.rows_in, counters.rows_out, counters.bytes_in) == (0, 0, 0, 0)
    assert (counters.lag_bytes, counters.busy_s) == (0, 0.0)
    assert (counters.exhausted, counters.waiting_for_store, counters.waiting_reason) == (False, False, "")
    status = WorkerStatus(0, "RUNNING")
    assert (status.attempt, status.pid, status.replayed_bytes, status.restore_seconds) == (0, 0, 0, 0.0)
    assert (status.host, status.scratch, status.error, status.counters) == ("", "", "", counters)
    assert SplitPosition(5) == SplitPosition(5, digest=0, done=False)
    assert DivisionFold().last_step == DivisionFold().after == 0


@pytest.mark.parametrize(("region", "worker"), [("a", 0), ("a.w0001", 2), ("a.b", 9999), ("a", 12345)])
def test_a_workers_directory_says_whose_it_is(region: str, worker: int) -> None:
    assert region_of_worker(worker_directory(region, worker)) == (region, worker)


@pytest.mark.parametrize(
    "name", [".w0001", "a", "w0001", "a.w001", "a.w000x", "a.coord", "a.w\u0661\u0661\u0661\u0661"]
)
def test_what_is_no_workers_directory_is_distinguished(name: str) -> None:
    assert region_of_worker(name) is None
