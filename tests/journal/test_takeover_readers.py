"""What readers return while writers take a chain over: committed records only (R9, R10)."""

from collections.abc import Callable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import LocalProtocolError
from dos_protocol.store_record import Member, StoreRecord
from journal import (
    ChainWriter,
    NotEnoughAnswersError,
    inspect_chain,
    inspect_whole,
    parse_segment_name,
    read_records,
    take_over,
)
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
