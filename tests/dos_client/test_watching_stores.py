"""Watchers on real servers: what they replace, follow, repair and report, and what they leave alone."""

import shutil
from dataclasses import replace
from typing import Any

import pytest
import trio
from msgspec import structs

from dos_client import (
    ReplacementError,
    add_member,
    init_store,
    metrics,
    open_connection,
    open_store,
    replace_member,
)
from dos_client.core import watching as core
from dos_client.core.logs import DIRECTORY
from dos_client.live_store import Store
from dos_client.membership.filling import ReplaceProgress
from dos_client.membership.record_log import open_record_log, read_history
from dos_client.membership.replacing import add_spare
from dos_client.membership.watching import Seen, StoreObserver, StoreWatcher, WatchOptions
from dos_client.sessions.connection import ANYBODY
from dos_protocol.errors import FencedError, NotAMemberError, StaleGenerationError
from dos_protocol.store_record import StoreRecord
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    cancelled_at,
    claimed,
    connect_as,
    content_of,
    damage,
    new_writer,
    off,
    on,
    until,
    url_of,
    write_idle,
)

pytestmark = pytest.mark.trio

SOON = WatchOptions(replace_after_s=0.2, interval_s=0.1, stand_by_s=0.5)
CONTENT = bytes(range(256)) * 4_000


async def watched(watcher: StoreWatcher, *kinds: type) -> Seen:
    """Let it look until an action of one of these kinds was performed or reported."""
    with trio.fail_after(45):
        while True:
            seen = await watcher.step()
            if isinstance(seen.action, kinds) and (seen.done or isinstance(seen.action, core.ReportAction)):
                return seen
            await trio.sleep(0.1)


def counted(outcome: str) -> float:
    labels = {"action": "replace", "outcome": outcome}
    return metrics.registry.get_sample_value("dos_watch_actions_total", labels) or 0.0


async def see_claim(held: trio.Event) -> None:
    """Wait until the metrics show that a watcher of this process holds the claim of the record log."""
    await until(lambda: metrics.registry.get_sample_value("dos_watch_holds_claim") == 1, "it acts")
    held.set()


async def test_a_dead_member_is_replaced_by_the_spare_and_the_next_one_may_die(five: Threads) -> None:
    # EVIDENCE-OF: P-5, P-10
    url = url_of(five[:3])
    await init_store(url)
    await add_spare(url, new=five[3].location)
    await write_idle(url, "idle", 3, CONTENT)
    watcher = StoreWatcher(url, SOON)
    assert (await watcher.step()).action == core.WaitAction()
    before = [counted(outcome) for outcome in ("begun", "done")]
    async with claimed(five[:3], "live") as (store, claim):
        writer, written = claim.open_object("x"), 0
        await off(five[2])
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                nonlocal written
                while True:
                    await writer.wait_synced(writer.append(b"%015d," % written))
                    written += 1

            nursery.start_soon(write)
            held = trio.Event()
            nursery.start_soon(see_claim, held)
            await watched(watcher, core.ReplaceAction)
            assert held.is_set()
            assert metrics.registry.get_sample_value("dos_watch_holds_claim") == 0
            assert [counted(one) for one in ("begun", "done")] == [one + 1 for one in before]
            await until(lambda: store.record.generation == 4, "the writer follows")
            await off(five[0])
            size = writer.synced
            await until(lambda: writer.synced > size, "the new member counts")
            nursery.cancel_scope.cancel()
        assert (await content_of(five[3], "live", "x")).startswith(
            b"".join(b"%015d," % n for n in range(written))
        )
    assert await content_of(five[3], "idle", "o0") == CONTENT
    async with open_store(url) as store:
        history = await read_history(store)
    assert [(one.what, one.automatic, one.outcome) for one in history] == [
        ("spare-add", False, "done"),
        ("replace", True, "done"),
    ]
    assert five[2].location in history[1].old
    assert five[3].location in history[1].new


async def test_one_of_two_members_is_replaced_when_a_spare_decides(five: Threads) -> None:
    # EVIDENCE-OF: P-5, P-10
    url = url_of(five[:2])
    await init_store(url)
    await add_spare(url, new=five[2].location)
    await write_idle(url, "idle", 3, CONTENT)
    async with claimed(five[:2], "live") as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before"))
        await off(five[1])
        seen = await watched(StoreWatcher(url_of(five[:1]), SOON), core.ReplaceAction)
        assert isinstance(seen.action, core.ReplaceAction)
        await writer.wait_synced(writer.append(b"after"))
        record = store.record
    assert [one.address for one in record.members] == [five[0].location, five[2].location]
    assert (record.ack_quorum, record.spares) == (2, ())
    assert await content_of(five[2], "idle", "o0") == CONTENT
    assert await content_of(five[2], "live", "x") == b"beforeafter"
    await on(five[1])
    async with open_store(url) as store:
        assert store.record == record
    with pytest.raises((StaleGenerationError, NotAMemberError)):
        await connect_as(five[1], record.store_id, 2)


