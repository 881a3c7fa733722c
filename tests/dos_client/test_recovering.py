"""A person forces a change of a store: too few members are left to agree on a replacement, or more are lost
than the store is made for. Real servers.
"""

from dataclasses import replace

import pytest
import trio

from dos_client import (
    LossError,
    QuorumUnavailableError,
    ReplacementError,
    StoreNotReadyError,
    init_store,
    open_store,
)
from dos_client.core.comparing import CopyState
from dos_client.core.logs import ACCEPT_LOSS, DIRECTORY, OTHER_IS_GONE, OVERRIDES, Override
from dos_client.core.replacement import add, era
from dos_client.membership.record_log import open_record_log, read_log
from dos_client.membership.recovering import recover_store
from dos_client.membership.replacing import add_member, replace_member
from dos_client.repair.verifying import verify_store
from dos_client.sessions.discovery import probe
from dos_protocol.errors import BrokenConnectionError, FencedError, NotAMemberError
from tests.dos_client.support import (
    Threads,
    cancelled_at,
    claimed,
    connect_as,
    content_of,
    damage,
    has,
    new_writer,
    off,
    on,
    until,
    url_of,
    wipe,
    write_idle,
)
from tests.dos_client.test_verifying import CONTENT
from tests.support.v0_client import V0Connection

pytestmark = pytest.mark.trio


async def test_servers_of_several_stores_are_not_mixed_up(five: Threads) -> None:
    await init_store(url_of(five[:3]))
    await init_store(five[3].url)
    await off(*five[1:3])
    with pytest.raises(LossError, match="2 members are missing"):
        await recover_store(url_of(five[:4]))
    with pytest.raises(StoreNotReadyError, match="belong to 2 stores"):
        await recover_store(url_of([five[0], five[3]]), accept_loss=True)


async def test_two_of_three_are_lost_and_the_last_continues_with_two_new_ones(five: Threads) -> None:
    # EVIDENCE-OF: P-5, P-10
    last, wiped, away, *new = five
    url = url_of(five[:3])
    record = await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    for server in five[:3]:
        await has(server, "idle", "o0", CONTENT)
    async with claimed(five[:3], "live", 5) as (_, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"before"))
        await has(last, "live", "x", b"before")
        await wipe(wiped)
        await off(away)
        with pytest.raises(LossError, match="more members are lost than the store tolerates"):
            await replace_member(url, old=away.location, new=new[0].location, other_is_gone=True)
        with pytest.raises(LossError, match="run the command again with --accept-loss") as refused:
            await recover_store(url)
        text = "\n".join(refused.value.lines)
        assert "2 of 3 members are needed, 1 answer" in text
        assert f"missing: {away.location}" in text
        assert "idle: 1 objects, 256000 bytes, epoch 3" in text
        assert (await probe(last.location)).record == record, "nothing has changed"
        done = await recover_store(url, accept_loss=True, new=[one.location for one in new])
        assert [m.address for m in done.record.voters] == [last.location, *(one.location for one in new)]
        assert done.record.ack_quorum == 2
        await until(lambda: claim.lost is not None, "the writer from before is fenced")
        with pytest.raises(FencedError):
            writer.append(b"as if nothing had happened")
    now = url_of([last, *new])
    async with open_store(now) as store:
        begun, finished = await read_log(store, OVERRIDES)
        assert (begun.what, finished.finished) == (ACCEPT_LOSS, True)
        assert any("live: claimed at epoch 1048581, above 5" in line for line in finished.details)
        # The last entries of the store's own logs are on a quorum. The slowest member may not have them yet.
        lags = {(one.directory, one.verdict) for one in (await verify_store(store)).findings}
        assert lags <= {(DIRECTORY, CopyState.BEHIND)}
        seen = (await store.inspect("live")).epoch_seen
        async with await store.claim("live", seen + 1, new_writer()) as claim:
            writer = claim.open_object("y")
            await off(last)
            await writer.wait_synced(writer.append(b"after"))
            assert await store.read("live", "x", 0, 100) == b"before"
    await on(away, last)
    async with open_store(url_of([away, last])) as store:
        assert store.record == done.record
    assert (await probe(away.location)).record == done.record
    with pytest.raises(NotAMemberError):
        await connect_as(away, done.record.store_id, done.record.generation)
    with pytest.raises(ReplacementError, match="nothing to recover"):
        await recover_store(now, accept_loss=True)


