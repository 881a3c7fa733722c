"""Take-over of a chain, on a store in memory in which the test carries every message (3 members, Qa = 2).

V1..V13 and R1..R18 are the numbers of the checked protocol model. Each test shows what is lost if a rule
is left out, and names the rule. A, B, C, D are writers in the order of their epochs; members are numbered
1 to 3.

Also: segments that a take-over refuses; ends of a chain (rollbacks, torn ends, stops of a reader); what
readers return while writers take a chain over: committed records only (R9, R10).
"""

from collections.abc import Callable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from dos_client.errors import QuorumUnavailableError
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import FencedError, LocalProtocolError, StaleGenerationError
from dos_protocol.store_record import Member, StoreRecord
from journal import (
    NO_FLOOR,
    ORIGIN,
    ChainError,
    ChainState,
    ChainWriter,
    CorruptRecordError,
    EpochUsedTwiceError,
    LostBytesError,
    NotEnoughAnswersError,
    Position,
    Record,
    StopNotFoundError,
    inspect_chain,
    inspect_whole,
    parse_segment_name,
    read_records,
    take_over,
)
from journal.core.chain import Predecessor, SegmentStart, segment_name, start_record
from journal.core.record import encode_v1
from tests.journal.memory_store import DIRECTORY, MemoryStore, MemoryView, PartialStore
from tests.journal.takeovers import (
    committed_texts,
    first_writer,
    note,
    notes,
    on_member_1,
    opening,
    taken,
    texts_of,
)

pytestmark = pytest.mark.trio


async def test_a_writer_continues_where_the_last_one_ended() -> None:
    # EVIDENCE-OF: P-1
    store = MemoryStore()
    _, writer = await first_writer(store, "a", "b")
    end = writer.end
    claim = store.claim(2)
    state = await taken(claim)
    assert state.end == end
    assert await texts_of(claim, state) == ["a", "b"]
    second = await ChainWriter.open(claim, "J", state, 1)
    assert second.segment == segment_name("J", 2, end.size)
    second.append(note("c"))
    third = store.claim(3)
    state = await taken(third)
    assert await texts_of(third, state) == ["a", "b", "c"]
    assert [span.base for span in state.segments] == [0, end.size]
    assert state.bytes == state.end.size


async def test_the_first_writer_is_fenced_by_the_second() -> None:
    # EVIDENCE-OF: P-4
    store = MemoryStore()
    _, old = await first_writer(store, "a")
    claim = store.claim(2, [2, 3])
    state = await taken(claim)
    await ChainWriter.open(claim, "J", state, 1)
    old.append(note("too late"))
    with pytest.raises(FencedError):
        await old.wait_synced()
    with pytest.raises(FencedError):
        old.append(note("later still"))
    assert await texts_of(claim, state) == ["a"]
    late = store.claim(3)
    assert await texts_of(late, await taken(late)) == ["a"], (
        "what reached one member alone is not on the chain"
    )


async def test_v1_a_dead_writers_start_does_not_hide_the_record_that_a_later_writer_built_on() -> None:
    """R5, R6: offsets decide nothing; the chain is what the back pointers reach."""
    store = MemoryStore()
    await on_member_1(store, "r")
    b = store.claim(2, [2, 3])
    b.held = True
    state_b = await taken(b)
    assert await texts_of(b, state_b) == ["base"]
    async with opening(b, state_b) as opened:
        assert not opened
    c = store.claim(3, [1, 2])
    state_c = await taken(c)
    assert await texts_of(c, state_c) == ["base", "r"]
    writer_c = await ChainWriter.open(c, "J", state_c, 1)
    b_start = next(iter(b.objects.values()))
    store.servers[2].objects[DIRECTORY][b_start.name] = bytearray(b_start._data)  # it had been under way
    writer_c.append(note("s"))
    assert await committed_texts(PartialStore(store, [1, 3])) == ["base", "r"]
    d = store.claim(4, [1, 3])
    assert await texts_of(d, await taken(d)) == ["base", "r", "s"]


