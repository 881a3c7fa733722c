"""What the disk does wrong, and what the files are then: the shell's side of it, on the fake disk."""

import errno
import random

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.files.extent import object_seed
from dos_server.core.requests.scrub import ScrubPlan
from dos_server.disk import failure_of
from dos_server.limits import again_seconds
from tests.dos_server.core_requests import append, claimed, to_claim, writing
from tests.dos_server.store_member import LONGER, StoreMember, chunk
from tests.dos_server.test_recovery import extents_of
from tests.support.core_harness import Harness
from tests.support.fake_disk import FakeDisk


def behind(server: Harness, first: bytes, second: bytes) -> bytes:
    """The extent that would come behind the first one of dir/o."""
    root = int.from_bytes(server.disk.content("d/dir/o")[12:16])
    return extents_of([first, second], seed=object_seed("dir", "o"), root=root)[1]


def object_handles(server: Harness) -> list[str]:
    paths = [path for _, path in server.disk._handles.values()]
    return [path for path in paths if path.startswith("d/") and "/." not in path]


def test_refused_writes_keep_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.storage.open_files_max", 3)
    server, session = writing()
    for number in range(10):
        server.ask(session, append(b"", b"abc", f"o{number}"))
    server.disk.space = server.disk.used + 10
    for number in range(10):
        refused = server.ask(session, append(b"abc", b"x" * 100, f"o{number}"))
        assert refused.code == ErrorCode.NO_SPACE
    assert len(object_handles(server)) <= 3


