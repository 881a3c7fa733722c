"""A new copy replaces a bad one: what is refused, and what is reported.

A copy with a damaged tail must never look like a sound one that is merely short: a take-over would count it
as having answered, and lose what it had."""

import errno
import random

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from tests.dos_server.store_member import (
    CONTENT,
    HELLO,
    LONGER,
    StoreMember,
    first_chunk,
)


@pytest.mark.parametrize("new", [CONTENT, LONGER])
@pytest.mark.parametrize("chunk", [1 << 18, 77_777])
def test_a_damaged_copy_stays_damaged_until_a_whole_new_one_is_in_its_place(new: bytes, chunk: int) -> None:
    # EVIDENCE-OF: P-2, P-5
    member = StoreMember()
    member.rot(150_000)
    old = member.inspect()
    assert (old.corrupt, old.synced, old.received) == (True, 0, 0), "no reported size includes the damage"
    repairer = member.reader()
    answer = member.repair(repairer, bytes([new[0] ^ 1]) + new[1:], old=old, chunk=chunk)
    assert isinstance(answer, m.Error)
    assert member.inspect() == old
    answer = member.repair(repairer, new, old=old, chunk=chunk)
    assert answer == m.RepairAck("o", len(new), done=True)
    info = member.inspect()
    assert (info.corrupt, info.synced, info.digest) == (False, len(new), prefix_digest(new))
    assert member.content() == new
    assert ".broken.o.0" in member.folder
    assert not any(name.startswith(".mend.") for name in member.folder)
    assert member.repair(repairer, new, old=old) == answer, "a lost answer is asked for again"
    member.disk.power_cut(random.Random(7))
    member.start()
    assert member.inspect() == info
    assert member.content() == new


@pytest.mark.parametrize("power", [True, False])
def test_damage_that_a_read_found_is_known_after_a_restart(power: bool) -> None:
    # EVIDENCE-OF: P-5
    large = random.Random(2).randbytes(900_000)
    member = StoreMember(large)
    member.rot(5_000)
    old = member.inspect()
    member.disk.power_cut(random.Random(1)) if power else member.disk.kill()
    member.start()
    assert member.inspect() == old, "it does not count again, though nobody has read it since"
    refused = member.ask(member.reader(), m.Get("o", 5_000, 10))
    assert refused.code == ErrorCode.CORRUPT
    assert isinstance(member.repair(member.reader(), large, old=old), m.RepairAck)
    member.disk.kill()
    member.start()
    assert not member.inspect().corrupt


def test_the_new_copy_may_not_end_below_what_was_durable_once() -> None:
    # EVIDENCE-OF: P-5
    member = StoreMember()
    member.lose_tail(150_000)
    old = member.inspect()
    assert old.corrupt
    assert old.synced < 150_000
    answer = member.repair(member.reader(), CONTENT[:-1], old=old)
    assert isinstance(answer, m.Error)
    assert (answer.code, answer.actual) == (ErrorCode.WOULD_LOSE, len(CONTENT))
    assert member.inspect() == old
    assert isinstance(member.repair(member.reader(), CONTENT[:-1], old=old, overwrite=True), m.RepairAck)
    assert member.content() == CONTENT[:-1]


def test_what_a_start_could_not_write_again_for_want_of_room_may_have_been_durable() -> None:
    """Nothing of it is reported, because nothing is known to be on the disk; a shorter copy would lose
    what may well have been acknowledged."""
    # EVIDENCE-OF: P-5
    member = StoreMember()
    member.disk.power_cut(random.Random(1))
    member.disk.put("d/dir/.marks", b"")  # the newest mark went with the power
    member.disk.fail_at("write", "d/dir/o", errno.ENOSPC)
    member.start()
    old = member.inspect()
    assert (old.corrupt, old.synced) == (True, 0)
    answer = member.repair(member.reader(), CONTENT[:-1], old=old)
    assert isinstance(answer, m.Error)
    assert (answer.code, answer.actual) == (ErrorCode.WOULD_LOSE, len(CONTENT))
    assert isinstance(member.repair(member.reader(), CONTENT, old=old), m.RepairAck)


