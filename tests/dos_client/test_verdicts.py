"""What is said about a store is true, the same wherever it is asked, and said soon: silent members, full
disks, rot that nobody has read, tails of writers that died, tokens that show some directories only.

Servers are in memory, on virtual time, unless the command itself is tried.
"""

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from dos_client import metrics, open_store
from dos_client.core import watching as core
from dos_client.core.membership import Condition
from dos_client.membership.filling import ReplaceProgress
from dos_client.membership.replacing import add_spare
from dos_client.membership.status import StoreStatus, store_status
from dos_client.membership.watching import Seen, StoreWatcher, WatchOptions
from dos_client.repair.verifying import VerifyProgress, verify_store
from dos_server.testing import MemoryServer, Servers, memory_server, memory_store
from tests.dos_client.support import Threads, caught_up, damage, url_of
from tests.dos_client.test_cli import dos
from tests.dos_client.test_verifying import filled

ANSWERS_WITHIN_S = 3.0
Story = Callable[[Servers[MemoryServer]], Awaitable[None]]


def run(story: Story) -> None:
    async def main() -> None:
        async with memory_store(seed=1) as servers:
            async with open_store(servers.url) as store, await store.claim("d", 1, bytes(15) + b"w") as claim:
                log = claim.open_object("log")
                log.append(b"hello")
                await log.wait_synced(log.size)
                await caught_up(store)
            await story(servers)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def status_of(servers: Servers[MemoryServer], *asked: int) -> StoreStatus:
    """The status, which took no longer than promised."""
    began = trio.current_time()
    status = await store_status([servers[one].address for one in asked or (0, 1, 2)])
    assert trio.current_time() - began <= ANSWERS_WITHIN_S
    return status


async def watched_once(servers: Servers[MemoryServer]) -> Seen:
    return await StoreWatcher(servers.url, WatchOptions()).step()


