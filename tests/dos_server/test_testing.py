"""`dos_server.testing`: what a program's tests can do with servers in memory."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from dos_client import blocking, connect, open_store
from dos_client.errors import QuorumUnavailableError
from dos_client.store import init_store
from dos_protocol.errors import LocalProtocolError
from dos_server.testing import MemoryServer, memory_server, memory_store, threaded_server, threaded_store
from journal import ChainWriter, Op, Record, read_records, take_over
from tests.support.examples import example, run_example


async def written(server: MemoryServer, epoch: int, *parts: bytes) -> None:
    """The parts, each synced, as one object named by the epoch."""
    async with connect(server.url) as store, await store.claim("app", epoch, os.urandom(16)) as claim:
        writer = claim.open_object(f"o{epoch}")
        for part in parts:
            await writer.wait_synced(writer.append(part))


@pytest.mark.trio
async def test_what_was_acknowledged_exists_after_crash_power_cut_and_restart() -> None:
    # EVIDENCE-OF: P-1
    async with memory_server() as server:
        await written(server, 1, b"one ", b"two")
        for epoch, end in enumerate((server.crash, server.power_cut), start=2):
            end()
            assert not server.running
            await server.restart()
            await written(server, epoch, b"more")
        await server.stop()
        await server.restart()
        async with connect(server.url) as store:
            assert await store.read("app", "o1", 0, 100) == b"one two"
            assert await store.read("app", "o2", 0, 100) == await store.read("app", "o3", 0, 100) == b"more"


def test_a_power_cut_loses_what_was_not_synced() -> None:
    """The disk can fail a sync; the bytes are then neither acknowledged nor stored."""

    async def main() -> None:
        async with memory_server(seed=3) as server:
            await written(server, 1, b"synced")
            server.disk.fail_at("sync", "d/app/o2", errno.EIO)
            with trio.move_on_after(5) as patience:
                await written(server, 2, b"never synced")
            assert patience.cancelled_caught
            server.power_cut()
            await server.restart()
            async with connect(server.url) as store:
                assert await store.read("app", "o1", 0, 100) == b"synced"
                (answers,) = (await store.inspect("app")).answers.values()
                assert "o2" not in answers or answers["o2"].synced == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.trio
async def test_a_store_of_three_continues_without_one_and_takes_over_what_was_acknowledged() -> None:
    # EVIDENCE-OF: P-5
    async with memory_store() as servers, open_store(servers.url) as store:
        async with await store.claim("app.w0000", 1, os.urandom(16)) as claim:
            state = await take_over(claim, "J", generation=1)
            writer = await ChainWriter.open(claim, "J", state, 1)
            for number in range(1, 31):
                await writer.wait_synced(writer.append(Record(Op.OUTPUT, number)))
                if number == 10:
                    servers[0].power_cut()
                if number == 20:
                    await servers[0].restart()
        for server in servers:
            server.power_cut()
        for server in servers:
            await server.restart()
        async with await store.claim("app.w0000", 2, os.urandom(16)) as claim:
            state = await take_over(claim, "J", generation=1)
            found = [record.tag async for _, record in read_records(claim, state) if record.op is Op.OUTPUT]
        assert found == list(range(1, 31))


def test_on_the_mock_clock_nothing_waits() -> None:
    """Two of three are away, the client looks for as long as it does, and no time passes."""

    async def main() -> float:
        async with memory_store() as servers, open_store(servers.url) as store:
            servers[1].crash()
            servers[2].power_cut()
            with pytest.raises(QuorumUnavailableError):
                await store.inspect("app")
            return trio.current_time()

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) > 2


@pytest.mark.trio
async def test_servers_in_memory_become_a_store_by_init_store() -> None:
    async with memory_server() as one, memory_server() as two:
        url = f"{one.url},{two.address}"
        await init_store(url)
        async with open_store(url) as store:
            assert [member.address for member in store.record.members] == [one.address, two.address]


@pytest.mark.trio
async def test_clients_of_the_run_are_outside_again_when_the_last_server_is_gone() -> None:
    async with memory_server() as server:
        url = server.url
    with pytest.raises(Exception, match="cannot connect"):
        async with connect(url):
            pass


def test_threads_and_the_blocking_client_reach_a_server_on_loopback() -> None:
    # EVIDENCE-OF: P-1
    with threaded_server() as server:
        with blocking.connect(server.url) as store, store.claim("app", 1, os.urandom(16)) as claim:
            writer = claim.open_object("o")
            writer.wait_synced(writer.append(b"hello"))
            server.power_cut()
            assert not server.running
            server.restart()
        with blocking.connect(server.url) as store:
            assert store.read("app", "o", 0, 100) == b"hello"


def test_a_store_on_loopback_loses_a_member_and_gets_it_back() -> None:
    # EVIDENCE-OF: P-5
    with threaded_store() as servers, blocking.open_store(servers.url) as store:
        with store.claim("app", 1, os.urandom(16)) as claim:
            writer = claim.open_object("o")
            writer.wait_synced(writer.append(b"one "))
            servers[0].crash()
            writer.wait_synced(writer.append(b"two "))
            servers[0].restart()
            servers[1].power_cut()
            writer.wait_synced(writer.append(b"three"))
        assert store.read("app", "o", 0, 100, committed=True) == b"one two three"


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ValueError, match="one to 5 members, not 7"), threaded_store(7):
        pass


@pytest.mark.parametrize("name", ["trio", "threads"])
def test_the_examples_of_the_manual_run(name: str) -> None:
    run_example("docs/testing.md", name)


def test_the_fixture_of_the_manual_serves_a_test(tmp_path: Path) -> None:
    file = tmp_path / "test_example.py"
    file.write_text(example("docs/testing.md", "fixture"), encoding="utf-8")
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", tmp_path)
    done = subprocess.run([sys.executable, "-m", "pytest", *options, file], capture_output=True, text=True)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.trio
@pytest.mark.parametrize("wrong", [b"a writer's name-A-1", b"a writer's name-B-1", b"short", b""])
async def test_a_writer_id_of_another_length_is_refused_and_claims_nothing(wrong: bytes) -> None:
    """Cut to 16 bytes, the first two were one writer, and both were granted one epoch."""
    # EVIDENCE-OF: P-4
    async with memory_server() as server, connect(server.url) as store:
        with pytest.raises(LocalProtocolError, match="exactly 16 bytes"):
            await store.claim("app", 1, wrong)
        assert (await store.inspect("app")).epoch_seen == 0
