"""A new copy replaces a bad one: what is refused, what is reported, and what a crash may leave.

The story that all of it is about: a copy with a damaged tail must never, at no moment, look like a sound one
that is merely short. A take-over would count it as having answered, and lose what it had."""

import contextlib
import errno
import random

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core import vocabulary as v
from dos_server.core.records import decode_marks
from dos_server.core.scrub import NO_SCRUB, ScrubPlan
from dos_server.memory.disk import _Folder, _Node
from tests.support.core_harness import SERVER_ID, Harness
from tests.support.fake_disk import FakeDisk

STORE = b"s" * 16
RECORD = StoreRecord(STORE, 1, 1, (Member(SERVER_ID, "a:1"),))
HELLO = m.Hello(store_id=STORE, generation=1)
CONTENT = random.Random(1).randbytes(300_000)
LONGER = CONTENT + b"and more"


class World(Harness):
    """A member of a store with `dir/o`, written under epoch 3; `writer` holds the claim."""

    def __init__(self, content: bytes = CONTENT, scrub: ScrubPlan = NO_SCRUB) -> None:
        super().__init__(FakeDisk(), scrub=scrub)
        alone = self.connect()
        assert isinstance(self.ask(alone, m.Configure(encode_store_record(RECORD))), m.Configured)
        self.claim()
        for start in range(0, len(content), 100_000):
            part = content[start : start + 100_000]
            self.send(self.writer, m.Append("o", start, prefix_digest(content[:start]), part))
            self.settle()

    def claim(self) -> m.DirectoryOpened:
        self.writer = self.connect(HELLO)
        opened = self.ask(self.writer, m.ChangeDirectory("dir", claim=True, epoch=3, writer_id=b"w" * 16))
        assert isinstance(opened, m.DirectoryOpened), opened
        return opened

    def inspect(self) -> m.ObjectInfo:
        (info,) = self.ask(self.reader(), m.ChangeDirectory("dir")).entries
        assert isinstance(info, m.ObjectInfo)
        return info

    def reader(self) -> int:
        session = self.connect(HELLO)
        self.ask(session, m.ChangeDirectory("dir"))
        return session

    @property
    def folder(self) -> dict[str, "_Node | _Folder"]:
        node = self.disk.root.seen["d"]
        assert isinstance(node, _Folder)
        inner = node.seen["dir"]
        assert isinstance(inner, _Folder)
        return inner.seen

    def file(self, name: str = "o") -> _Node:
        node = self.folder[name]
        assert isinstance(node, _Node)
        return node

    def rot(self, position: int) -> None:
        """A bit flips on the platters; the next read of it notices."""
        for data in (self.file().seen, self.file().stable):
            data[position] ^= 1
        answer = self.ask(self.reader(), m.Get("o", position - 1_000, 2_000))
        assert answer.code == ErrorCode.CORRUPT

    def cut_off(self, size: int) -> None:
        """The server stops, its file loses a tail, and it starts again."""
        self.storage.stop()
        del self.file().seen[size:]
        del self.file().stable[size:]
        self.disk.kill()
        self.start()

    def repair(
        self, session: int, data: bytes, *, old: m.ObjectInfo, overwrite: bool = False, chunk: int = 1 << 18
    ) -> m.Message:
        """Bring a new copy; the last answer."""
        digest, answer = prefix_digest(data), None
        for start in range(0, len(data) or 1, chunk):
            part = data[start : start + chunk]
            answer = self.ask(
                session,
                m.RepairChunk(
                    "o", start, len(data), digest, old.synced, old.digest, overwrite=overwrite, payload=part
                ),
            )
            if not isinstance(answer, m.RepairAck):
                break
        return answer

    def content(self) -> bytes:
        session, data = self.reader(), b""
        while isinstance(part := self.ask(session, m.Get("o", len(data), 1 << 20)), m.Data) and part.payload:
            data += bytes(part.payload)
        return data


