"""A replacement that was interrupted at any point, or raced, is finished by any client."""

from pathlib import Path

import msgspec
import pytest
import trio

from dos_client import (
    ReplaceProgress,
    init_store,
    open_connection,
    open_store,
    replace_member,
)
from dos_client.core.quorum import joining_member
from dos_client.core.replacement import begin
from dos_client.sessions.discovery import send_record
from dos_protocol.errors import DosError
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    cancelled_at,
    claimed,
    content_of,
    has,
    off,
    until,
    url_of,
    write_idle,
)
from tests.support.servers import ServerProcess, three_servers  # noqa: F401

pytestmark = pytest.mark.trio


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
