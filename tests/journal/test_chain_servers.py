"""Chains on three real servers that are killed, wiped and damaged; writers that are killed. N=3, Qa=2."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from dos_client.errors import QuorumUnavailableError, StoreNotReadyError
from dos_client.store import Store, init_store, open_store
from journal import ChainState, ChainWriter, Op, Record, inspect_chain, read_records, take_over
from tests.support.servers import ServerProcess, three_servers, url_of

__all__ = ["three_servers"]

pytestmark = pytest.mark.process
DIRECTORY = "app.w0000"


@contextmanager
def writing(url: str, epoch: int) -> Iterator[subprocess.Popen[str]]:
    """A writer process; killed at the end of the block if it still lives."""
    command = [sys.executable, "-m", "tests.journal.writer_process", url, DIRECTORY, str(epoch)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def acknowledged(process: subprocess.Popen[str], at_least: int) -> int:
    """Wait until that many notes were acknowledged."""
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= at_least:
            return int(line)
    raise AssertionError(f"the writer ended: {process.wait()}")


def rest_acknowledged(process: subprocess.Popen[str], so_far: int) -> int:
    """After it was killed: the last number that it could still print."""
    assert process.stdout is not None
    numbers = [int(line) for line in process.stdout.read().split("\n")[:-1]]
    return max([so_far, *numbers])


async def numbers_in(store: Store, epoch: int) -> tuple[list[tuple[int, int]], ChainState]:
    """Take over with that epoch: (writer's epoch, number) of every note, and the chain."""
    async with await store.claim(DIRECTORY, epoch, os.urandom(16)) as claim:
        state = await take_over(claim, "J", generation=store.record.generation)
        steps = [step async for step in read_records(claim, state)]
        await ChainWriter.open(claim, "J", state, store.record.generation)
        return [(r.ints[0], r.tag) for _, r in steps if r.op is Op.OUTPUT], state


def test_nothing_acknowledged_is_lost_when_the_writer_and_a_server_are_killed(
    three_servers: list[ServerProcess],
) -> None:
    # EVIDENCE-OF: P-1, P-5
    url = url_of(three_servers)
    trio.run(init_store, url)
    with writing(url, 1) as first:
        acknowledged(first, 500)
        three_servers[0].kill()
        seen = acknowledged(first, 1000)  # it continues with two of three
        first.kill()
        seen = rest_acknowledged(first, seen)

    async def check() -> None:
        async with open_store(url) as store:
            found, state = await numbers_in(store, 2)
            assert [number for _, number in found][:seen] == list(range(1, seen + 1))
            assert [number for _, number in found] == list(range(1, len(found) + 1))
            assert len(state.segments) > 1, "it had rolled"

    trio.run(check)


def test_a_second_writer_takes_over_from_a_living_first_which_stops(
    three_servers: list[ServerProcess],
) -> None:
    # EVIDENCE-OF: P-4
    url = url_of(three_servers)
    trio.run(init_store, url)
    with writing(url, 1) as first:
        acknowledged(first, 100)
        with writing(url, 2) as second:
            acknowledged(second, 100)
            assert first.wait(timeout=30) != 0, "the first ended with FencedError"
            seen_first = rest_acknowledged(first, 100)
            seen_second = acknowledged(second, 300)

    async def check() -> None:
        async with open_store(url) as store:
            found, _ = await numbers_in(store, 3)
            by_epoch = {epoch: [number for e, number in found if e == epoch] for epoch in (1, 2)}
            assert by_epoch[1][:seen_first] == list(range(1, seen_first + 1))
            assert by_epoch[2][:seen_second] == list(range(1, seen_second + 1))
            assert [epoch for epoch, _ in found] == sorted(epoch for epoch, _ in found)

    trio.run(check)


async def write_without(server: ServerProcess, url: str, records: list[Record]) -> None:
    """Write a chain whose writer has a claim on all members, and of which this one is then killed."""
    async with open_store(url) as store, await store.claim(DIRECTORY, 1, os.urandom(16)) as claim:
        writer = await ChainWriter.open(claim, "J", None, 1)
        server.kill()
        for record in records:
            writer.append(record)
        await writer.wait_synced(writer.end)


def test_each_take_over_leaves_all_it_found_on_a_quorum(three_servers: list[ServerProcess]) -> None:
    """R7. The writer's two servers die one after the other; the third was away while it wrote."""
    # EVIDENCE-OF: P-1
    one, two, three = three_servers
    url = url_of(three_servers)
    trio.run(init_store, url)

    async def check(epoch: int) -> None:
        async with open_store(url) as store:
            found, _ = await numbers_in(store, epoch)
            assert [number for _, number in found] == list(range(1, 101))

    records = [Record(Op.OUTPUT, number, (1,), (bytes(20_000),)) for number in range(1, 101)]
    trio.run(write_without, three, url, records)
    one.kill()
    three.restart()
    trio.run(check, 2)
    two.kill()
    one.restart()
    trio.run(check, 3)


def test_a_server_that_was_wiped_counts_for_nothing(three_servers: list[ServerProcess]) -> None:
    """V7: at the same address, with an empty disk, it would look as if the journal were shorter."""
    # EVIDENCE-OF: P-5
    one, two, three = three_servers
    url = url_of(three_servers)
    trio.run(init_store, url)

    async def take_it_over(epoch: int, patience_s: float) -> list[tuple[int, int]]:
        with trio.fail_after(patience_s):
            async with open_store(url) as store:
                found, _ = await numbers_in(store, epoch)
                return found

    trio.run(write_without, three, url, [Record(Op.OUTPUT, 1, (1,))])
    one.kill()
    shutil.rmtree(one.data)
    one.restart()
    two.kill()
    with pytest.raises((StoreNotReadyError, QuorumUnavailableError, trio.TooSlowError)):
        trio.run(take_it_over, 2, 2)  # three, which was away, is the only member there
    two.restart()
    three.restart()
    assert trio.run(take_it_over, 3, 20) == [(1, 1)]


def test_a_damaged_copy_is_not_read_and_the_others_are(three_servers: list[ServerProcess]) -> None:
    # EVIDENCE-OF: P-2, P-5
    url = url_of(three_servers)
    trio.run(init_store, url)

    async def write() -> str:
        async with open_store(url) as store, await store.claim(DIRECTORY, 1, os.urandom(16)) as claim:
            writer = await ChainWriter.open(claim, "J", None, 1)
            for number in range(1, 51):
                writer.append(Record(Op.OUTPUT, number, (1,), (os.urandom(5000),)))
            await writer.wait_synced()
            while any(member.lag_bytes for member in store.members()):  # noqa: ASYNC110 - the client's own figure
                await trio.sleep(0.01)
            return writer.segment

    async def check() -> None:
        async with open_store(url) as store:
            found, _ = await numbers_in(store, 2)
            assert [number for _, number in found] == list(range(1, 51))
            state = await inspect_chain(store, DIRECTORY, "J")
            assert state.end is not None

    segment = trio.run(write)
    damaged = three_servers[1]
    damaged.stop()
    path = damaged.data / "d" / DIRECTORY / segment
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
    damaged.restart()
    trio.run(check)
