"""A new copy replaces a bad one: what is refused, and what is reported.

A copy with a damaged tail must never look like a sound one that is merely short: a take-over would count it
as having answered, and lose what it had.
"""

import contextlib
import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.files.records import decode_marks
from tests.dos_server.core_requests import to_claim
from tests.dos_server.store_member import (
    CONTENT,
    HELLO,
    LONGER,
    PowerCutError,
    PowerPlug,
    StoreMember,
    chunk,
    first_chunk,
)


@pytest.mark.parametrize("new", [CONTENT, LONGER])
@pytest.mark.parametrize("chunk_bytes", [1 << 18, 77_777])
def test_a_damaged_copy_stays_damaged_until_a_whole_new_one_is_in_its_place(
    new: bytes, chunk_bytes: int
) -> None:
    # EVIDENCE-OF: P-2, P-5
    member = StoreMember()
    member.rot(150_000)
    old = member.inspect()
    assert (old.corrupt, old.synced, old.received) == (True, 0, 0), "no reported size includes the damage"
    repairer = member.reader()
    answer = member.repair(repairer, bytes([new[0] ^ 1]) + new[1:], old=old, chunk_bytes=chunk_bytes)
    assert isinstance(answer, m.Error)
    assert member.inspect() == old
    answer = member.repair(repairer, new, old=old, chunk_bytes=chunk_bytes)
    assert answer == m.RepairAck("o", len(new), done=True)
    info = member.inspect()
    assert (info.corrupt, info.synced, info.digest) == (False, len(new), prefix_digest(new))
    assert member.content() == new
    assert ".broken.o.0" in member.folder
    assert not any(name.startswith(".repair.") for name in member.folder)
    assert member.repair(repairer, new, old=old) == answer, "a lost answer is asked for again"
    member.lose_power(random.Random(7))
    assert member.inspect() == info
    assert member.content() == new


@pytest.mark.parametrize("power", [True, False])
def test_damage_that_a_read_found_is_known_after_a_restart(power: bool) -> None:
    # EVIDENCE-OF: P-5
    large = random.Random(2).randbytes(900_000)
    member = StoreMember(large)
    member.rot(5_000)
    old = member.inspect()
    member.lose_power(random.Random(1)) if power else member.restart()
    assert member.inspect() == old, "it does not count again, though nobody has read it since"
    refused = member.ask(member.reader(), m.Get("o", 5_000, 10))
    assert refused.code == ErrorCode.CORRUPT
    assert isinstance(member.repair(member.reader(), large, old=old), m.RepairAck)
    member.restart()
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
    member.lose_power(random.Random(3))
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
    member.lose_power(random.Random(5))
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
    refused = member.ask(repairer, structs.replace(first_chunk(LONGER, now), old_digest=1))
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
    old, repairer = member.inspect(), member.reader()
    assert member.ask(repairer, first_chunk(LONGER, old)) == m.RepairAck("o", 1_000, done=False)
    for one in (directory, "dir"):
        assert isinstance(member.ask(repairer, m.ChangeDirectory(one)), m.DirectoryOpened)
    rest = chunk(LONGER, old, 1_000, LONGER[1_000:])
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
    answer = member.repair(member.reader(), LONGER, old=old, chunk_bytes=1_000)
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


# --- Random runs of a server whose objects are damaged and repaired while a writer appends, claims ... -----


