"""Objects of which the group log has entries are repaired, or removed and created again: no start replays
the entries over a new copy, takes a crash for damage, or damage for a removal.
"""

import random

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_server.core import vocabulary as v
from dos_server.limits import log_idle_seconds, log_reserved_bytes
from tests.dos_server.store_member import CONTENT, HELLO, PowerCutError, PowerPlug, StoreMember, chunk
from tests.sim.bugs import planted

SHORT, WHOLE = CONTENT[:3_000], CONTENT[:9_000]
SLOT_BYTES = log_reserved_bytes + 16 * 4096
CALLS_MAX = 100
NOTHING = m.ObjectInfo("o", 0, 0, prefix_digest(b""))


def member_with_a_log(*, removed: bool) -> tuple[StoreMember, m.ObjectInfo]:
    """A server with a short copy that is durable only in the log; `removed`: the log has its removal, too."""
    member = StoreMember(SHORT, slot_bytes=SLOT_BYTES)
    assert member.core._tables.log is not None
    assert member.core._tables.log.holds(("dir", "o")), "the object is logged and not filed"
    if not removed:
        return member, member.inspect()
    assert isinstance(member.ask(member.writer, m.Delete("o")), m.Deleted)
    return member, NOTHING


def found_after_crash(nth: int, *, power: bool, removed: bool) -> tuple[bytes | str | None, bool]:
    """Repair an object, with a crash at the nth call of the disk. Return what the next start finds, None for
    no object, and whether the repair was acknowledged.
    """
    member, old = member_with_a_log(removed=removed)
    repairer, acknowledged = member.reader(), False
    plug = PowerPlug(member.disk, nth)
    try:
        answer = member.repair(repairer, WHOLE, old=old)
        assert answer == m.RepairAck("o", len(WHOLE), done=True)
        acknowledged = True
    except PowerCutError:
        pass
    plug.restore()
    member.lose_power(random.Random(nth)) if power else member.restart()
    infos = member.ask(member.reader(), m.ChangeDirectory("dir")).entries
    if not infos:
        return None, acknowledged
    if infos[0].corrupt:
        return "damaged", acknowledged
    content = member.content()
    assert (infos[0].synced, infos[0].digest) == (len(content), prefix_digest(content))
    return content, acknowledged


def harmed_by(bug: str | None, *, power: bool, removed: bool) -> list[int]:
    """Return at which calls of the disk a crash leaves neither the old copy nor the new one, or does not
    leave a new one that was acknowledged.
    """
    harmed = []
    with planted(bug):
        for nth in range(1, CALLS_MAX):
            found, acknowledged = found_after_crash(nth, power=power, removed=removed)
            before = None if removed else SHORT
            if found != WHOLE and (acknowledged or found != before):
                harmed.append(nth)
            if acknowledged:
                return harmed
    raise AssertionError(f"a repair takes less than {CALLS_MAX} calls")


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("removed", [True, False])
def test_a_repair_is_made_or_not_after_a_crash_at_any_call(removed: bool, power: bool) -> None:
    # EVIDENCE-OF: P-2, P-5
    assert harmed_by(None, power=power, removed=removed) == []


@pytest.mark.parametrize("power", [True, False])
def test_a_repair_that_is_not_logged_is_replayed_over(power: bool) -> None:
    assert harmed_by("repairs_are_not_logged", power=power, removed=False)


def test_damage_at_the_head_of_an_object_that_was_created_again_is_no_removal() -> None:
    """The log has the removal of the object before it, and nothing of it: it was large."""
    # EVIDENCE-OF: P-5
    member, _ = member_with_a_log(removed=True)
    member.send(member.writer, m.Append("o", 0, prefix_digest(b""), CONTENT[:100_000]))
    member.settle()
    assert member.unasked(member.writer, m.DurabilityAck)[-1] == m.DurabilityAck("o", 100_000, 100_000)
    for data in (member.file().seen, member.file().stable):
        data[3] ^= 1
    member.restart()
    assert member.inspect().corrupt


def member_that_files_o(size: int) -> StoreMember:
    """A sync of its file, which files what the log has, is under way; more of it was logged meanwhile."""
    member, _ = member_with_a_log(removed=False)
    member.now += 10 * log_idle_seconds
    member.event(v.Tick())
    assert [type(effect) for effect, _ in member.pending] == [v.FileClaim, v.Sync]
    member.finish(0)
    if size > len(SHORT):
        part = WHOLE[len(SHORT) : size]
        member.send(member.writer, m.Append("o", len(SHORT), prefix_digest(SHORT), part))
        member.finish(1)
    assert member.unasked(member.writer, m.DurabilityAck)[-1] == m.DurabilityAck("o", size, size)
    return member


@pytest.mark.parametrize("size", [len(SHORT), len(SHORT) + 500])
def test_a_repair_waits_while_the_server_files_the_object(size: int) -> None:
    """What was acknowledged is being written by nobody: the repair is not refused (BEING_APPENDED)."""
    # EVIDENCE-OF: P-2, P-5
    member = member_that_files_o(size)
    repairer, old = member.connect(HELLO), m.ObjectInfo("o", size, size, prefix_digest(WHOLE[:size]))
    member.send(repairer, m.ChangeDirectory("dir"))
    request = chunk(WHOLE, old)
    asked = member.send(repairer, request)
    while any(isinstance(effect, v.WriteRepair) for effect, _ in member.pending):
        member.finish(1)
    assert not any(isinstance(effect, v.InstallRepair) for effect, _ in member.pending), "not under the sync"
    member.settle()
    assert member.answer(repairer, asked) == m.RepairAck("o", len(WHOLE), done=True)
    member.lose_power(random.Random(size))
    assert member.content() == WHOLE


@pytest.mark.parametrize("size", [len(SHORT), len(SHORT) + 500])
def test_an_empty_append_is_acknowledged_while_the_server_files_the_object(size: int) -> None:
    member = member_that_files_o(size)
    before = member.unasked(member.writer, m.DurabilityAck)
    member.send(member.writer, m.Append("o", size, prefix_digest(WHOLE[:size]), b""))
    assert member.unasked(member.writer, m.DurabilityAck) == [*before, m.DurabilityAck("o", size, size)]