@pytest.mark.parametrize("new", [CONTENT, LONGER])
@pytest.mark.parametrize("chunk", [1 << 18, 77_777])
def test_a_damaged_copy_stays_damaged_until_a_whole_new_one_is_in_its_place(new: bytes, chunk: int) -> None:
    # EVIDENCE-OF: P-2, P-5
    world = World()
    world.rot(150_000)
    old = world.inspect()
    assert (old.corrupt, old.synced, old.received) == (True, 0, 0), "no reported size includes the damage"
    repairer = world.reader()
    answer = world.repair(repairer, bytes([new[0] ^ 1]) + new[1:], old=old, chunk=chunk)
    assert isinstance(answer, m.Error)
    assert world.inspect() == old
    answer = world.repair(repairer, new, old=old, chunk=chunk)
    assert answer == m.RepairAck("o", len(new), done=True)
    info = world.inspect()
    assert (info.corrupt, info.synced, info.digest) == (False, len(new), prefix_digest(new))
    assert world.content() == new
    assert ".broken.o.0" in world.folder
    assert not any(name.startswith(".mend.") for name in world.folder)
    assert world.repair(repairer, new, old=old) == answer, "a lost answer is asked for again"
    world.disk.power_cut(random.Random(7))
    world.start()
    assert world.inspect() == info
    assert world.content() == new


@pytest.mark.parametrize("power", [True, False])
def test_damage_that_a_read_found_is_known_after_a_restart(power: bool) -> None:
    # EVIDENCE-OF: P-5
    large = random.Random(2).randbytes(900_000)
    world = World(large)
    world.rot(5_000)
    old = world.inspect()
    world.disk.power_cut(random.Random(1)) if power else world.disk.kill()
    world.start()
    assert world.inspect() == old, "it does not count again, though nobody has read it since"
    refused = world.ask(world.reader(), m.Get("o", 5_000, 10))
    assert refused.code == ErrorCode.CORRUPT
    assert isinstance(world.repair(world.reader(), large, old=old), m.RepairAck)
    world.disk.kill()
    world.start()
    assert not world.inspect().corrupt


def test_the_new_copy_may_not_end_below_what_was_durable_once() -> None:
    # EVIDENCE-OF: P-5
    world = World()
    world.cut_off(150_000)
    old = world.inspect()
    assert old.corrupt
    assert old.synced < 150_000
    answer = world.repair(world.reader(), CONTENT[:-1], old=old)
    assert isinstance(answer, m.Error)
    assert (answer.code, answer.actual) == (ErrorCode.WOULD_LOSE, len(CONTENT))
    assert world.inspect() == old
    assert isinstance(world.repair(world.reader(), CONTENT[:-1], old=old, overwrite=True), m.RepairAck)
    assert world.content() == CONTENT[:-1]


def test_what_a_start_could_not_write_again_for_want_of_room_may_have_been_durable() -> None:
    """Nothing of it is reported, because nothing is known to be on the disk; a shorter copy would lose
    what may well have been acknowledged."""
    # EVIDENCE-OF: P-5
    world = World()
    world.disk.power_cut(random.Random(1))
    world.disk.put("d/dir/.marks", b"")  # the newest mark went with the power
    world.disk.fail_at("write", "d/dir/o", errno.ENOSPC)
    world.start()
    old = world.inspect()
    assert (old.corrupt, old.synced) == (True, 0)
    answer = world.repair(world.reader(), CONTENT[:-1], old=old)
    assert isinstance(answer, m.Error)
    assert (answer.code, answer.actual) == (ErrorCode.WOULD_LOSE, len(CONTENT))
    assert isinstance(world.repair(world.reader(), CONTENT, old=old), m.RepairAck)


def test_a_sound_copy_is_only_replaced_by_a_longer_one_of_the_same_history_or_by_word() -> None:
    # EVIDENCE-OF: P-5
    world = World()
    old = world.inspect()
    other = bytes([CONTENT[0] ^ 1]) + LONGER[1:]
    for new in (other, CONTENT[:1000]):
        answer = world.repair(world.reader(), new, old=old)
        assert isinstance(answer, m.Error)
        assert answer.code == ErrorCode.WOULD_LOSE
        assert world.inspect() == old
    assert isinstance(world.repair(world.reader(), LONGER, old=old), m.RepairAck)
    assert world.content() == LONGER
    assert not any(name.startswith(".broken.") for name in world.folder), "all of it is in the new one"
    assert isinstance(world.repair(world.reader(), other, old=world.inspect(), overwrite=True), m.RepairAck)
    assert world.content() == other


def test_a_missing_object_is_made() -> None:
    world = World(b"")
    repairer = world.connect(HELLO)
    world.ask(repairer, m.ChangeDirectory("dir"))
    assert isinstance(world.repair(repairer, CONTENT, old=m.ObjectInfo("o")), m.RepairAck)
    assert world.content() == CONTENT
    world.disk.power_cut(random.Random(3))
    world.start()
    assert world.content() == CONTENT


