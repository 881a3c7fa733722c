"""The lossy file system as a process: what it loses, how it lies, and that it leaves nothing behind."""

import os
import signal
from pathlib import Path

import pytest

from tests.power import mount
from tests.power import operations as op
from tests.power.mount import LossyDisk

pytestmark = pytest.mark.process


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def names(disk: LossyDisk) -> set[str]:
    return {one.name for one in disk.mountpoint.iterdir()}


def put(path: Path, data: bytes, *, sync: bool) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(handle, data, 0)
    if sync:
        os.fsync(handle)
    os.close(handle)


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(handle)
    os.close(handle)


def test_a_cut_takes_what_was_not_synced_and_mounts_the_rest(tmp_path: Path) -> None:
    with LossyDisk(tmp_path / "disk") as disk:
        put(disk.mountpoint / "a", b"synced", sync=True)
        put(disk.mountpoint / "b", b"not synced", sync=False)
        sync_folder(disk.mountpoint)
        put(disk.mountpoint / "c", b"without its name", sync=True)
        assert [type(one) for one in disk.journal()].count(op.Write) == 3
        disk.cut(None)
        assert names(disk) == {"a", "b"}
        assert (disk.mountpoint / "a").read_bytes() == b"synced"
        assert (disk.mountpoint / "b").read_bytes() == b""
        assert disk.journal() == []


def test_a_disk_that_lies_answers_syncs_and_keeps_nothing_until_the_next_cut(tmp_path: Path) -> None:
    with LossyDisk(tmp_path / "disk") as disk:
        put(disk.mountpoint / "a", b"old", sync=True)
        sync_folder(disk.mountpoint)
        disk.lie(files=True, folders=False)
        put(disk.mountpoint / "a", b"new", sync=True)
        disk.cut(None)
        assert (disk.mountpoint / "a").read_bytes() == b"old"
        disk.lie(files=False, folders=True)
        put(disk.mountpoint / "b", b"b", sync=True)
        sync_folder(disk.mountpoint)
        disk.cut(None)
        assert names(disk) == {"a"}
        put(disk.mountpoint / "a", b"new", sync=True)
        disk.cut(None)
        assert (disk.mountpoint / "a").read_bytes() == b"new"


def test_nothing_is_left_behind_when_a_test_fails_in_the_middle(tmp_path: Path) -> None:
    servers = []

    def fail() -> None:
        with LossyDisk(tmp_path / "disk") as disk:
            servers.append(disk.start_server())
            assert str(disk.mountpoint) in mounts()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not servers[0].running
    assert str(tmp_path) not in mounts()


def test_nothing_is_left_behind_when_the_disk_is_frozen_or_its_process_killed(tmp_path: Path) -> None:
    with LossyDisk(tmp_path / "frozen") as frozen:
        server = frozen.start_server()
        frozen.freeze()
    assert not server.running
    with LossyDisk(tmp_path / "killed") as killed:
        os.kill(killed.pid, signal.SIGKILL)
    assert str(tmp_path) not in mounts()


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_where_it_cannot_be_mounted_the_reason_reports_what_to_install_and_ci_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(mount, "what_is_missing", lambda: "pyfuse3 is not installed")
    with pytest.raises(outcome, match=r"pyfuse3 is not installed; apt-get install fuse3 .* \./run test"):
        LossyDisk(tmp_path / "disk")
    monkeypatch.setattr(mount, "what_is_missing", lambda: "")
    monkeypatch.setattr(mount, "FILE_SYSTEM", "tests.power.no_such_module")
    with pytest.raises(outcome, match=r"No module named .*no_such_module.*apt-get install"):
        LossyDisk(tmp_path / "other")
