"""Replacing a member with writers at work, and what must hold afterwards."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from dos_client import (
    QuorumUnavailableError,
    ReplacementError,
    ReplaceProgress,
    StoreNotReadyError,
    connect,
    init_store,
    open_connection,
    open_store,
    replace_member,
)
from dos_client.core.quorum import filled_member, joining_member
from dos_client.core.replacement import GONE_SUFFIX, begin
from dos_client.membership.filling import Filling
from dos_client.membership.replacing import move_member
from dos_client.sessions.discovery import ServerSurvey, send_record, survey
from dos_protocol.errors import BrokenConnectionError, DosError, FencedError
from tests.dos_client.support import (
    PATIENCE_S,
    Threads,
    ThreadServer,
    cancelled_at,
    claimed,
    content_of,
    damage,
    has,
    new_writer,
    off,
    on,
    until,
    url_of,
    write_idle,
)
from tests.support.servers import ServerProcess
from tests.support.v0_client import V0Connection

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
    three_servers: list[ServerProcess],
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


@pytest.mark.parametrize("phase", ["joining", "filling", "finishing"])
async def test_interrupted_anywhere_it_continues_where_it_was(four: Threads, phase: str) -> None:
    # EVIDENCE-OF: P-10
    url = url_of(four[:3])
    await init_store(url)
    for number in range(1, 5):
        await write_idle(url, f"idle{number}", 1, b"x" * 300_000 * number)
    await off(four[2])
    for calls in (1, 9, 20):
        with trio.CancelScope() as scope:
            seen = 0

            def on_progress(progress: ReplaceProgress) -> None:
                nonlocal seen
                seen += progress.phase == phase
                if seen == calls:  # noqa: B023
                    scope.cancel()

            await replace_member(url, old=four[2].location, new=four[3].location, progress=on_progress)
            break
    record = await replace_member(url, old=four[2].location, new=four[3].location)
    assert record.generation == 3
    for number in range(1, 5):
        assert await content_of(four[3], f"idle{number}", "o0") == b"x" * 300_000 * number


async def test_a_decided_record_that_reached_one_server_is_finished_by_whoever_comes(four: Threads) -> None:
    # EVIDENCE-OF: P-10
    url = url_of(four[:3])
    record = await init_store(url)
    await write_idle(url, "idle", 1, b"x")
    await off(four[2])
    joining = begin(record, record.members[2], bytes.fromhex(four[3].server_id), four[3].location)
    await send_record(four[0].location, joining)
    async with claimed(four[:2], "d", url=url_of(four[:2])) as (store, claim):
        assert store.record == joining
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"with a and b"))
        await has(four[3], "d", "x", b"with a and b")
        status = {one.address: one for one in store.members()}
        assert status[four[3].location].state == "joining"
    done = await replace_member(url, old=four[2].location, new=four[3].location)
    assert done.generation == 3


async def test_a_writer_of_the_old_generation_follows_on_its_own(four: Threads) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(four[:3])
    record = await init_store(url)
    async with claimed(four[:3]) as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"one"))
        joining = begin(record, record.members[2], bytes.fromhex(four[3].server_id), four[3].location)
        for server in four[:2]:
            await send_record(server.location, joining)
        await writer.wait_synced(writer.append(b"two"))
        await until(lambda: store.record == joining, "it follows")
        await off(four[1])
        await writer.wait_synced(writer.append(b"three"))
        await has(four[3], "d", "x", b"onetwothree")
        joined = joining_member(store.record)
        assert joined is not None
        assert joined.server_id.hex() == four[3].server_id


async def test_when_the_new_server_dies_another_may_take_its_place(four: Threads, tmp_path: Path) -> None:
    # EVIDENCE-OF: P-10
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "idle", 1, b"x" * 500_000)
    await off(four[2])
    with cancelled_at("filling") as progress:
        await replace_member(
            url,
            old=four[2].location,
            new=four[3].location,
            progress=progress,
        )
    await off(four[3])
    another = ThreadServer(tmp_path / "another")
    try:
        record = await replace_member(url, old=four[2].location, new=another.location)
        assert record.generation == 4
        assert record.members[2].server_id.hex() == another.server_id
        assert await content_of(another, "idle", "o0") == b"x" * 500_000
    finally:
        await off(another)


async def test_a_claim_reads_on_while_the_record_changes(four: Threads) -> None:
    """A server ends sessions of an older generation. A take-over reads through the ones that follow."""
    url = url_of(four[:3])
    await init_store(url)
    content = bytes(range(256)) * 4000
    await write_idle(url, "idle", 1, content)
    async with claimed(four[:3], "idle", epoch=2) as (store, claim):
        assert await claim.wait_all(20)
        record = store.record
        member = record.members[0].server_id

        async def change_the_record() -> None:
            for number in range(record.generation + 1, record.generation + 6):
                await send_record(four[0].location, msgspec.structs.replace(record, generation=number))
                await until(lambda: store.record.generation == number, "it is everywhere")  # noqa: B023

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change_the_record)
            while store.record.generation < record.generation + 5:
                for offset in range(0, len(content), 50_000):
                    expected = content[offset : offset + 10_000]
                    assert await claim.read("o0", offset, 10_000, member) == expected


async def test_of_two_replacements_at_once_the_records_stay_one_line(four: Threads, tmp_path: Path) -> None:
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "idle", 1, b"x" * 200_000)
    other = ThreadServer(tmp_path / "other")
    outcomes: dict[str, object] = {}

    async def replace(new: ThreadServer) -> None:
        try:
            outcomes[new.location] = await replace_member(url, old=four[2].location, new=new.location)
        except DosError as error:
            outcomes[new.location] = error

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replace, four[3])
            nursery.start_soon(replace, other)
        async with open_store(url) as store:
            record = store.record
        failed = [one for one in outcomes.values() if isinstance(one, DosError)]
        assert len(failed) <= 1
        winner = other if record.member(bytes.fromhex(other.server_id)) is not None else four[3]
        record = await replace_member(url, old=four[2].location, new=winner.location)
        assert len(record.voters) == 3
        assert record.members[2].server_id.hex() == winner.server_id
        seen = set()
        for server in four[:2]:
            async with open_connection(server.location) as connection:
                assert connection.record is not None
                seen.add((connection.record.generation, connection.record.members))
        assert seen == {(record.generation, record.members)}
    finally:
        await off(other)


async def test_what_cannot_replace_is_refused_and_changes_nothing(four: Threads) -> None:
    # EVIDENCE-OF: P-8
    url = url_of(four[:3])
    record = await init_store(url)
    with pytest.raises(ReplacementError, match="is not a member"):
        await replace_member(url, old="127.0.0.1:1", new=four[3].location)
    with pytest.raises(ReplacementError, match="already a member"):
        await replace_member(url, old=four[0].location, new=four[1].location)
    async with connect(four[3].url) as server, await server.unclaimed("full") as claim:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"x"))
    with pytest.raises(ReplacementError, match=r"is not empty.*stop that client"):
        await replace_member(url, old=four[2].location, new=four[3].location)
    async with open_store(url) as store:
        assert store.record == record


async def test_the_server_that_left_knows_that_it_is_no_member(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    await init_store(url)
    record = await replace_member(url, old=four[2].location, new=four[3].location)
    async with open_connection(four[2].location) as connection:
        assert connection.record == record
    with pytest.raises(DosError, match="is not a member in the store record"):
        async with open_connection(four[2].location, store_id=record.store_id, generation=record.generation):
            pass


async def test_contents_that_contradict_each_other_stop_the_replacement(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    await init_store(url)
    for server, data in ((four[0], b"this"), (four[1], b"that, longer")):
        async with connect(server.url) as one:
            one.server_record = None  # behind the store's back
            async with await one.claim("d", 1, new_writer()) as claim:
                writer = claim.open_object("x")
                await writer.wait_synced(writer.append(data))
    await off(four[2])
    with pytest.raises(ReplacementError, match="different contents"):
        await replace_member(url, old=four[2].location, new=four[3].location)


async def test_only_a_member_moves_and_only_from_an_address_where_it_answers_no_more(
    four: Threads, tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(four[:3])
    with pytest.raises(ReplacementError, match="is not a member of this store"):
        await move_member(url, new=four[3].location)  # no store exists yet
    record = await init_store(url)
    with pytest.raises(ReplacementError, match="is not a member of this store"):
        await move_member(url, new=four[3].location)
    await off(four[2])
    shutil.copytree(four[2].data, tmp_path / "copy")
    copy = ThreadServer(tmp_path / "copy")
    try:
        await on(four[2])
        with pytest.raises(ReplacementError, match=f"answers at {four[2].location} and at {copy.location}"):
            await move_member(url, new=copy.location)
        await off(four[2])
        moved = await move_member(url, new=copy.location)
    finally:
        await off(copy)
    assert moved.generation == record.generation + 1
    assert moved.members[2].address == copy.location


async def test_servers_of_which_one_went_away_while_they_became_a_store_are_not_reported_as_one(
    four: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_one(*arguments: Any, **options: Any) -> ServerSurvey:
        await off(four[2])
        return await survey(*arguments, **options)

    monkeypatch.setattr("dos_client.membership.founding.survey", without_one)
    with pytest.raises(StoreNotReadyError, match="servers changed while the store was created"):
        await init_store(url_of(four[:3]))


async def test_a_new_server_whose_copy_is_damaged_while_it_is_filled_is_not_let_in(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    await init_store(url)
    await write_idle(url, "idle", 1, b"x" * 300_000)
    await off(four[2])
    with cancelled_at("finishing") as progress:
        await replace_member(url, old=four[2].location, new=four[3].location, progress=progress)
    await damage(four[3], "idle", "o0")
    with pytest.raises(ReplacementError, match="disk failed on idle/o0"):
        await replace_member(url, old=four[2].location, new=four[3].location)


async def test_where_nobody_ever_claimed_files_that_differ_stay_where_they_are(four: Threads) -> None:
    """Clients of version 0 write to one server. Theirs stop no replacement, and take no other's place."""
    # EVIDENCE-OF: P-1, P-5
    url = url_of(four[:3])
    record = await init_store(url)
    joining = begin(record, record.members[2], bytes.fromhex(four[3].server_id), four[3].location)
    for server in four:
        await send_record(server.location, joining)
    for server, name, data in (
        (four[0], "f", b"this"),
        (four[1], "f", b"that, longer"),
        (four[1], "g", b"only here"),
        (four[3], "g", b"another one"),
        (four[1], "h", b"goes along"),
        (four[3], "h", b"goes"),
    ):
        with V0Connection(server.address) as client:
            client.use("loose")
            client.append(name, 0)
            client.send(data)
            assert client.finish()[-1][1] > 0
            client.close()
    await replace_member(url, old=four[2].location, new=four[3].location)
    assert await content_of(four[0], "loose", "f") == b"this"
    assert await content_of(four[1], "loose", "f") == b"that, longer"
    assert not (four[3].data / "d" / "loose" / "f").exists()
    assert await content_of(four[3], "loose", "g") == b"another one"
    assert await content_of(four[3], "loose", "h") == b"goes along"


