"""A new copy on its way: syncs, appends, sessions and crashes that interrupt it."""

import contextlib
import errno
import random

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.files.records import decode_marks
from tests.dos_server.store_member import (
    CONTENT,
    HELLO,
    LONGER,
    PowerCutError,
    PowerPlug,
    StoreMember,
    first_chunk,
)


def test_nothing_is_repaired_while_a_sync_of_the_bad_copy_is_under_way() -> None:
    """Its end would be taken for that of the new copy's first sync, and acknowledge what is on no disk."""
    # EVIDENCE-OF: P-1
    member = StoreMember()
    member.send(member.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b" and"))
    (under_way,) = member.pending
    assert isinstance(under_way[0], v.Sync)
    member.disk.fail("write", errno.EIO)
    member.send(member.writer, m.Append("o", len(CONTENT) + 4, prefix_digest(CONTENT + b" and"), b" more"))
    old = member.ask_now(member.writer, m.Stat("o")).info
    assert old.poisoned
    repairer = member.connect(HELLO)
    member.send(repairer, m.ChangeDirectory("dir"))
    refused = member.ask_now(repairer, first_chunk(LONGER, old))
    assert refused.code == ErrorCode.BEING_APPENDED
    newer = member.connect(HELLO)
    claim = member.send(newer, m.ChangeDirectory("dir", claim=True, epoch=4, writer_id=b"v" * 16))
    member.finish(1)  # the claim is stored
    assert member.answer(newer, claim) is None, "it is answered when all that was begun has ended"
    member.settle()
    assert isinstance(member.answer(newer, claim), m.DirectoryOpened)
    assert isinstance(member.repair(repairer, LONGER, old=old), m.RepairAck)


def test_an_append_that_comes_while_the_new_copy_is_on_its_way_wins() -> None:
    # EVIDENCE-OF: P-1
    member = StoreMember()
    old, repairer = member.inspect(), member.reader()
    member.ask(repairer, first_chunk(LONGER, old))
    member.send(member.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"mine"))
    member.settle()
    rest = m.RepairChunk(
        "o",
        1000,
        len(LONGER),
        prefix_digest(LONGER),
        old.synced,
        old.digest,
        overwrite=False,
        payload=LONGER[1000:],
    )
    assert member.ask(repairer, rest).code == ErrorCode.SIZE_MISMATCH
    assert member.content() == CONTENT + b"mine"
    assert not any(name.startswith(".mend.") for name in member.folder)


def test_a_repairer_that_goes_leaves_nothing_and_so_does_a_crash() -> None:
    # EVIDENCE-OF: P-9
    member = StoreMember()
    old = member.inspect()
    for leave in ("end", "away", "crash", "busy"):
        repairer = member.reader()
        member.send(repairer, first_chunk(LONGER, old))
        if leave == "busy":
            member.end(repairer)
        member.settle()
        if leave == "end":
            member.end(repairer)
        elif leave == "away":
            member.ask(repairer, m.ChangeDirectory("elsewhere"))
        elif leave == "crash":
            member.disk.kill()
            member.start()
        assert member.inspect() == old
        assert not any(name.startswith(".mend.") for name in member.folder), leave
    assert not member.core._tables.repairs


def test_a_repairer_that_opens_another_directory_is_told_that_its_copy_is_gone() -> None:
    member = StoreMember()
    repairer = member.reader()
    old = member.inspect()
    piece = m.RepairChunk("o", 0, len(LONGER), prefix_digest(LONGER), old.synced, old.digest, False, LONGER)
    request = member.send(repairer, piece)
    elsewhere = member.send(repairer, m.ChangeDirectory("elsewhere"))
    member.finish(1)  # the other directory is there before the bytes are written
    assert isinstance(member.answer(repairer, elsewhere), m.DirectoryOpened)
    assert member.answer(repairer, request) is None
    member.settle()
    assert member.answer(repairer, request).code == ErrorCode.NOT_READY
    assert member.inspect() == old
    assert set(member.folder) == {".claim", ".marks", "o"}


def test_a_directory_is_not_forgotten_under_a_new_copy_that_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-9
    member = StoreMember()
    old = member.inspect()
    monkeypatch.setattr("dos_server.core.tables.directories_loaded_max", 0)
    for state in ("writing", "installing"):
        repairer = member.reader()
        request = m.RepairChunk(
            "o", 0, len(LONGER), prefix_digest(LONGER), old.synced, old.digest, False, LONGER
        )
        member.send(repairer, request)
        if state == "installing":
            member.finish()
        for session in set(member.heard) - member.closed:
            member.end(session)
        assert member.pending
        member.settle()
        assert member.claim().entries[0].synced == len(LONGER if state == "installing" else CONTENT)
    assert not any(name.startswith(".mend.") for name in member.folder)


@pytest.mark.parametrize("damage", ["cut off", "rotten", "poisoned", "none: it is short"])
def test_no_crash_on_the_way_makes_a_short_copy_look_sound(damage: str) -> None:
    # EVIDENCE-OF: P-5
    nth, left = 0, 0
    while left <= 0:
        nth += 1
        for seed in range(4):
            member = StoreMember()
            if damage == "cut off":
                member.lose_tail(150_000)
            elif damage == "rotten":
                member.rot(150_000)
            elif damage == "poisoned":
                member.disk.fail("sync", errno.EIO)
                member.ask(member.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"lost"))
            left = _repair_and_crash(member, nth, seed)


def _repair_and_crash(member: StoreMember, nth: int, seed: int) -> int:
    """Mend, with the plug pulled at the nth call to the disk; how many calls were left."""
    old, repairer = member.inspect(), member.reader()
    plug = PowerPlug(member.disk, nth)
    with contextlib.suppress(PowerCutError):
        member.repair(repairer, LONGER, old=old)
    plug.restore()
    member.disk.power_cut(random.Random(seed))
    member.start()
    entries = member.ask(member.connect(), m.ChangeDirectory("dir")).entries
    assert [info.name for info in entries] == ["o"], (nth, seed, "it looks as if it had never been")
    (info,) = entries
    if not info.corrupt:
        assert info.synced >= len(CONTENT), (nth, seed)
        assert info.digest in (prefix_digest(LONGER), prefix_digest(CONTENT)), (nth, seed)
    if plug.calls_left > 0:
        assert (info.synced, info.corrupt) == (len(LONGER), False)
    return plug.calls_left


def test_what_is_found_damaged_while_appends_are_under_way_is_so_after_a_restart() -> None:
    # EVIDENCE-OF: P-2, P-5
    member = StoreMember()
    member.send(member.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"more"))
    (sync,) = member.pending
    member.pending.clear()
    member.rot(5_000)
    member.pending.append(sync)
    member.settle()
    assert member.inspect().corrupt
    member.storage.stop()
    member.disk.kill()
    member.start()
    assert member.inspect().corrupt


def test_before_a_copy_changes_places_the_old_one_has_a_durable_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash may leave neither copy: the object is known to be lost then, not never to have been."""
    member, seen = StoreMember(), list[int]()
    rename = member.disk.rename

    def watched(folder: str, old: str, new: str) -> None:
        marks = decode_marks(bytes(member.file(".marks").stable))
        seen.append(max((mark.synced for mark in marks if mark is not None and mark.name == "o"), default=0))
        rename(folder, old, new)

    monkeypatch.setattr(member.disk, "rename", watched)
    assert isinstance(member.repair(member.reader(), LONGER, old=member.inspect()), m.RepairAck)
    assert seen[-1] == len(CONTENT)
