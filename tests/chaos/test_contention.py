"""Take-over under contention, on real servers: rivals, a zombie, contenders that die, servers that return.

Servers in threads where no signal is needed, processes where one is. Every history is judged by the checker
of the long runs. Rules R1 to R18 are in docs/decisions/0003.
"""

import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL

import pytest
import trio

from dos_chaos.core.checker import CHAIN, Verdict, WrittenRecord, judge_chain, make_record
from dos_chaos.workload import entries_of, keep_taking_over, take_the_chain_over
from dos_client import Store, init_store, open_store
from dos_protocol.errors import FencedError
from journal import ChainWriter, Record, inspect_chain, read_records
from journal.core.chain import parse_segment_name
from tests.chaos.cluster import Writer, running
from tests.chaos.disks import read_object
from tests.chaos.writer import FENCED
from tests.dos_client.support import ThreadServer, content_of, thread_servers, until, url_of
from tests.support.proxy import Proxy, proxies
from tests.support.servers import ServerProcess, three_servers  # noqa: F401

pytestmark = [pytest.mark.trio, pytest.mark.timeout(180)]
DIRECTORY = "app.w0000"
PATIENCE_S = 60.0


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[ThreadServer]]:
    """Three servers in threads, not yet a store."""
    with thread_servers(tmp_path, 3) as servers:
        yield servers


class History:
    """What was acknowledged to anybody, and the check that it is what is there."""

    def __init__(self) -> None:
        self.acknowledged: list[WrittenRecord] = []

    async def append(self, writer: ChainWriter, number: int, sequence: int) -> None:
        """One record, waited for."""
        epoch, payload = writer.end.epoch, os.urandom(50)
        record, entry = make_record(DIRECTORY, epoch, number, sequence, payload)
        await writer.wait_synced(writer.append(record))
        self.acknowledged.append(entry)

    async def check(self, store: Store) -> None:
        """Check that a fresh take-over finds all of it, in order, once."""
        claim, _, _ = await keep_taking_over(store, DIRECTORY)
        async with claim:
            state = await inspect_chain(store, DIRECTORY, CHAIN)
            chain = [step async for step in read_records(store, state, directory=DIRECTORY)]
        verdict = Verdict()
        judge_chain(verdict, DIRECTORY, self.acknowledged, list(entries_of(DIRECTORY, chain)))
        assert verdict.good, verdict.examples


async def test_of_two_rivals_one_wins_each_time_and_the_other_is_told_the_epoch(
    three: list[ThreadServer],
) -> None:
    # EVIDENCE-OF: P-4
    url, history = url_of(three), History()
    await init_store(url)
    fenced_at: dict[int, int] = {}

    async def contend(round_over: trio.Event, open_now: dict[int, int]) -> None:
        async with open_store(url) as store:
            claim, writer, sequence = await keep_taking_over(store, DIRECTORY)
            number = 0
            try:
                while not round_over.is_set():
                    number += 1
                    await history.append(writer, number, sequence + number)
                    open_now[claim.epoch] = number
            except FencedError as error:
                fenced_at[claim.epoch] = error.epoch_held
                with pytest.raises(FencedError):
                    writer.append(Record(10))
            await claim.aclose()

    for _ in range(5):
        round_over, open_now, before = trio.Event(), dict[int, int](), len(fenced_at)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(contend, round_over, open_now)
                await until(lambda: len(fenced_at) > before, "one is fenced")  # noqa: B023
                (loser,) = fenced_at.keys() - set(list(fenced_at)[:before])
                await until(lambda: any(epoch > loser for epoch in open_now), "the other continues")  # noqa: B023
                round_over.set()
            (winner,) = [epoch for epoch in open_now if epoch > loser]
            assert len(fenced_at) == before + 1, "one of the two, and not both"
            assert loser < fenced_at[loser] <= winner
    async with open_store(url) as store:
        await history.check(store)