def test_a_poisoned_object_is_repaired_without_a_restart() -> None:
    # EVIDENCE-OF: P-1
    world = World()
    world.disk.fail("sync", errno.EIO)
    world.ask(world.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"lost"))
    old = world.inspect()
    assert old.poisoned
    assert isinstance(world.repair(world.reader(), LONGER, old=old), m.RepairAck)
    assert not world.inspect().corrupt
    world.disk.power_cut(random.Random(5))
    world.start()
    assert world.content() == LONGER


def test_nothing_is_repaired_while_a_sync_of_the_bad_copy_is_under_way() -> None:
    """Its end would be taken for that of the new copy's first sync, and acknowledge what is on no disk."""
    # EVIDENCE-OF: P-1
    world = World()
    world.send(world.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b" and"))
    (under_way,) = world.pending
    assert isinstance(under_way[0], v.Sync)
    world.disk.fail("write", errno.EIO)
    world.send(world.writer, m.Append("o", len(CONTENT) + 4, prefix_digest(CONTENT + b" and"), b" more"))
    old = world.ask_now(world.writer, m.Stat("o")).info
    assert old.poisoned
    repairer = world.connect(HELLO)
    world.send(repairer, m.ChangeDirectory("dir"))
    refused = world.ask_now(repairer, _repair(LONGER, old))
    assert refused.code == ErrorCode.BEING_APPENDED
    newer = world.connect(HELLO)
    claim = world.send(newer, m.ChangeDirectory("dir", claim=True, epoch=4, writer_id=b"v" * 16))
    world.finish(1)  # the claim is stored
    assert world.answer(newer, claim) is None, "it is answered when all that was begun has ended"
    world.settle()
    assert isinstance(world.answer(newer, claim), m.DirectoryOpened)
    assert isinstance(world.repair(repairer, LONGER, old=old), m.RepairAck)


def test_the_writer_is_told_to_claim_again_and_to_compare() -> None:
    # EVIDENCE-OF: P-4
    world = World()
    world.rot(150_000)
    writer = world.writer
    assert isinstance(world.repair(world.reader(), LONGER, old=world.inspect()), m.RepairAck)
    (told,) = world.unasked(writer, m.Error)
    assert (told.code, told.actual) == (ErrorCode.FENCED, 3)
    refused = world.ask(writer, m.Append("o", len(LONGER), prefix_digest(LONGER), b"x"))
    assert refused.code == ErrorCode.FENCED
    (info,) = world.claim().entries
    assert (info.corrupt, info.synced) == (False, len(LONGER))
    world.send(world.writer, m.Append("o", len(LONGER), prefix_digest(LONGER), b"x"))
    world.settle()
    assert world.unasked(world.writer, m.DurabilityAck)[-1].synced == len(LONGER) + 1


def test_what_is_not_what_the_repairer_saw_is_refused() -> None:
    # EVIDENCE-OF: P-8
    world = World()
    old, repairer = world.inspect(), world.reader()
    world.send(world.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"more"))
    refused = world.answer(repairer, world.send(repairer, _repair(LONGER, old)))
    assert refused.code == ErrorCode.BEING_APPENDED
    world.settle()
    refused = world.ask(repairer, _repair(LONGER, old))
    assert (refused.code, refused.actual) == (ErrorCode.SIZE_MISMATCH, len(CONTENT) + 4)
    now = world.inspect()
    refused = world.ask(repairer, _repair(LONGER, now, digest=1))
    assert refused.code == ErrorCode.DIGEST_MISMATCH
    refused = world.ask(
        repairer, m.RepairChunk("o", 5, 10, 0, now.synced, now.digest, overwrite=True, payload=b"x")
    )
    assert (refused.code, refused.actual) == (ErrorCode.SIZE_MISMATCH, 0)
    refused = world.ask(
        repairer, m.RepairChunk("o", 0, 1, 0, now.synced, now.digest, overwrite=True, payload=b"xy")
    )
    assert refused.code == ErrorCode.SIZE_MISMATCH
    refused = world.ask(repairer, m.RepairChunk(".o", 0, 1, 0, 0, 0, overwrite=True, payload=b"x"))
    assert refused.code == ErrorCode.BAD_NAME
    alone = world.connect()
    world.ask(alone, m.ChangeDirectory("dir"))
    assert world.ask(alone, _repair(LONGER, now)).code == ErrorCode.NOT_READY
    assert world.ask(world.connect(HELLO), _repair(LONGER, now)).code == ErrorCode.NOT_READY
    assert world.inspect() == now
    assert world.content() == CONTENT + b"more"


