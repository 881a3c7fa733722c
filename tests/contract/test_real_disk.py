"""The real disk with the kernel below it: the page cache, links, locks, and folders that are made durable."""

import ctypes
import mmap
import os
import subprocess
from pathlib import Path

import pytest

from dos_server.disk import RealDisk
from dos_tls import make_durable_folders
from tests.contract.files import put


def resident_pages(handle: int, size: int) -> int:
    """How many pages of a file the page cache holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(handle, size, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        keeps = ctypes.c_char.from_buffer(mapped)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(keeps)), ctypes.c_size_t(size), pages) == 0
        del keeps
    return sum(page & 1 for page in pages)


def bytes_from_disks() -> int:
    """So much this process made the kernel read from storage until now."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def test_the_real_disk_reads_past_the_page_cache(tmp_path: Path) -> None:
    shown = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    )
    if shown.stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip("the page cache is what a tmpfs stores in: it cannot be read past")
    disk, size = RealDisk(tmp_path / "data"), 8 << 20
    put(disk, "a", b"x" * size)
    handle = disk.open("a", create=False)
    disk.sync(handle)
    assert resident_pages(handle, size) == size // mmap.PAGESIZE
    before = bytes_from_disks()
    assert disk.read_stored(handle, (3 << 20) + 5, 300_000) == b"x" * 300_000
    assert bytes_from_disks() - before >= 300_000
    assert resident_pages(handle, size) == (size - (2 << 20)) // mmap.PAGESIZE
    disk.close(handle)
    disk.shut()


def test_links_pipes_folders_and_second_names_are_never_opened(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    data = tmp_path / "data"
    disk = RealDisk(data)
    (data / "link").symlink_to(outside)
    (data / "folder-link").symlink_to(tmp_path)
    os.link(outside, data / "second-name")
    os.mkfifo(data / "pipe")
    (data / "folder").mkdir()
    for path in ("link", "second-name", "pipe", "folder", "folder-link/outside"):
        with pytest.raises(OSError, match=r"."):
            disk.open(path, create=False)
    assert outside.read_text() == "secret"
    disk.shut()


def test_only_one_has_the_lock(tmp_path: Path) -> None:
    first, second = RealDisk(tmp_path), RealDisk(tmp_path)
    held = first.lock("lock")
    with pytest.raises(BlockingIOError):
        second.lock("lock")
    first.close(held)
    second.close(second.lock("lock"))
    first.shut()
    second.shut()


def test_missing_folders_above_the_data_are_made(tmp_path: Path) -> None:
    make_durable_folders(tmp_path / "a" / "b" / "c")
    make_durable_folders(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_folder_that_a_killed_server_made_last_is_made_durable_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = set(), os.fsync

    def note(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    (tmp_path / "made").mkdir()
    monkeypatch.setattr(os, "fsync", note)
    make_durable_folders(tmp_path / "made" / "data")
    assert {tmp_path.stat().st_ino, (tmp_path / "made").stat().st_ino} <= synced
    synced.clear()
    make_durable_folders(tmp_path / "made" / "data")
    assert synced == {(tmp_path / "made").stat().st_ino}