async def test_v2_the_longest_copy_of_an_older_epoch_is_not_the_head() -> None:
    """R5: the epoch first, then the length."""
    store = MemoryStore()
    a, old = await first_writer(store)
    a.held = True
    old._pipelined = True  # a writer of many small records, none of them acknowledged
    for text in ("x" * 500, "y" * 500):
        old.append(note(text))
    a.deliver(1)
    b = store.claim(2, [2, 3])
    writer_b = await ChainWriter.open(b, "J", await taken(b), 1)
    await writer_b.wait_synced(writer_b.append(note("acknowledged")))
    c = store.claim(3, [1, 2])
    assert await texts_of(c, await taken(c)) == ["acknowledged"]


async def test_v3_a_taker_over_may_not_act_before_its_own_start_is_acknowledged() -> None:
    """R8 (Raft's figure 8): cut n is on member 1 only; a newer start that nobody acknowledged beats it."""
    store = MemoryStore()
    await on_member_1(store, "cut n")
    b = store.claim(2, [2, 3])
    b.held = True
    async with opening(b, await taken(b)) as opened:
        b.deliver(2)
        await trio.testing.wait_all_tasks_blocked()
        assert not opened, "one member is no quorum"
    c = store.claim(3, [1, 3])
    c.held = True
    state_c = await taken(c)
    assert await texts_of(c, state_c) == ["base", "cut n"], "C sees n and has repaired it to member 3"
    async with opening(c, state_c) as opened:
        assert not opened, "so C may not tell anyone: its start is nowhere"
    d = store.claim(4, [2, 3])
    state_d = await taken(d)
    assert await texts_of(d, state_d) == ["base"], "n is gone, and nobody had been told of it"
    assert await committed_texts(PartialStore(store, [1, 2])) == ["base"], "nor had a reader"


async def test_a_start_that_is_acknowledged_makes_what_was_read_final() -> None:
    store = MemoryStore()
    await on_member_1(store, "cut n")
    c = store.claim(3, [1, 3])
    c.held = True
    async with opening(c, await taken(c)) as opened:
        c.deliver(1)
        c.deliver(3)
        await trio.testing.wait_all_tasks_blocked()
        assert opened
    for epoch, members in ((4, [2, 3]), (5, [1, 2])):
        claim = store.claim(epoch, members)
        assert await texts_of(claim, await taken(claim)) == ["base", "cut n"]


async def test_v7_a_member_with_a_damaged_copy_is_not_a_member_with_a_short_one() -> None:
    """R4: r is on 1 and 2; 2 is damaged, 1 is away. 3 knows nothing of r, and 2 does not count."""
    # EVIDENCE-OF: P-5
    store = MemoryStore()
    a, old = await first_writer(store, "base")
    a.held = True
    position = old.append(note("r"))
    a.deliver(1)
    a.deliver(2)
    await old.wait_synced(position)
    store.servers[1].damaged[old.segment] = 40
    claim = store.claim(2, [2, 3])
    with pytest.raises(NotEnoughAnswersError) as caught:
        await taken(claim)
    assert caught.value.answered == 1
    assert caught.value.needed == 2
    assert "m2:1" in str(caught.value)
    assert "damaged" in str(caught.value)
    assert "m1:1" in str(caught.value)
    assert "did not answer" in str(caught.value)
    claim.join(store.servers[0])
    assert await texts_of(claim, await taken(claim)) == ["base", "r"]


async def test_a_copy_that_proves_damaged_after_the_claim_is_left_to_a_new_claim() -> None:
    """R4: the last record is on 1 alone, whose disk shows its damage only when it is read."""
    store = MemoryStore()
    _, old = await on_member_1(store, "r")
    claim = store.claim(2)
    store.servers[0].damaged[old.segment] = 40
    with pytest.raises(QuorumUnavailableError, match="with a new claim"):
        await taken(claim)
    assert await texts_of(again := store.claim(3), await taken(again)) == ["base"]


async def test_a_wiped_member_costs_nothing_while_a_quorum_of_the_others_exists() -> None:
    # EVIDENCE-OF: P-5
    store = MemoryStore()
    await first_writer(store, "a", "b")
    store.wipe(1)
    claim = store.claim(2)
    assert await texts_of(claim, await taken(claim)) == ["a", "b"]


async def test_a_damaged_copy_of_an_old_segment_does_not_matter_if_another_is_good() -> None:
    store = MemoryStore()
    _, first = await first_writer(store, "a", "b")
    claim = store.claim(2)
    second = await ChainWriter.open(claim, "J", await taken(claim), 1)
    second.append(note("c"))
    store.servers[0].damaged[first.segment] = 10
    claim = store.claim(3)
    assert await texts_of(claim, await taken(claim)) == ["a", "b", "c"]