def test_an_object_gets_no_file_that_a_reader_opened_while_it_was_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next object of that name would be written to a file without a name."""
    # EVIDENCE-OF: P-1
    server, session = writing(b"abc")
    remove = server.disk.remove

    def remove_beside_a_reader(path: str) -> None:
        with server.storage._files.use(path):
            remove(path)

    monkeypatch.setattr(server.disk, "remove", remove_beside_a_reader)
    assert server.ask(session, m.Delete("o")) == m.Deleted("o")
    server.ask(session, append(b"", b"new"))
    assert server.ask(session, m.Stat("o")).info.synced == 3
    assert server.disk.content("d/dir/o").endswith(b"new")
    assert object_handles(server) == ["d/dir/o"]


def test_a_write_that_cannot_be_taken_back_poisons_and_keeps_its_file_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dos_server.storage.open_files_max", 0)
    server, session = writing(b"abc")
    server.disk.space = server.disk.used + 10
    server.disk.fail("cut", errno.EIO)
    assert server.ask(session, append(b"abc", b"x" * 100)).code == ErrorCode.POISONED
    assert object_handles(server) == ["d/dir/o"]
    assert server.ask(session, m.Get("o", 0, 100)).payload == b"abc"


def test_a_file_whose_sync_failed_is_never_synced_again_not_even_at_the_end() -> None:
    server, session = writing(b"abc")
    server.ask(session, append(b"", b"abc", "unsynced"))
    server.disk.fail("sync", errno.EIO)
    assert server.ask(session, append(b"abc", b"lost")).code == ErrorCode.POISONED
    server.disk.fail("sync", errno.EINTR)
    server.send(session, append(b"abc", b"d", "unsynced"))  # its sync fails too
    server.settle()
    before = len(server.disk.calls)
    server.storage.stop()
    synced = [path for method, path in server.disk.calls[before:] if method == "sync"]
    assert synced == ["d/dir/.marks"]


def test_a_new_copy_is_synced_by_the_handle_that_wrote_it() -> None:
    """A write-back error is reported to handles that were open then, and to no later one."""
    member = StoreMember()
    member.rot(150_000)
    before = len(member.disk.calls)
    assert isinstance(
        member.repair(member.reader(), LONGER, old=member.inspect(), chunk_bytes=50_000), m.RepairAck
    )
    calls = [method for method, path in member.disk.calls[before:] if ".repair." in path]
    assert calls.count("open") == 1
    assert calls.count("write") == 7
    assert calls.index("close") > calls.index("sync")
    assert not any(".repair." in path for _, path in member.disk._handles.values())


def test_a_new_copy_that_nobody_wants_any_more_is_closed_and_gone() -> None:
    member = StoreMember()
    member.rot(150_000)
    old, reader = member.inspect(), member.reader()
    first = chunk(LONGER, old, 0, b"x")
    assert isinstance(member.ask(reader, first), m.RepairAck)
    assert any(".repair." in path for _, path in member.disk._handles.values())
    member.end(reader)
    assert not any(".repair." in path for _, path in member.disk._handles.values())
    assert not any(name.startswith(".repair.") for name in member.folder)


def test_a_torn_tail_without_room_for_its_copy_stays_and_what_is_below_it_is_served() -> None:
    # EVIDENCE-OF: P-1, P-2
    server = Harness(FakeDisk())
    session = claimed(server)
    server.ask(session, append(b"", b"abc"))
    handle = server.disk.open("d/dir/o", create=False)
    good = server.disk.size(handle)
    torn = behind(server, b"abc", bytes(range(256)) * 20)[:-100]
    server.disk.write(handle, good, [torn])
    server.disk.kill()
    server.disk.space = server.disk.used + 1_000
    server.start()
    session = claimed(server, 2)
    assert server.ask(session, m.Get("o", 0, 100)).payload == b"abc"
    assert server.ask(session, append(b"abc", b"d")).code == ErrorCode.CORRUPT
    assert not any(name.startswith(".torn.") for name in server.disk.names("d/dir") or [])
    server.disk.kill()
    server.disk.space = 1 << 30
    server.start()
    session = claimed(server, 3)
    server.ask(session, append(b"abc", b"d"))
    assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck("o", 4, 4)
    (aside,) = [name for name in server.disk.names("d/dir") or [] if name.startswith(".torn.")]
    assert server.disk.read(server.disk.open(f"d/dir/{aside}", create=False), 0, 9_999) == torn


@pytest.mark.parametrize("marks", ["written", "not written"])
def test_no_restart_takes_bytes_of_a_failed_sync_for_durable(marks: str) -> None:
    """The cache still shows them, and another sync would succeed: the pages are clean, not on the disk."""
    # EVIDENCE-OF: P-1, P-2
    for seed in range(20):
        server, session = writing(b"good")
        server.disk.fail("sync", errno.EIO)
        if marks == "not written":
            server.disk.fail("write", errno.EIO, nth=2)  # the first is the append's own
        assert server.ask(session, append(b"good", b"lost")).code == ErrorCode.POISONED
        server.restart()
        session = claimed(server, 2)
        (entry,) = server.ask(session, m.List()).entries
        content = bytes(server.ask(session, m.Get("o", 0, 100)).payload)
        assert entry.synced == len(content)
        server.lose_power(random.Random(seed))
        session = claimed(server, 3)
        assert server.ask(session, m.Get("o", 0, 100)).payload == content, (seed, entry)


def test_a_tail_torn_again_at_the_same_place_leaves_the_copy_of_the_first_alone() -> None:
    server, _ = writing(b"abc")
    tails = []
    for count in (20, 5, 10):
        whole = behind(server, b"abc", bytes([count]) * 20 * count)
        tails.append(whole[:-100])
        handle = server.disk.open("d/dir/o", create=False)
        server.disk.write(handle, server.disk.size(handle), [tails[-1]])
        server.restart()
        server.storage.load("dir")
    names = sorted(name for name in server.disk.names("d/dir") or [] if name.startswith(".torn."))
    kept = [server.disk.read(server.disk.open(f"d/dir/{name}", create=False), 0, 9_999) for name in names]
    assert sorted(kept) == sorted(tails)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_an_append_whose_file_cannot_be_opened_for_want_of_descriptors_is_refused_and_continues(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Nothing was written, and the object is as sound as before."""
    # EVIDENCE-OF: P-8, P-10
    monkeypatch.setattr("dos_server.storage.open_files_max", 0)
    server, session = writing(b"abc")
    for content, name in ((b"abc", "o"), (b"", "new")):
        server.disk.fail("open", error)
        answer = server.ask(session, append(content, b"def", name))
        assert answer.code == ErrorCode.BUSY
        server.ask(session, append(content, b"def", name))
        assert server.unasked(session, m.DurabilityAck)[-1] == m.DurabilityAck(
            name, len(content) + 3, len(content) + 3
        )


