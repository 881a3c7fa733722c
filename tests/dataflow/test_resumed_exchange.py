"""The tasks of the links with local recovery, on links of the test, by trio's clock."""

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from checkpoint import ChannelFrame, Failed, FrameType, LinkHello, Peer, Restore, View
from checkpoint.core.records.layout import even_layout
from checkpoint.errors import LinkClosedError
from dataflow import FileSource, Graph, LogSink, limits
from dataflow.core.peer_links import Held, PeerLinks, Sent
from dataflow.errors import PeerLostError, StepsMissingError
from dataflow.limits import WorkerLimits
from dataflow.worker import exchange as worker_exchange
from dataflow.worker import link_thread
from dataflow.worker.circuit_thread import CircuitLoop, Inbox
from dataflow.worker.exchange import Exchange, PeerSuspected
from dataflow.worker.layout_change import CopiedState
from dataflow.worker.link_thread import LinkIncarnation, Links
from dataflow.worker.messages import CircuitFailed, PeerHeld, Shared, StageEnded
from dataflow.worker.spec import Identity
from dos_protocol.errors import BrokenConnectionError
from tests.dataflow.linked_workers import REGION, frames_for

pytestmark = pytest.mark.trio


class DialledLink:
    """The dialler's end of a link. `answers`: what the acceptor has sent. `break_now` ends it."""

    silent_s = 0.0

    def __init__(self, hello: LinkHello) -> None:
        self.hello = hello
        self.sent: list[ChannelFrame] = []
        self.closed = False
        self._answers: deque[ChannelFrame] = deque()
        self._changed = trio.Event()
        self._broken = False
        self.answer(PeerLinks(REGION, 1, (7, hello.to_term), after_step=0).have(0, Held({0: 0}, {})))

    def answer(self, frame: ChannelFrame) -> None:
        self._answers.append(frame)
        self._changed.set()

    def answer_nothing(self) -> None:
        """The process at the other end hangs."""
        self._answers.clear()

    def break_now(self) -> None:
        self._broken = True
        self._changed.set()

    async def receive(self) -> ChannelFrame:
        while not self._answers:
            if self._broken:
                raise LinkClosedError("the link was closed by the other end")
            await self._changed.wait()
            self._changed = trio.Event()
        return self._answers.popleft()

    async def send(self, frame: ChannelFrame) -> None:
        self.sent.append(frame)

    async def send_many(self, frames: tuple[ChannelFrame, ...]) -> None:
        self.sent += frames

    async def aclose(self) -> None:
        self.closed = True


class Network:
    """What is dialled: a link for each call, unless nobody answers."""

    def __init__(self) -> None:
        self.links: list[DialledLink] = []
        self.answers = True
        self.silent_port = 0
        """Where nobody answers any more."""
        self.on_link: Callable[[DialledLink], None] = lambda _: None
        """Called with each link, before the dialler has it."""

    async def dial(
        self, spec: Any, worker: int, peer: Peer, hello: LinkHello, timeout_s: float
    ) -> DialledLink:
        del spec, timeout_s
        if not self.answers or peer.port == self.silent_port:
            await trio.sleep(0.1)
            raise PeerLostError(worker, "nobody answers", unreachable=True)
        self.links.append(DialledLink(hello))
        self.on_link(self.links[-1])
        return self.links[-1]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    found = Network()
    monkeypatch.setattr(worker_exchange, "dial_peer", found.dial)
    return found


def order_of_0() -> Restore:
    return Restore(
        job=REGION,
        incarnation=7,
        epoch=7,
        worker=0,
        restore=None,
        peers=(Peer("h", 1), Peer("h", 2)),
        layout=even_layout(2),
        terms=(7, 7),
    )


def exchange_of_0(suspects: Callable[[PeerSuspected], None] = lambda _: None) -> Exchange:
    """Worker 0 of two, in term 7."""
    spec = SimpleNamespace(region=REGION, worker=0, attempt=1, limits=WorkerLimits(), scratch_dir="")
    return Exchange(
        spec,  # type: ignore[arg-type]
        order_of_0(),
        SimpleNamespace(delivery=None, silence_timeout=5.0),  # type: ignore[arg-type]
        inbox=Inbox(),
        shared=Shared(),
        lost=lambda _: None,
        suspects=suspects,
    )


def view(term: int) -> View:
    return View(job=REGION, incarnation=7, epoch=7, peer=1, term=term, address=Peer("h", 3), step=0)


def ended(step: int) -> StageEnded:
    return StageEnded(7, step, {1: frames_for(0, 1, 0, step, 7)})


def steps_of(link: DialledLink) -> list[int]:
    return [frame.step for frame in link.sent if frame.type is FrameType.STEP_END]