@pytest.mark.parametrize("seen_by_both", [0, 1])
async def test_a_contender_that_sees_other_servers_than_the_writer_takes_nothing_from_it(
    three: list[ThreadServer], seen_by_both: int
) -> None:
    """The writer sees s2 and s3, the contender s1, which lacks the last records: one claim is too few (R1).
    Or s1 and s2, which is enough: what s1 lacks is found on s2 (R5), and put on s1 before anything is opened
    (R7)."""
    # EVIDENCE-OF: P-4, P-5
    history, opened, done = History(), trio.Event(), trio.Event()
    async with before(three) as between:
        url = url_of(between)
        async with trio.open_nursery() as nursery:

            async def contend(store: Store) -> None:
                claim, writer, sequence = await keep_taking_over(store, DIRECTORY)
                opened.set()
                async with claim:
                    await history.append(writer, 1, sequence + 1)
                done.set()

            async with (
                open_store(url, client="writer") as store,
                open_store(url, client="contender") as contending,
            ):
                claim, writer, sequence = await take_the_chain_over(store, DIRECTORY)
                rules = [between[0].hold(client="writer")]
                rules += [proxy.hold(client="contender") for proxy in between[1 + seen_by_both :]]
                for number in range(1, 6):
                    await history.append(writer, number, sequence + number)
                nursery.start_soon(contend, contending)
                with trio.fail_after(PATIENCE_S):
                    if seen_by_both:
                        await opened.wait()
                        there = await content_of(three[0], DIRECTORY, writer.segment)
                        assert len(there) >= writer.synced, "opened before s1 had the bytes that it refers to"
                        with pytest.raises(FencedError):
                            await history.append(writer, 6, sequence + 6)
                    else:
                        for number in range(6, 12):
                            await history.append(writer, number, sequence + number)
                            await trio.sleep(0.25)  # time that the contender would use, if it could
                        assert not opened.is_set()
                        for rule in rules:
                            rule.end()
                    await done.wait()
                await claim.aclose()
        for rule in rules:
            rule.end()
        async with open_store(url) as store:
            await history.check(store)