def test_a_sound_copy_is_only_replaced_by_a_longer_one_of_the_same_history_or_by_word() -> None:
    # EVIDENCE-OF: P-5
    member = StoreMember()
    old = member.inspect()
    other = bytes([CONTENT[0] ^ 1]) + LONGER[1:]
    for new in (other, CONTENT[:1000]):
        answer = member.repair(member.reader(), new, old=old)
        assert isinstance(answer, m.Error)
        assert answer.code == ErrorCode.WOULD_LOSE
        assert member.inspect() == old
    assert isinstance(member.repair(member.reader(), LONGER, old=old), m.RepairAck)
    assert member.content() == LONGER
    assert not any(name.startswith(".broken.") for name in member.folder), "all of it is in the new one"
    assert isinstance(
        member.repair(member.reader(), other, old=member.inspect(), overwrite=True), m.RepairAck
    )
    assert member.content() == other


def test_a_missing_object_is_made() -> None:
    member = StoreMember(b"")
    repairer = member.connect(HELLO)
    member.ask(repairer, m.ChangeDirectory("dir"))
    assert isinstance(member.repair(repairer, CONTENT, old=m.ObjectInfo("o")), m.RepairAck)
    assert member.content() == CONTENT
    member.disk.power_cut(random.Random(3))
    member.start()
    assert member.content() == CONTENT


def test_a_poisoned_object_is_repaired_without_a_restart() -> None:
    # EVIDENCE-OF: P-1
    member = StoreMember()
    member.disk.fail("sync", errno.EIO)
    member.ask(member.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"lost"))
    old = member.inspect()
    assert old.poisoned
    assert isinstance(member.repair(member.reader(), LONGER, old=old), m.RepairAck)
    assert not member.inspect().corrupt
    member.disk.power_cut(random.Random(5))
    member.start()
    assert member.content() == LONGER


def test_the_writer_is_told_to_claim_again_and_to_compare() -> None:
    # EVIDENCE-OF: P-4
    member = StoreMember()
    member.rot(150_000)
    writer = member.writer
    assert isinstance(member.repair(member.reader(), LONGER, old=member.inspect()), m.RepairAck)
    (error,) = member.unasked(writer, m.Error)
    assert (error.code, error.actual) == (ErrorCode.FENCED, 3)
    refused = member.ask(writer, m.Append("o", len(LONGER), prefix_digest(LONGER), b"x"))
    assert refused.code == ErrorCode.FENCED
    (info,) = member.claim().entries
    assert (info.corrupt, info.synced) == (False, len(LONGER))
    member.send(member.writer, m.Append("o", len(LONGER), prefix_digest(LONGER), b"x"))
    member.settle()
    assert member.unasked(member.writer, m.DurabilityAck)[-1].synced == len(LONGER) + 1


def test_what_is_not_what_the_repairer_saw_is_refused() -> None:
    # EVIDENCE-OF: P-8
    member = StoreMember()
    old, repairer = member.inspect(), member.reader()
    member.send(member.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"more"))
    refused = member.answer(repairer, member.send(repairer, first_chunk(LONGER, old)))
    assert refused.code == ErrorCode.BEING_APPENDED
    member.settle()
    refused = member.ask(repairer, first_chunk(LONGER, old))
    assert (refused.code, refused.actual) == (ErrorCode.SIZE_MISMATCH, len(CONTENT) + 4)
    now = member.inspect()
    refused = member.ask(repairer, first_chunk(LONGER, now, digest=1))
    assert refused.code == ErrorCode.DIGEST_MISMATCH
    refused = member.ask(
        repairer, m.RepairChunk("o", 5, 10, 0, now.synced, now.digest, overwrite=True, payload=b"x")
    )
    assert (refused.code, refused.actual) == (ErrorCode.SIZE_MISMATCH, 0)
    refused = member.ask(
        repairer, m.RepairChunk("o", 0, 1, 0, now.synced, now.digest, overwrite=True, payload=b"xy")
    )
    assert refused.code == ErrorCode.SIZE_MISMATCH
    refused = member.ask(repairer, m.RepairChunk(".o", 0, 1, 0, 0, 0, overwrite=True, payload=b"x"))
    assert refused.code == ErrorCode.BAD_NAME
    alone = member.connect()
    member.ask(alone, m.ChangeDirectory("dir"))
    assert member.ask(alone, first_chunk(LONGER, now)).code == ErrorCode.NOT_READY
    assert member.ask(member.connect(HELLO), first_chunk(LONGER, now)).code == ErrorCode.NOT_READY
    assert member.inspect() == now
    assert member.content() == CONTENT + b"more"