async def test_a_tie_breaker_decides_no_change_that_needs_both_members(five: Threads) -> None:
    # EVIDENCE-OF: P-10
    url = url_of(five[:2])
    await init_store(url)
    await add_spare(url, new=five[2].location)
    await off(five[1])
    with pytest.raises(ReplacementError, match=f"{five[1].location} is unavailable"):
        await add_member(url, new=five[3].location)
    with pytest.raises(ReplacementError, match=f"{five[1].location} is unavailable"):
        await replace_member(url, old=five[0].location, new=five[3].location)
    done = await replace_member(url, old=five[1].location, new=five[3].location)
    assert [one.address for one in done.members] == [five[0].location, five[3].location]
    assert [one.address for one in done.spares] == [five[2].location]


async def test_one_of_two_members_without_a_spare_is_only_reported(five: Threads) -> None:
    url = url_of(five[:2])
    await init_store(url)
    await off(five[1])
    seen = await watched(StoreWatcher(url_of(five[:1]), SOON), core.ReportAction)
    assert "cannot be read" in seen.action.why or "too few" in seen.action.why


@pytest.mark.parametrize("members", [3, 2, 1])
async def test_a_member_is_followed_to_another_address(five: Threads, members: int) -> None:
    # EVIDENCE-OF: P-10
    url = url_of(five[:members])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    old = five[members - 1]
    await off(old)
    moved = ThreadServer(old.data)
    try:
        watcher = StoreWatcher(url, replace(SOON, look_at=[moved.location]))
        seen = await watched(watcher, core.FollowAction)
        assert seen.done
        others = [one.location for one in five[: members - 1]]
        async with open_store(f"dos://{','.join([*others, moved.location])}") as store:
            assert [one.address for one in store.record.members] == [*others, moved.location]
            assert await store.read("idle", "o0", 0, 1 << 22) == CONTENT
            assert (await read_history(store))[-1].what == "move"
        if members == 3:  # a client with the old addresses finds it through the others
            async with claimed(five[:3], "live"):
                await off(five[0])
                async with open_store(url) as store, await store.claim("more", 1, b"w" * 16) as claim:
                    writer = claim.open_object("x")
                    await writer.wait_synced(writer.append(b"on the moved one"))
    finally:
        moved.kill()


