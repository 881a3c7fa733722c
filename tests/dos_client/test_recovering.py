"""A person forces a recovery: more members are lost than the store is made for. Real servers."""

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
from dos_client.core import logs
from dos_client.core.comparing import CopyState
from dos_client.core.logs import ACCEPT_LOSS, DIRECTORY, Override
from dos_client.core.replacement import add
from dos_client.membership.record_log import open_record_log, read_overrides
from dos_client.membership.recovering import recover_store
from dos_client.membership.replacing import replace_member
from dos_client.repair.verifying import verify_store
from dos_client.sessions.discovery import probe
from dos_protocol.errors import BrokenConnectionError, FencedError, NotAMemberError
from tests.dos_client.support import (
    Threads,
    cancelled_at,
    claimed,
    connect_as,
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
        begun, finished = await read_overrides(store)
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
        assert (await read_overrides(store))[-1].finished
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
        await records.note(begun)
        log = logs.OVERRIDES.object_name((await store.inspect(DIRECTORY)).epoch_seen)
        await has(five[2], DIRECTORY, log, logs.OVERRIDES.encode(begun))
        await off(five[2])
        await records.note(replace(begun, finished=True))
    await on(five[2])
    await off(five[0])
    for _ in range(5):
        async with open_store(url) as store:
            assert [one.finished for one in await read_overrides(store)] == [False, True]


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
