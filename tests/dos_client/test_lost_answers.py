"""An answer is lost after the server acknowledged: the bytes are there once, and are not sent again.

The proxy drops the watermark of one append and ends the connection, so nobody knows. The next claim's answer
tells size and digest, and that settles it.
"""

import random

import pytest

from dos_client.core.replica import ReplicaState
from dos_protocol.messages import DurabilityAck, Opcode
from tests.dos_client.support import Threads, claimed_through_proxies, has, until
from tests.support.proxy import Way


@pytest.mark.trio
async def test_bytes_acknowledged_to_nobody_exist_once_and_are_sent_once(three: Threads) -> None:
    # EVIDENCE-OF: P-3, P-10
    async with claimed_through_proxies(three) as (between, store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"one "))
        for server in three:
            await has(server, "d", "x", b"one ")
        lost = [proxy.drop_reply(Opcode.APPEND) for proxy in between]
        size = writer.append(b"two ")
        for server in three:
            await has(server, "d", "x", b"one two ")
        for rule in lost:
            await rule.done.wait()
        await writer.wait_synced(size)
        await writer.wait_synced(writer.append(b"three"))
        for server in three:
            await has(server, "d", "x", b"one two three")
        assert store.counts.sent_bytes == {proxy.location: len(b"one two three") for proxy in between}
        assert store.counts.reconnects == {proxy.location: 1 for proxy in between}


@pytest.mark.trio
async def test_many_lost_answers_on_any_member_leave_one_copy_of_every_record(three: Threads) -> None:
    # EVIDENCE-OF: P-2, P-3, P-10
    rng, content = random.Random(7), b""
    async with claimed_through_proxies(three) as (between, store, claim):
        writer = claim.open_object("x")
        for number in range(40):
            for proxy in between:
                if number % 4 == 0 and rng.random() < 0.5:
                    proxy.drop_reply(Opcode.APPEND, rng.randint(1, 3))
            record = b"%04d" % number * 25
            content += record
            await writer.wait_synced(writer.append(record))
            # nothing else is under way when a connection is cut: that would rightly be sent again
            await until(lambda: not any(one.lag_bytes for one in store.members()), "all have all")
        for proxy in between:
            proxy.heal()
        links = list(claim.links())
        await until(
            lambda: all(link.copies.states() == [ReplicaState.IN_SYNC] for link in links), "all in sync"
        )
        for server in three:
            await has(server, "d", "x", content)
        again = sum(store.counts.sent_bytes.values()) - 3 * len(content)
        assert again == 0, f"{again} bytes were sent twice"
        assert sum(store.counts.reconnects.values()) >= 5


@pytest.mark.trio
@pytest.mark.parametrize("loses", [Opcode.CHANGE_DIRECTORY, Opcode.HELLO])
async def test_a_claim_whose_answer_is_lost_is_taken_again_by_the_same_writer(
    three: Threads, loses: Opcode
) -> None:
    # EVIDENCE-OF: P-4, P-10
    async with claimed_through_proxies(three) as (between, _, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before "))
        lost = [proxy.drop_reply(loses, client="") for proxy in between]
        for proxy in between:
            proxy.cut()
        size = writer.append(b"and after")
        for rule in lost:
            await rule.done.wait()
        await writer.wait_synced(size)
        assert claim.lost is None
        for server in three:  # a quorum is enough to go on: the last one may still be on its way
            await has(server, "d", "x", b"before and after")


@pytest.mark.trio
async def test_a_watermark_of_a_session_that_another_store_record_has_ended_counts_for_nothing(
    three: Threads,
) -> None:
    """It may be in this client's hands at the very moment in which the record changes: its reader is about to
    run. Of the members of the new record nobody has told anything yet (docs/decisions/0010, `tell_again`)."""
    # EVIDENCE-OF: P-4
    async with claimed_through_proxies(three) as (between, _, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before "))
        links = list(claim.links())
        await until(lambda: all(link.connection for link in links), "all are there")
        held = [proxy.hold(Way.TO_CLIENT) for proxy in between]
        size = writer.append(b"after")
        for server in three:
            await has(server, "d", "x", b"before after")
        sessions = [link.connection for link in links]
        claim.record_changed()
        for session in sessions:
            assert session is not None
            session.on_durability_ack(DurabilityAck("x", size, size))
        assert writer.synced == len(b"before "), "told in sessions of the record before"
        for rule in held:
            rule.end()
        await writer.wait_synced(size)