async def test_a_claim_with_an_epoch_that_another_holds_is_reported_which(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(three)
    await init_store(url)
    async with open_store(url) as store, await store.claim(DIRECTORY, 7, os.urandom(16)):
        for epoch in (6, 7):
            with pytest.raises(FencedError) as caught:
                await store.claim(DIRECTORY, epoch, os.urandom(16))
            assert caught.value.epoch_held == 7


async def test_five_contenders_all_get_their_turn(three: list[ThreadServer]) -> None:
    """R17: superseded before the own start is acknowledged, wait a random, doubling time and begin again."""
    # EVIDENCE-OF: P-10
    url, history = url_of(three), History()
    await init_store(url)
    finished = []

    async def contend() -> None:
        async with open_store(url) as store:
            claim, writer, sequence = await keep_taking_over(store, DIRECTORY)
            finished.append(claim.epoch)
            with suppress(FencedError):  # superseded after its start: it had its turn
                await history.append(writer, 1, sequence + 1)
            await claim.aclose()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(contend)
    assert len(set(finished)) == 5
    async with open_store(url) as store:
        await history.check(store)


# --- contenders that die anywhere --------------------------------------------------------------------------


class AtStep(trio.abc.Instrument):
    """Calls `act` when the run has made so many task steps from now. `steps`: how many so far."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.steps = 0
        self._step = step
        self._act = act

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self._step:
            trio.lowlevel.current_trio_token().run_sync_soon(self._act)

    def __enter__(self) -> "AtStep":
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *_: object) -> None:
        trio.lowlevel.remove_instrument(self)


@asynccontextmanager
async def before(servers: list[ThreadServer]) -> AsyncIterator[list[Proxy]]:
    """A store behind proxies, with a chain that has some records."""
    async with proxies(servers) as between:
        await init_store(url_of(between))
        yield between


async def one_more(url: str, history: History) -> None:
    """Another takes the chain over and has a record acknowledged."""
    with trio.fail_after(PATIENCE_S):
        async with open_store(url, client="next") as store:
            claim, writer, sequence = await keep_taking_over(store, DIRECTORY)
            async with claim:
                await history.append(writer, 1, sequence + 1)


async def take_over_once(url: str, history: History) -> None:
    """One contender, as far as it gets: to its own start acknowledged, and one record."""
    async with open_store(url, client="contender") as store:
        claim, writer, sequence = await take_the_chain_over(store, DIRECTORY)
        await history.append(writer, 1, sequence + 1)
        await claim.aclose()


async def steps_of(work: Callable[[], Awaitable[None]]) -> int:
    """About how many task steps it takes when nothing goes wrong."""
    with AtStep(-1, lambda: None) as counter:
        await work()
    return counter.steps


async def test_a_contender_may_die_at_any_step_of_its_take_over(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-4, P-5, P-10
    rng, history = random.Random(5), History()
    async with before(three) as between:
        url = url_of(between)
        await one_more(url, history)
        whole = await steps_of(lambda: take_over_once(url, history))
        died = 0
        for _ in range(25):
            with trio.CancelScope() as scope:

                def die() -> None:
                    """End its connections without QUIT, and lose its bytes."""
                    for proxy in between:
                        proxy.lose(client="contender")
                        proxy.cut(client="contender")
                    scope.cancel()

                with AtStep(rng.randrange(1, whole), die):
                    await take_over_once(url, history)
            died += scope.cancelled_caught
            for proxy in between:
                proxy.heal()
            await one_more(url, history)
        assert died >= 15
        async with open_store(url) as store:
            await history.check(store)


async def test_a_server_may_go_and_return_at_any_step_of_a_take_over(three: list[ThreadServer]) -> None:
    # EVIDENCE-OF: P-5, P-10
    rng, history = random.Random(6), History()
    async with before(three) as between:
        url = url_of(between)
        await one_more(url, history)
        whole = await steps_of(lambda: take_over_once(url, history))
        for number in range(12):
            server, gone = three[number % 3], trio.Event()
            with AtStep(rng.randrange(1, whole), gone.set), trio.fail_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:

                    async def restart_when_gone() -> None:
                        await gone.wait()  # noqa: B023
                        await trio.to_thread.run_sync(server.restart)  # noqa: B023

                    nursery.start_soon(restart_when_gone)
                    await one_more(url, history)
                    gone.set()
        async with open_store(url) as store:
            await history.check(store)


# --- processes ----------------------------------------------------------------------------------------------


@pytest.mark.process
async def test_nothing_that_a_zombie_appends_after_it_woke_up_reaches_a_quorum(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-4
    async with running(tmp_path / "run", 1, 50, [DIRECTORY]) as cluster:
        zombie = await cluster.add_writer(DIRECTORY)
        await acknowledges(zombie, 200)
        zombie.pause()
        earlier = zombie.acknowledged
        heir = await cluster.add_writer(DIRECTORY)
        await acknowledges(heir, 100)
        zombie.resume()
        with trio.fail_after(PATIENCE_S):
            await zombie.exited.wait()
        assert zombie.ended == FENCED
        await acknowledges(heir, heir.acknowledged + 100)
        await cluster.end_writers()
        history = History()
        history.acknowledged = cluster.logged(DIRECTORY)
        async with open_store(cluster.url) as store:
            await history.check(store)
            state = await inspect_chain(store, DIRECTORY, CHAIN)
        assert zombie.acknowledged - earlier <= 50, "only what was in flight when it was paused"
        (span,) = [one for one in state.segments if epoch_of(one.name) == zombie.epoch]
        await cluster.end_servers()
        held = [read_object(member.server.data, DIRECTORY, span.name) for member in cluster.members]
        beyond = [copy for copy in held if copy is None or len(copy) > span.length]
        assert len(beyond) < 2, "at most the member that slept through the take-over has more of it"


def epoch_of(segment: str) -> int:
    parsed = parse_segment_name(segment)
    assert parsed is not None
    return parsed.epoch


async def acknowledges(writer: Writer, at_least: int) -> None:
    await until(
        lambda: writer.acknowledged >= at_least or not writer.running, f"{writer.name} has {at_least} records"
    )
    assert writer.running, f"{writer.name} ended with {writer.ended}"


@pytest.mark.process
async def test_a_contender_killed_before_or_after_it_opened_leaves_a_chain_to_continue_with(
    tmp_path: Path,
) -> None:
    # EVIDENCE-OF: P-1, P-4, P-10
    rng = random.Random(7)
    async with running(tmp_path / "run", 2, 50, [DIRECTORY]) as cluster:
        await acknowledges(await cluster.add_writer(DIRECTORY), 100)
        for _ in range(3):
            contender = await cluster.add_writer(DIRECTORY)
            with trio.move_on_after(PATIENCE_S):
                await contender.claims.wait()
            await trio.sleep(rng.uniform(0.0, 0.1))  # somewhere between its claim and its first records
            contender.send(SIGKILL)
            await contender.exited.wait()
        await acknowledges(await cluster.add_writer(DIRECTORY), 100)
        await cluster.end_writers()
        assert not cluster.errors
        history = History()
        history.acknowledged = cluster.logged(DIRECTORY)
        async with open_store(cluster.url) as store:
            await history.check(store)


@pytest.mark.process
async def test_a_take_over_waits_for_a_server_that_returns_and_never_counts_a_wiped_one(
    three_servers: list[ServerProcess],  # noqa: F811
) -> None:
    """s3 was unavailable while the record was written; s1 is unavailable, then wiped, when it is read."""
    # EVIDENCE-OF: P-5, P-10
    one, two, three = three_servers
    url, history = url_of(three_servers), History()
    await init_store(url)
    async with open_store(url) as store:
        claim, writer, sequence = await take_the_chain_over(store, DIRECTORY)
        await trio.to_thread.run_sync(three.kill)
        await history.append(writer, 1, sequence + 1)
        await claim.aclose()
        await trio.to_thread.run_sync(one.kill)
        await until(lambda: sum(member.connected for member in store.members()) == 1, "two is alone")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one_more, url_of([two]), history)
            shutil.rmtree(one.data)
            await trio.to_thread.run_sync(one.restart)
            await until(
                lambda: any("wiped" in member.error for member in store.members()),
                "the wiped one is recognised",
            )
            assert len(history.acknowledged) == 1, "a wiped server and one other are no quorum"
            await trio.to_thread.run_sync(three.restart)
        assert len(history.acknowledged) == 2
        await history.check(store)