PASSING = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM]


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("method", ["names", "open", "sync_folder"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_directory_that_cannot_be_opened_now_is_opened_when_the_cause_has_passed(
    method: str, error: int, nth: int
) -> None:
    # EVIDENCE-OF: P-10
    server, session = writing(b"abc")
    server.storage.stop()
    server.start()
    server.disk.fail(method, error, nth=nth)
    session = server.connect()
    answer = server.ask(session, m.ChangeDirectory("dir"))
    server.disk.heal()
    if isinstance(answer, m.Error):
        assert answer.code == ErrorCode.BUSY, answer
        assert not any(one.corrupt for one in server.ask(session, m.List()).entries)
        assert server.core._tables.openings == 0
        answer = server.ask(session, m.ChangeDirectory("dir"))
    (info,) = answer.entries
    assert (info.synced, info.corrupt) == (3, False)
    assert server.ask(session, m.Get("o", 0, 100)).payload == b"abc"


def test_the_scrub_continues_past_a_directory_that_cannot_be_opened_now() -> None:
    member = StoreMember(scrub=ScrubPlan(1e9, 0.0, 0.0))
    member.storage.stop()
    member.start()
    member.disk.fail("names", errno.EACCES, nth=1)
    for _ in range(40):
        member.scrub_on()
        member.settle()
    assert any("1 objects" in text for text in member.told), member.told


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES])
def test_a_new_object_whose_folder_cannot_be_synced_now_is_acknowledged_later_and_not_before(
    error: int,
) -> None:
    # EVIDENCE-OF: P-1, P-10
    server, session = writing()
    server.disk.fail("sync_folder", error)
    assert server.ask(session, append(b"", b"abc")) is None
    assert not watermarks(server, session)
    assert server.ask(session, m.Stat("o")).info.poisoned is False
    assert server.core.wants_tick()
    server.now += again_seconds
    server.event(v.Tick())
    server.settle()
    assert watermarks(server, session) == [3]
    server.lose_power(random.Random(1))
    assert server.ask(claimed(server), m.Get("o", 0, 100)).payload == b"abc"


def watermarks(server: Harness, session: int) -> list[int]:
    return [one.synced for _, one in server.heard[session] if isinstance(one, m.DurabilityAck) and one.synced]


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("method", ["open", "sync_folder", "rename"])
def test_a_claim_that_cannot_be_stored_now_is_granted_when_it_is_asked_again(method: str, error: int) -> None:
    # EVIDENCE-OF: P-4, P-10
    server = Harness()
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir"))
    claim = to_claim()
    server.disk.fail(method, error)
    assert server.ask(session, claim).code == ErrorCode.BUSY
    assert isinstance(server.ask(session, claim), m.DirectoryOpened)


def test_every_error_number_has_one_meaning_and_an_unknown_one_is_the_disks() -> None:
    meanings = {number: failure_of(OSError(number, "")) for number in errno.errorcode}
    assert meanings[errno.ENOSPC] is meanings[errno.EDQUOT] is v.DiskFailure.NO_SPACE
    assert {meanings[number] for number in PASSING} == {v.DiskFailure.TEMPORARY}
    for number in (errno.EIO, errno.EROFS, errno.ENOENT, errno.EBADF, errno.EISDIR, errno.ELOOP):
        assert meanings[number] is v.DiskFailure.FAILED
    assert failure_of(OSError("no number")) is v.DiskFailure.FAILED


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EOVERFLOW, errno.EDOM])
def test_an_unexpected_error_of_an_open_is_no_damage_and_the_next_open_tries_again(error: int) -> None:
    server, _ = writing(b"abc")
    server.storage.stop()
    marks = bytes(server.disk.content("d/dir/.marks"))
    server.start()
    server.disk.fail_at("open", "d/dir/o", error)
    refused = server.ask(server.connect(), m.ChangeDirectory("dir"))
    assert isinstance(refused, m.Error)
    assert refused.code == ErrorCode.BUSY
    assert server.disk.content("d/dir/.marks") == marks, "nothing is marked as damaged"
    opened = server.ask(server.connect(), m.ChangeDirectory("dir"))
    assert isinstance(opened, m.DirectoryOpened)
    assert [(one.name, one.synced, one.corrupt) for one in opened.entries] == [("o", 3, False)]
