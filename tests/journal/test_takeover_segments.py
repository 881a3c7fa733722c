"""Segments that a take-over refuses: of another chain, another predecessor, or an epoch that was used."""

import pytest
import trio
import trio.testing

from dos_protocol.errors import LocalProtocolError, StaleGenerationError
from journal import (
    NO_FLOOR,
    ORIGIN,
    ChainError,
    ChainWriter,
    EpochUsedTwiceError,
    LostBytesError,
    Record,
    inspect_chain,
    parse_segment_name,
    take_over,
)
from journal.core.record import encode_v1
from journal.core.segment import Predecessor, SegmentStart, segment_name, start_record
from tests.journal.memory_store import DIRECTORY, MemoryStore
from tests.journal.takeovers import committed_texts, first_writer, note, taken, texts_of

pytestmark = pytest.mark.trio


async def test_a_segment_opened_under_a_newer_store_record_is_refused() -> None:
    store = MemoryStore()
    claim = store.claim(1)
    await ChainWriter.open(claim, "J", None, 5)
    claim = store.claim(2)
    with pytest.raises(StaleGenerationError, match="generation 5"):
        await taken(claim)
    assert (await take_over(claim, "J", generation=5)).end is not None


async def test_a_floor_that_only_an_unfinished_segment_justifies_is_refused_and_deletes_nothing() -> None:
    # EVIDENCE-OF: P-1
    store = MemoryStore()
    claim, writer = await first_writer(store, "a", "b")
    claim.held = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.roll, [note("a and b")])
        await trio.testing.wait_all_tasks_blocked()
        unfinished = parse_segment_name(writer.segment)
        assert unfinished is not None
        assert unfinished.base > 0, "its start is on its way, and its snapshot is not written"
        with pytest.raises(LocalProtocolError, match="is opening a segment"):
            await writer.release(unfinished.order)
        assert writer.released == NO_FLOOR
        writer.collect_released()
        nursery.cancel_scope.cancel()
    claim = store.claim(2)
    assert await texts_of(claim, await taken(claim)) == ["a", "b"]


def plant(store: MemoryStore, start: SegmentStart, *records: Record) -> None:
    """Put a segment on every member as if a writer had."""
    data = b"".join(encode_v1(record) for record in (start_record(start), *records))
    for server in store.servers:
        server.objects.setdefault(DIRECTORY, {})[start.name] = bytearray(data)


@pytest.mark.parametrize("base", [0, 40])
async def test_two_segments_of_one_epoch_that_are_not_of_one_line_are_refused(base: int) -> None:
    """The epoch was granted twice, to writers that had found different ends. Neither line is dropped."""
    # EVIDENCE-OF: P-5
    store = MemoryStore()
    claim, writer = await first_writer(store, "a", "b")
    claim = store.claim(2)
    writer = await ChainWriter.open(claim, "J", await taken(claim), 1)
    writer.append(note("c"))
    await writer.roll()
    claim = store.claim(3)
    assert await texts_of(claim, await taken(claim)) == ["a", "b", "c"], "a roll is one line"
    below = Predecessor(segment_name("J", 1, 0), base, 7) if base else None
    plant(store, SegmentStart("J", 2, base, below, 1, "11" * 16), note("other"))
    before = {name: bytes(data) for name, data in store.servers[0].objects[DIRECTORY].items()}
    with pytest.raises(EpochUsedTwiceError, match="epoch 2 was granted twice"):
        await taken(store.claim(4))
    assert {name: bytes(data) for name, data in store.servers[0].objects[DIRECTORY].items()} == before


async def test_a_segment_whose_start_belongs_to_another_is_refused() -> None:
    store = MemoryStore()
    start = SegmentStart("J", 4, 0, None, 1, "00" * 16)
    plant(store, start)
    wrong = segment_name("J", 5, 0)
    for server in store.servers:
        server.objects[DIRECTORY][wrong] = server.objects[DIRECTORY][start.name]
    claim = store.claim(6)
    with pytest.raises(ChainError, match="the start record of this segment"):
        await taken(claim)


async def test_a_segment_that_begins_with_something_huge_is_refused_unread() -> None:
    # EVIDENCE-OF: P-9
    store = MemoryStore()
    name = segment_name("J", 5, 0)
    for server in store.servers:
        server.objects[DIRECTORY] = {name: bytearray(encode_v1(note("x" * 1_000_000)))}
    with pytest.raises(ChainError, match="a start record within 65536 bytes"):
        await taken(store.claim(6))