async def test_r7_the_whole_chain_is_on_the_quorum_before_a_segment_is_opened() -> None:
    """V8 otherwise: the next quorum holds the new segment and not the bytes that it names."""
    store = MemoryStore()
    _, old = await on_member_1(store, "r")
    c = store.claim(2, [1, 3])
    state = await taken(c)
    assert c.settled == [(old.segment, state.end.size)]
    held = [bytes(server.objects[DIRECTORY][old.segment]) for server in store.servers]
    assert len(held[0]) == len(held[2]) == state.end.size


async def test_r7_a_roll_waits_until_all_that_was_appended_is_on_the_quorum() -> None:
    store = MemoryStore()
    claim = store.claim(1)
    writer = await ChainWriter.open(claim, "J", None, 1)
    claim.held = True
    writer.append(note("r"))
    rolled = False

    async def roll() -> None:
        nonlocal rolled
        await writer.roll([note("r")])
        rolled = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(roll)
        await trio.testing.wait_all_tasks_blocked()
        assert len(claim.objects) == 1, "nothing is opened yet"
        with pytest.raises(LocalProtocolError, match="is opening a segment"):
            writer.append(note("s"))
        claim.deliver(1)
        claim.deliver(2)
        await trio.testing.wait_all_tasks_blocked()
        assert len(claim.objects) == 2
        assert not rolled, "the new start is on no quorum (R8)"
        claim.deliver(2)
        claim.deliver(3)
        await trio.testing.wait_all_tasks_blocked()
        assert rolled


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


async def test_a_claim_below_the_epochs_of_the_chain_opens_nothing() -> None:
    store = MemoryStore()
    plant(store, SegmentStart("J", 5, 0, None, 1, "00" * 16))
    claim = store.claim(5)
    with pytest.raises(LocalProtocolError, match="an epoch above all existing"):
        await ChainWriter.open(claim, "J", await taken(claim), 1)
    with pytest.raises(LocalProtocolError, match="an epoch above all existing"):
        await ChainWriter.open(claim, "J", await taken(claim, at=ORIGIN), 1)


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


async def test_v6_a_reader_is_not_shown_a_checkpoint_that_may_still_vanish() -> None:
    """R10: on one member is not committed, though GET would serve it."""
    # EVIDENCE-OF: P-2
    store = MemoryStore()
    a, _ = await on_member_1(store, "cut n")
    assert await committed_texts(store) == ["base"]
    a.deliver(2)
    assert await committed_texts(store) == ["base", "cut n"], "the quorum holds it, under this epoch"
    assert await committed_texts(PartialStore(store, [1, 3])) == ["base"], (
        "seen on one only: it cannot be proved"
    )
    store.claim(2, [2, 3])
    assert await committed_texts(store) == ["base"], "the epoch moved on: their copies prove nothing any more"


async def test_while_a_member_joins_a_reader_shows_what_a_quorum_of_both_sets_holds() -> None:
    """R10 in docs/decisions/0010: what 2 and 3 hold is gone when 4, filled before, has taken 3's place."""
    store = MemoryStore(servers=4)
    store.record = joining_after_the_third(store.record)
    a = store.claim(1)
    old = await ChainWriter.open(a, "J", None, 2)
    a.held = True
    old.append(note("r"))
    a.deliver(2)
    a.deliver(3)
    assert await committed_texts(store) == []
    a.deliver(4)
    assert await committed_texts(PartialStore(store, [2, 3, 4])) == ["r"], "2 and 3, and 2 and 4"
    assert await committed_texts(PartialStore(store, [1, 2, 3])) == [], "2 alone speaks for the new set"
    a.deliver(1)
    assert await committed_texts(PartialStore(store, [1, 2, 3])) == ["r"]


def joining_after_the_third(record: StoreRecord) -> StoreRecord:
    """The record in which the fourth member joins in the third one's place."""
    *old, fourth = record.members
    joining = Member(fourth.server_id, fourth.address, "joining")
    return StoreRecord(record.store_id, record.generation + 1, record.ack_quorum, (*old, joining))