@pytest.mark.parametrize("silent", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("asked", [(0, 1, 2), (0,), (2,)])
def test_the_status_answers_soon_whatever_hangs(silent: tuple[int, ...], asked: tuple[int, ...]) -> None:
    async def story(servers: Servers[MemoryServer]) -> None:
        for one in silent:
            servers[one].power_cut()
        status = await status_of(servers, *asked)
        if status.record is None:
            assert len(silent) > 1 or silent == asked, "who was asked and answered names the others"
            assert status.problems
            return
        conditions = [one.condition for one in status.members]
        assert conditions == [
            Condition.UNAVAILABLE if number in silent else Condition.THERE for number in range(3)
        ]
        assert (status.usable, status.accepts_appends, status.whole) == (True, True, False)
        assert {holding.bytes for holding in status.holdings.values()} == {5}

    run(story)


@pytest.mark.parametrize("full", [(), (1,), (0, 2)])
def test_full_disks_are_seen_by_the_status_and_by_watchers(full: tuple[int, ...]) -> None:
    async def story(servers: Servers[MemoryServer]) -> None:
        for one in full:
            servers[one].disk.space = servers[one].disk.used
        await trio.sleep(3)  # servers measure the free space once a second
        status = await status_of(servers)
        assert [one.refuses_appends for one in status.members] == [one in full for one in range(3)]
        assert (status.usable, status.accepts_appends, status.whole) == (True, len(full) < 2, not full)
        action = (await watched_once(servers)).action
        if len(full) < 2:
            assert isinstance(action, core.WaitAction)
            assert ("is full" in action.why) == bool(full)
        else:
            assert any("writers wait" in line for line in status.problems)
            assert isinstance(action, core.ReportAction)
            assert action.problem is core.Problem.DISKS_FULL

    run(story)


async def with_a_tail_on_one_member(servers: Servers[MemoryServer]) -> None:
    """A writer appends, and dies when one member has the bytes."""
    async with open_store(servers.url) as store, await store.claim("d", 2, bytes(15) + b"x") as claim:
        tail = claim.open_object("tail")
        servers[1].power_cut()
        servers[2].power_cut()
        tail.append(b"of a dead writer")
        await trio.sleep(1)
    for one in servers[1], servers[2]:
        await one.restart()


def test_tails_of_dead_writers_are_told_from_those_of_live_ones_and_repaired_by_a_watcher() -> None:
    async def story(servers: Servers[MemoryServer]) -> None:
        await with_a_tail_on_one_member(servers)
        status = await status_of(servers)
        assert any("nobody appends there" in line for line in status.problems)
        assert {(one.lag_bytes, one.live_lag_bytes) for one in status.holdings.values()} == {(0, 0), (16, 0)}
        assert not status.whole
        watcher = StoreWatcher(servers.url, WatchOptions())
        seen = await watcher.step()
        assert isinstance(seen.action, core.RepairAction)
        assert (seen.action.directories, seen.done) == (("d",), True)
        status = await status_of(servers)
        assert (status.whole, status.problems) == (True, [])
        assert (await watcher.step()).action == core.WaitAction(), "it does not compare again at each look"

    run(story)


def test_bytes_that_a_live_writer_has_just_appended_are_no_problem() -> None:
    async def story(servers: Servers[MemoryServer]) -> None:
        async with (
            open_store(servers.url) as store,
            await store.claim("d", 2, bytes(15) + b"x") as claim,
            trio.open_nursery() as nursery,
        ):
            log = claim.open_object("live")

            async def write() -> None:
                while True:
                    log.append(b"x" * 1000)
                    await trio.sleep(0.05)

            nursery.start_soon(write)
            servers[2].crash()  # it lags, and is filled while the status is read
            await trio.sleep(2)
            await servers[2].restart()
            for _ in range(20):
                report = await verify_store(store)
                assert not report.differences
            nursery.cancel_scope.cancel()

    run(story)


@pytest.mark.parametrize("phase", ["filling", "finishing"])
def test_a_watcher_whose_replacement_loses_the_quorum_says_so_and_finishes_later(phase: str) -> None:
    alarms: list[float | None] = []
    stuck, finished = trio.Event(), trio.Event()

    def show(seen: Seen) -> None:
        if isinstance(seen.action, core.ReplaceAction | core.CompleteAction) and seen.done:
            finished.set()
        if isinstance(seen.action, core.ReportAction):
            stuck.set()
            labels = {"dos_watch_problem": seen.action.problem.value}
            alarms.append(metrics.registry.get_sample_value("dos_watch_problem", labels))

    async def story(servers: Servers[MemoryServer]) -> None:
        def lose_the_quorum(progress: ReplaceProgress) -> None:
            if progress.phase == phase and servers[1].running and not alarms:
                servers[1].power_cut()

        async with memory_server(seed=2) as spare, trio.open_nursery() as nursery:
            await add_spare(servers.url, new=spare.address)
            servers[2].power_cut()
            options = WatchOptions(replace_after_s=20, interval_s=5, stand_by_s=30)
            watcher = StoreWatcher(servers.url, options, progress=lose_the_quorum)
            nursery.start_soon(watcher.run, show)
            with trio.fail_after(600):
                await stuck.wait()
                assert not finished.is_set()
                await servers[1].restart()
                await finished.wait()
            nursery.cancel_scope.cancel()

    run(story)
    assert set(alarms) == {1.0}, "the metrics show the problem that is reported"


def test_reading_is_paced_and_its_progress_has_a_total() -> None:
    async def story(servers: Servers[MemoryServer]) -> None:
        seen: list[tuple[int, int]] = []

        def show(now: VerifyProgress) -> None:
            seen.append((now.bytes_read, now.bytes_total))

        async with open_store(servers.url) as store:
            began = trio.current_time()
            report = await verify_store(store, ["d"], read=True, bytes_per_s=5, on_progress=show)
        assert report.bytes_read == 15
        assert trio.current_time() - began >= 3, "15 bytes at 5 a second"
        assert seen[-1] == (15, 15)

    run(story)


def test_the_commands_say_the_same_of_damage_and_of_a_member_that_is_away(three: Threads) -> None:
    trio.run(filled, three, "a", "b")
    url = url_of(three)
    assert [dos("store", verb, url).code for verb in ("status", "verify")] == [0, 0]
    trio.run(lambda: damage(three[1], "d", "a", notice=False))
    assert [dos("store", verb, url).code for verb in ("status", "verify")] == [0, 1], "reading finds it"
    status = dos("store", "status", url)
    assert status.code == 1, "and then the server knows it"
    assert b"1 copies are damaged: run `dos store repair`" in status.stdout
    assert dos("store", "verify", url, "--quick").code == 1
    assert dos("store", "repair", url).code == 0
    assert [dos("store", verb, url).code for verb in ("status", "verify")] == [0, 0]
    three[2].kill()
    assert [dos("store", verb, url).code for verb in ("status", "verify")] == [1, 1]
    three[1].kill()
    assert [dos("store", verb, url).code for verb in ("status", "verify")] == [3, 3]
