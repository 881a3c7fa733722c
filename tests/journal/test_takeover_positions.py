"""Ends of a chain: rollbacks to a position, chains that never existed, torn ends, and stops of a reader."""

import pytest
import trio
import trio.testing

from dos_protocol.digests import prefix_digest
from dos_protocol.errors import LocalProtocolError
from journal import (
    ORIGIN,
    ChainState,
    ChainWriter,
    CorruptRecordError,
    LostBytesError,
    NotEnoughAnswersError,
    Position,
    StopNotFoundError,
    inspect_chain,
    read_records,
    take_over,
)
from tests.journal.memory_store import DIRECTORY, MemoryStore
from tests.journal.takeovers import first_writer, note, notes, opening, taken, texts_of

pytestmark = pytest.mark.trio


async def test_r13_the_position_ordered_is_the_base_and_never_the_longest() -> None:
    """V11 otherwise: the next cut would not continue the one that was committed."""
    # EVIDENCE-OF: P-6
    store = MemoryStore()
    _, writer = await first_writer(store, "a")
    cut = writer.end
    writer.append(note("after the cut"))
    newer = store.claim(2)
    other = await ChainWriter.open(newer, "J", await taken(newer), 1)
    other.append(note("on the other line"))
    other_end = other.end
    claim = store.claim(3)
    state = await taken(claim, at=cut)
    assert state.end == cut
    assert await texts_of(claim, state) == ["a"]
    third = await ChainWriter.open(claim, "J", state, 1)
    third.append(note("b"))
    claim = store.claim(4)
    assert await texts_of(claim, await taken(claim)) == ["a", "b"]
    claim = store.claim(5)
    assert await texts_of(claim, await taken(claim, at=other_end)) == [
        "a",
        "after the cut",
        "on the other line",
    ]


async def test_after_a_rollback_one_size_lies_on_two_lines_and_the_position_tells_them_apart() -> None:
    """R12. V1's m_off_rb: cut at 1 committed, rollback to 0, epoch 2 grows; the retained cut still reads
    its bytes.
    """
    # EVIDENCE-OF: P-6
    store = MemoryStore()
    _, writer = await first_writer(store, "x")
    cut = writer.end
    claim = store.claim(2)
    second = await ChainWriter.open(claim, "J", await taken(claim, at=ORIGIN), 1, pipelined=False)
    other = second.append(note("y"))
    assert other.size == cut.size
    assert other != cut
    claim = store.claim(3)
    assert await texts_of(claim, await taken(claim, at=cut)) == ["x"]
    assert await texts_of(claim, await taken(claim, at=other)) == ["y"]
    assert await texts_of(claim, await taken(claim)) == ["y"]


async def test_a_rollback_to_nothing_begins_the_chain_anew() -> None:
    store = MemoryStore()
    await first_writer(store, "never committed")
    claim = store.claim(2)
    state = await taken(claim, at=ORIGIN)
    assert (state.segments, state.end, state.bytes) == ((), ORIGIN, 0)
    writer = await ChainWriter.open(claim, "J", state, 1)
    writer.append(note("a"))
    claim = store.claim(3)
    assert await texts_of(claim, await taken(claim)) == ["a"]


async def test_r16_a_journal_is_created_only_when_every_member_reports_that_it_is_missing(
    autojump_clock: object,
) -> None:
    store = MemoryStore()
    claim = store.claim(1, [1, 2])
    with pytest.raises(NotEnoughAnswersError, match=r"creating it needs 3.*m3:1 .* did not answer"):
        await taken(claim)
    with pytest.raises(NotEnoughAnswersError):
        await ChainWriter.open(claim, "J", None, 1)
    claim = store.claim(2)
    state = await taken(claim)
    assert (state.end, state.segments, state.seen) == (None, (), 0)
    await ChainWriter.open(claim, "J", state, 1)


async def test_a_take_over_waits_a_while_for_a_member_whose_answer_it_needs(autojump_clock: object) -> None:
    store = MemoryStore()
    claim = store.claim(1, [1, 2])

    async def third_member_answers() -> None:
        await trio.sleep(3)
        claim.join(store.servers[2])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(third_member_answers)
        state = await take_over(claim, "J", generation=1)
    assert state.end is None
    assert trio.current_time() >= 3


async def test_a_journal_that_exists_is_not_created_a_second_time() -> None:
    store = MemoryStore()
    await first_writer(store, "a")
    claim = store.claim(2)
    with pytest.raises(LocalProtocolError, match="exists"):
        await ChainWriter.open(claim, "J", None, 1)


