"""A directory that a person removed is damage, and is never taken for one that nobody has claimed yet."""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import CorruptDataError, ErrorCode, LocalProtocolError
from dos_protocol.limits import epoch_jump_max
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core.files import extent, records
from dos_server.core.files import log_record as record
from dos_server.core.files.findings import Severity
from dos_server.core.files.log_replay import Life, LogState, decode_life, encode_life
from dos_server.core.requests.stamps import History, encode_history, encode_witnesses
from dos_server.core.vocabulary import DirectoriesLost
from dos_server.disk import RealDisk
from dos_server.embedded import DataDirectoryInUseError, OpenServer
from dos_server.limits import log_reserved_bytes, log_slots, mark_bytes
from dos_server.offline.fsck import Check, NotCheckedError
from dos_server.offline.reading import DataDirectory
from tests.dos_server.core_requests import append, to_claim
from tests.support.core_harness import Harness
from tests.support.dos_command import dos
from tests.support.fake_disk import FakeDisk
from tests.support.servers import ServerProcess
from tests.support.wire import Wire

SLOT_BYTES = log_reserved_bytes + (1 << 16)


def written(slot_bytes: int = 0) -> Harness:
    """A running server with two directories, claimed at epoch 5, one of which has an object."""
    server = Harness(FakeDisk(), slot_bytes=slot_bytes)
    for directory in ("dir", "other"):
        session = server.connect()
        assert isinstance(server.ask(session, to_claim(5, directory=directory)), m.DirectoryOpened)
        assert server.ask(session, append(b"", b"bytes")) is None
    return server


def refuses(server: Harness, directory: str = "dir") -> bool:
    """Whether the server refuses the directory to readers and writers as damaged, and lists it so."""
    session = server.connect()
    answers = [
        server.ask(session, one)
        for one in (
            to_claim(1, directory=directory),
            to_claim(9, directory=directory),
            m.ChangeDirectory(directory),
        )
    ]
    (entry,) = [one for one in server.ask(session, m.List()).entries if one.name == directory]
    return entry.corrupt and all(
        isinstance(one, m.Error) and one.code == ErrorCode.CORRUPT for one in answers
    )


@pytest.mark.parametrize("slot_bytes", [0, SLOT_BYTES])
@pytest.mark.parametrize("clean_stop", [False, True])
def test_a_directory_that_is_missing_at_a_start_is_refused_and_the_others_are_served(
    slot_bytes: int, *, clean_stop: bool
) -> None:
    # EVIDENCE-OF: P-4, P-5
    server = written(slot_bytes)
    server.storage.stop() if clean_stop else server.settle()
    if not clean_stop:
        server.storage.register.add("dir", 5)  # it is filed
        server.disk.kill()
    server.disk.take_away("d/dir")
    for _ in range(2):  # a replay of the log does not bring back a part of it
        server.start()
        assert refuses(server)
        assert isinstance(server.ask(server.connect(), to_claim(6, directory="other")), m.DirectoryOpened)
        server.disk.kill()


def test_a_directory_that_returns_after_it_was_missing_stays_refused() -> None:
    server = written()
    server.storage.stop()
    folder = server.disk._folder("d/dir")
    server.disk.take_away("d/dir")
    server.start()
    server.disk.kill()
    server.disk._folder("d").seen["dir"] = server.disk._folder("d").stable["dir"] = folder
    server.start()
    assert refuses(server)


@pytest.mark.parametrize("slot_bytes", [0, SLOT_BYTES])
def test_a_directory_that_is_removed_under_the_server_is_refused_and_its_sessions_end(
    slot_bytes: int,
) -> None:
    # EVIDENCE-OF: P-4
    server = written(slot_bytes)
    inside, outside = server.connect(), server.connect()
    assert isinstance(server.ask(inside, m.ChangeDirectory("dir")), m.DirectoryOpened)
    assert isinstance(server.ask(outside, m.ChangeDirectory("other")), m.DirectoryOpened)
    server.disk.take_away("d/dir")
    lost = server.storage.missing_directories()
    assert lost == ["dir"] or slot_bytes
    server.event(DirectoriesLost(tuple(lost or ["dir"])))
    server.settle()
    assert inside in server.closed
    (reason,) = server.unasked(inside, m.Error)
    assert reason.code == ErrorCode.CORRUPT
    assert outside not in server.closed
    assert refuses(server)
    assert server.storage.missing_directories() == [], "it is reported once"