@pytest.mark.parametrize("phase", ["forcing", "cutting", "fencing", "filling", "finishing"])
async def test_a_recovery_that_was_interrupted_continues(five: Threads, phase: str) -> None:
    # EVIDENCE-OF: P-10
    last, new = five[0], five[3]
    url = url_of(five[:3])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    await has(last, "idle", "o0", CONTENT)
    await off(*five[1:3])
    with cancelled_at(phase) as progress:
        await recover_store(
            url,
            accept_loss=True,
            new=[new.location],
            progress=progress,
        )
    done = await recover_store(url, accept_loss=True, new=[new.location])
    assert [m.address for m in done.record.voters] == [last.location, new.location]
    async with open_store(url_of([last, new])) as store:
        assert (await read_log(store, OVERRIDES))[-1].finished
        assert (await store.inspect("idle")).epoch_seen > 1 << 20
        assert not (await verify_store(store)).findings


async def test_a_recovery_that_had_decided_a_record_and_given_it_to_nobody_continues(
    five: Threads,
) -> None:
    # EVIDENCE-OF: P-10
    last, new = five[0], five[3]
    url = url_of(five[:3])
    await init_store(url)
    await off(*five[1:3])
    with cancelled_at("fencing") as progress:
        await recover_store(
            url,
            accept_loss=True,
            progress=progress,
        )
    async with open_store(last.url) as store, open_record_log(store) as records:
        await records.decide(add(store.record, bytes.fromhex(new.server_id), new.location))
    done = await recover_store(last.url, accept_loss=True, new=[new.location])
    assert [m.address for m in done.record.voters] == [last.location, new.location]


async def test_what_was_forced_is_read_whole_though_a_member_has_less_of_it(five: Threads) -> None:
    # EVIDENCE-OF: P-10
    url = url_of(five[:3])
    await init_store(url)
    begun = Override(ACCEPT_LOSS, "2026-11-22T12:00:00+00:00", "me", 1, 0)
    async with open_store(url) as store, open_record_log(store) as records:
        await records.write(OVERRIDES, begun)
        log = OVERRIDES.object_name((await store.inspect(DIRECTORY)).epoch_seen)
        await has(five[2], DIRECTORY, log, OVERRIDES.encode(begun))
        await off(five[2])
        await records.write(OVERRIDES, replace(begun, finished=True))
    await on(five[2])
    await off(five[0])
    for _ in range(5):
        async with open_store(url) as store:
            assert [one.finished for one in await read_log(store, OVERRIDES)] == [False, True]


async def test_a_survivor_that_disappears_while_it_is_fenced_off_is_reported_as_such(five: Threads) -> None:
    """And not as a group of errors, which no caller waits for."""
    # EVIDENCE-OF: P-10
    last = five[0]
    url = url_of(five[:3])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    await has(last, "idle", "o0", CONTENT)
    await off(*five[1:3])

    def stop(now: object) -> None:
        if getattr(now, "phase", "") == "fencing":
            last.kill()

    with pytest.raises((QuorumUnavailableError, BrokenConnectionError)), trio.fail_after(60):
        await recover_store(url, accept_loss=True, progress=stop)
    await on(last)
    done = await recover_store(url, accept_loss=True)
    assert [one.address for one in done.record.voters] == [last.location]


async def test_a_recovery_whose_own_log_is_damaged_continues_by_word(five: Threads) -> None:
    """It was interrupted, and what it had noted of itself can be read by nobody: it would wait for ever."""
    # EVIDENCE-OF: P-10
    last, new = five[0], five[3]
    url = url_of(five[:3])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    await has(last, "idle", "o0", CONTENT)
    await off(*five[1:3])
    with cancelled_at("filling") as progress:
        await recover_store(
            url,
            accept_loss=True,
            new=[new.location],
            progress=progress,
        )
    (log,) = (last.data / "d" / DIRECTORY).glob("overrides.*")
    await damage(last, DIRECTORY, log.name, at=100)
    with pytest.raises(LossError, match="the log of forced changes of this store cannot be read"):
        await recover_store(last.url, new=[new.location])
    done = await recover_store(last.url, accept_loss=True, new=[new.location])
    assert [m.address for m in done.record.voters] == [last.location, new.location]
    assert any(log.name in line and "was damaged, now 0 bytes" in line for line in done.details)
    async with open_store(url_of([last, new])) as store:
        assert (await read_log(store, OVERRIDES))[-1].finished
        findings = (await verify_store(store)).findings
        assert [(one.name, one.expected_size) for one in findings] in ([], [(log.name, 0)])