async def test_a_start_that_was_cut_off_everywhere_never_existed() -> None:
    """Its writer died while creating the journal; nothing was acknowledged."""
    store = MemoryStore()
    a = store.claim(1)
    a.held = True
    async with opening(a, None):
        a.deliver(2, size=20)
    claim = store.claim(2)
    state = await taken(claim)
    assert state.end is None
    assert state.seen == 1
    await ChainWriter.open(claim, "J", state, 1)


async def test_a_torn_record_at_the_end_is_left_behind_and_never_read() -> None:
    store = MemoryStore()
    a, old = await first_writer(store, "a")
    a.held = True
    end = old.end
    old.append(note("torn"))
    a.deliver(1, size=end.size + 30)
    claim = store.claim(2)
    state = await taken(claim)
    assert state.end == end
    second = await ChainWriter.open(claim, "J", state, 1)
    second.append(note("b"))
    claim = store.claim(3)
    assert await texts_of(claim, await taken(claim)) == ["a", "b"]


async def test_bytes_that_are_no_record_are_an_error_and_never_a_shorter_journal() -> None:
    # EVIDENCE-OF: P-2
    store = MemoryStore()
    _, writer = await first_writer(store, "a", "b")
    for server in store.servers:
        server.objects[DIRECTORY][writer.segment][-3] ^= 4
    claim = store.claim(2)
    with pytest.raises(CorruptRecordError) as caught:
        await taken(claim)
    assert caught.value.where == writer.segment
    with pytest.raises(CorruptRecordError):
        await inspect_chain(store, DIRECTORY, "J")


async def test_r14_a_segment_that_nobody_has_is_superseded_or_lost_and_never_empty() -> None:
    store = MemoryStore()
    _, first = await first_writer(store, "a")
    cut = first.end
    claim = store.claim(2)
    second = await ChainWriter.open(claim, "J", await taken(claim), 1)
    second.append(note("b"))
    for server in store.servers:
        del server.objects[DIRECTORY][first.segment]
    claim = store.claim(3)
    with pytest.raises(LostBytesError, match=first.segment):
        await taken(claim)
    with pytest.raises(LostBytesError):
        await taken(claim, at=cut)
    with pytest.raises(LostBytesError):
        await inspect_chain(store, DIRECTORY, "J")


async def test_a_position_beyond_what_anyone_has_is_lost_bytes() -> None:
    store = MemoryStore()
    _, first = await first_writer(store, "a")
    claim = store.claim(2)
    with pytest.raises(LostBytesError, match="reachable members have"):
        await taken(claim, at=Position(1, first.end.size + 1, 0))
    with pytest.raises(LostBytesError, match="segment of position"):
        await taken(claim, at=Position(7, 10, 0))


async def test_reading_stops_exactly_at_a_position() -> None:
    store = MemoryStore()
    claim = store.claim(1)
    writer = await ChainWriter.open(claim, "J", None, 1)
    ends = [writer.append(note(text)) for text in "abc"]
    await writer.roll()
    ends += [writer.append(note(text)) for text in "de"]
    state = await inspect_chain(store, DIRECTORY, "J")
    for count, end in enumerate(ends, 1):
        read = [step async for step in read_records(store, state, directory=DIRECTORY, stop=end)]
        assert notes(read) == list("abcde")[:count]
        assert read[-1][0] == end
    assert [s async for s in read_records(store, state, directory=DIRECTORY, stop=ORIGIN)] == []


@pytest.mark.parametrize("shift", [-1, 1])
async def test_a_stop_inside_a_record_is_refused_and_names_the_record(shift: int) -> None:
    store = MemoryStore()
    claim = store.claim(1)
    writer = await ChainWriter.open(claim, "J", None, 1)
    middle = writer.append(note("a"))
    writer.append(note("b"))
    state = await inspect_chain(store, DIRECTORY, "J")
    segment = store.servers[0].objects[DIRECTORY][writer.segment]

    size = middle.size + shift
    stop = Position(1, size, prefix_digest(segment[:size]))
    with pytest.raises(StopNotFoundError, match="lies inside the record"):
        async for _ in read_records(store, state, directory=DIRECTORY, stop=stop):
            pass


async def test_a_stop_on_another_line_is_refused() -> None:
    store = MemoryStore()
    _, first = await first_writer(store, "a", "b")
    state = await inspect_chain(store, DIRECTORY, "J")
    for stop in (Position(2, 100, 0), Position(1, first.end.size + 1, 0), Position(1, first.end.size, 5)):
        with pytest.raises(StopNotFoundError):
            state.up_to(stop)
    with pytest.raises(StopNotFoundError, match="is empty"):
        ChainState("J").up_to(Position(1, 1, 0))