@pytest.mark.parametrize("what", ["d", "directories"])
def test_a_server_does_not_start_without_its_directories_or_their_register(what: str) -> None:
    server = written()
    server.storage.stop()
    server.disk.take_away(what)
    with pytest.raises(CorruptDataError, match=what):
        server.start()


@pytest.mark.parametrize("what", ["d", "directories"])
def test_a_stop_after_its_directories_or_their_register_were_removed_leaves_the_log_to_the_next_start(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Simulator, seed 1000070029: the stop came before the server had noticed the loss."""
    server = written(SLOT_BYTES)
    server.disk.take_away(what)
    log = {slot: bytes(server.disk.content(f"log/{slot}")) for slot in range(log_slots)}
    server.storage.stop()
    assert "the group log is not replayed at the stop" in caplog.text
    assert log == {slot: bytes(server.disk.content(f"log/{slot}")) for slot in range(log_slots)}
    assert decode_life(bytes(server.disk.content("life"))).state is LogState.IN_USE
    with pytest.raises(CorruptDataError, match=what):
        server.start()


def test_a_claim_below_one_that_the_directory_had_is_refused_also_without_an_extent() -> None:
    """The `.claim` of a directory is replaced by an older copy, and nothing was written since."""
    server = Harness(FakeDisk())
    server.ask(server.connect(), to_claim(2))
    older = server.disk.content("d/dir/.claim")
    server.ask(server.connect(), to_claim(5))
    server.storage.stop()
    server.disk.put("d/dir/.claim", bytes(older))
    server.start()
    assert refuses(server)


def test_a_damaged_register_never_hides_a_missing_directory() -> None:
    """Any byte of it is changed: with all folders the server continues and repairs it; without one it refuses
    to start, or refuses that directory.
    """
    # EVIDENCE-OF: P-4
    server = written()
    server.storage.stop()
    whole = bytes(server.disk.content("directories"))
    assert len(whole) == 2 * mark_bytes
    for place in range(0, len(whole), 5):
        damaged = whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :]
        server.disk.put("directories", damaged)
        server.start()
        assert isinstance(server.ask(server.connect(), m.ChangeDirectory("dir")), m.DirectoryOpened)
        server.storage.stop()
        names = [one.name for one in records.decode_marks(bytes(server.disk.content("directories"))) if one]
        assert sorted(names) == ["dir", "other"], place
    server.disk.take_away("d/dir")
    for place in range(0, len(whole), 5):
        server.disk.put("directories", whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        try:
            server.start()
        except CorruptDataError:
            continue
        assert refuses(server), place
        server.disk.kill()


def test_a_directory_is_registered_before_it_is_acknowledged() -> None:
    """The register cannot be written: the claim is refused, and after that it succeeds."""
    server = Harness(FakeDisk())
    session = server.connect()
    server.disk.fail_at("write", "directories", 5)
    refused = server.ask(session, to_claim(1))
    assert isinstance(refused, m.Error), refused
    assert isinstance(server.ask(server.connect(), to_claim(2)), m.DirectoryOpened)
    assert "dir" in server.storage.register.names


def test_an_object_is_not_poisoned_because_its_directory_cannot_be_registered_for_lack_of_space() -> None:
    """Its sync succeeded. It is acknowledged as soon as the directory is registered."""
    server = Harness(FakeDisk())
    session = server.connect()
    assert isinstance(server.ask(session, m.ChangeDirectory("dir")), m.DirectoryOpened)
    server.disk.fail_at("write", "directories", errno.ENOSPC)
    assert server.ask(session, append(b"", b"bytes")) is None
    assert {one.synced for one in server.unasked(session, m.DurabilityAck)} <= {0}
    server.tick(1.0)
    server.settle()
    assert server.unasked(session, m.DurabilityAck)[-1].synced == 5
    assert server.storage.register.names == {"dir"}


def put(server: ServerProcess, directory: str) -> None:
    with Wire(server.address) as wire:
        wire.claim(directory)
        wire.append("o", b"", b"bytes")
        wire.wait_synced("o", 5)


def of_process(tmp_path: Path) -> Path:
    """The data directory of a real server that was stopped, with a claimed directory."""
    with ServerProcess(tmp_path / "data") as server:
        put(server, "dir")
        put(server, "other")
        server.stop()
    return tmp_path / "data"


def test_fsck_and_the_start_agree_about_missing_directories(tmp_path: Path) -> None:
    data = of_process(tmp_path)
    assert dos("fsck", str(data)).returncode == 0
    shutil.rmtree(data / "d" / "dir")
    (found,) = Check(data).run().of(Severity.DAMAGED)
    assert found.place == "d/dir"
    assert dos("fsck", str(data)).returncode == 1
    with ServerProcess(data) as server:
        got = dos("get", f"dos://{server.location}/dir/o")
        assert got.returncode != 0
        assert "d/dir" in got.stderr
        assert dos("get", f"dos://{server.location}/other/o").stdout == "bytes"
    report = Check(data, raise_claims=True).run()
    # above epoch 1, which the log may have had alone when the folder was lost
    assert report.raised == [f"dir: epoch {1 + epoch_jump_max}"]
    assert Check(data).run().findings == []
    shutil.rmtree(data / "d")
    assert dos("fsck", str(data)).returncode == 1
    refused = dos("serve", "--data", str(data), "--listen", "127.0.0.1:0")
    assert refused.returncode == 2
    assert "the folder of all objects" in refused.stderr
    assert not (data / "d").exists(), "nothing was changed"


def removed_log(data: Path) -> None:
    shutil.rmtree(data / "log")


def removed_objects(data: Path) -> None:
    shutil.rmtree(data / "d")


def replaced_slots(data: Path) -> None:
    for slot in (data / "log").glob("[0-3]"):
        slot.rename(slot.with_suffix(".aside"))
        shutil.copy(slot.with_suffix(".aside"), slot)


@pytest.mark.parametrize("do", [removed_log, removed_objects, replaced_slots])
def test_a_server_whose_log_or_objects_are_removed_ends_within_about_a_second(
    tmp_path: Path, do: Callable[[Path], None]
) -> None:
    # EVIDENCE-OF: P-1
    with ServerProcess(tmp_path / "data") as server:
        put(server, "dir")
        do(tmp_path / "data")
        assert server.process.wait(30) == 1
        assert "was removed while it was" in server.log_path.read_text()


def test_the_format_version_rises_with_the_version_of_any_record() -> None:
    """A change of any format adds a row here, with the next number of all formats."""
    history = encode_history(History(key=b"k" * 16))
    beginnings = {
        "claim": records.encode_claim(records.ClaimRecord(1, b"w" * 16)),
        "life": encode_life(Life(1, LogState.CLEAN, b"k" * 16)),
        "stamps": history,
        "witnessed": encode_witnesses({}),
        "store": encode_store_record(StoreRecord(b"s" * 16, 1, 1, (Member(b"m" * 16, "a:1"),))),
    }
    versions = {name: data[2] for name, data in beginnings.items()}
    versions |= {"extent": extent.VERSION, "log": record.VERSION}
    formats = {1: {"claim": 1, "life": 1, "stamps": 1, "witnessed": 1, "store": 1, "extent": 1, "log": 1}}
    assert versions == formats[records.FORMAT]


def test_a_program_that_does_not_know_the_format_refuses_the_data_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = of_process(tmp_path)
    with monkeypatch.context() as newer:
        newer.setattr(records, "FORMAT", records.FORMAT + 1)
        (data / "identity").write_bytes(
            records.encode_identity(records.parse_id((data / "identity").read_text()[:32]))
        )
    (data / ".repair.o.1").write_bytes(b"a leftover that a start would remove")

    def tree() -> dict[str, tuple[int, int]]:
        files = (path for path in data.rglob("*") if path.name != "lock")
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = tree()
    refused = dos("serve", "--data", str(data), "--listen", "127.0.0.1:0")
    assert refused.returncode == 2
    assert "has format 2, and this program uses format 1; nothing was changed" in refused.stderr
    checked = dos("fsck", "--repair", str(data))
    assert checked.returncode == 2
    assert "has format 2" in checked.stderr
    with pytest.raises(NotCheckedError, match="has format 2"):
        Check(data).run()
    with pytest.raises(LocalProtocolError, match="has format 2"):
        records.decode_identity((data / "identity").read_bytes(), "identity")
    assert tree() == before


# --- What a person may do to a data directory while it is served: remove its lock, a directory, an ... -----


def test_a_server_whose_lock_file_was_removed_keeps_every_other_one_out(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-1
    data = tmp_path / "data"
    first = OpenServer(data, "127.0.0.1", 0)
    (data / "lock").unlink()
    with pytest.raises(DataDirectoryInUseError):
        OpenServer(data, "127.0.0.1", 0)
    (data / "lock").unlink(missing_ok=True)
    for check in (Check(data), Check(data, repair=True)):
        with pytest.raises(NotCheckedError, match="is in use by a server"):
            check.run()
    with pytest.raises(LocalProtocolError, match="is in use by a server"), DataDirectory(data):
        pass
    first.shut()
    OpenServer(data, "127.0.0.1", 0).shut()


def test_a_server_that_locks_the_file_alone_keeps_a_new_one_out_and_is_kept_out(tmp_path: Path) -> None:
    """As servers before this rule did."""
    disk = RealDisk(tmp_path)
    held = disk.lock("lock")
    with (tmp_path / "lock").open("rb") as old, pytest.raises(BlockingIOError):
        fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
    disk.close(held)
    with (tmp_path / "lock").open("rb") as old:
        fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            disk.lock("lock")
    disk.close(disk.lock("lock"))
    disk.shut()


def test_where_a_folder_cannot_be_locked_the_lock_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NFS locks no folder."""
    real = fcntl.flock

    def flock(handle: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    first, second = RealDisk(tmp_path), RealDisk(tmp_path)
    held = first.lock("lock")
    assert "never remove its lock file" in caplog.text
    with pytest.raises(BlockingIOError):
        second.lock("lock")
    first.close(held)
    first.shut()
    second.shut()


@pytest.mark.parametrize("what", ["d/dir/o", "d/dir", "d"])
@pytest.mark.parametrize("again", [False, True])
def test_what_is_appended_to_an_object_that_was_taken_away_is_not_acknowledged(
    what: str, again: bool
) -> None:
    # EVIDENCE-OF: P-1
    server = Harness()
    session = server.connect()
    server.ask(session, to_claim())
    assert server.ask(session, append(b"", b"abc")) is None
    server.disk.take_away(what)
    if again:  # and something else is put in its place
        server.disk.put("d/dir/o", b"")
    refused = server.ask(session, append(b"abc", b"def"))
    assert isinstance(refused, m.Error)
    assert refused.code == ErrorCode.POISONED
    assert not any(isinstance(one, m.DurabilityAck) and one.synced > 3 for _, one in server.heard[session])


def removed(data: Path) -> None:
    shutil.rmtree(data)


def moved(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def replaced(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))
    data.mkdir()


@pytest.mark.parametrize("do", [removed, moved, replaced])
def test_a_server_whose_data_directory_is_gone_ends_and_reports_it(
    tmp_path: Path, do: Callable[[Path], None]
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        do(tmp_path / "data")
        assert server.process.wait(30) == 1
        assert "while it was served" in server.log_path.read_text()
        assert not (tmp_path / "data" / "identity").exists()


def test_a_server_whose_data_directory_exists_continues(tmp_path: Path) -> None:
    """By another name for the same place, too."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    disk = RealDisk(tmp_path / "link")
    assert disk.why_gone() == ""
    (tmp_path / "link").unlink()
    assert "removed or moved" in disk.why_gone()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert disk.why_gone() == ""
    disk.shut()


def test_a_data_directory_that_cannot_be_looked_at_now_is_not_taken_for_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "no right to look now")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        assert disk.why_gone() == ""
    disk.shut()