async def test_damage_above_what_the_others_have_is_reported_and_given_up_by_word(five: Threads) -> None:
    """What its writer, which is dead, had sent to it alone is damaged. Its server takes no shorter copy,
    which is unknown before it is asked: without confirmation it is refused, and nothing is given up."""
    # EVIDENCE-OF: P-2
    ahead, *others = five[:3]
    url = url_of(five[:3])
    await init_store(url)
    async with claimed(five[:3], "idle", 7) as (_, claim):
        writer = claim.open_object("o0")
        await writer.wait_synced(writer.append(CONTENT[:64_000]))
        for server in five[:3]:
            await has(server, "idle", "o0", CONTENT[:64_000])
        await off(*others)
        writer.append(CONTENT[64_000:128_000])
        await has(ahead, "idle", "o0", CONTENT[:128_000])
    await on(*others)
    await damage(ahead, "idle", "o0", at=100_000)
    with pytest.raises(LossError, match="1 damaged copies cannot be repaired") as refused:
        await recover_store(url)
    assert "were durable here, the new copy has 64000" in "\n".join(refused.value.lines)
    done = await recover_store(url, accept_loss=True)
    assert done.record.generation == 1
    assert done.details[0].startswith(f"idle/o0 on {ahead.location}: was damaged, now ")
    async with open_store(url) as store:
        assert len((await store.inspect("idle")).answers) == 3, "it answers again"


async def test_where_nobody_ever_claimed_a_damaged_file_is_cut_to_its_own_good_part(five: Threads) -> None:
    """Files of one name are no copies of each other there (decision 0050); and it stays unclaimed."""
    # EVIDENCE-OF: P-3
    one, other = five[:2]
    longer = bytes(reversed(CONTENT)) * 2
    await init_store(url_of(five[:3]))
    for server, content in ((one, CONTENT), (other, longer)):
        with V0Connection(server.address) as client:
            client.use("loose")
            client.append("f", 0)
            client.send(content)
            assert client.finish()[-1][1] > 0
            client.close()
        await has(server, "loose", "f", content)
    await damage(one, "loose", "f", at=200_000)
    done = await recover_store(url_of(five[:3]), accept_loss=True)
    good = await content_of(one, "loose", "f")
    assert CONTENT.startswith(good)
    assert len(good) < 200_000
    assert await content_of(other, "loose", "f") == longer
    assert not any("claimed" in line for line in done.details)


async def test_what_is_damaged_on_the_last_one_is_cut_to_what_is_good(five: Threads) -> None:
    # EVIDENCE-OF: P-2
    last = five[0]
    url = url_of(five[:3])
    await init_store(url)
    async with claimed(five[:3], "idle") as (_, claim):
        writer = claim.open_object("o0")
        for start in range(0, len(CONTENT), 64_000):
            await writer.wait_synced(writer.append(CONTENT[start : start + 64_000]))
        await has(last, "idle", "o0", CONTENT)
    await damage(last, "idle", "o0", at=200_000)
    await on(last)  # it remembers that there is damage, and no longer where
    await wipe(*five[1:3])
    with pytest.raises(LossError) as refused:
        await recover_store(url)
    assert "damaged: o0" in "\n".join(refused.value.lines)
    done = await recover_store(url, accept_loss=True)
    good = await content_of(last, "idle", "o0")
    assert CONTENT.startswith(good)
    assert 100_000 < len(good) < 200_000
    assert done.details[0] == f"idle/o0 on {last.location}: was damaged, now {len(good)} bytes"
    async with open_store(last.url) as store:
        assert (await store.inspect("idle")).answers
    grown = await add_member(last.url, new=five[3].location)
    assert (len(grown.voters), grown.ack_quorum) == (2, 2)
    assert await content_of(five[3], "idle", "o0") == good


