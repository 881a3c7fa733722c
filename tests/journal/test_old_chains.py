"""Chains with many segments: a take-over that knows a position of a checkpoint, and a reader that knows its
offset, visit no segment below it.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.errors import BrokenConnectionError
from journal import ChainFollower, ChainState, ChainWriter, Op, Position, take_over
from tests.journal.memory_store import DIRECTORY, MemoryStore
from tests.journal.takeovers import note, texts_of

pytestmark = pytest.mark.trio


async def grow(store: MemoryStore, epoch: int, state: ChainState | None, segments: int) -> list[Position]:
    """Write a segment with one note in each step; return the positions after the notes."""
    writer = await ChainWriter.open(store.claim(epoch), "J", state, 1)
    ends = []
    for number in range(segments):
        ends.append(writer.append(note(f"{epoch}.{number}")))
        await writer.wait_synced()
        if number + 1 < segments:
            await writer.roll()
    await writer.aclose()
    return ends


async def requests_of(
    monkeypatch: pytest.MonkeyPatch, segments: int, *, proved: bool, back: bool
) -> tuple[int, int]:
    """Return how many reads and settlements a take-over needs."""
    store = MemoryStore()
    ends = await grow(store, 1, None, segments)
    claim, reads = store.claim(2), 0
    read = claim.read

    async def counted(*arguments: Any, **named: Any) -> bytes:
        nonlocal reads
        reads += 1
        return await read(*arguments, **named)

    monkeypatch.setattr(claim, "read", counted)
    at = ends[-2]
    state = await take_over(claim, "J", at=at if back else None, proved=at if proved else None, generation=1)
    assert state.end == (at if back else ends[-1])
    return reads, len(claim.settled)


@pytest.mark.parametrize("back", [False, True])
async def test_the_number_of_requests_does_not_depend_on_the_age_of_the_chain(
    monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    young = await requests_of(monkeypatch, 3, proved=True, back=back)
    assert await requests_of(monkeypatch, 200, proved=True, back=back) == young
    assert (await requests_of(monkeypatch, 200, proved=False, back=back))[1] >= 199


async def test_what_no_checkpoint_covers_is_settled_and_restored_as_before() -> None:
    store = MemoryStore()
    ends = await grow(store, 1, None, 3)
    claim = store.claim(2)
    state = await take_over(claim, "J", proved=ends[-1], generation=1)
    late = await ChainWriter.open(claim, "J", state, 1)
    claim.held = True
    late.append(note("on one member"))
    claim.deliver(1)
    newer = store.claim(3, [1, 2])
    state = await take_over(newer, "J", proved=ends[0], generation=1)
    assert await texts_of(newer, state) == ["1.0", "1.1", "1.2", "on one member"]
    holders = [s for s in store.servers[:2] if b"on one member" in s.objects[DIRECTORY][late.segment]]
    assert len(holders) == 2, "the bytes above the position are synced on the quorum"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
async def test_the_rest_of_the_chain_is_the_same_for_any_proved_position(
    writers: list[int], data: st.DataObject
) -> None:
    store, state, ends = MemoryStore(), None, []
    for number, segments in enumerate(writers):
        epoch = 2 * number + 1
        ends += await grow(store, epoch, state, segments)
        claim = store.claim(epoch + 1)
        state = await take_over(claim, "J", generation=1)
    assert state is not None
    proved = data.draw(st.sampled_from(ends))
    found = await take_over(claim, "J", proved=proved, generation=1)
    assert found.end == state.end
    assert found.segments == state.segments[-len(found.segments) :]
    assert found.segments[0].holds(proved)
    assert not any(span.holds(proved) for span in found.segments[1:])
    assert await texts_of(claim, found) == (await texts_of(claim, state))[-len(found.segments) :]


async def reads_of_follower(monkeypatch: pytest.MonkeyPatch, segments: int, begin: int) -> int:
    """Follow a chain from the note `begin`, numbered from its end; return the number of reads."""
    store, reads = MemoryStore(), 0
    ends = await grow(store, 1, None, segments)
    read = store.read

    async def counted(*arguments: Any, **named: Any) -> bytes:
        nonlocal reads
        reads += 1
        return await read(*arguments, **named)

    monkeypatch.setattr(store, "read", counted)
    follower = ChainFollower(store, DIRECTORY, "J", at=ends[begin].size)
    notes = [record.strings[0].decode() async for _, record in follower.poll() if record.op is Op.OUTPUT]
    assert notes == [f"1.{number}" for number in range(segments + begin + 1, segments)]
    return reads


@pytest.mark.parametrize("begin", [-1, -3])
async def test_a_reader_that_continues_reads_nothing_before_its_offset(
    monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    young = await reads_of_follower(monkeypatch, 4, begin)
    assert await reads_of_follower(monkeypatch, 200, begin) == young


async def test_a_position_of_another_epoch_is_not_looked_for_in_the_segment_that_was_read() -> None:
    store = MemoryStore()
    writer = await ChainWriter.open(store.claim(1), "J", None, 1)
    first = writer.append(note("first"))
    writer.append(note("rolled back" * 50))
    await writer.wait_synced()
    await writer.aclose()
    follower = ChainFollower(store, DIRECTORY, "J")
    assert len([record async for _, record in follower.poll(first)]) == 2, "the start and the note"
    state = await take_over(store.claim(2), "J", at=first, generation=1)
    (new,) = await grow(store, 3, state, 1)
    found = [record.strings[0] async for _, record in follower.poll(new) if record.op is Op.OUTPUT]
    assert found == [b"3.0"]


@pytest.mark.parametrize("cut", ["the caller stops", "a read fails"])
async def test_a_reader_that_ended_in_an_older_segment_reads_the_rest_of_it_first(
    monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    store = MemoryStore()
    await grow(store, 1, None, 3)
    follower = ChainFollower(store, DIRECTORY, "J")
    if cut == "the caller stops":
        async with aclosing(follower.poll()) as records:
            await anext(records)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(follower, "_records", fails)
            with pytest.raises(BrokenConnectionError, match="lost"):
                await anext(follower.poll())
    notes = [record.strings[0] async for _, record in follower.poll() if record.op is Op.OUTPUT]
    assert notes == [b"1.0", b"1.1", b"1.2"]


async def fails(_: object) -> AsyncGenerator[Any]:
    raise BrokenConnectionError("lost")
    yield