@pytest.mark.parametrize("claimed_once", [False, True])
async def test_a_damaged_file_that_nobody_claimed_stops_no_replacement(
    four: Threads, claimed_once: bool
) -> None:
    """No other copy exists: `dos store repair` cannot repair it, and reports nothing about others."""
    # EVIDENCE-OF: P-5, P-10
    url, content = url_of(four[:3]), bytes(range(256)) * 8
    await init_store(url)
    for server, name in ((four[0], "f"), (four[0], "g"), (four[1], "h")):
        with V0Connection(server.address) as client:
            client.use("loose")
            client.append(name, 0)
            client.send(content)
            assert client.finish()[-1][1] == len(content)
            client.close()
    await damage(four[0], "loose", "f")
    if claimed_once:
        async with connect(four[1].url) as one:
            one.server_record = None  # behind the store's back
            await (await one.claim("loose", 1, new_writer())).aclose()
    await off(four[2])
    if claimed_once:
        with pytest.raises(QuorumUnavailableError, match="has damaged objects: f"):
            await replace_member(url, old=four[2].location, new=four[3].location)
        return
    await replace_member(url, old=four[2].location, new=four[3].location)
    assert not (four[3].data / "d" / "loose" / "f").exists()
    for name in ("g", "h"):
        assert await content_of(four[3], "loose", name) == content


async def test_a_new_server_with_another_content_is_never_let_in(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    record = await init_store(url)
    await write_idle(url, "d", 1, b"right")
    async with connect(four[3].url) as server, await server.claim("d", 1, new_writer()) as claim:
        writer = claim.open_object("o0")
        await writer.wait_synced(writer.append(b"wrong"))
    joining = begin(record, record.members[2], bytes.fromhex(four[3].server_id), four[3].location)
    for server in four:
        await send_record(server.location, joining)
    with pytest.raises(ReplacementError, match="different content on the new server"):
        await replace_member(url, old=four[2].location, new=four[3].location)
