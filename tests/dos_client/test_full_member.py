"""A member of a store whose disk is full: nothing acknowledged is lost, two of three go on, and it catches up
when there is space again."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dos_client import Store, init_store, replace_member
from dos_protocol.limits import MIB
from dos_server.core.access import encode_settings
from dos_server.core.quotas import QUOTA_FILE_VERSION, Quota, QuotaFile
from tests.dos_client.support import ThreadServer, claimed, content_of, has, until, url_of
from tests.support.servers import ServerProcess
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.trio

BLOCK = bytes(range(256)) * 256
DISK_BYTES = 4 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def three(tmp_path: Path, disk: SmallDisk) -> Iterator[list[ThreadServer]]:
    """Three servers, the last of them on the small disk."""
    servers = [ThreadServer(folder) for folder in (tmp_path / "a", tmp_path / "b", disk.path / "c")]
    yield servers
    for server in servers:
        server.kill()


def state_of(store: Store, server: ThreadServer) -> tuple[str, str]:
    """How a member stands, and why."""
    (member,) = [one for one in store.members() if one.address == server.location]
    return member.state, member.error


async def test_a_full_member_holds_nobody_up_and_catches_up_when_there_is_space(
    three: list[ThreadServer], disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-1, P-5, P-10
    caplog.set_level(logging.INFO, "dos.client")
    await init_store(url_of(three))
    async with claimed(three) as (store, claim):
        writer = claim.open_object("x")
        count = 2 * DISK_BYTES // len(BLOCK)
        for _ in range(count):
            await writer.wait_synced(writer.append(BLOCK))
            assert not claim.waiting
        await until(lambda: "no space" in state_of(store, three[2])[1], "it is said what is wrong with it")
        assert store.full_members() == [three[2].location]
        for server in three[:2]:
            await has(server, "d", "x", BLOCK * count)
        held = await content_of(three[2], "d", "x")
        assert 0 < len(held) < DISK_BYTES
        assert (BLOCK * count).startswith(held), "what it has it serves"
        (link,) = [one for one in claim.links() if one.member.address == three[2].location]
        await until(lambda: link.outage.attempts > 3, "it is tried again and again")
        assert caplog.text.count("no space for x") == 1, "and the log heard of it once"
        disk.resize(8 * DISK_BYTES)
        await until(lambda: state_of(store, three[2])[0] == "in sync", "it has caught up")
        await until(lambda: not store.full_members(), "it has taken some")
        await has(three[2], "d", "x", BLOCK * count)
        await writer.wait_synced(writer.append(b"end"))
        await has(three[2], "d", "x", BLOCK * count + b"end")


async def test_a_full_member_takes_a_claim_and_counts_for_the_take_over(
    three: list[ThreadServer], disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    # EVIDENCE-OF: P-4, P-10
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(BLOCK))
        for server in three:
            await has(server, "d", "x", BLOCK)
    disk.fill(leave_bytes=100_000)
    await until(lambda: "appends are refused" in caplog.text, "the server has seen that its disk is full")
    await trio.to_thread.run_sync(three[0].kill)
    async with claimed(three, epoch=2) as (_, claim):
        assert claim.epoch == 2, "two of three hold it, and the full one is one of them"
        writer = claim.open_object("y")
        writer.append(BLOCK)
        await until(lambda: "no space" in claim.status().waiting, "one member with space is no quorum")
        assert writer.synced == 0
        disk.resize(8 * DISK_BYTES)
        await writer.wait_synced(len(BLOCK))


async def test_the_only_member_of_a_store_that_is_full_makes_its_writer_wait(
    three: list[ThreadServer], disk: SmallDisk
) -> None:
    # EVIDENCE-OF: P-10
    alone = three[2]
    await init_store(alone.url)
    async with claimed([alone]) as (store, claim):
        writer = claim.open_object("x")
        for _ in range(2 * DISK_BYTES // len(BLOCK)):
            writer.append(BLOCK)
        await until(lambda: claim.waiting and "no space" in state_of(store, alone)[1], "it waits, and why")
        assert 0 < writer.synced < writer.size
        disk.resize(8 * DISK_BYTES)
        await writer.wait_synced(writer.size)
        assert await content_of(alone, "d", "x") == BLOCK * (writer.size // len(BLOCK))


async def test_two_of_three_that_are_restarted_while_they_are_full_serve_reads_and_continue_with_space(
    tmp_path: Path, disk: SmallDisk
) -> None:
    # EVIDENCE-OF: P-1, P-2, P-10
    servers = [ThreadServer(folder) for folder in (tmp_path / "a", disk.path / "b", disk.path / "c")]
    try:
        await init_store(url_of(servers))
        async with claimed(servers) as (store, claim):
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(BLOCK))
            ballast = disk.fill(leave_bytes=100_000)
            for _ in range(8):  # as the state of a checkpoint, of which a part is written
                writer.append(BLOCK)
            await until(lambda: "no space" in claim.status().waiting, "it waits, and why")
            acknowledged = writer.synced
            for server in servers[1:]:
                await trio.to_thread.run_sync(server.restart)
            for server in servers[1:]:
                held = await content_of(server, "d", "x")
                assert (BLOCK * 9).startswith(held)
            sizes = [len(await content_of(server, "d", "x")) for server in servers]
            assert sum(size >= acknowledged for size in sizes) >= 2, "a quorum holds what was acknowledged"
            assert len(await store.read("d", "x", 0, 9 * len(BLOCK))) >= len(BLOCK)
            ballast.unlink()
            disk.resize(8 * DISK_BYTES)
            await writer.wait_synced(writer.size)
            for server in servers:
                await has(server, "d", "x", BLOCK * 9)
    finally:
        for server in servers:
            server.kill()


QUOTA_BLOCK = bytes(range(250)) * 40
LIMIT = 10 * len(QUOTA_BLOCK)


def limit(folder: Path, bytes_max: int) -> None:
    """Set the quota of the directory at every server."""
    for number in range(4):
        file = QuotaFile(QUOTA_FILE_VERSION, (Quota("d", bytes_max=bytes_max),))
        folder.joinpath(f"quotas-{number}.json").write_bytes(encode_settings(file))


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Servers with a file of quotas each."""
    limit(tmp_path, LIMIT)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                ServerProcess(
                    tmp_path / f"s{number}", options=("--quotas", f"{tmp_path}/quotas-{number}.json")
                )
            )
            for number in range(4)
        ]


