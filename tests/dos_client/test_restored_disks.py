"""A member's disk is restored from an older copy while another member is away: an epoch is granted twice.

What was acknowledged before is on one member then. It is neither overwritten nor passed over in silence.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dos_client import Store, init_store, open_store, repair_store
from dos_client.cli.mending import finding_text
from dos_client.mending.repairing import Outcome
from dos_client.mending.verifying import verify_store
from journal import ChainWriter, EpochUsedTwiceError, Op, Record, look_chain, read_records, take_over
from tests.dos_client.support import (
    ThreadServer,
    content_of,
    has,
    new_writer,
    off,
    on,
    thread_servers,
    url_of,
)

pytestmark = pytest.mark.trio


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[ThreadServer]]:
    with thread_servers(tmp_path, 3) as servers:
        yield servers


async def wrote(store: Store, *texts: str) -> tuple[int, str]:
    """Take the journal over, as any writer does, and append; the epoch, and the segment that was opened."""
    epoch = (await store.look("d")).epoch_seen + 1
    async with await store.claim("d", epoch, new_writer()) as claim:
        state = await take_over(claim, "J", generation=store.record.generation)
        writer = await ChainWriter.open(claim, "J", state, store.record.generation)
        for text in texts:
            await writer.wait_synced(writer.append(Record(Op.OUTPUT, strings=(text.encode(),))))
        return epoch, f"J.{epoch:016x}.{0 if state.end is None else state.end.size:016x}"


async def shown(store: Store) -> list[str]:
    chain = await look_chain(store, "d", "J")
    records = [record async for _, record in read_records(store, chain, directory="d")]
    return [record.strings[0].decode() for record in records if record.op is Op.OUTPUT]


async def one_epoch_granted_twice(three: list[ThreadServer], after: int) -> tuple[str, bytes]:
    """The first member's disk goes back. Returns the segment of that epoch, and what the second member has of
    it. after: how many records the writer after that appends.
    """
    first, second, third = three
    url, image = url_of(three), first.data.with_name("image")
    await init_store(url)
    async with open_store(url) as store:
        assert (await wrote(store, "base"))[0] == 1
        segments = (await store.look("d")).answers[bytes.fromhex(second.server_id)]
        for name in segments:
            content = await content_of(second, "d", name)
            for one in three:
                await has(one, "d", name, content)
    await off(first)
    await trio.to_thread.run_sync(shutil.copytree, first.data, image)
    await on(first)
    await off(third)
    async with open_store(url) as store:
        epoch, segment = await wrote(store, "acknowledged by the first and the second")
    kept = await content_of(second, "d", segment)
    await off(first, second)
    await trio.to_thread.run_sync(shutil.rmtree, first.data)
    await trio.to_thread.run_sync(shutil.copytree, image, first.data)
    await on(first, third)
    async with open_store(url) as store:
        again = await wrote(store, *(f"other {number}" for number in range(after)))
        assert again == (epoch, segment), "nobody who is there knows that this epoch was used"
    await on(second)
    return segment, kept


async def test_repair_overwrites_nothing_of_an_epoch_that_was_granted_twice(
    three: list[ThreadServer],
) -> None:
    # EVIDENCE-OF: P-5
    segment, kept = await one_epoch_granted_twice(three, after=3)
    async with open_store(url_of(three)) as store:
        verified = await verify_store(store)
        report = await repair_store(store)
    assert {one.outcome for one in report.repairs if one.name == segment} == {Outcome.REFUSED}
    reason = next(one.reason for one in report.repairs if one.name == segment)
    assert "its epoch was granted twice: the disk of a member went back to an older state" in reason
    assert "`dos store replace`" in reason
    told = [finding_text(one) for one in verified.differences if one.name == segment]
    assert any(
        "its epoch was granted twice: a member's disk went back to an older state" in one for one in told
    )
    assert await content_of(three[1], "d", segment) == kept
    assert not list((three[1].data / "d" / "d").glob(".broken*"))


@pytest.mark.parametrize(
    "after", [1, 3], ids=["the longer copy is the older", "the longer copy is the newer"]
)
async def test_a_take_over_that_meets_both_refuses_and_changes_nothing(
    three: list[ThreadServer], after: int
) -> None:
    segment, kept = await one_epoch_granted_twice(three, after)
    async with open_store(url_of(three)) as store:
        with pytest.raises(EpochUsedTwiceError, match="epoch 2 was granted twice"):
            await wrote(store, "on top of one of them")
    assert await content_of(three[1], "d", segment) == kept


async def test_without_a_restored_disk_the_same_outages_lose_nothing(three: list[ThreadServer]) -> None:
    first, second, third = three
    url = url_of(three)
    await init_store(url)
    async with open_store(url) as store:
        await wrote(store)
    for away, text in ((third, "a"), (second, "b"), (first, "c")):
        await off(away)
        async with open_store(url) as store:
            await wrote(store, text)
        await on(away)
    async with open_store(url) as store:
        await wrote(store, "d")
        assert await shown(store) == ["a", "b", "c", "d"]
        assert not [one for one in (await repair_store(store)).repairs if one.outcome is Outcome.REFUSED]
