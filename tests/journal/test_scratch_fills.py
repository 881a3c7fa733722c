"""A member that slept while a chain was written is filled from the worker's scratch, not from the others."""

from pathlib import Path

import pytest
import trio

from dos_client import init_store
from journal import ChainWriter, Op, Record, Scratch, take_over
from tests.dos_client.conftest import three
from tests.dos_client.support import ThreadServer, claimed, content_of, off, on, until, url_of

__all__ = ["three"]


@pytest.mark.trio
@pytest.mark.parametrize("wiped", [False, True])
async def test_a_take_over_fills_the_member_that_slept_from_the_scratch(
    three: list[ThreadServer],
    tmp_path: Path,
    wiped: bool,
) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    scratch = Scratch(tmp_path / "scratch")
    async with (
        claimed(three, epoch=1) as (_, claim),
        await ChainWriter.open(claim, "J", None, 1, scratch) as writer,
    ):
        segment = writer.segment
        start = claim.targets[segment]
        await until(
            lambda: len(start.sizes) == 3 and not any(map(start.lag, start.sizes)), "it is begun on all"
        )
        begun = start.size
        await off(three[2])
        for number in range(20):
            writer.append(Record(Op.OUTPUT, number, (1,), (bytes([number]) * 50_000,)))
        await writer.wait_synced()
    if wiped:
        (tmp_path / "scratch" / segment).unlink()
    await on(three[2])
    async with claimed(three, epoch=2) as (store, claim):
        chain = await take_over(claim, "J", generation=1, scratch=scratch)
        size = chain.segments[0].length
        await until(
            lambda: all(claim.targets[segment].sizes.get(m.server_id) == size for m in store.record.members),
            "all members have it",
        )
        source = "member" if wiped else "local"
        assert store.counts.filled_bytes == {(three[2].location, source): size - begun}
    assert await content_of(three[2], "d", segment) == await content_of(three[0], "d", segment)


@pytest.mark.trio
async def test_the_segment_being_written_is_read_back_while_it_is_written(
    three: list[ThreadServer],
    tmp_path: Path,
) -> None:
    await init_store(url_of(three))
    scratch = Scratch(tmp_path)
    async with (
        claimed(three) as (_, claim),
        await ChainWriter.open(claim, "J", None, 1, scratch) as writer,
    ):
        copy = scratch.copy(writer.segment)
        for number in range(5):
            writer.append(Record(Op.OUTPUT, number, (1,), (bytes([number]) * 50_000,)))
            assert copy.size() == claim.targets[writer.segment].size
        await writer.wait_synced()
        data = await trio.to_thread.run_sync(copy.read, 0, copy.size())
        assert data == await content_of(three[0], "d", writer.segment)
    scratch.keep_only("J", set())
    assert (copy.size(), copy.read(0, 10)) == (0, None), "what is not there any more is nothing"
