"""A journal whose store was damaged and repaired, or lost more than it tolerates and was recovered."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dos_client import Store, init_store, open_store, recover_store, repair_store
from journal import ChainWriter, Op, Record, read_records, take_over
from tests.dos_client.support import ThreadServer, caught_up, damage, has, off, thread_servers, url_of

pytestmark = pytest.mark.trio
Threads = list[ThreadServer]


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Threads]:
    """Four servers in threads; the first three are the store."""
    with thread_servers(tmp_path, 4) as servers:
        yield servers


async def notes(store: Store, epoch: int, numbers: range) -> list[int]:
    """Take the journal over, return what was in it, write these; two segments each time."""
    async with await store.claim("app", epoch, os.urandom(16)) as claim:
        state = await take_over(claim, "J", generation=store.record.generation)
        found = [step[1].tag async for step in read_records(claim, state) if step[1].op is Op.OUTPUT]
        writer = await ChainWriter.open(claim, "J", state, store.record.generation)
        for number in numbers:
            await writer.wait_synced(writer.append(Record(Op.OUTPUT, number, (epoch,), (os.urandom(500),))))
            if number == numbers[len(numbers) // 2]:
                await writer.roll()
        await caught_up(store)
    return found


async def everywhere(store: Store, servers: Threads) -> list[str]:
    """Wait until all copies are equal; the segments."""
    view = await store.inspect("app")
    for name in sorted({name for objects in view.answers.values() for name in objects}):
        longest = max(objects[name].synced for objects in view.answers.values() if name in objects)
        content = await store.read("app", name, 0, longest)
        for server in servers:
            await has(server, "app", name, content)
    return sorted({name for objects in view.answers.values() for name in objects})


async def test_a_take_over_stands_on_a_member_that_was_repaired(four: Threads) -> None:
    # EVIDENCE-OF: P-5
    url = url_of(four[:3])
    await init_store(url)
    async with open_store(url) as store:
        assert await notes(store, 1, range(1, 40)) == []
        segments = await everywhere(store, four[:3])
    for name in segments:
        await damage(four[1], "app", name, at=300)
    async with open_store(url) as store:
        report = await repair_store(store)
        assert {one.outcome.name for one in report.repairs} == {"REPAIRED"}
        await off(four[0])
        assert await notes(store, 2, range(40, 50)) == list(range(1, 40))


async def test_after_a_loss_was_accepted_the_journal_continues_from_what_exists(four: Threads) -> None:
    # EVIDENCE-OF: P-5, P-10
    url = url_of(four[:3])
    await init_store(url)
    async with open_store(url) as store:
        await notes(store, 1, range(1, 40))
        await everywhere(store, four[:3])
    await off(*four[1:3])
    for server in four[1:3]:
        shutil.rmtree(server.data)
    await recover_store(url, accept_loss=True, new=[four[3].location])
    async with open_store(url_of([four[0], four[3]])) as store:
        epoch = (await store.inspect("app")).epoch_seen + 1
        assert await notes(store, epoch, range(40, 50)) == list(range(1, 40))
        assert await notes(store, epoch + 1, range(50, 51)) == list(range(1, 50))
