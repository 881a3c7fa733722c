"""Repairing copies on real servers: by command and automatically, with a writer and before a take-over.
The register of faulty copies.
"""

import json
import logging
from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
import trio.lowlevel
import trio.testing

from dos_client import QuorumUnavailableError, init_store, open_store
from dos_client.limits import damage_reports_max
from dos_client.reading.damage import CopyFault, Damage
from dos_client.repair import repairing
from dos_client.repair.repairing import RepairOutcome, RepairReport, repair_object, repair_store
from dos_client.repair.verifying import verify_store
from dos_client.repair.walking import StoreWalk
from dos_protocol.errors import BrokenConnectionError, BusyError
from tests.dos_client.records import record
from tests.dos_client.support import (
    Threads,
    ThreadServer,
    claimed,
    content_of,
    damage,
    has,
    new_writer,
    off,
    on,
    until,
    url_of,
)
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


A, B = b"a" * 16, b"b" * 16


@pytest.mark.trio
async def test_a_wrong_copy_is_reported_once_and_avoided(caplog: pytest.LogCaptureFixture) -> None:
    damage = Damage()
    with caplog.at_level(logging.WARNING, "dos.client"):
        assert damage.note(A, "d", "x", 70, CopyFault.DAMAGED)
        assert not damage.note(A, "d", "x", 80, CopyFault.DAMAGED)
    assert len(caplog.messages) == 1
    assert "d/x on 61616161616161616161616161616161, from byte 70" in caplog.messages[0]
    assert damage.avoid(A, "d", "x")
    assert not damage.refuse(A, "d", "x")
    assert not damage.avoid(B, "d", "x")
    assert not damage.avoid(A, "d", "y")


@pytest.mark.trio
async def test_bytes_that_look_sound_and_are_not_are_worse_than_damage() -> None:
    damage = Damage()
    damage.note(A, "d", "x", 70, CopyFault.DAMAGED)
    assert damage.note(A, "d", "x", 90, CopyFault.DIFFERENT)
    assert damage.refuse(A, "d", "x")
    assert [(one.offset, one.why) for one in damage.reports()] == [(70, CopyFault.DIFFERENT)]
    assert damage.note(A, "d", "x", 10, CopyFault.DAMAGED), "from an earlier byte on: news"
    assert [(one.offset, one.why) for one in damage.reports()] == [(10, CopyFault.DIFFERENT)]


@pytest.mark.trio
async def test_who_waits_for_reports_misses_none() -> None:
    damage = Damage()
    damage.note(A, "d", "before", 0, CopyFault.DAMAGED)
    first = await damage.wait_new(0)
    async with trio.open_nursery() as nursery:
        found: list[str] = []

        async def wait() -> None:
            found.extend(one.name for one in await damage.wait_new(first[-1].number))

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        damage.note(B, "d", "after", 0, CopyFault.POISONED)
    assert found == ["after"]


@pytest.mark.trio
async def test_what_is_repaired_or_no_member_any_more_is_forgotten() -> None:
    damage = Damage()
    for server_id in (A, B):
        damage.note(server_id, "d", "x", 0, CopyFault.DAMAGED)
    damage.repaired(A, "d", "x")
    assert not damage.avoid(A, "d", "x")
    damage.keep_only([A])
    assert damage.reports() == []
    assert damage.note(A, "d", "x", 0, CopyFault.DAMAGED), "wrong again: news"


@pytest.mark.trio
async def test_the_register_is_bounded() -> None:
    # EVIDENCE-OF: P-9
    damage = Damage()
    for number in range(damage_reports_max + 1):
        damage.note(A, "d", f"x{number}", 0, CopyFault.DAMAGED)
    assert len(damage.reports()) == damage_reports_max
    assert not damage.avoid(A, "d", "x0")


@pytest.mark.trio
@pytest.mark.parametrize("fails", [0, 5, 11, 12])
async def test_a_repair_that_fails_is_tried_twelve_times_with_pauses_that_double_up_to_a_minute(
    fails: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    tried: list[float] = []

    async def repair_object(*_: object, **__: object) -> None:
        tried.append(trio.current_time())
        if len(tried) <= fails:
            raise BusyError("a writer is at work")

    monkeypatch.setattr(repairing, "repair_object", repair_object)
    store = SimpleNamespace(wrote=trio.Event(), damage=Damage(), record=record("abc", 2))
    store.damage.note(A, "d", "x", 0, CopyFault.DAMAGED)
    with trio.move_on_after(3_600) as scope, caplog.at_level(logging.WARNING, "dos.client"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(repairing.auto_repair, store)
            await trio.sleep(100)
            assert not tried, "a store without a writer repairs nothing"
            store.wrote.set()
    assert scope.cancelled_caught
    pauses = [2.0, 4.0, 8.0, 16.0, 32.0, *[60.0] * 6]
    assert [after - before for before, after in pairwise(tried)] == pauses[:fails]
    assert bool(store.damage.reports()) == (fails == 12)
    given_up = [text for text in caplog.messages if "not repaired after 12 attempts" in text]
    assert len(given_up) == (fails == 12)


@pytest.mark.trio
async def test_a_wrong_copy_is_visible_in_the_status_until_it_is_repaired(three: list[ThreadServer]) -> None:
    await init_store(url_of(three))
    async with open_store(url_of(three)) as store:
        await until(lambda: all(one.connected for one in store.members()), "all connected")
        bad = store.record.members[1].server_id
        store.damage.note(bad, "d", "x", 0, CopyFault.DIFFERENT)
        assert [one.state for one in store.members()].count("broken") == 1
        assert "d/x on" in next(one.error for one in store.members() if one.server_id == bad)
        async with await store.claim("d", 1, new_writer()) as claim:
            writer = claim.open_object("x")
            await writer.wait_synced(writer.append(b"all members get this"))
            await until(lambda: not store.damage.reports(), "its bytes were compared, and are right")