async def test_damage_that_nobody_can_repair_is_given_up_by_word(five: Threads) -> None:
    # EVIDENCE-OF: P-2
    bad, gone = five[1:3]
    url = url_of(five[:3])
    await init_store(url)
    async with claimed(five[:3], "idle", 7) as (_, claim):
        writer = claim.open_object("o0")
        for start in range(0, len(CONTENT), 64_000):
            await writer.wait_synced(writer.append(CONTENT[start : start + 64_000]))
        await has(bad, "idle", "o0", CONTENT)
    with pytest.raises(ReplacementError, match="no damage is beyond repair"):
        await recover_store(url, accept_loss=True)
    await damage(bad, "idle", "o0", at=200_000)
    await off(gone)
    with pytest.raises(LossError, match="1 damaged copies cannot be repaired"):
        await recover_store(url)
    done = await recover_store(url, accept_loss=True)
    assert done.record.generation == 1
    assert f"idle/o0 on {bad.location}: was damaged, now" in done.details[0]
    assert any("idle: claimed at epoch" in line for line in done.details)
    record = await replace_member(url, old=gone.location, new=five[3].location)
    assert five[3].location in [one.address for one in record.voters]


async def test_of_two_members_one_is_gone_and_a_person_reports_it(five: Threads) -> None:
    # EVIDENCE-OF: P-5, P-10
    one, gone, new = five[:3]
    url = url_of([one, gone])
    record = await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    async with claimed([one, gone], "live") as (store, claim):
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"both "))
        with pytest.raises(ReplacementError, match="so --other-is-gone is not needed"):
            await replace_member(url, old=gone.location, new=new.location, other_is_gone=True)
        await off(gone)
        with pytest.raises(
            ReplacementError, match=r"(?s)needs both.*run the command again with --other-is-gone"
        ):
            await replace_member(url, old=gone.location, new=new.location)
        with pytest.raises(ReplacementError, match="is not the missing member"):
            await replace_member(url, old=one.location, new=new.location, other_is_gone=True)
        assert store.record == record, "nothing has changed"
        done = await replace_member(url, old=gone.location, new=new.location, other_is_gone=True)
        assert [(m.address, m.state) for m in done.members] == [(one.location, "in"), (new.location, "in")]
        assert (done.ack_quorum, era(done.generation)) == (2, 1)
        await writer.wait_synced(writer.append(b"and on"))
        assert claim.lost is None
        await has(new, "live", "x", b"both and on")
    assert await content_of(new, "idle", "o0") == CONTENT
    async with open_store(url_of([one, new])) as store:
        begun, finished = await read_log(store, OVERRIDES)
        assert (begun.what, begun.finished, finished.finished) == (OTHER_IS_GONE, False, True)
        assert begun.generation_before == 1
        assert [text.split()[0] for text in begun.lost] == [gone.location]
    await on(gone)
    again = await replace_member(url, old=gone.location, new=new.location)
    assert again == done, "done before"
    shown = (await probe(gone.location)).record
    assert shown == done, "it comes back, and hears that it is out"
    with pytest.raises(NotAMemberError):
        await connect_as(gone, done.store_id, done.generation)


@pytest.mark.parametrize("phase", ["joining", "filling", "finishing"])
async def test_a_forced_replacement_that_was_interrupted_continues(five: Threads, phase: str) -> None:
    # EVIDENCE-OF: P-10
    one, gone, new = five[:3]
    url = url_of([one, gone])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    await off(gone)
    reports = 0

    def stop(now: object) -> None:
        nonlocal reports
        reports += getattr(now, "phase", "") == phase
        if reports == 1:
            scope.cancel()

    with trio.CancelScope() as scope:
        await replace_member(url, old=gone.location, new=new.location, other_is_gone=True, progress=stop)
    done = await replace_member(url, old=gone.location, new=new.location, other_is_gone=True)
    assert [m.address for m in done.voters] == [one.location, new.location]
    async with open_store(url_of([one, new])) as store:
        assert (await read_log(store, OVERRIDES))[-1].finished
        assert not (await verify_store(store)).findings


async def test_the_one_member_of_a_store_cannot_be_replaced_when_it_is_gone(five: Threads) -> None:
    await init_store(five[0].url)
    await off(five[0])
    with pytest.raises(
        StoreNotReadyError, match="no member of a store answers, so the store cannot continue"
    ):
        await replace_member(five[0].url, old=five[0].location, new=five[1].location, other_is_gone=True)