async def test_a_broken_link_is_opened_again_and_gets_what_was_not_used(
    network: Network, autojump_clock: MockClock
) -> None:
    del autojump_clock
    exchange = exchange_of_0()
    async with trio.open_nursery() as nursery:
        await exchange.dial_all(nursery)
        exchange.send(ended(1))
        await wait_all_tasks_blocked()
        network.links[0].break_now()
        await trio.sleep(1.0)
        assert network.links[0].closed
        exchange.send(ended(2))
        await wait_all_tasks_blocked()
        assert [steps_of(link) for link in network.links] == [[1], [1, 2]]
        assert [link.hello.to_term for link in network.links] == [7, 7]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("first", ["break", "view", "both"])
async def test_a_view_opens_the_link_to_the_new_process_even_if_the_old_one_breaks_just_then(
    network: Network, autojump_clock: MockClock, first: str
) -> None:
    """A process that gives its worker back closes its links when the others get the view."""
    del autojump_clock
    exchange = exchange_of_0()
    async with trio.open_nursery() as nursery:
        await exchange.dial_all(nursery)
        exchange.send(ended(1))
        await wait_all_tasks_blocked()
        if first != "view":
            network.links[0].break_now()
        if first == "break":
            await wait_all_tasks_blocked()
        exchange.view(view(term=8))
        await trio.sleep(1.0)
        assert network.links[0].closed
        assert network.links[-1].hello.to_term == 8
        assert steps_of(network.links[-1]) == [1]
        assert not nursery.cancel_scope.cancel_called
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.15], ids=["at once", "in the pause", "in the attempt"])
async def test_a_view_ends_the_attempts_to_reach_the_lost_process_and_opens_the_link_at_once(
    network: Network, autojump_clock: MockClock, after_s: float
) -> None:
    """The survivors' output stands still until then."""
    del autojump_clock
    exchange = exchange_of_0()
    async with trio.open_nursery() as nursery:
        await exchange.dial_all(nursery)
        exchange.send(ended(1))
        await wait_all_tasks_blocked()
        network.silent_port = 2
        network.links[0].break_now()
        await trio.sleep(after_s)
        exchange.view(view(term=8))
        await wait_all_tasks_blocked()  # no time passes
        assert [(link.hello.to_term, steps_of(link)) for link in network.links] == [(7, [1]), (8, [1])]
        nursery.cancel_scope.cancel()


async def test_a_link_that_opens_at_the_moment_of_a_view_is_given_up(
    network: Network, autojump_clock: MockClock
) -> None:
    """It reaches the lost process, which may live and never answer."""
    del autojump_clock
    exchange = exchange_of_0()
    async with trio.open_nursery() as nursery:
        await exchange.dial_all(nursery)
        exchange.send(ended(1))
        await wait_all_tasks_blocked()

        def seen(link: DialledLink) -> None:
            if link.hello.to_term == 7:
                link.answer_nothing()
                exchange.view(view(term=8))

        network.on_link = seen
        network.links[0].break_now()
        await trio.sleep(1.0)
        assert [(link.hello.to_term, link.closed) for link in network.links] == [
            *((7, True), (7, True), (8, False)),
        ]
        assert steps_of(network.links[-1]) == [1]
        nursery.cancel_scope.cancel()


async def test_a_peer_that_cannot_be_reached_is_reported_again_and_again_but_not_at_once(
    network: Network, autojump_clock: MockClock
) -> None:
    del autojump_clock
    reports: list[tuple[float, PeerSuspected]] = []
    exchange = exchange_of_0(lambda report: reports.append((trio.current_time(), report)))
    async with trio.open_nursery() as nursery:
        await exchange.dial_all(nursery)
        await wait_all_tasks_blocked()
        network.answers = False
        since = trio.current_time()
        network.links[0].break_now()
        await trio.sleep(5.0)
        reasons = {report.reason for _, report in reports}
        assert reasons == {
            "the link to it cannot be opened again (the link was closed by the other end)",
        }
        assert {(report.peer, report.term) for _, report in reports} == {(1, 7)}
        times = [at - since for at, _ in reports]
        assert limits.peer_resume_s <= times[0] < limits.peer_resume_s + 0.5
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert min(gaps) >= limits.suspects_s
        assert len(times) > 4
        reports.clear()
        network.answers = True
        await trio.sleep(1.0)
        assert not reports or reports[-1][0] < trio.current_time() - 0.5
        assert len(network.links) == 2, "it answers again"
        nursery.cancel_scope.cancel()


