"""What a person may do to a data directory while it is served: remove its lock, a directory, an object, or
all of it. Nobody gets in beside the server, and nothing is acknowledged that no start would find.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode, LocalProtocolError
from dos_server.disk import RealDisk
from dos_server.embedded import DataDirectoryInUseError, OpenServer
from dos_server.offline.fsck import Check, NotCheckedError
from dos_server.offline.reading import DataDirectory
from tests.dos_server.core_requests import append
from tests.support.core_harness import Harness
from tests.support.servers import ServerProcess


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
    server.ask(session, m.ChangeDirectory("dir", claim=True, epoch=1, writer_id=b"w" * 16))
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