@pytest.mark.parametrize("stored", [0, 1, -1])
async def test_a_segment_whose_start_is_not_whole_is_passed_over(stored: int) -> None:
    """Its writer died before the start was on any member."""
    store = MemoryStore()
    await first_writer(store, "a")
    start = SegmentStart("J", 2, 0, None, 1, "00" * 16)
    plant(store, start)
    for server in store.servers:
        del server.objects[DIRECTORY][start.name][stored:]
    assert await committed_texts(store) == ["a"]
    claim = store.claim(3)
    assert await texts_of(claim, await taken(claim)) == ["a"]


async def test_another_jobs_chain_in_the_same_directory_is_not_looked_at() -> None:
    store = MemoryStore()
    plant(store, SegmentStart("Jx", 9, 0, None, 1, "00" * 16))
    plant(store, SegmentStart("J.J", 9, 0, None, 1, "00" * 16))
    claim = store.claim(10)
    state = await taken(claim)
    assert state.end is None
    assert state.seen == 0


async def test_a_segment_start_in_the_middle_of_a_segment_is_refused() -> None:
    store = MemoryStore()
    start = SegmentStart("J", 1, 0, None, 1, "00" * 16)
    plant(store, start, note("a"), start_record(start))
    with pytest.raises(ChainError, match="another segment's start"):
        await taken(store.claim(2))


async def test_a_predecessor_with_other_bytes_than_named_is_refused_when_it_is_read() -> None:
    store = MemoryStore()
    first = SegmentStart("J", 1, 0, None, 1, "00" * 16)
    plant(store, first, note("a"))
    length = len(store.servers[0].objects[DIRECTORY][first.name])
    below = Predecessor(first.name, length, 12345)
    plant(store, SegmentStart("J", 2, length, below, 1, "00" * 16), note("b"))
    state = await inspect_chain(store, DIRECTORY, "J")
    with pytest.raises(ChainError, match="prefix digest 0000000000003039"):
        await committed_texts(store)
    assert state.end is not None


@pytest.mark.parametrize("left", ["all but a byte", "its start", "an empty object", "nothing"])
async def test_a_predecessor_of_which_no_member_has_all_bytes_is_lost_and_not_cut_short(left: str) -> None:
    # EVIDENCE-OF: P-1
    store = MemoryStore()
    _, writer = await first_writer(store, "a")
    first, length = writer.segment, writer.end.size
    await writer.roll()
    held = {
        "all but a byte": length - 1,
        "its start": length - len(encode_v1(note("a"))),
        "an empty object": 0,
    }.get(left)
    for server in store.servers:
        del server.objects[DIRECTORY][first][held or 0 :]
        if held is None:
            del server.objects[DIRECTORY][first]
    lost = f"names {length} bytes of {first}, reachable members have {held or 0}"
    with pytest.raises(LostBytesError, match=lost):
        await inspect_chain(store, DIRECTORY, "J")
    with pytest.raises(LostBytesError, match=lost):
        await taken(store.claim(2))


async def test_an_epoch_is_one_line_of_history() -> None:
    store = MemoryStore()
    await first_writer(store, "a")
    claim = store.claim(2)
    state = await taken(claim)
    await ChainWriter.open(claim, "J", state, 1)
    with pytest.raises(LocalProtocolError, match="already opened under this claim"):
        await ChainWriter.open(claim, "J", state, 1)


async def test_a_claim_below_the_epochs_of_the_chain_opens_nothing() -> None:
    store = MemoryStore()
    plant(store, SegmentStart("J", 5, 0, None, 1, "00" * 16))
    claim = store.claim(5)
    with pytest.raises(LocalProtocolError, match="an epoch above all existing"):
        await ChainWriter.open(claim, "J", await taken(claim), 1)
    with pytest.raises(LocalProtocolError, match="an epoch above all existing"):
        await ChainWriter.open(claim, "J", await taken(claim, at=ORIGIN), 1)


async def test_two_chains_of_one_directory_do_not_mix() -> None:
    store = MemoryStore()
    claim = store.claim(1)
    state = await ChainWriter.open(claim, "state", None, 1)
    steps = await ChainWriter.open(claim, "steps", None, 1)
    state.append(note("state 1"))
    steps.append(note("step 1"))
    claim = store.claim(2)
    for chain, expected in (("state", ["state 1"]), ("steps", ["step 1"])):
        found = await take_over(claim, chain, generation=1)
        assert await texts_of(claim, found) == expected
