"""Repairing copies on real servers: by command and automatically, with a writer and before a take-over."""

import json
from collections.abc import Iterable

import pytest
import trio
import trio.lowlevel

from dos_client import QuorumUnavailableError, init_store, open_store
from dos_client.repair.repairing import RepairOutcome, RepairReport, repair_object, repair_store
from dos_client.repair.verifying import verify_store
from dos_client.repair.walking import StoreWalk
from dos_protocol.errors import BrokenConnectionError
from tests.dos_client.support import Threads, claimed, content_of, damage, has, off, on, until, url_of
from tests.dos_client.test_cli import dos
from tests.dos_client.test_verifying import CONTENT, behind_the_stores_back, differences_of, filled, verified
from tests.support.v0_client import V0Connection


async def repaired(servers: Threads, *, dry_run: bool = False, read: bool = False) -> RepairReport:
    async with open_store(url_of(servers)) as store:
        return await repair_store(store, dry_run=dry_run, read=read)


def outcomes(report: RepairReport) -> dict[tuple[str, str], str]:
    return {(one.name, one.address): one.outcome.name for one in report.repairs}


@pytest.mark.trio
async def test_every_kind_of_bad_copy_is_repaired_and_a_dry_run_changes_nothing(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await filled(three, "a", "b", "c")
    async with claimed(three, epoch=2) as (_, claim):
        await off(three[2])
        late = claim.open_object("late")
        await late.wait_synced(late.append(b"on two members"))
    await on(three[2])
    one, two, last = three
    await behind_the_stores_back(one, "other", b"these bytes")
    await behind_the_stores_back(two, "other", b"those bytes, longer")
    await behind_the_stores_back(last, "other", b"those bytes")
    await behind_the_stores_back(last, "c", b"beyond", base=CONTENT)
    await damage(one, "d", "a", at=200_000)
    await damage(two, "d", "b")
    before = differences_of(await verified(three))
    wanted = {
        ("a", one.location),
        ("b", two.location),
        ("c", one.location),
        ("c", two.location),
        ("late", last.location),
        ("other", one.location),
        ("other", last.location),
    }
    assert before.keys() == wanted
    assert outcomes(await repaired(three, dry_run=True)) == dict.fromkeys(wanted, "WOULD_REPAIR")
    assert differences_of(await verified(three)) == before
    assert outcomes(await repaired(three)) == dict.fromkeys(wanted, "REPAIRED")
    assert not (await verified(three, read=True)).findings
    for server in three:
        assert await content_of(server, "d", "other") == b"those bytes, longer"
        assert await content_of(server, "d", "c") == CONTENT + b"beyond"
    assert (one.data / "d" / "d" / ".broken.a.0").exists()
    await on(*three)
    assert not (await verified(three, read=True)).findings


@pytest.mark.trio
async def test_a_live_writer_continues_while_a_copy_of_what_it_writes_is_repaired(three: Threads) -> None:
    # EVIDENCE-OF: P-5, P-10
    await init_store(url_of(three))
    async with claimed(three) as (store, claim), trio.open_nursery() as nursery:
        writer, content = claim.open_object("x"), bytearray(CONTENT)
        await writer.wait_synced(writer.append(CONTENT))
        await has(three[1], "d", "x", CONTENT)

        async def write() -> None:
            while True:
                content.extend(b"%015d," % len(content) * 10)
                await writer.wait_synced(writer.append(content[-160:]))

        nursery.start_soon(write)
        await damage(three[1], "d", "x")
        bad = bytes.fromhex(three[1].server_id)
        await until(lambda: {m.server_id: m.state for m in store.members()}[bad] == "broken", "it is noticed")
        size = writer.synced
        async with open_store(url_of(three)) as other:
            repair = await repair_object(other, bad, "d", "x")
        # the writer's own store repairs it too, so this one may come too late, or find it at that
        assert repair is None or repair.outcome in (
            RepairOutcome.REPAIRED,
            RepairOutcome.LEFT,
            RepairOutcome.REFUSED,
        ), repair
        await until(lambda: writer.synced > size, "the writer goes on")
        await until(
            lambda: {m.server_id: m.state for m in store.members()}[bad] != "broken", "it counts again"
        )
        await off(three[0])
        size = writer.synced
        await until(lambda: writer.synced > size + 1_000, "the repaired member is needed, and is there")
        nursery.cancel_scope.cancel()
    assert claim.lost is None
    assert (await content_of(three[1], "d", "x")).startswith(bytes(content[: writer.synced]))


@pytest.mark.trio
async def test_a_damaged_member_has_not_answered_until_it_is_repaired(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await filled(three, "a")
    await damage(three[1], "d", "a")
    await off(three[0])
    async with open_store(url_of(three)) as store:
        with pytest.raises(QuorumUnavailableError) as caught:
            await store.inspect("d")
        away, damaged = caught.value.missing
        assert away.startswith(f"{three[0].location}: ")
        assert damaged == f"{three[1].location} has damaged objects: a"
        (refused,) = (await repair_store(store)).repairs
        assert refused.outcome is RepairOutcome.REFUSED
        assert "too few to hold all acknowledged bytes" in refused.reason
    await on(three[0])
    assert list(outcomes(await repaired(three)).values()) == ["REPAIRED"]
    await off(three[0])
    async with open_store(url_of(three)) as store:
        assert (await store.inspect("d")).answers.keys() >= {bytes.fromhex(three[1].server_id)}


@pytest.mark.trio
async def test_a_copy_whose_sources_turn_out_to_be_damaged_is_reported_as_failed(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await filled(three, "a")
    await damage(three[0], "d", "a")
    for source in three[1:]:
        await damage(source, "d", "a", notice=False)
    report = await repaired(three)
    (failed,) = report.repairs
    assert (failed.name, failed.address, failed.outcome) == ("a", three[0].location, RepairOutcome.FAILED)
    assert "damaged" in failed.reason


@pytest.mark.trio
async def test_what_only_one_contradicts_is_left_to_a_person(three: Threads) -> None:
    # EVIDENCE-OF: P-5
    await init_store(url_of(three))
    await behind_the_stores_back(three[0], "other", b"these bytes")
    await behind_the_stores_back(three[1], "other", b"those bytes")
    report = await repaired(three)
    assert set(outcomes(report).values()) == {"REFUSED"}
    assert await content_of(three[0], "d", "other") == b"these bytes"
    assert await content_of(three[1], "d", "other") == b"those bytes"


@pytest.mark.trio
async def test_where_nobody_ever_claimed_each_server_keeps_its_own(three: Threads) -> None:
    """A client of version 0 writes to one server. Files of the same name elsewhere are no copies of it:
    neither may they take its place, nor it theirs."""
    # EVIDENCE-OF: P-1, P-5
    await init_store(url_of(three))
    for number, server in enumerate(three):
        with V0Connection(server.address) as client:
            client.use("loose")
            client.append("f", 0)
            client.send(b"these bytes, longer" if number else b"those bytes")
            assert client.finish()[-1][1] > 0
            client.close()
    with V0Connection(three[2].address) as client:
        client.use("loose")
        client.append("g", 0)
        client.send(CONTENT)
        client.finish()
    await damage(three[2], "loose", "g")
    report = await repaired(three, read=True)
    assert outcomes(report) == {("g", three[2].location): "REFUSED"}
    assert "loose was never claimed" in report.repairs[0].reason
    assert await content_of(three[0], "loose", "f") == b"those bytes"
    assert not (three[1].data / "d" / "loose" / "g").exists()


@pytest.mark.trio
async def test_what_a_reader_stumbles_on_is_repaired_on_its_own(three: Threads) -> None:
    # EVIDENCE-OF: P-5, P-10
    await filled(three, "a")
    bad = three[1]
    await damage(bad, "d", "a", notice=False, at=200_000)
    async with claimed(three, "elsewhere") as (store, _):
        found = bytes.fromhex(bad.server_id)

        async def read_until_noticed() -> None:
            while not store.damage.avoid(found, "d", "a"):
                assert await store.read("d", "a", 0, 1 << 20) == CONTENT
                await trio.lowlevel.checkpoint()

        with trio.fail_after(60):
            await read_until_noticed()
            assert await store.read("d", "a", 0, 1 << 20) == CONTENT
            await until(lambda: not store.damage.reports(), "it is repaired")
        assert (await verify_store(store, read=True)).findings == []
    assert await content_of(bad, "d", "a") == CONTENT


def test_the_command_repairs_and_reports_it(three: Threads) -> None:
    url = url_of(three)
    trio.run(filled, three, "a")
    trio.run(damage, three[0], "d", "a")
    done = dos("store", "repair", url, "--dry-run")
    assert done.code == 1, done
    assert f"d/a on {three[0].location}, damaged, would be repaired" in done.stdout.decode()
    done = dos("store", "repair", url, "--json")
    assert done.code == 0, done
    (row,) = json.loads(done.stdout)["repairs"]
    assert (row["verdict"], row["outcome"], row["size"]) == ("damaged", "repaired", len(CONTENT))
    done = dos("store", "repair", url, "d")
    assert b"0 copies repaired, 0 left to repair" in done.stdout


@pytest.mark.trio
async def test_a_member_that_disappears_while_it_is_inspected_is_reported_as_unavailable(
    three: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator (seed 282): it ended the whole client, which repairs automatically."""
    await filled(three, "a")
    member, enter = three[0], StoreWalk.enter
    await damage(member, "d", "a")

    async def enter_and_stop_member(walk: StoreWalk, directory: str, members: Iterable[bytes] = ()) -> None:
        if members:
            await off(member)
        await enter(walk, directory, members)

    async with open_store(url_of(three)) as store:
        server_id = bytes.fromhex(member.server_id)
        monkeypatch.setattr(StoreWalk, "enter", enter_and_stop_member)
        with pytest.raises(BrokenConnectionError):
            await repair_object(store, server_id, "d", "a", suspect_at=0)
    monkeypatch.undo()
    await on(member)
    assert outcomes(await repaired(three)) == {("a", member.location): "REPAIRED"}
