"""A person forces a replacement: one of two members is gone, or a server is lost while it is added."""

import pytest
import trio

from dos_client import (
    QuorumUnavailableError,
    ReplacementError,
    StoreNotReadyError,
    init_store,
    open_store,
)
from dos_client.core.logs import OTHER_IS_GONE, OVERRIDES
from dos_client.core.replacement import era
from dos_client.membership.record_log import read_log
from dos_client.membership.replacing import add_member, replace_member
from dos_client.repair.verifying import verify_store
from dos_client.sessions.discovery import probe
from dos_protocol.errors import NotAMemberError
from tests.dos_client.support import (
    Threads,
    cancelled_at,
    claimed,
    connect_as,
    content_of,
    has,
    off,
    on,
    until,
    url_of,
    wipe,
    write_idle,
)
from tests.dos_client.test_verifying import CONTENT

pytestmark = pytest.mark.trio


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
