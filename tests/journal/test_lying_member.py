"""A chain is read past a member whose file is whole and holds other bytes. Real servers, in threads."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dos_client import connect, init_store, open_store
from journal import ChainWriter, Op, Record, inspect_chain, read_records, take_over
from tests.dos_client.support import ThreadServer, content_of, has, thread_servers, url_of

DIRECTORY = "app.w0000"


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[ThreadServer]]:
    """Three servers, not yet a store."""
    with thread_servers(tmp_path, 3) as servers:
        yield servers


async def written(servers: list[ThreadServer]) -> str:
    """A chain of one segment, on all members; the segment's name."""
    await init_store(url_of(servers))
    async with open_store(url_of(servers)) as store, await store.claim(DIRECTORY, 1, os.urandom(16)) as claim:
        await claim.wait_all(20)
        state = await take_over(claim, "J", generation=store.record.generation)
        writer = await ChainWriter.open(claim, "J", state, store.record.generation)
        for number in range(300):
            writer.append(Record(Op.OUTPUT, tag=number, strings=(os.urandom(1_000),)))
        await writer.wait_synced()
        (name,) = claim.targets
        copies = [await content_of(server, DIRECTORY, name) for server in servers]
        content = max(copies, key=len)
        assert len(content) == claim.targets[name].size, "a quorum has all of it"
        for server in servers:
            await has(server, DIRECTORY, name, content)
    return name


async def lie(server: ThreadServer, name: str, tmp_path: Path) -> None:
    """One bit of the segment is another, and the file's checksums agree with it."""
    content = bytearray(await content_of(server, DIRECTORY, name))
    content[150_000] ^= 1
    liar = ThreadServer(tmp_path / "liar")
    async with connect(liar.url) as store, await store.unclaimed(DIRECTORY) as claim:
        writer = claim.open_object(name)
        await writer.wait_synced(writer.append(bytes(content)))
    liar.kill()
    server.kill()
    shutil.copy(liar.data / "d" / DIRECTORY / name, server.data / "d" / DIRECTORY / name)
    server.restart()


@pytest.mark.trio
async def test_readers_pass_over_a_member_that_holds_other_bytes(
    three: list[ThreadServer], tmp_path: Path
) -> None:
    # EVIDENCE-OF: P-2, P-5
    await lie(three[1], await written(three), tmp_path)
    for preferred in three:
        async with open_store(url_of(three)) as store:
            for member in store.record.members:
                seconds = 0.0001 if member.server_id.hex() == preferred.server_id else 1.0
                for size in (1_000, 65_536, 262_144, 1 << 20):
                    store.pace.note(member.server_id, size, seconds, trio.current_time())
            state = await inspect_chain(store, DIRECTORY, "J")
            steps = [step async for step in read_records(store, state, directory=DIRECTORY)]
            assert [record.tag for _, record in steps if record.op is Op.OUTPUT] == list(range(300))