def _repair(data: bytes, old: m.ObjectInfo, digest: int | None = None) -> m.RepairChunk:
    old_digest = old.digest if digest is None else digest
    return m.RepairChunk(
        "o", 0, len(data), prefix_digest(data), old.synced, old_digest, overwrite=False, payload=data[:1000]
    )


def test_an_append_that_comes_while_the_new_copy_is_on_its_way_wins() -> None:
    # EVIDENCE-OF: P-1
    world = World()
    old, repairer = world.inspect(), world.reader()
    world.ask(repairer, _repair(LONGER, old))
    world.send(world.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"mine"))
    world.settle()
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
    assert world.ask(repairer, rest).code == ErrorCode.SIZE_MISMATCH
    assert world.content() == CONTENT + b"mine"
    assert not any(name.startswith(".mend.") for name in world.folder)


def test_a_repairer_that_goes_leaves_nothing_and_so_does_a_crash() -> None:
    # EVIDENCE-OF: P-9
    world = World()
    old = world.inspect()
    for leave in ("end", "away", "crash", "busy"):
        repairer = world.reader()
        world.send(repairer, _repair(LONGER, old))
        if leave == "busy":
            world.end(repairer)
        world.settle()
        if leave == "end":
            world.end(repairer)
        elif leave == "away":
            world.ask(repairer, m.ChangeDirectory("elsewhere"))
        elif leave == "crash":
            world.disk.kill()
            world.start()
        assert world.inspect() == old
        assert not any(name.startswith(".mend.") for name in world.folder), leave
    assert not world.core._tables.repairs


def test_a_repairer_that_opens_another_directory_is_told_that_its_copy_is_gone() -> None:
    world = World()
    repairer = world.reader()
    old = world.inspect()
    piece = m.RepairChunk("o", 0, len(LONGER), prefix_digest(LONGER), old.synced, old.digest, False, LONGER)
    request = world.send(repairer, piece)
    elsewhere = world.send(repairer, m.ChangeDirectory("elsewhere"))
    world.finish(1)  # the other directory is there before the bytes are written
    assert isinstance(world.answer(repairer, elsewhere), m.DirectoryOpened)
    assert world.answer(repairer, request) is None
    world.settle()
    assert world.answer(repairer, request).code == ErrorCode.NOT_READY
    assert world.inspect() == old
    assert set(world.folder) == {".claim", ".marks", "o"}


def test_a_directory_is_not_forgotten_under_a_new_copy_that_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # EVIDENCE-OF: P-9
    world = World()
    old = world.inspect()
    monkeypatch.setattr("dos_server.core.tables.directories_loaded_max", 0)
    for state in ("writing", "installing"):
        repairer = world.reader()
        request = m.RepairChunk(
            "o", 0, len(LONGER), prefix_digest(LONGER), old.synced, old.digest, False, LONGER
        )
        world.send(repairer, request)
        if state == "installing":
            world.finish()
        for session in set(world.heard) - world.closed:
            world.end(session)
        assert world.pending
        world.settle()
        assert world.claim().entries[0].synced == len(LONGER if state == "installing" else CONTENT)
    assert not any(name.startswith(".mend.") for name in world.folder)


def test_a_full_disk_keeps_the_old_copy() -> None:
    # EVIDENCE-OF: P-8
    world = World()
    world.rot(150_000)
    old = world.inspect()
    world.disk.space = world.disk.used + 10_000
    answer = world.repair(world.reader(), LONGER, old=old)
    assert isinstance(answer, m.Error)
    assert answer.code == ErrorCode.NO_SPACE
    assert world.inspect() == old
    world.disk.space = 1 << 40
    assert isinstance(world.repair(world.reader(), LONGER, old=old), m.RepairAck)


def test_a_copy_that_would_touch_the_reserve_is_refused_at_its_beginning() -> None:
    # EVIDENCE-OF: P-8
    world = World()
    world.rot(150_000)
    old, used = world.inspect(), world.disk.used
    world.disk.space = used + (used >> 3) + len(LONGER)
    world.look_at_space()
    answer = world.repair(world.reader(), LONGER, old=old, chunk=1_000)
    assert isinstance(answer, m.Error)
    assert answer.code == ErrorCode.NO_SPACE
    assert (world.inspect(), world.disk.used) == (old, used)
    assert world.warnings == [], "appends, which are smaller, go on"
    world.disk.space += 1 << 20
    world.look_at_space()
    assert isinstance(world.repair(world.reader(), LONGER, old=old), m.RepairAck)