async def test_the_next_worker_of_the_ring_is_reported_if_it_does_not_answer_pings(
    network: Network, autojump_clock: MockClock
) -> None:
    del autojump_clock
    reports: list[PeerSuspected] = []
    exchange = exchange_of_0(reports.append)
    async with trio.open_nursery() as nursery:
        await exchange.dial_all(nursery)
        await wait_all_tasks_blocked()
        link = network.links[0]
        for _ in range(10):
            await trio.sleep(limits.ping_s)
            link.answer(exchange._peers.ping()._replace(sender=1))
        assert [frame.type for frame in link.sent].count(FrameType.PING) >= 10
        assert reports == []
        await trio.sleep((limits.pings_missed_max + 2) * limits.ping_s)
        assert [(report.peer, report.term) for report in reports] == [(1, 7)]
        assert reports[0].reason.startswith("it did not answer for 0.")
        nursery.cancel_scope.cancel()


async def test_steps_that_are_missing_end_the_term(network: Network, autojump_clock: MockClock) -> None:
    """Its owner resets the region."""
    del autojump_clock
    exchange = exchange_of_0()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await exchange.dial_all(nursery)
            exchange.send(ended(1))
            exchange.purge(1)
            network.links[0].break_now()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(StepsMissingError)


class AcceptedLink:
    """The acceptor's end of a link that worker 1 has dialled, without an end."""

    def __init__(self) -> None:
        self.hello = LinkHello(
            role="exchange", job=REGION, worker=1, attempt=1, incarnation=7, to_worker=0, to_term=7
        )
        self.returned: list[ChannelFrame] = []
        self._arriving, self._arrived = trio.open_memory_channel[ChannelFrame](math.inf)

    def deliver(self, *frames: ChannelFrame) -> None:
        for frame in frames:
            self._arriving.send_nowait(frame)

    async def receive(self) -> ChannelFrame:
        return await self._arrived.receive()

    async def send(self, frame: ChannelFrame) -> None:
        self.returned.append(frame)

    @property
    def last(self) -> tuple[FrameType, int]:
        return self.returned[-1].type, self.returned[-1].step


async def test_a_peer_that_is_ahead_learns_of_steps_that_were_made_before_it_said_so() -> None:
    """Both wait for ever otherwise: the peer for AT, and this worker, which has no input left, for a step."""
    exchange, link = exchange_of_0(), AcceptedLink()
    peer = PeerLinks(REGION, 1, (7, 7), after_step=0)
    for step in range(1, 6):
        peer.add(Sent(step, {0: frames_for(1, 0, 0, step, 7)}), {}, produces=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.receive_from, link)  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        exchange.held(PeerHeld(7, 1, 1, Held({0: 0}, {})))
        await wait_all_tasks_blocked()
        peer.answered(0, link.returned[0])
        exchange.send(ended(1))
        exchange.send(ended(2))
        await wait_all_tasks_blocked()
        while frames := peer.next_frames(0):
            link.deliver(*frames)
        await wait_all_tasks_blocked()
        assert link.last == (FrameType.AT, 2)
        nursery.cancel_scope.cancel()


# --- a peer may connect to a worker whose circuit has no order yet ------------------------------------------


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
            removed={},
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


# --- the end of the links -----------------------------------------------------------------------------------


async def test_a_circuit_that_fails_while_its_links_end_is_not_reported_by_a_nursery_that_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Control:
        local_address = ("127.0.0.1", 1)

        async def join(self, **_: object) -> None:
            pass

        async def next_order(self) -> Restore:
            if links._incarnation is None:
                return order_of_0()
            raise BrokenConnectionError("the driver is gone")

    class Incarnation:
        number, is_ending = 7, False

        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def run(self) -> None:
            await trio.sleep_forever()

    @asynccontextmanager
    async def control(*_: object, **__: object) -> AsyncIterator[Any]:
        yield Control()

    @asynccontextmanager
    async def store(*_: object, **__: object) -> AsyncIterator[None]:
        try:
            yield None
        finally:  # it is closed after the links' nursery, and the circuit does not know yet
            links.deliver(CircuitFailed(7, Failed(kind="operator", message="a row that fails")))

    async def serve(*_: object, task_status: Any, **__: object) -> None:
        task_status.started(("127.0.0.1", 2))
        await trio.sleep_forever()

    monkeypatch.setattr(link_thread, "open_participant", control)
    monkeypatch.setattr(link_thread, "open_store", store)
    monkeypatch.setattr(link_thread, "serve_links", serve)
    monkeypatch.setattr(link_thread, "LinkIncarnation", Incarnation)
    spec: Any = SimpleNamespace(
        region=REGION,
        worker=0,
        participant=lambda: None,
        store_url="",
        token=b"",
        job_key=b"",
        listen_host="",
        advertise_host="",
        port_range=None,
        scratch_dir="",
    )
    links = Links(spec, inbox=Inbox(), shared=Shared(), host=lambda *_: None)
    assert (await links.run()).reason.startswith("BrokenConnectionError: the driver is gone")
    assert "worker 0 failed as it ended: a row that fails" in caplog.text
