"""Comparing the copies of a real store: what is said of each, and nothing of what is only late."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dos_client import QuorumUnavailableError, connect, init_store, metrics, open_store
from dos_client.core import watching as core
from dos_client.core.comparing import CopyState
from dos_client.core.membership import Condition
from dos_client.membership.filling import ReplaceProgress
from dos_client.membership.replacing import add_spare
from dos_client.membership.status import StoreStatus, store_status
from dos_client.membership.watching import Seen, StoreWatcher, WatchOptions
from dos_client.repair.verifying import VerifyProgress, VerifyReport, verify_store
from dos_client.repair.walking import StoreWalk
from dos_protocol.errors import BrokenConnectionError
from dos_server.testing import MemoryServer, Servers, memory_server, memory_store
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    caught_up,
    claimed,
    damage,
    has,
    new_writer,
    off,
    on,
    url_of,
)
from tests.dos_client.test_cli import dos

CONTENT = bytes(range(256)) * 1_000


async def filled(servers: Threads, *names: str) -> None:
    """A directory with objects on all members, whose writer is gone."""
    await init_store(url_of(servers))
    async with claimed(servers) as (_, claim):
        for name in names:
            writer = claim.open_object(name)
            await writer.wait_synced(writer.append(CONTENT))
            for server in servers:
                await has(server, "d", name, CONTENT)


async def behind_the_stores_back(server: ThreadServer, name: str, data: bytes, base: bytes = b"") -> None:
    """Bytes on one server alone, under the claim that it holds."""
    async with connect(server.url) as one:
        one.server_record = None
        held = await one.reopened(one.record.members[0], "d")
        async with await one.claim(
            "d", max(held.epoch, 1), held.writer_id if held.epoch else new_writer()
        ) as claim:
            writer = claim.resume_object(name, 0, 0, base) if base else claim.open_object(name)
            await writer.wait_synced(writer.append(data))


async def verified(servers: Threads, *directories: str, read: bool = False) -> VerifyReport:
    async with open_store(url_of(servers)) as store:
        return await verify_store(store, directories, read=read)


@pytest.mark.trio
async def test_a_copy_that_cannot_be_read_to_its_end_is_not_called_damaged(
    three: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(three, "a")
    read_through = StoreWalk.read_through

    async def breaks(walk: StoreWalk, name: str, server_id: bytes, *rest: Any) -> bool:
        if server_id.hex() == three[2].server_id:
            raise BrokenConnectionError("cut off in the middle")
        return await read_through(walk, name, server_id, *rest)

    monkeypatch.setattr(StoreWalk, "read_through", breaks)
    report = await verified(three, "d", read=True)
    assert report.unavailable == {three[2].location: "cut off in the middle"}
    assert not report.differences


def differences_of(report: VerifyReport) -> dict[tuple[str, str], str]:
    return {(one.name, one.address): one.verdict.value for one in report.findings}


@pytest.mark.trio
async def test_each_copy_is_called_what_it_is(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await filled(three, "a", "b")
    report = await verified(three)
    assert not report.findings
    assert (report.objects, report.members, report.unavailable) == (2, 3, {})
    async with claimed(three, epoch=2) as (_, claim):
        await off(three[2])
        late = claim.open_object("late")
        await late.wait_synced(late.append(b"on two members"))
    await on(three[2])
    await behind_the_stores_back(three[1], "other", b"these bytes")
    await behind_the_stores_back(three[0], "other", b"those bytes, longer")
    await behind_the_stores_back(three[2], "other", b"those bytes")
    await behind_the_stores_back(three[2], "a", b"beyond", base=CONTENT)
    await damage(three[0], "d", "b")
    report = await verified(three)
    one, two, last = (server.location for server in three)
    assert differences_of(report) == {
        ("late", last): "missing",
        ("other", two): "differs",
        ("other", last): "behind",
        ("a", one): "behind",
        ("a", two): "behind",
        ("b", one): "damaged",
    }
    assert all(not finding.live for finding in report.findings)
    lag = next(finding for finding in report.findings if finding.name == "a")
    assert (lag.size, lag.expected_size, lag.behind_bytes) == (len(CONTENT), len(CONTENT) + 6, 6)


@pytest.mark.trio
async def test_rot_that_nobody_has_read_yet_is_found_by_reading(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await filled(three, "a")
    await damage(three[1], "d", "a", notice=False)
    assert not (await verified(three)).findings
    assert differences_of(await verified(three, read=True)) == {("a", three[1].location): "damaged"}


@pytest.mark.trio
async def test_a_copy_that_lags_after_a_live_writer_is_no_difference(three: Threads) -> None:
    await init_store(url_of(three))
    async with claimed(three) as (_, claim), trio.open_nursery() as nursery:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(CONTENT))

        async def write() -> None:
            while True:
                await writer.wait_received(writer.append(CONTENT[:10_000]))

        nursery.start_soon(write)
        for _ in range(3):
            assert not (await verified(three)).differences
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_with_a_member_away_the_others_are_compared_and_with_two_away_nothing(three: Threads) -> None:
    await filled(three, "a")
    await off(three[2])
    report = await verified(three)
    assert list(report.unavailable) == [three[2].location]
    assert not report.findings
    async with open_store(url_of(three)) as store:
        await off(three[1])
        with pytest.raises(QuorumUnavailableError, match="2 members are needed"):
            await verify_store(store)


@pytest.mark.trio
@pytest.mark.parametrize("gone", [1, 2])
async def test_members_that_go_meanwhile_are_named_or_the_rest_is_not_compared(
    three: Threads, gone: int
) -> None:
    """Nothing is said of a directory that too few members were asked for."""
    await filled(three, "a")
    async with claimed(three, "e") as (_, claim):
        writer = claim.open_object("b")
        await writer.wait_synced(writer.append(CONTENT))
        for server in three:
            await has(server, "e", "b", CONTENT)
    left: list[str] = []

    def on_progress(progress: VerifyProgress) -> None:
        if progress.directories_done == 1 and not left:
            for server in three[:gone]:
                server.kill()
                left.append(server.location)

    async with open_store(url_of(three)) as store:
        if gone == 2:
            with pytest.raises(QuorumUnavailableError, match="2 members are needed to compare"):
                await verify_store(store, ["d", "e"], on_progress=on_progress)
        else:
            report = await verify_store(store, ["d", "e"], on_progress=on_progress)
            assert list(report.unavailable) == left
            assert report.unavailable[left[0]]
            assert not report.findings


def test_the_command_reports_what_it_found(three: Threads) -> None:
    url = url_of(three)
    trio.run(filled, three, "a")
    done = dos("store", "verify", url)
    assert done.code == 0, done
    assert b"1 objects in 1 directories" in done.stdout
    assert b"on 3 of 3 members: all equal" in done.stdout
    assert json.loads(dos("store", "verify", url, "--json").stdout)["equal"] is True
    trio.run(damage, three[0], "d", "a")
    done = dos("store", "verify", url, "d")
    assert done.code == 1
    assert f"d/a on {three[0].location} is damaged" in done.stdout.decode()
    assert "dos store repair" in done.stderr
    found = json.loads(dos("store", "verify", url, "--json").stdout)["findings"]
    assert [one["verdict"] for one in found] == [CopyState.DAMAGED.value]


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
