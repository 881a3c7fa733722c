"""The register of faulty copies."""

import logging
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from dos_client import init_store, open_store
from dos_client.limits import damage_reports_max
from dos_client.reading.damage import CopyFault, Damage
from dos_client.repair import repairing
from dos_protocol.errors import BusyError
from tests.dos_client.records import record
from tests.dos_client.support import ThreadServer, new_writer, until, url_of

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