async def test_a_writer_waits_at_its_quota_and_every_member_gets_what_was_acknowledged(
    four: list[ServerProcess], tmp_path: Path
) -> None:
    """One member is away until the quota is used up; afterwards, another one is replaced."""
    # EVIDENCE-OF: P-1, P-5
    three, spare = four[:3], four[3]
    await init_store(url_of(three))
    async with claimed(three) as (_, claim):
        writer = claim.open_object("o")
        await writer.wait_synced(writer.append(QUOTA_BLOCK))
        three[2].kill()
        for _ in range(9):
            await writer.wait_synced(writer.append(QUOTA_BLOCK))
        writer.append(QUOTA_BLOCK)
        await until(lambda: "the quota of 'd' is 100000 bytes" in claim.status().waiting, "it waits")
        assert writer.synced == LIMIT
        three[2].restart()
        await has(three[2], "d", "o", QUOTA_BLOCK * 10)
        three[1].kill()
        await replace_member(url_of(three), old=three[1].location, new=spare.location)
        await has(spare, "d", "o", QUOTA_BLOCK * 10)
        limit(tmp_path, 2 * LIMIT)
        with trio.fail_after(60):
            await writer.wait_synced(11 * len(QUOTA_BLOCK))
        for server in (three[0], three[2], spare):
            await has(server, "d", "o", QUOTA_BLOCK * 11)
