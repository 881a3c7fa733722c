"""Exchange links between workers that cannot reach each other."""

import pytest
import trio

from checkpoint.core.messages import Peer
from dataflow.errors import PeerLostError
from dataflow.graph.builder import Graph
from dataflow.worker.exchange import Exchange
from dataflow.worker.failures import failure_of, first_error
from dataflow.worker.messages import Inbox, Shared
from dataflow.worker.spec import WorkerSpec
from journal import EpochUsedTwiceError


def test_a_worker_that_cannot_be_reached_is_named_with_its_address_and_the_setting_that_decides_it() -> None:
    spec = WorkerSpec(
        region="r",
        worker=0,
        workers=2,
        attempt=1,
        coordinator=("127.0.0.1", 1),
        job_key=b"k" * 32,
        graph=Graph("g"),
        store_url="dos://127.0.0.1:1",
    )

    async def main() -> None:
        exchange = Exchange(spec, 1, inbox=Inbox(), shared=Shared(), lost=lambda _: None)
        async with trio.open_nursery() as nursery:
            await exchange.dial_all(nursery, [Peer("127.0.0.1", 2), Peer("127.0.0.1", 1)], step=0)

    with pytest.raises(BaseExceptionGroup) as failed:
        trio.run(main)
    error = first_error(failed.value)
    assert isinstance(error, PeerLostError)
    report = failure_of(error)
    assert (report.kind, report.peer) == ("unreachable", 1)
    assert "worker 0 cannot connect to it at 127.0.0.1:1" in report.message
    assert "set DOS_ADVERTISE_HOST on its host" in report.message


def test_a_journal_that_only_a_person_can_judge_ends_the_region_instead_of_a_reset_for_ever() -> None:
    report = failure_of(EpochUsedTwiceError("copies of segment out-x.. contradict each other"))
    assert report.kind == "manifest"
    assert "contradict each other" in report.message