async def test_a_reader_does_not_build_on_a_start_that_may_still_vanish() -> None:
    """R10 on figure 8: C repaired n and died with its start on one member; D's quorum knows a rival start."""
    store = MemoryStore()
    await on_member_1(store, "n")
    b = store.claim(2, [2, 3])
    b.held = True
    async with opening(b, await taken(b)) as opened:
        b.deliver(3)
        assert not opened
    c = store.claim(3, [1, 2])
    c.held = True
    async with opening(c, await taken(c)) as opened:
        c.deliver(1)
        await trio.testing.wait_all_tasks_blocked()
        assert not opened
    for members in ([1, 2, 3], [1, 2], [1, 3]):
        assert await committed_texts(PartialStore(store, members)) == ["base"]
    d = store.claim(4, [2, 3])
    assert await texts_of(d, await taken(d)) == ["base"], "n is gone: a reader that got it was misled"


async def test_r9_a_record_of_an_unpipelined_chain_proves_the_one_before_it() -> None:
    store = MemoryStore()
    a, old = await first_writer(store, "cut 1")
    a.held = True
    old.append(note("cut 2"))
    with pytest.raises(LocalProtocolError, match="wait_synced before each append"):
        old.append(note("cut 3"))
    a.deliver(1)
    a.deliver(3)
    await old.wait_synced()
    old.append(note("cut 3"))
    a.deliver(1)
    store.claim(2, [2, 3])
    assert await committed_texts(PartialStore(store, [1, 3])) == ["cut 1", "cut 2"]


async def test_readers_of_a_pipelined_chain_see_what_a_quorum_holds_and_no_more() -> None:
    store = MemoryStore()
    claim = store.claim(1)
    writer = await ChainWriter.open(claim, "J", None, 1)
    claim.held = True
    for text in "abcd":
        writer.append(note(text))
    claim.deliver(1)
    size = len(encode_v1(note("a")))
    claim.deliver(2, size=next(iter(claim.objects.values())).size - 2 * size - 1)
    assert await committed_texts(store) == ["a"], "member 2 has b but for one byte: whole records only"
    state = await inspect_chain(store, DIRECTORY, "J")
    assert (state.unproved, state.unproved_text) == (0, ""), "what a living writer has in flight is not told"
    store.claim(2, [2, 3])
    assert await committed_texts(store) == [], "under another epoch they prove nothing"
    state = await inspect_chain(store, DIRECTORY, "J")
    assert state.end is not None, "but the start was waited for: what stands below it is committed"
    assert (state.unproved, state.claimed) == (4 * size, 2), "the longest copy has all four"
    assert f"{4 * size} more bytes of chain J" in state.unproved_text
    assert "epoch 2 did not complete" in state.unproved_text


@pytest.mark.parametrize("pipelined", [True, False])
async def test_a_reader_reports_what_only_an_unavailable_member_can_prove(pipelined: bool) -> None:
    """Members 1 and 2 acknowledged b and c; then 2 is gone, and 3 is back without them."""
    # EVIDENCE-OF: P-5
    store = MemoryStore()
    claim = store.claim(1)
    writer = await ChainWriter.open(claim, "J", None, 1, pipelined=pipelined)
    writer.append(note("a"))
    await writer.wait_synced()
    claim.held = True
    for text in "bc":
        writer.append(note(text))
        claim.deliver(1)
        claim.deliver(2)
        await writer.wait_synced()
    size = len(encode_v1(note("a")))
    left_out = 2 * size if pipelined else size  # c proves b: its writer waited for b
    without_2 = PartialStore(store, [1, 3])
    state = await inspect_chain(without_2, DIRECTORY, "J")
    assert (state.size, state.unproved, state.claimed) == (writer.end.size - left_out, left_out, 0)
    assert "only members that did not answer know" in state.unproved_text
    with pytest.raises(QuorumUnavailableError, match=f"{left_out} more bytes of chain J"):
        await inspect_whole(without_2, DIRECTORY, "J")
    for members in ([1, 2], [2, 3], [1, 2, 3]):
        state = await inspect_chain(PartialStore(store, members), DIRECTORY, "J")
        proved = (writer.end.size, 0) if members != [2, 3] else (writer.end.size - left_out, left_out)
        assert (state.size, state.unproved) == proved
    await take_over(store.claim(2, [1, 3]), "J", generation=1)
    assert (await inspect_chain(without_2, DIRECTORY, "J")).unproved, "settled, and not continued yet"