class PowerCutError(Exception):
    """The plug is pulled in the middle of a call to the disk."""


class _Plug:
    """Pulled at the nth call from now on."""

    def __init__(self, disk: FakeDisk, nth: int) -> None:
        self.left = nth
        self._disk, self._called = disk, disk._called
        disk._called = self._count  # type: ignore[method-assign]

    def _count(self, method: str, what: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise PowerCutError
        self._called(method, what)

    def put_back(self) -> None:
        self._disk._called = self._called  # type: ignore[method-assign]


@pytest.mark.parametrize("damage", ["cut off", "rotten", "poisoned", "none: it is short"])
def test_no_crash_on_the_way_makes_a_short_copy_look_sound(damage: str) -> None:
    # EVIDENCE-OF: P-5
    nth, left = 0, 0
    while left <= 0:
        nth += 1
        for seed in range(4):
            world = World()
            if damage == "cut off":
                world.cut_off(150_000)
            elif damage == "rotten":
                world.rot(150_000)
            elif damage == "poisoned":
                world.disk.fail("sync", errno.EIO)
                world.ask(world.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"lost"))
            left = _mend_and_crash(world, nth, seed)


def _mend_and_crash(world: World, nth: int, seed: int) -> int:
    """Mend, with the plug pulled at the nth call to the disk; how many calls were left."""
    old, repairer = world.inspect(), world.reader()
    plug = _Plug(world.disk, nth)
    with contextlib.suppress(PowerCutError):
        world.repair(repairer, LONGER, old=old)
    plug.put_back()
    world.disk.power_cut(random.Random(seed))
    world.start()
    entries = world.ask(world.connect(), m.ChangeDirectory("dir")).entries
    assert [info.name for info in entries] == ["o"], (nth, seed, "it looks as if it had never been")
    (info,) = entries
    if not info.corrupt:
        assert info.synced >= len(CONTENT), (nth, seed)
        assert info.digest in (prefix_digest(LONGER), prefix_digest(CONTENT)), (nth, seed)
    if plug.left > 0:
        assert (info.synced, info.corrupt) == (len(LONGER), False)
    return plug.left


def test_what_is_found_damaged_while_appends_are_under_way_is_so_after_a_restart() -> None:
    # EVIDENCE-OF: P-2, P-5
    world = World()
    world.send(world.writer, m.Append("o", len(CONTENT), prefix_digest(CONTENT), b"more"))
    (sync,) = world.pending
    world.pending.clear()
    world.rot(5_000)
    world.pending.append(sync)
    world.settle()
    assert world.inspect().corrupt
    world.storage.stop()
    world.disk.kill()
    world.start()
    assert world.inspect().corrupt


@pytest.mark.parametrize("request_", [m.Get("o", 0, 1_000), m.Stat("o", 5)])
def test_a_lack_of_descriptors_is_not_taken_for_damage(request_: m.Get | m.Stat) -> None:
    world = World()
    reader = world.reader()
    world.storage._files.forget("d/dir/o")
    world.disk.fail("open", errno.EMFILE)
    answer = world.ask(reader, request_)
    assert answer.code == ErrorCode.BUSY
    assert "injected" in answer.message
    assert not world.inspect().corrupt
    assert world.content() == CONTENT
    world.storage._files.forget("d/dir/o")
    world.disk.fail("open", errno.EIO)
    assert world.ask(reader, request_).code == ErrorCode.CORRUPT
    assert world.inspect().corrupt


def test_before_a_copy_changes_places_the_old_one_has_a_durable_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash may leave neither copy: the object is known to be lost then, not never to have been."""
    world, seen = World(), list[int]()
    rename = world.disk.rename

    def watched(folder: str, old: str, new: str) -> None:
        marks = decode_marks(bytes(world.file(".marks").stable))
        seen.append(max((mark.synced for mark in marks if mark is not None and mark.name == "o"), default=0))
        rename(folder, old, new)

    monkeypatch.setattr(world.disk, "rename", watched)
    assert isinstance(world.repair(world.reader(), LONGER, old=world.inspect()), m.RepairAck)
    assert seen[-1] == len(CONTENT)