def test_a_copy_that_a_stream_of_version_0_appends_to_is_neither_replaced_nor_reported_complete() -> None:
    member = StoreMember(CONTENT[:5_000])
    writer, repairer = member.connect0("zero"), member.connect(HELLO)
    assert member.ask0(writer, "af\t0") == b"ok"
    member.ask(repairer, m.ChangeDirectory("zero"))

    def brought(data: bytes) -> m.Message:
        request = m.RepairChunk("f", 0, len(data), prefix_digest(data), 0, 0, overwrite=False, payload=data)
        answer: m.Message = member.ask(repairer, request)
        return answer

    for data in (b"", b"more"):  # what is there, and more
        refused = brought(data)
        assert isinstance(refused, m.Error)
        assert refused.code == ErrorCode.BEING_APPENDED
    member.end(writer)
    member.settle()
    assert brought(b"more") == m.RepairAck("f", 4, done=True)


@pytest.mark.parametrize(("directory", "kept"), [("dir", True), ("other", False)])
def test_a_new_copy_that_has_begun_is_kept_while_its_session_stays_in_the_directory(
    directory: str, kept: bool
) -> None:
    member = StoreMember()
    member.rot(150_000)
    old, repairer, digest = member.inspect(), member.reader(), prefix_digest(LONGER)
    assert member.ask(repairer, first_chunk(LONGER, old)) == m.RepairAck("o", 1_000, done=False)
    for one in (directory, "dir"):
        assert isinstance(member.ask(repairer, m.ChangeDirectory(one)), m.DirectoryOpened)
    rest = m.RepairChunk("o", 1_000, len(LONGER), digest, old.synced, old.digest, False, LONGER[1_000:])
    answer = member.ask(repairer, rest)
    if kept:
        assert answer == m.RepairAck("o", len(LONGER), done=True)
    else:
        assert (answer.code, answer.actual) == (ErrorCode.SIZE_MISMATCH, 0)


def test_a_full_disk_keeps_the_old_copy() -> None:
    # EVIDENCE-OF: P-8
    member = StoreMember()
    member.rot(150_000)
    old = member.inspect()
    member.disk.space = member.disk.used + 10_000
    answer = member.repair(member.reader(), LONGER, old=old)
    assert isinstance(answer, m.Error)
    assert answer.code == ErrorCode.NO_SPACE
    assert member.inspect() == old
    member.disk.space = 1 << 40
    assert isinstance(member.repair(member.reader(), LONGER, old=old), m.RepairAck)


def test_a_copy_that_would_touch_the_reserve_is_refused_at_its_beginning() -> None:
    # EVIDENCE-OF: P-8
    member = StoreMember()
    member.rot(150_000)
    old, used = member.inspect(), member.disk.used
    member.disk.space = used + (used >> 3) + len(LONGER)
    member.look_at_space()
    answer = member.repair(member.reader(), LONGER, old=old, chunk=1_000)
    assert isinstance(answer, m.Error)
    assert answer.code == ErrorCode.NO_SPACE
    assert (member.inspect(), member.disk.used) == (old, used)
    assert member.warnings == [], "appends, which are smaller, go on"
    member.disk.space += 1 << 20
    member.look_at_space()
    assert isinstance(member.repair(member.reader(), LONGER, old=old), m.RepairAck)


@pytest.mark.parametrize("request_", [m.Get("o", 0, 1_000), m.Stat("o", 5)])
def test_a_lack_of_descriptors_is_not_taken_for_damage(request_: m.Get | m.Stat) -> None:
    member = StoreMember()
    reader = member.reader()
    member.storage._files.forget("d/dir/o")
    member.disk.fail("open", errno.EMFILE)
    answer = member.ask(reader, request_)
    assert answer.code == ErrorCode.BUSY
    assert "injected" in answer.message
    assert not member.inspect().corrupt
    assert member.content() == CONTENT
    member.storage._files.forget("d/dir/o")
    member.disk.fail("open", errno.EIO)
    assert member.ask(reader, request_).code == ErrorCode.CORRUPT
    assert member.inspect().corrupt
