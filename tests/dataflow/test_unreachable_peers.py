"""Exchange links between workers that cannot reach each other."""

from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from checkpoint.core.links.messages import Peer, Restore
from checkpoint.core.records.layout import even_layout
from checkpoint.link import Link
from dataflow import CallSink, RateSource, consistent, limits
from dataflow.core.regions import Consistent
from dataflow.errors import PeerLostError, StepDiffersError, StepsMissingError
from dataflow.graph.builder import Graph
from dataflow.worker.circuit_thread import Inbox
from dataflow.worker.exchange import Exchange
from dataflow.worker.failures import failure_of, first_error
from dataflow.worker.messages import Shared
from dataflow.worker.spec import WorkerSpec
from journal import EpochUsedTwiceError

SPEC = WorkerSpec(
    region="r",
    worker=0,
    attempt=1,
    coordinator=("127.0.0.1", 1),
    job_key=b"k" * 32,
    graph=Graph("g"),
    store_url="dos://127.0.0.1:1",
)


def exchange_of_0(of_region: Consistent) -> Exchange:
    """Worker 0 of two with global recovery."""
    graph = Graph("g")
    graph.source("rows", RateSource(1)).annotate(of_region).sink("out", CallSink(print))
    peers = (Peer("127.0.0.1", 2), Peer("127.0.0.1", 1))
    order = Restore(job="r", worker=0, restore=None, peers=peers, layout=even_layout(2), incarnation=1)
    return Exchange(
        SPEC,
        order,
        graph.plan(),
        inbox=Inbox(),
        shared=Shared(),
        lost=lambda _: None,
        suspects=lambda _: None,
    )


def test_a_worker_that_cannot_be_reached_is_named_with_its_address_and_the_setting_that_decides_it() -> None:
    async def main() -> None:
        exchange = exchange_of_0(consistent())
        async with trio.open_nursery() as nursery:
            await exchange.dial_all(nursery)

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


@pytest.mark.parametrize("error", [StepDiffersError("other rows"), StepsMissingError("purged")])
def test_a_step_that_is_not_made_again_alike_costs_an_attempt(error: Exception) -> None:
    """A reset of kind "store" would be free, so an operator that is never deterministic would never end."""
    assert failure_of(error).kind == "reset"


class SilentLink:
    """A link whose peer's host has been silent for as long as the test says."""

    peer_address = ("10.0.0.2", 4711)
    silent_s = 0.0


@pytest.mark.parametrize("allowed_s", [None, 20.0])
def test_a_silent_host_is_named_and_a_machine_that_stood_still_blames_no_peer(
    allowed_s: float | None,
) -> None:
    clock, link = MockClock(), SilentLink()
    of_region = consistent() if allowed_s is None else consistent(silence_timeout=allowed_s)
    exchange = exchange_of_0(of_region)
    limit_s = exchange._silent_s_max
    assert limit_s == (allowed_s or limits.peer_silent_s)
    exchange._outgoing[1] = (cast("Link", link), trio.CancelScope())

    async def pass_time(seconds: float, silent_s: float) -> None:
        link.silent_s = silent_s
        clock.jump(seconds)
        await wait_all_tasks_blocked()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.watch)
            await wait_all_tasks_blocked()
            await pass_time(30.0, silent_s=30.0)  # late: what the peer sent meanwhile is not processed yet
            for _ in range(10):
                await pass_time(limits.peer_silence_poll_s, silent_s=limit_s)
            await pass_time(limits.peer_silence_poll_s, silent_s=limit_s + 0.1)
            raise AssertionError("the silence was not noticed")

    with pytest.raises(BaseExceptionGroup) as failed:
        trio.run(main, clock=clock)
    error = first_error(failed.value)
    assert f"its host 10.0.0.2 (port 4711) sent nothing for {limit_s + 0.1:.1f} s" in str(error)
    assert failure_of(error).kind == "peer"
