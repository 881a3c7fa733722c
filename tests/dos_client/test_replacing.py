"""Replacing a member with writers at work, and what must hold afterwards."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from dos_client import (
    ReplacementError,
    ReplaceProgress,
    init_store,
    open_connection,
    open_store,
    replace_member,
)
from dos_client.core.quorum import filled_member
from dos_client.core.replacement import GONE_SUFFIX
from dos_client.membership.filling import Filling
from dos_protocol.errors import BrokenConnectionError, FencedError
from tests.dos_client.support import (
    PATIENCE_S,
    Threads,
    cancelled_at,
    claimed,
    content_of,
    has,
    new_writer,
    off,
    on,
    until,
    url_of,
    write_idle,
)
from tests.support.servers import ServerProcess, three_servers  # noqa: F401

pytestmark = pytest.mark.trio


async def test_a_dead_member_is_replaced_under_a_live_writer(four: Threads) -> None:
    # EVIDENCE-OF: P-5, P-10
    url = url_of(four[:3])
    await init_store(url)
    big = bytes(range(256)) * 6_000
    await write_idle(url, "idle", 3, big, b"", b"small")
    await write_idle(url, "idle", 4, *[])
    reports: list[ReplaceProgress] = []
    async with claimed(four[:3], "live") as (store, claim):
        before = claim.open_object("before")
        await before.wait_synced(before.append(b"b" * 100_000))
        before.seal()
        writer, content, stop = claim.open_object("x"), bytearray(), False

        async def write() -> None:
            while not stop:
                content.extend(b"%015d," % len(content) * 100)
                await writer.wait_synced(writer.append(content[-1_600:]))

        await off(four[2])
        shutil.rmtree(four[2].data)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            record = await replace_member(
                url, old=four[2].location, new=four[3].location, progress=reports.append
            )
            size = writer.synced
            await until(lambda: store.record == record, "the writer is at the new generation")
            await until(lambda: writer.synced > size, "the writer goes on")
            assert not claim.waiting
            await off(four[0])
            size = writer.synced
            await until(lambda: writer.synced > size, "the new member counts")
            stop = True
        await writer.wait_synced(writer.size)
        await has(four[3], "live", "x", bytes(content))
    assert record.generation == 3
    assert [one.address for one in record.members] == [one.location for one in (four[0], four[1], four[3])]
    assert all(one.state == "in" for one in record.members)
    assert await content_of(four[3], "idle", "o0") == big
    assert await content_of(four[3], "idle", "o2") == b"small"
    assert await content_of(four[3], "live", "before") == b"b" * 100_000
    assert [one.phase for one in reports][-1] == "done"
    assert reports[-1].bytes_done >= len(big)
    assert reports[-1].directories == reports[-1].directories_done == 3
    assert await replace_member(url, old=four[2].location, new=four[3].location) == record


async def test_a_wiped_server_is_replaced_on_its_own_at_its_own_address(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(three)
    await init_store(url)
    await write_idle(url, "idle", 1, b"kept")
    old_id = three[1].server_id
    await off(three[1])
    shutil.rmtree(three[1].data)
    await on(three[1])
    assert three[1].server_id != old_id
    record = await replace_member(url, old=three[1].location, new=three[1].location)
    assert [one.address for one in record.members] == [one.location for one in three]
    assert record.members[1].server_id.hex() == three[1].server_id
    assert await content_of(three[1], "idle", "o0") == b"kept"
    assert await replace_member(url, old=three[1].location, new=three[1].location) == record


async def test_a_new_server_that_loses_its_disk_while_it_is_filled_is_not_waited_for(four: Threads) -> None:
    """What stands at its address then has another identity: it never comes. Said again, that one does."""
    # EVIDENCE-OF: P-10
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "idle", 1, bytes(range(256)) * 6_000)
    await off(four[2])
    wiped = False

    def on_progress(progress: ReplaceProgress) -> None:
        nonlocal wiped
        if progress.phase == "filling" and progress.bytes_done > 0 and not wiped:
            wiped = True
            four[3].kill()
            shutil.rmtree(four[3].data)
            four[3].restart()

    with trio.fail_after(PATIENCE_S), pytest.raises(ReplacementError, match="its disk was wiped"):
        await replace_member(url, old=four[2].location, new=four[3].location, progress=on_progress)
    record = await replace_member(url, old=four[2].location, new=four[3].location)
    assert [one.server_id.hex() for one in record.members] == [
        one.server_id for one in (four[0], four[1], four[3])
    ]
    assert await content_of(four[3], "idle", "o0") == bytes(range(256)) * 6_000


@pytest.mark.parametrize("lost", [0, 2])
async def test_a_member_that_loses_its_disk_while_it_is_copied_from_holds_nothing_up(
    four: Threads, lost: int
) -> None:
    """Two members hold it whole, and either may be the one that is read: the other one is read then."""
    # EVIDENCE-OF: P-10
    url, data = url_of(four[:3]), bytes(range(256)) * 6_000
    await init_store(url)
    await off(four[1])
    await write_idle(url, "idle", 1, data)
    four[1].restart()
    wiped = False

    def on_progress(progress: ReplaceProgress) -> None:
        nonlocal wiped
        if progress.phase == "filling" and progress.bytes_done > 0 and not wiped:
            wiped = True
            four[lost].kill()
            shutil.rmtree(four[lost].data)
            four[lost].restart()

    with trio.fail_after(PATIENCE_S):
        record = await replace_member(url, old=four[2].location, new=four[3].location, progress=on_progress)
    assert wiped
    assert four[3].server_id in [one.server_id.hex() for one in record.members]
    assert await content_of(four[3], "idle", "o0") == data


async def test_a_member_that_is_lost_while_a_directory_is_listed_holds_nothing_up(
    four: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection breaks between the listing and the comparison of copies; then it is listed again."""
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "idle", 1, b"held by all")
    await off(four[2])
    original, broken = Filling._compare_copies, 0

    async def compare(self: Filling, *args: Any) -> None:
        nonlocal broken
        if not broken:
            broken += 1
            raise BrokenConnectionError("the server closed the connection")
        await original(self, *args)

    monkeypatch.setattr(Filling, "_compare_copies", compare)
    with trio.fail_after(PATIENCE_S):
        await replace_member(url, old=four[2].location, new=four[3].location)
    assert broken == 1
    assert await content_of(four[3], "idle", "o0") == b"held by all"


