"""The contract of who works on the disk, and of rounds: threads and epoll keep it, those in memory too."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from dos_server.memory.host import MemoryPorts
from dos_server.memory.network import MemoryTimers
from dos_server.ports import OPERATING_SYSTEM, Ports
from dos_tls.readiness import Readiness, Rounds

KINDS = ["threads", "memory", "memory, slow", "memory on epoll"]


@asynccontextmanager
async def ports_of(kind: str) -> AsyncIterator[Ports]:
    if kind == "threads":
        yield OPERATING_SYSTEM
        return
    timers = MemoryTimers()
    durations_s = (0.001, 0.002) if kind == "memory, slow" else (0.0, 0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        if kind == "memory on epoll":
            yield MemoryPorts(timers, make_rounds=lambda _: Readiness())
        else:
            yield MemoryPorts(timers, durations_s=lambda: durations_s)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running(rounds: Rounds, round_ended: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rounds.run, round_ended)
        yield
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - what it waits for sets no event
            await trio.sleep(0.001)


pytestmark = [pytest.mark.trio, pytest.mark.parametrize("kind", KINDS)]


async def test_so_many_jobs_at_once_and_all_are_heard(kind: str) -> None:
    reported: list[int] = []
    at_work = set[int]()
    most = 0

    def work(job: int) -> int:
        nonlocal most
        at_work.add(job)
        most = max(most, len(at_work))
        at_work.remove(job)
        return job * 2

    async with ports_of(kind) as ports:
        rounds = ports.rounds()
        workers = ports.workers(work, reported.append, rounds, 3)
        for job in range(50):
            workers.start(job)
        assert workers.busy
        assert not reported, "nothing is heard before a round"
        async with running(rounds):
            await until(lambda: len(reported) == 50)
        assert sorted(reported) == [job * 2 for job in range(50)]
        assert most <= 3
        assert not workers.busy
        workers.close()
        rounds.close()


async def test_one_at_a_time_is_in_order(kind: str) -> None:
    reported: list[int] = []
    async with ports_of(kind) as ports:
        rounds = ports.rounds()
        workers = ports.workers(lambda job: job, reported.append, rounds, 1)
        for job in range(20):
            workers.start(job)
        async with running(rounds):
            await until(lambda: len(reported) == 20)
        assert reported == list(range(20))
        workers.close()
        rounds.close()


async def test_what_is_asked_for_begins_when_its_owner_reports_it(kind: str) -> None:
    begun: list[str] = []
    reported: list[str] = []

    def work(job: str) -> str:
        begun.append(job)
        return job

    async with ports_of(kind) as ports:
        rounds = ports.rounds()
        workers: Any = ports.workers(work, reported.append, rounds, 1)
        workers.submit("a")
        workers.submit("b")
        async with running(rounds):
            await trio.sleep(0.01)
            assert not begun
            first = workers.next_due()
            assert first == "a"
            workers.begin(first)
            assert workers.next_due() is None, "there is room for one"
            await until(lambda: reported == ["a"])
            assert workers.next_due() == "b"
        workers.close()
        rounds.close()


async def test_what_work_raises_is_raised_in_the_round(kind: str) -> None:
    def work(job: str) -> None:
        raise KeyError(job)

    async with ports_of(kind) as ports:
        rounds = ports.rounds()
        workers = ports.workers(work, print, rounds, 1)
        workers.start("unheard of")
        with pytest.raises(KeyError, match="unheard of"), trio.fail_after(30):
            await rounds.run(lambda: None)
        workers.close()
        rounds.close()


async def test_closing_waits_for_what_began_and_nobody_is_notified_of_it(kind: str) -> None:
    done: list[int] = []
    reported: list[None] = []
    async with ports_of(kind) as ports:
        rounds = ports.rounds()
        workers = ports.workers(done.append, reported.append, rounds, 2)
        for job in range(2):
            workers.start(job)
        workers.close()
        assert sorted(done) == [0, 1]
        assert not reported
        rounds.close()


async def test_soon_is_at_the_end_of_a_round_or_in_one_that_begins_at_once(kind: str) -> None:
    order: list[str] = []

    async with ports_of(kind) as ports:
        rounds = ports.rounds()

        def first() -> None:
            order.append("first")
            rounds.soon(lambda: order.append("behind"))

        rounds.soon(first)
        rounds.done(lambda: order.append("done"))
        async with running(rounds, lambda: order.append("end")):
            await until(lambda: "behind" in order)
        assert order.index("first") < order.index("behind")
        assert "done" in order
        assert order[-1] == "end"
        rounds.close()


async def test_a_slow_call_gives_its_result_and_its_error(kind: str) -> None:
    async with ports_of(kind) as ports:
        assert await ports.in_thread(lambda: 6 * 7) == 42

        def fail() -> None:
            raise OSError("no")

        with pytest.raises(OSError, match="no"):
            await ports.in_thread(fail)
        assert ports.monotonic() <= ports.monotonic()
        assert len(ports.fresh_id()) == 16
        assert ports.fresh_id() != ports.fresh_id()
