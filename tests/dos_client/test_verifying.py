"""Comparing the copies of a real store: what is said of each, and nothing of what is only late."""

import json
from typing import Any

import pytest
import trio

from dos_client import QuorumUnavailableError, connect, init_store, open_store
from dos_client.core.comparing import CopyState
from dos_client.repair.verifying import VerifyProgress, VerifyReport, verify_store
from dos_client.repair.walking import StoreWalk
from dos_protocol.errors import BrokenConnectionError
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    claimed,
    damage,
    has,
    new_writer,
    off,
    on,
    url_of,
)
from tests.dos_client.test_cli import dos

CONTENT = bytes(range(256)) * 1_000


async def filled(servers: Threads, *names: str) -> None:
    """A directory with objects on all members, whose writer is gone."""
    await init_store(url_of(servers))
    async with claimed(servers) as (_, claim):
        for name in names:
            writer = claim.open_object(name)
            await writer.wait_synced(writer.append(CONTENT))
            for server in servers:
                await has(server, "d", name, CONTENT)


async def behind_the_stores_back(server: ThreadServer, name: str, data: bytes, base: bytes = b"") -> None:
    """Bytes on one server alone, under the claim that it holds."""
    async with connect(server.url) as one:
        one.server_record = None
        held = await one.reopened(one.record.members[0], "d")
        async with await one.claim(
            "d", max(held.epoch, 1), held.writer_id if held.epoch else new_writer()
        ) as claim:
            writer = claim.resume_object(name, 0, 0, base) if base else claim.open_object(name)
            await writer.wait_synced(writer.append(data))


async def verified(servers: Threads, *directories: str, read: bool = False) -> VerifyReport:
    async with open_store(url_of(servers)) as store:
        return await verify_store(store, directories, read=read)


@pytest.mark.trio
async def test_a_copy_that_cannot_be_read_to_its_end_is_not_called_damaged(
    three: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(three, "a")
    read_through = StoreWalk.read_through

    async def breaks(walk: StoreWalk, name: str, server_id: bytes, *rest: Any) -> bool:
        if server_id.hex() == three[2].server_id:
            raise BrokenConnectionError("cut off in the middle")
        return await read_through(walk, name, server_id, *rest)

    monkeypatch.setattr(StoreWalk, "read_through", breaks)
    report = await verified(three, "d", read=True)
    assert report.unavailable == {three[2].location: "cut off in the middle"}
    assert not report.differences


def differences_of(report: VerifyReport) -> dict[tuple[str, str], str]:
    return {(one.name, one.address): one.verdict.value for one in report.findings}


@pytest.mark.trio
async def test_each_copy_is_called_what_it_is(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await filled(three, "a", "b")
    report = await verified(three)
    assert not report.findings
    assert (report.objects, report.members, report.unavailable) == (2, 3, {})
    async with claimed(three, epoch=2) as (_, claim):
        await off(three[2])
        late = claim.open_object("late")
        await late.wait_synced(late.append(b"on two members"))
    await on(three[2])
    await behind_the_stores_back(three[1], "other", b"these bytes")
    await behind_the_stores_back(three[0], "other", b"those bytes, longer")
    await behind_the_stores_back(three[2], "other", b"those bytes")
    await behind_the_stores_back(three[2], "a", b"beyond", base=CONTENT)
    await damage(three[0], "d", "b")
    report = await verified(three)
    one, two, last = (server.location for server in three)
    assert differences_of(report) == {
        ("late", last): "missing",
        ("other", two): "differs",
        ("other", last): "behind",
        ("a", one): "behind",
        ("a", two): "behind",
        ("b", one): "damaged",
    }
    assert all(not finding.live for finding in report.findings)
    lag = next(finding for finding in report.findings if finding.name == "a")
    assert (lag.size, lag.expected_size, lag.behind_bytes) == (len(CONTENT), len(CONTENT) + 6, 6)


@pytest.mark.trio
async def test_rot_that_nobody_has_read_yet_is_found_by_reading(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await filled(three, "a")
    await damage(three[1], "d", "a", notice=False)
    assert not (await verified(three)).findings
    assert differences_of(await verified(three, read=True)) == {("a", three[1].location): "damaged"}


@pytest.mark.trio
async def test_a_copy_that_lags_after_a_live_writer_is_no_difference(three: Threads) -> None:
    await init_store(url_of(three))
    async with claimed(three) as (_, claim), trio.open_nursery() as nursery:
        writer = claim.open_object("x")
        await writer.wait_synced(writer.append(CONTENT))

        async def write() -> None:
            while True:
                await writer.wait_received(writer.append(CONTENT[:10_000]))

        nursery.start_soon(write)
        for _ in range(3):
            assert not (await verified(three)).differences
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_with_a_member_away_the_others_are_compared_and_with_two_away_nothing(three: Threads) -> None:
    await filled(three, "a")
    await off(three[2])
    report = await verified(three)
    assert list(report.unavailable) == [three[2].location]
    assert not report.findings
    async with open_store(url_of(three)) as store:
        await off(three[1])
        with pytest.raises(QuorumUnavailableError, match="2 members are needed"):
            await verify_store(store)


@pytest.mark.trio
@pytest.mark.parametrize("gone", [1, 2])
async def test_members_that_go_meanwhile_are_named_or_the_rest_is_not_compared(
    three: Threads, gone: int
) -> None:
    """Nothing is said of a directory that too few members were asked for."""
    await filled(three, "a")
    async with claimed(three, "e") as (_, claim):
        writer = claim.open_object("b")
        await writer.wait_synced(writer.append(CONTENT))
        for server in three:
            await has(server, "e", "b", CONTENT)
    left: list[str] = []

    def on_progress(progress: VerifyProgress) -> None:
        if progress.directories_done == 1 and not left:
            for server in three[:gone]:
                server.kill()
                left.append(server.location)

    async with open_store(url_of(three)) as store:
        if gone == 2:
            with pytest.raises(QuorumUnavailableError, match="2 members are needed to compare"):
                await verify_store(store, ["d", "e"], on_progress=on_progress)
        else:
            report = await verify_store(store, ["d", "e"], on_progress=on_progress)
            assert list(report.unavailable) == left
            assert report.unavailable[left[0]]
            assert not report.findings


def test_the_command_reports_what_it_found(three: Threads) -> None:
    url = url_of(three)
    trio.run(filled, three, "a")
    done = dos("store", "verify", url)
    assert done.code == 0, done
    assert b"1 objects in 1 directories" in done.stdout
    assert b"on 3 of 3 members: all equal" in done.stdout
    assert json.loads(dos("store", "verify", url, "--json").stdout)["equal"] is True
    trio.run(damage, three[0], "d", "a")
    done = dos("store", "verify", url, "d")
    assert done.code == 1
    assert f"d/a on {three[0].location} is damaged" in done.stdout.decode()
    assert "dos store repair" in done.stderr
    found = json.loads(dos("store", "verify", url, "--json").stdout)["findings"]
    assert [one["verdict"] for one in found] == [CopyState.DAMAGED.value]
