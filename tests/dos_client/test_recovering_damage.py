"""A person accepts the loss of what is damaged on every member."""

import pytest

from dos_client import (
    LossError,
    ReplacementError,
    init_store,
    open_store,
)
from dos_client.core.logs import DIRECTORY
from dos_client.membership.record_log import read_overrides
from dos_client.membership.recovering import recover_store
from dos_client.membership.replacing import add_member, replace_member
from dos_client.repair.verifying import verify_store
from tests.dos_client.support import (
    Threads,
    cancelled_at,
    claimed,
    content_of,
    damage,
    has,
    off,
    on,
    url_of,
    wipe,
    write_idle,
)
from tests.dos_client.test_verifying import CONTENT
from tests.support.v0_client import V0Connection

pytestmark = pytest.mark.trio


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
        assert (await read_overrides(store))[-1].finished
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