async def test_an_older_copy_of_a_disk_is_not_followed(five: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(five[:3])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    await off(five[2])
    image = five[2].data.with_name("image")
    shutil.copytree(five[2].data, image)
    await on(five[2])
    await write_idle(url, "later", 4, CONTENT, b"newer")  # the others remember its newest stamp
    await off(five[2])
    copy = ThreadServer(image)
    try:
        watcher = StoreWatcher(url, replace(SOON, look_at=[copy.location]))
        why = (await watched(watcher, core.ReportAction, core.FollowAction)).action.why
        assert "its disk went back in time" in why
        assert why.endswith("the store has no spare")
    finally:
        copy.kill()


async def test_two_servers_with_one_identity_are_reported(five: Threads) -> None:
    url = url_of(five[:3])
    await init_store(url)
    await off(five[2])
    image = five[2].data.with_name("image")
    shutil.copytree(five[2].data, image)
    await on(five[2])
    copy = ThreadServer(image)
    try:
        seen = await watched(StoreWatcher(url, replace(SOON, look_at=[copy.location])), core.ReportAction)
        assert "answers at several addresses" in seen.action.why
    finally:
        copy.kill()


async def test_a_spare_that_is_not_empty_is_not_used(five: Threads) -> None:
    url = url_of(five[:3])
    await init_store(url)
    await add_spare(url, new=five[3].location)
    async with open_connection(five[3].location) as connection:
        await connection.claim("files", 1, new_writer())
    sight = (await StoreWatcher(url, SOON).step()).sight
    assert [one.problem for one in sight.spares] == [""], "it is looked into only when a member is absent"
    await off(five[2])
    seen = await watched(StoreWatcher(url, SOON), core.ReportAction)
    assert f"{five[3].location}: {five[3].location} is not empty" in seen.action.why
    assert seen.sight.record is not None
    assert seen.sight.record.generation == 2
    await add_spare(url, new=five[4].location)
    assert (await watched(StoreWatcher(url, SOON), core.ReplaceAction)).done


async def test_a_watcher_that_sees_no_quorum_does_nothing(five: Threads) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(five[:3])
    await init_store(url)
    await add_spare(url, new=five[3].location)
    watcher = StoreWatcher(url, SOON)
    await watcher.step()
    await off(five[1], five[2])
    seen = await watched(watcher, core.ReportAction)
    assert "dos store recover" in seen.action.remedy


async def test_a_member_that_other_clients_reach_is_not_silent(five: Threads) -> None:
    """The watcher never sees the member; the others know newer stamps of it each time."""
    url = url_of(five[:3])
    await init_store(url)
    await add_spare(url, new=five[3].location)
    await write_idle(url, "first", 1, b"the others know its stamp")
    await off(five[2])
    watcher = StoreWatcher(url, replace(SOON, replace_after_s=0.05))
    for number in range(3):
        seen = await watcher.step()
        assert isinstance(seen.action, core.WaitAction)
        assert ("other clients reach it" in seen.action.why) is (number > 0)
        await on(five[2])
        await write_idle(url, f"more{number}", 1, b"it has a new stamp")
        await off(five[2])
    await watched(watcher, core.ReplaceAction)


async def test_of_two_watchers_one_replaces_and_a_dead_one_is_succeeded(five: Threads) -> None:
    # EVIDENCE-OF: P-4, P-10
    url = url_of(five[:3])
    await init_store(url)
    await add_spare(url, new=five[3].location)
    await add_spare(url, new=five[4].location)
    await write_idle(url, "idle", 3, CONTENT)
    await off(five[2])
    seen: list[Seen] = []
    with cancelled_at("filling") as progress:  # it dies in the middle
        await watched(StoreWatcher(url, SOON, progress=progress), core.ReplaceAction)
    async with trio.open_nursery() as nursery:

        def note(one: Seen) -> None:
            seen.append(one)
            if one.done:
                nursery.cancel_scope.cancel()

        for _ in range(2):
            nursery.start_soon(StoreWatcher(url, SOON).run, note)
    (done,) = [one for one in seen if one.done]
    assert isinstance(done.action, core.CompleteAction)
    async with open_store(url) as store:
        assert store.record.generation == 5
        assert [one.address for one in store.record.members] == [five[n].location for n in (0, 1, 3)]
        assert [one.address for one in store.record.spares] == [five[4].location]
    assert await content_of(five[3], "idle", "o0") == CONTENT


async def test_a_run_that_began_after_the_look_is_not_interrupted(five: Threads) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(five[:3])
    await init_store(url)
    ended: list[str] = []
    async with open_store(url) as store, open_store(url) as other:
        seen_epoch = (await store.inspect(DIRECTORY)).epoch_seen
        both_tried = trio.Event()

        async def run(one: Store) -> None:
            try:
                async with open_record_log(one, seen_epoch=seen_epoch) as records:
                    await both_tried.wait()
                    await records.decide(structs.replace(one.record, generation=one.record.generation + 1))
                    ended.append("decided")
            except FencedError:
                ended.append("fenced")
                both_tried.set()

        with trio.fail_after(45):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, store)
                nursery.start_soon(run, other)
    assert ended in (["fenced", "decided"], ["fenced", "fenced"])  # as both claims may lack a quorum


async def test_a_spare_that_dies_while_it_is_filled_is_replaced_by_the_next(five: Threads) -> None:
    # EVIDENCE-OF: P-10
    url = url_of(five[:3])
    await init_store(url)
    await add_spare(url, new=five[3].location)
    await add_spare(url, new=five[4].location)
    await write_idle(url, "idle", 3, CONTENT)
    await off(five[2])

    def kill_it(now: ReplaceProgress) -> None:
        if now.phase == "filling":
            five[3].kill()

    watcher = StoreWatcher(url, SOON, progress=kill_it)
    with trio.fail_after(45):
        while not (seen := await watcher.step()).failure:
            assert not seen.done
    assert f"{five[3].location} is silent while it is filled" in seen.failure
    assert (await watched(StoreWatcher(url, SOON), core.ReplaceAction)).done
    async with open_store(url) as store:
        assert [one.address for one in store.record.members] == [five[n].location for n in (0, 1, 4)]
    assert await content_of(five[4], "idle", "o0") == CONTENT


async def test_damage_and_what_a_member_missed_are_repaired(five: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(five[:3])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    watcher = StoreWatcher(url, SOON)
    await damage(five[1], "idle", "o0")
    assert isinstance((await watched(watcher, core.RepairAction)).action, core.RepairAction)
    assert await content_of(five[1], "idle", "o0") == CONTENT
    await off(five[2])
    await watcher.step()
    await write_idle(url, "later", 3, CONTENT)
    await on(five[2])
    await watched(watcher, core.RepairAction)
    assert await content_of(five[2], "later", "o0") == CONTENT


async def test_members_are_asked_about_others_only_while_some_are_absent(
    three: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await init_store(url_of(three))
    asked = list[set[bytes]]()

    async def stamps_of(
        _: StoreObserver, record: StoreRecord, absent: set[bytes], present: set[bytes]
    ) -> Any:
        asked.append(absent)
        return {}

    monkeypatch.setattr(StoreObserver, "_stamps_of", stamps_of)
    observer = StoreObserver([one.location for one in three], ANYBODY, step_max_s=1.0)
    await observer.look()
    assert asked == []
    await off(three[1])
    await observer.look()
    assert asked == [{bytes.fromhex(three[1].server_id)}]
