"""The link of a stand-by: it becomes a worker only if both ends know of it. Real sockets, and a real thread
for the launcher.
"""

from contextlib import asynccontextmanager

import pytest
import trio

from checkpoint import limits
from checkpoint import link as links
from checkpoint.core.links.frames import control_frame
from checkpoint.core.links.handshake import LinkAssigned, LinkHello, assignment, read_assignment
from checkpoint.core.links.messages import Heartbeat
from checkpoint.errors import HandshakeError, LinkClosedError
from checkpoint.link import StandbyLinks, connect_link, serve_links, wait_for_assignment
from dos_protocol.errors import BrokenConnectionError

KEY = b"k" * 32
PATIENCE_S = 20.0

pytestmark = pytest.mark.trio


class Region:
    """A listener with the links of stand-bys."""

    def __init__(self, address, links, scope) -> None:
        self.address, self.links, self._scope = address, links, scope

    def end(self) -> None:
        self._scope.cancel()

    async def waits(self, *numbers: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while sorted(self.links.numbers()) != list(numbers):  # noqa: ASYNC110 - the condition sets no event
                await trio.sleep(0.001)

    async def assign(self, number: int, worker: int, attempt: int) -> bool:
        return await trio.to_thread.run_sync(self.links.assign, number, worker, attempt)

    async def dial(self, number: int):
        hello = LinkHello(role="standby", job="app", worker=-1, attempt=number)
        return await connect_link(*self.address, key=KEY, hello=hello)


@asynccontextmanager
async def region():
    links, scope = StandbyLinks("app"), trio.CancelScope()

    async def serve(task_status) -> None:
        with scope:
            await serve_links(links.serve, job="app", key=KEY, task_status=task_status)

    async with trio.open_nursery() as nursery:
        yield Region(await nursery.start(serve), links, scope)
        scope.cancel()


@asynccontextmanager
async def waiting(subject: Region, number: int, orphan_timeout_s: float = PATIENCE_S):
    """A stand-by in a task of its own; yields a list that gets what it returns."""
    returned: list[LinkAssigned | None] = []

    async def run() -> None:
        returned.append(
            await wait_for_assignment(
                subject.address, job="app", key=KEY, number=number, orphan_timeout_s=orphan_timeout_s
            )
        )

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield returned


async def answer(link, frame):
    """Send a frame and return what follows."""
    await link.send(frame)
    return await link.receive()


async def test_a_stand_by_becomes_the_worker_that_it_is_assigned_and_no_other() -> None:
    async with region() as subject:
        async with waiting(subject, 1) as first, waiting(subject, 2) as second:
            await subject.waits(1, 2)
            assert await subject.assign(2, 5, 7)
            await subject.waits(1)
            assert not await subject.assign(2, 5, 8), "it is a worker now"
            assert await subject.assign(1, 0, 3)
        assert (first, second) == ([LinkAssigned(worker=0, attempt=3)], [LinkAssigned(worker=5, attempt=7)])


async def test_at_the_end_of_the_region_the_stand_by_ends_without_an_error() -> None:
    async with region() as subject:
        async with waiting(subject, 1) as returned:
            await subject.waits(1)
            subject.end()
        assert returned == [None]
    assert not await subject.assign(1, 0, 1)


async def test_nothing_is_assigned_before_a_stand_by_waits_or_after_the_run_has_ended() -> None:
    links = StandbyLinks("app")
    assert not links.assign(1, 0, 1)

    async def whole_run() -> StandbyLinks:
        async with region() as subject, waiting(subject, 1):
            await subject.waits(1)
            subject.end()
        return subject.links

    over = await trio.to_thread.run_sync(trio.run, whole_run)
    assert not await trio.to_thread.run_sync(over.assign, 1, 0, 1)


async def test_an_answer_that_comes_too_late_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "standby_answer_s", 0.05)
    async with region() as subject:
        link = await subject.dial(1)
        await subject.waits(1)
        assert not await subject.assign(1, 0, 1)
        offered = read_assignment(await link.receive())
        assert offered == LinkAssigned(worker=0, attempt=1)
        with pytest.raises((LinkClosedError, BrokenConnectionError)):
            await answer(link, assignment("app", offered))
        assert subject.links.numbers() == []
        await link.aclose()


async def test_a_stand_by_that_ends_or_answers_something_else_is_not_used() -> None:
    async with region() as subject:
        for frame in (
            None,
            assignment("app", LinkAssigned(worker=3, attempt=3)),
            control_frame(Heartbeat(job="app")),
        ):
            link = await subject.dial(1)
            await subject.waits(1)
            async with trio.open_nursery() as nursery:
                used: list[bool] = []

                async def assign(used=used) -> None:
                    used.append(await subject.assign(1, 0, 1))

                nursery.start_soon(assign)
                await link.receive()
                if frame is not None:
                    await link.send(frame)
                await link.aclose()
            assert used == [False], frame
            assert subject.links.numbers() == []


async def test_a_stand_by_whose_host_is_silent_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with region() as subject:
        async with waiting(subject, 1) as returned:
            await subject.waits(1)
            monkeypatch.setattr(limits, "standby_silent_s", -1.0)
            assert not await subject.assign(1, 0, 1)
        assert returned == [None], "its link was closed"


async def test_a_stand_by_whose_coordinator_is_silent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "heartbeat_s", 0.01)
    async with region() as subject:
        async with waiting(subject, 1, orphan_timeout_s=-1.0) as returned:
            pass
        assert returned == [None]


async def test_a_stand_by_of_a_version_that_was_replaced_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    async with region() as subject:
        async with waiting(subject, 1) as returned:
            await subject.waits(1)
            monkeypatch.setattr(links.metadata, "version", lambda name: f"{name} of tomorrow")
            assert not await subject.assign(1, 0, 1)
        assert returned == [None]


async def test_a_region_that_cannot_be_reached_and_a_wrong_key_are_errors() -> None:
    async with region() as subject:
        with pytest.raises(HandshakeError):
            await wait_for_assignment(
                subject.address, job="app", key=b"o" * 32, number=1, orphan_timeout_s=PATIENCE_S
            )
        assert subject.links.numbers() == []
    with pytest.raises(BrokenConnectionError):
        await wait_for_assignment(subject.address, job="app", key=KEY, number=1, orphan_timeout_s=PATIENCE_S)