async def test_a_start_that_only_an_unavailable_member_can_prove_is_reported() -> None:
    store = MemoryStore()
    claim, writer = await first_writer(store, "a")
    claim.held = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.roll)
        await trio.testing.wait_all_tasks_blocked()
        claim.deliver(1)
        claim.deliver(2)
    assert (await inspect_chain(store, DIRECTORY, "J")).size == writer.end.size
    found = await inspect_chain(PartialStore(store, [1, 3]), DIRECTORY, "J")
    assert found.size + found.unproved == writer.end.size


async def test_what_a_living_writer_has_in_flight_beside_an_absent_member_is_proved_a_moment_later() -> None:
    store = MemoryStore()
    claim, writer = await first_writer(store, "a")
    claim.held = True
    writer.append(note("b"))
    claim.deliver(1)
    late = CatchingUpStore(store, [1, 3], lambda: claim.deliver(3))
    state = await inspect_chain(late, DIRECTORY, "J")
    assert (state.size, state.unproved) == (writer.end.size, 0)


class CatchingUpStore(PartialStore):
    """After each answer, something happens to the store."""

    def __init__(self, store: MemoryStore, members: list[int], then: Callable[[], None]) -> None:
        super().__init__(store, members)
        self._then = then

    async def inspect(self, directory: str) -> MemoryView:
        view = await super().inspect(directory)
        self._then()
        return view


class LateStore(PartialStore):
    """The store as a reader sees it whom one member answers late."""

    async def inspect(self, directory: str) -> MemoryView:
        view = await super().inspect(directory)
        self._members = [1, 2, 3]
        return view


async def test_a_reader_waits_for_a_late_member_that_proves_a_finished_take_over() -> None:
    """Member 1 missed the take-over. With member 2 alone, the newest start is not on a quorum, and without it
    nothing below is proved, because the claims have moved on.
    """
    store = MemoryStore()
    _, old = await first_writer(store, "a", "b")
    await old.wait_synced()
    new = store.claim(2, [2, 3])
    state = await take_over(new, "J", generation=1)
    await ChainWriter.open(new, "J", state, 1)
    assert await committed_texts(store) == ["a", "b"]
    assert await committed_texts(LateStore(store, [1, 2])) == ["a", "b"]
    alone = await inspect_chain(PartialStore(store, [1, 2]), DIRECTORY, "J")
    assert alone.unproved, "a member that never answers is not waited for; what is left out is reported"


async def test_a_reader_reads_from_its_floor_on_what_is_released_and_not_yet_deleted() -> None:
    """A reader that was there before the release is waited for: it reads on. Others begin at the release."""
    # EVIDENCE-OF: P-6
    store = MemoryStore()
    _, writer = await first_writer(store, "a")
    floors = [0]
    for text in "bc":
        await writer.roll()
        floors.append(writer.end.size)
        writer.append(note(text))
        await writer.wait_synced()
    last = parse_segment_name(writer.segment)
    assert last is not None
    await writer.release(last.order, collect=False)
    for held in (3, 2, 1):  # segments of a, b, c that members hold
        for number, floor in enumerate(floors):
            state = await inspect_chain(store, DIRECTORY, "J", floor=floor)
            read = notes([step async for step in read_records(store, state, directory=DIRECTORY)])
            assert "".join(read) == "abc"[max(number, 3 - held) :], (held, floor)
        assert await committed_texts(store) == ["c"], "without a floor, what is released is not read"
        for server in store.servers:
            lowest = min(map(parse_segment_name, server.objects[DIRECTORY]), key=lambda name: name.order)
            del server.objects[DIRECTORY][str(lowest)]


async def test_a_take_over_waits_for_the_answer_that_is_missing(autojump_clock: MockClock) -> None:
    """R16: that a chain never existed is known when every member has answered."""
    del autojump_clock
    store = MemoryStore()
    claim = store.claim(1, [1, 2])
    with pytest.raises(NotEnoughAnswersError):
        await take_over(claim, "J", generation=1, wait_s=3)
    async with trio.open_nursery() as nursery:

        async def answers_late() -> None:
            await trio.sleep(2)
            claim.join(store.servers[2])

        nursery.start_soon(answers_late)
        assert (await take_over(claim, "J", generation=1, wait_s=3)).end is None