class RandomRun:
    """One run, all from one number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.member = StoreMember(b"")
        self.history = b""
        self.acked = 0
        self.messages_seen = 0
        self.repairs = 0
        self.repairer: int | None = None
        self.repair: tuple[m.ObjectInfo, bytes, int] | None = None

    def listen(self) -> None:
        heard = self.member.heard[self.member.writer]
        for _, message in heard[self.messages_seen :]:
            if isinstance(message, m.DurabilityAck):
                self.acked = max(self.acked, message.synced)
        self.messages_seen = len(heard)

    def append(self) -> None:
        data = self.rng.randbytes(self.rng.choice([1, 300, 3_000]))
        request = m.Append("o", len(self.history), prefix_digest(self.history), data)
        number = self.member.send(self.member.writer, request)
        if self.member.answer(self.member.writer, number) is None:
            self.history += data

    def finish(self) -> None:
        if self.member.pending:
            self.member.finish(self.rng.randrange(len(self.member.pending)))

    def begin_repair(self) -> None:
        if self.repairer is None or self.rng.random() < 0.3:
            self.repairer = self.member.connect(HELLO)
            self.member.send(self.repairer, m.ChangeDirectory("dir"))
        self.member.settle()
        info = self.info()
        size = self.rng.choice([len(self.history), self.rng.randrange(len(self.history) + 1)])
        self.repair = (info or m.ObjectInfo("o"), self.history[:size], 0)

    def send_chunk(self) -> None:
        """A piece of the new copy; the answer may come much later, or never."""
        if self.repair is None or self.repairer is None:
            return
        old, data, offset = self.repair
        part = data[offset : offset + self.rng.choice([500, 5_000, 50_000])]
        request = chunk(data, old, offset, part)
        answer = self.member.answer(self.repairer, self.member.send(self.repairer, request))
        if isinstance(answer, m.Error):
            self.repair = None
        elif offset + len(part) == len(data):
            self.repair, self.repairs = None, self.repairs + 1
        else:
            self.repair = (old, data, offset + len(part))

    def info(self) -> m.ObjectInfo | None:
        entries = self.member.ask(self.member.connect(HELLO), m.ChangeDirectory("dir")).entries
        return entries[0] if entries else None

    def damage(self) -> None:
        self.member.settle()
        self.listen()
        if "o" not in self.member.folder or not self.member.file().seen:
            return
        if self.rng.random() < 0.3:
            self.member.disk.fail_at("sync", "d/dir/o", errno.EIO)
        elif self.rng.random() < 0.5:
            self.member.lose_tail(self.rng.randrange(len(self.member.file().seen)))
            self.claim()
        else:
            position = self.rng.randrange(len(self.member.file().seen))
            for data in (self.member.file().seen, self.member.file().stable):
                if position < len(data):
                    data[position] ^= 1
            self.member.ask(self.member.reader(), m.Get("o", 0, 1 << 20))

    def crash(self) -> None:
        self.listen()
        if self.rng.random() < 0.5:
            self.member.storage.stop()
        self.member.disk.kill() if self.rng.random() < 0.5 else self.member.disk.power_cut(self.rng)
        self.member.start()
        self.claim()

    def claim(self) -> None:
        """The writer returns and continues from what it finds undamaged."""
        self.member.disk.heal()
        self.listen()
        self.repairer = self.repair = None
        self.member.settle()
        entries = self.member.claim().entries
        self.messages_seen = 0
        self.check()
        if entries and not entries[0].corrupt:
            self.history = self.history[: max(entries[0].synced, self.acked)]
        elif not entries:
            assert self.acked == 0, self.seed

    def check(self) -> None:
        self.member.settle()
        self.listen()
        info = self.info()
        if info is None:
            assert self.acked == 0, self.seed
        elif not info.corrupt:
            assert info.synced >= self.acked, (self.seed, info.synced, self.acked)
            assert info.digest == prefix_digest(self.history[: info.synced]), self.seed

    def run(self, steps: int) -> None:
        actions = [self.append] * 6 + [self.finish] * 6 + [self.listen] * 2 + [self.begin_repair] * 2
        actions += [self.send_chunk] * 8 + [self.damage, self.claim, self.check]
        for _ in range(steps):
            self.rng.choice(actions)()
            if self.rng.random() < 0.02:
                self.crash()
        self.check()


@given(seed=st.integers(0, 2**32))
def test_no_copy_looks_sound_that_lost_what_was_acknowledged(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2, P-5
    RandomRun(seed).run(120)


def test_the_runs_repair_copies_and_acknowledge_appends() -> None:
    runs = [RandomRun(seed) for seed in range(20)]
    for run in runs:
        run.run(120)
    assert sum(run.repairs for run in runs) > 20
    assert sum(run.acked for run in runs) > 20_000


# --- A new copy on its way: syncs, appends, sessions and crashes that interrupt it -------------------------


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
    claim = member.send(newer, to_claim(4, b"v" * 16))
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
    rest = chunk(LONGER, old, 1000, LONGER[1000:])
    assert member.ask(repairer, rest).code == ErrorCode.SIZE_MISMATCH
    assert member.content() == CONTENT + b"mine"
    assert not any(name.startswith(".repair.") for name in member.folder)


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
            member.restart()
        assert member.inspect() == old
        assert not any(name.startswith(".repair.") for name in member.folder), leave
    assert not member.core._tables.repairs


def test_a_repairer_that_opens_another_directory_is_told_that_its_copy_is_gone() -> None:
    member = StoreMember()
    repairer = member.reader()
    old = member.inspect()
    piece = chunk(LONGER, old)
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
        request = chunk(LONGER, old)
        member.send(repairer, request)
        if state == "installing":
            member.finish()
        for session in set(member.heard) - member.closed:
            member.end(session)
        assert member.pending
        member.settle()
        assert member.claim().entries[0].synced == len(LONGER if state == "installing" else CONTENT)
    assert not any(name.startswith(".repair.") for name in member.folder)


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
    member.lose_power(random.Random(seed))
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
    member.restart()
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