async def test_a_member_lost_while_another_is_added_is_replaced_by_word(five: Threads) -> None:
    """An addition needs everybody. The way out gives it up: by the person's word the survivors go on with a
    new server instead of the lost one; the store may be made larger afterwards."""
    # EVIDENCE-OF: P-5, P-10
    one, two, gone, added, new = five
    url = url_of([one, two, gone])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    with cancelled_at("filling") as progress:
        await add_member(url, new=added.location, progress=progress)
    await wipe(gone)
    await on(gone)
    with pytest.raises(QuorumUnavailableError, match="abandon the addition: dos store replace OLD"):
        await add_member(url, new=added.location)
    with pytest.raises(ReplacementError, match="run the command again with --other-is-gone"):
        await replace_member(url, old=gone.location, new=new.location)
    done = await replace_member(url, old=gone.location, new=new.location, other_is_gone=True)
    assert [m.address for m in done.voters] == [one.location, two.location, new.location]
    assert (len(done.members), done.ack_quorum) == (3, 2)
    assert await content_of(new, "idle", "o0") == CONTENT
    now = url_of([one, two, new])
    async with claimed([one, two, new], "live") as (_, claim):
        await off(one)
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(b"on two of three again"))
    await on(one)
    with pytest.raises(ReplacementError, match="belongs to store"):
        await add_member(now, new=added.location)
    await wipe(added)
    await on(added)
    assert len((await add_member(now, new=added.location)).voters) == 4


@pytest.mark.parametrize("place", ["another", "the same"])
async def test_a_server_lost_while_it_is_added_is_replaced_by_word(five: Threads, place: str) -> None:
    """All members are available, and nothing continues without the one that was joining."""
    # EVIDENCE-OF: P-10
    one, two, added, other = five[:4]
    url = url_of([one, two])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    with cancelled_at("filling") as progress:
        await add_member(url, new=added.location, progress=progress)
    with pytest.raises(ReplacementError):
        await replace_member(url, old=added.location, new=other.location, other_is_gone=True)
    await wipe(added)
    await on(added)
    new = added if place == "the same" else other
    with pytest.raises(ReplacementError, match="run the command again with --other-is-gone"):
        await replace_member(url, old=added.location, new=new.location)
    done = await replace_member(url, old=added.location, new=new.location, other_is_gone=True)
    assert [m.address for m in done.voters] == [one.location, two.location, new.location]
    assert (len(done.members), done.ack_quorum) == (3, 2)
    assert await content_of(new, "idle", "o0") == CONTENT


@pytest.mark.parametrize("named", ["the one that joined", "the one it replaced"])
async def test_of_two_members_the_one_that_joins_is_lost_and_another_takes_its_part(
    five: Threads, named: str
) -> None:
    # EVIDENCE-OF: P-10
    one, two, joins, new = five[:4]
    url = url_of([one, two])
    await init_store(url)
    await write_idle(url, "idle", 3, CONTENT)
    with cancelled_at("filling") as progress:
        await replace_member(
            url,
            old=two.location,
            new=joins.location,
            progress=progress,
        )
    await wipe(joins)
    await on(joins)
    old = (joins if named == "the one that joined" else two).location
    with pytest.raises(ReplacementError, match="run the command again with --other-is-gone"):
        await replace_member(url, old=old, new=new.location)
    done = await replace_member(url, old=old, new=new.location, other_is_gone=True)
    assert [(m.address, m.state) for m in done.members] == [(one.location, "in"), (new.location, "in")]
    assert done.ack_quorum == 2
    assert await content_of(new, "idle", "o0") == CONTENT
    async with open_store(url_of([one, new])) as store:
        assert (await read_log(store, OVERRIDES))[-1].finished


async def test_a_store_is_made_one_larger_under_a_live_writer(five: Threads) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(five[:2]))
    async with claimed(five[:2], "live") as (store, claim), trio.open_nursery() as nursery:
        writer, content = claim.open_object("x"), bytearray()

        async def write() -> None:
            while True:
                content.extend(b"%015d," % len(content))
                await writer.wait_synced(writer.append(content[-16:]))

        nursery.start_soon(write)
        record = await add_member(url_of(five[:2]), new=five[2].location)
        assert (record.generation, len(record.voters), record.ack_quorum) == (3, 3, 2)
        await until(lambda: store.record == record, "the writer follows")
        await off(five[0])
        size = writer.synced
        await until(lambda: writer.synced > size, "the new one counts")
        nursery.cancel_scope.cancel()
    await init_store(five[3].url)
    with pytest.raises(ReplacementError, match="belongs to store"):
        await add_member(url_of(five[1:3]), new=five[3].location)