async def test_a_run_that_another_one_has_overtaken_fills_nothing_more(four: Threads) -> None:
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "idle", 1, b"held by all")
    await off(four[2])
    with cancelled_at("filling") as progress:
        await replace_member(url, old=four[2].location, new=four[3].location, progress=progress)

    def overtaken() -> None:
        raise FencedError("another run has taken the record log over")

    async with open_store(url_of([*four[:2], four[3]])) as store:
        joining = filled_member(store.record)
        assert joining is not None
        with pytest.raises(FencedError, match="another run"):
            await Filling(store, joining, lambda *_: None, overtaken).run()


async def write_to_two_and_lose_both(
    url: str, four: Threads, directory: str, epoch: int, data: bytes
) -> None:
    """Write to members 1 and 2 while 0 is away; then 2 is lost and replaced by 3, and 1 is lost."""
    await off(four[0])
    await write_idle(url, directory, epoch, data)
    await on(four[0])
    await off(four[2])
    await replace_member(url, old=four[2].location, new=four[3].location)
    await off(four[1])


async def test_what_only_the_lost_and_one_other_held_survives_the_loss_of_that_other(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    await init_store(url)
    await write_to_two_and_lose_both(url, four, "idle", 1, b"on b and c")
    async with open_store(url_of([four[0], four[3]])) as store:
        view = await store.inspect("idle")
        assert max(found["o0"].synced for found in view.answers.values() if "o0" in found) == 10


async def test_claims_are_carried_over_so_that_a_fenced_writer_stays_fenced(four: Threads) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(four[:3])
    await init_store(url)
    older = new_writer()
    async with open_store(url) as store:
        await (await store.claim("d", 1, older)).aclose()
    await write_to_two_and_lose_both(url, four, "d", 2, b"of the newer writer")
    async with open_store(url_of([four[0], four[3]])) as store:
        with trio.fail_after(20), pytest.raises(FencedError) as caught:
            await store.claim("d", 1, older)
    assert caught.value.epoch_held == 2


async def test_the_claim_of_a_directory_without_objects_is_carried_over_too(four: Threads) -> None:
    """The new member lacks nothing of it but the claim: without it, a fenced writer finds a quorum."""
    # EVIDENCE-OF: P-4
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "d", 7)
    await replace_member(url, old=four[2].location, new=four[3].location)
    async with open_connection(four[3].location) as connection:
        assert (await connection.open_directory("d")).epoch == 7


async def test_far_epochs_are_carried_over_too(four: Threads) -> None:
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "d", 3_000_000, b"x")
    await replace_member(url, old=four[2].location, new=four[3].location)
    async with open_connection(four[3].location) as connection:
        assert (await connection.open_directory("d")).epoch == 3_000_000


async def test_a_store_of_one_moves_to_another_server(four: Threads) -> None:
    await init_store(four[0].url)
    async with claimed(four[:1], "live") as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"a" * 100_000))
        await write_idle(four[0].url, "idle", 1, b"y")
        record = await replace_member(four[0].url, old=four[0].location, new=four[1].location)
        await off(four[0])
        await writer.wait_synced(writer.append(b"b"))
        await has(four[1], "live", "x", b"a" * 100_000 + b"b")
    assert [one.address for one in record.members] == [four[1].location]
    assert await content_of(four[1], "idle", "o0") == b"y"


@pytest.mark.process
async def test_with_real_processes_a_member_killed_and_wiped_is_replaced(
    three_servers: list[ServerProcess],  # noqa: F811
    tmp_path: Path,
) -> None:
    # EVIDENCE-OF: P-5, P-10
    url = url_of(three_servers)
    await init_store(url)
    async with claimed(three_servers, "live") as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"a" * 1_000_000))
        three_servers[0].kill()
        shutil.rmtree(three_servers[0].data)
        new = await trio.to_thread.run_sync(ServerProcess, tmp_path / "new")
        with new:
            record = await replace_member(url, old=three_servers[0].location, new=new.location)
            three_servers[1].kill()
            await writer.wait_synced(writer.append(b"b"))
            await has(new, "live", "x", b"a" * 1_000_000 + b"b")
    assert not any(one.address.endswith(GONE_SUFFIX) for one in record.members)
