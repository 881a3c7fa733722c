"""Take-over of a chain, on a store in memory in which the test carries every message (3 members, Qa = 2).

V1..V13 and R1..R18 are the numbers of the checked protocol model. Each test shows what is lost if a rule
is left out, and names the rule. A, B, C, D are writers in the order of their epochs; members are numbered
1 to 3.
"""

import pytest
import trio
import trio.testing

from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import FencedError, LocalProtocolError
from journal import (
    ChainWriter,
    NotEnoughAnswersError,
)
from journal.core.segment import segment_name
from tests.journal.memory_store import DIRECTORY, MemoryStore, PartialStore
from tests.journal.takeovers import committed_texts, first_writer, note, on_member_1, opening, taken, texts_of

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
