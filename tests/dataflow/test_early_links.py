"""A peer may connect to a worker whose circuit has no order yet. The real incarnation, both sides of it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from checkpoint import FrameType
from dataflow import FileSource, Graph, LogSink
from dataflow.limits import WorkerLimits
from dataflow.worker.circuit_thread import CircuitLoop, Inbox
from dataflow.worker.layout_change import CopiedState
from dataflow.worker.link_thread import LinkIncarnation
from dataflow.worker.messages import Shared
from dataflow.worker.spec import Identity
from tests.dataflow.linked_workers import REGION
from tests.dataflow.test_resumed_exchange import AcceptedLink, order_of_0

pytestmark = pytest.mark.trio


class SlowStore:
    """A store that answers nothing until the test sets `answers`, and grants no claim."""

    def __init__(self) -> None:
        self.record = SimpleNamespace(store_id=b"s" * 16, generation=1)
        self.answers = trio.Event()

    async def list_directories(self, prefix: str) -> list[str]:
        del prefix
        await self.answers.wait()
        return []

    async def claim(self, *_: Any, **__: Any) -> None:
        await trio.sleep_forever()


class TakenOver:
    """Worker 0, which another process takes over before the first checkpoint: both of its threads."""

    def __init__(self, folder: Path) -> None:
        (folder / "in").write_text("a line\n")
        graph, inbox, shared, small = Graph("g"), Inbox(), Shared(), WorkerLimits()
        graph.source("lines", FileSource(folder / "in")).key_by("by", "line").sink("out", LogSink())
        self.store, self.inbox = SlowStore(), inbox
        spec = SimpleNamespace(
            region=REGION,
            worker=0,
            graph=graph,
            application="",
            without_checkpoints=False,
            limits=small,
            scratch_dir="",
        )
        unused: Any = None  # it reports to the coordinator only after its claim
        parts: tuple[Any, ...] = (spec, order_of_0(), unused, self.store)
        self.links = LinkIncarnation(*parts, inbox=inbox, shared=shared, copies=CopiedState())
        self.loop = CircuitLoop(
            graph.plan(),
            Identity(REGION, 0),
            worker_limits=small,
            inbox=inbox,
            shared=shared,
            post=self.links.deliver,
        )

    async def settle(self) -> None:
        """Let both sides work until each waits."""
        await wait_all_tasks_blocked()
        while (message := self.inbox.take_nowait()) is not None:
            self.loop.turn(message)
            await wait_all_tasks_blocked()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[TakenOver]:
    found = TakenOver(tmp_path)
    yield found
    found.loop.drop()


async def test_a_peer_that_connects_before_the_circuit_restores_gets_its_answer(worker: TakenOver) -> None:
    """Without one, it sends nothing for ever, and the region stands still."""
    link: Any = AcceptedLink()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.links.run)
        nursery.start_soon(worker.links.receive_from, link)
        await worker.settle()
        assert link.returned == []
        worker.store.answers.set()
        await worker.settle()
        assert [frame.type for frame in link.returned] == [FrameType.HAVE]
        nursery.cancel_scope.cancel()


async def test_a_link_is_refused_if_the_incarnation_ends_before_the_circuit_restores(
    worker: TakenOver,
) -> None:
    link: Any = AcceptedLink()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.links.run)
            nursery.start_soon(worker.links.receive_from, link)
            await worker.settle()
            await worker.links.end()
    assert link.returned == []
    assert worker.inbox.take_nowait() is None
