"""Warm stand-bys of real worker processes, over real servers: they take the places of killed workers."""

from pathlib import Path

import pytest
import trio

from checkpoint.chains.manifest_log import read_manifest
from checkpoint.core.region import ResetReport
from dataflow.handle import RegionHandle
from dos_client import open_store
from tests.dataflow.test_region_processes import WAIT_S, kill, texts, three_servers
from tests.dataflow.test_rescaled_regions import counting
from tests.support.polling import until

__all__ = ["texts", "three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


def loaded(control: RegionHandle) -> list[int | None]:
    return [worker.warm_standby for worker in control.status.workers]


def with_standbys(control: RegionHandle) -> None:
    until(lambda: None not in loaded(control), "each worker has a stand-by with its state", WAIT_S)


def all_bytes(url: str, region: str) -> int:
    """Return what a restore of the last checkpoint reads without stand-bys."""

    async def read() -> int:
        async with open_store(url) as store:
            last = (await read_manifest(store, region)).last
        assert last is not None
        return sum(part.restore_bytes for part in last.workers.values())

    return trio.run(read)


def attempts(control: RegionHandle) -> list[int]:
    return [worker.attempt for worker in control.status.workers]


@pytest.mark.parametrize("recovery", ["global", "local"])
def test_they_take_the_places_of_lost_workers(
    shared_store: str, texts: list[Path], tmp_path: Path, recovery: str
) -> None:
    """Twice: those that are started after a recovery load the state, too."""
    options = {"workers": 2, "recovery": recovery, "warm_standby": True}
    with counting(texts, shared_store, tmp_path, **options) as (control, watch):
        for number, worker in enumerate((1, 0), 1):
            with_standbys(control)
            before = attempts(control)
            kill(control, worker, wipe=True)
            watch.wait(lambda event: isinstance(event, ResetReport), number)
            reset = [event for event in watch.events if isinstance(event, ResetReport)][-1]
            # An attempt of a later number would be a process that was launched after the loss.
            others = before[1 - worker] + (recovery == "global")
            assert attempts(control)[worker] == before[worker] + 1
            assert attempts(control)[1 - worker] == others
            assert (reset.term > 0) == (recovery == "local")
            assert reset.bytes < all_bytes(shared_store, tmp_path.name), "only what was not loaded is read"
