"""The local cache: never trusted without its digest, and members are filled from it."""

import logging
from pathlib import Path

import pytest
import trio

from dos_client import init_store
from dos_protocol.digests import prefix_digest
from journal import ChainWriter, Op, Record, Scratch, take_over
from journal.core.chain import SegmentSpan
from tests.dos_client.conftest import three
from tests.dos_client.support import ThreadServer, claimed, content_of, off, on, until, url_of

NAME = "J.0000000000000001.0000000000000000"
DATA = bytes(range(256)) * 1000
SPAN = SegmentSpan(NAME, 0, 200_000, prefix_digest(DATA[:200_000]))


def filled(path: Path) -> Scratch:
    scratch = Scratch(path)
    mirror = scratch.mirror(NAME)
    for start in range(0, len(DATA), 7000):
        mirror.write(DATA[start : start + 7000])
    mirror.close()
    return scratch


def test_what_was_mirrored_covers_every_span_of_it(tmp_path: Path) -> None:
    scratch = filled(tmp_path / "a" / "b")
    assert scratch.covers(SPAN)
    assert b"".join(scratch.read(SPAN)) == DATA[: SPAN.length]


@pytest.mark.parametrize(
    "content", [b"", DATA[:199_999], DATA[:100] + b"\0" + DATA[101:], bytes(300_000), None]
)
def test_a_cache_that_is_short_wrong_or_gone_covers_nothing(tmp_path: Path, content: bytes | None) -> None:
    scratch = filled(tmp_path)
    if content is None:
        (tmp_path / NAME).unlink()
    else:
        (tmp_path / NAME).write_bytes(content)
    assert not scratch.covers(SPAN)


def test_only_this_chains_segments_are_tidied_away(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    kept = NAME, "K.0000000000000001.0000000000000000", "notes.txt"
    for name in (*kept, "J.0000000000000001.0000000000000100"):
        (tmp_path / name).write_bytes(b"x")
    scratch.keep_only("J", {NAME})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_full_or_broken_disk_is_logged_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "dos.journal"):
        scratch = Scratch(tmp_path / "file" / "below")
        mirror = scratch.mirror(NAME)
        mirror.write(DATA)
        mirror.close()
        scratch.keep_only("J", set())
    assert not scratch.covers(SPAN)
    assert "continuing without it" in caplog.text
    (tmp_path / NAME).symlink_to("/dev/full")
    mirror = Scratch(tmp_path).mirror(NAME)
    mirror.write(DATA)
    mirror.write(DATA)
    assert "No space left" in caplog.text


def test_a_mirror_that_is_discarded_leaves_no_file(tmp_path: Path) -> None:
    mirror = Scratch(tmp_path).mirror(NAME)
    mirror.write(DATA)
    mirror.discard()
    assert list(tmp_path.iterdir()) == []


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
        assert data == await claim.store.read("d", writer.segment, 0, 2 * len(data), committed=True)
    scratch.keep_only("J", set())
    assert (copy.size(), copy.read(0, 10)) == (0, None), "what is not there any more is nothing"
