"""The contract of a disk, kept by the real one and by those that other tests make fail: the fake that faults
are injected into, the model of a disk that loses its power, and the real one on that model as a file system.
"""

import ctypes
import errno
import itertools
import mmap
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dos_server.disk import Disk, RealDisk, make_durable_folders
from dos_server.memory.disk import MemoryDisk
from tests.power.disk_state import DiskState
from tests.power.model_disk import ModelDisk
from tests.power.mount import LossyDisk
from tests.shells.machines import CuttingDisk
from tests.sim.engine.disk import SimDisk


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on a lossy file system."""
    with LossyDisk(tmp_path_factory.mktemp("lossy") / "disk") as disk:
        yield disk.mountpoint


IN_MEMORY: dict[str, Callable[[], Disk]] = {
    "memory": MemoryDisk,
    "first tier": SimDisk,
    "second tier": CuttingDisk,
}


@pytest.fixture(params=["real", *IN_MEMORY, "model", "mounted"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param in IN_MEMORY:
        yield IN_MEMORY[request.param]()
    elif request.param == "model":
        yield ModelDisk(DiskState())
    else:
        above = request.getfixturevalue("mounted") if request.param == "mounted" else tmp_path
        real = RealDisk(above / tmp_path.name)
        yield real
        real.shut()


def put(disk: Disk, path: str, data: bytes) -> None:
    handle = disk.open(path, create=True)
    disk.write(handle, 0, [data])
    disk.close(handle)


def test_a_folder_is_made_once_and_lists_what_it_holds(disk: Disk) -> None:
    assert disk.names("d") is None
    assert disk.make_folder("d")
    assert not disk.make_folder("d")
    put(disk, "d/a", b"1")
    put(disk, "d/.b", b"2")
    assert sorted(disk.names("d") or []) == [".b", "a"]
    assert disk.names("") == ["d"]
    disk.sync_folder("d")
    disk.sync_folder("")


def test_what_is_missing_is_a_file_not_found(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("a", create=False)
    with pytest.raises(FileNotFoundError):
        disk.open("d/a", create=True)
    with pytest.raises(FileNotFoundError):
        disk.remove("a")
    with pytest.raises(FileNotFoundError):
        disk.sync_folder("d")
    with pytest.raises(FileNotFoundError):
        disk.rename("", "a", "b")


def test_writes_go_where_they_are_notified_and_reads_are_short_only_at_the_end(disk: Disk) -> None:
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [b"hello ", memoryview(b"world"), bytearray(b"!")])
    disk.write(handle, 6, [b"WORLD"])
    assert disk.size(handle) == 12
    assert disk.read(handle, 0, 100) == b"hello WORLD!"
    assert disk.read(handle, 6, 5) == b"WORLD"
    assert disk.read(handle, 12, 5) == b""
    disk.write(handle, 14, [b"x"])
    assert disk.read(handle, 12, 9) == b"\0\0x"
    disk.cut(handle, 5)
    assert disk.read(handle, 0, 100) == b"hello"
    disk.sync(handle)
    disk.close(handle)


@pytest.mark.parametrize("sizes", [(1, 7, 3), (40, 1), (3,), (10_000,)])
@pytest.mark.parametrize("buffers", [1, 3, 513, 1_030])
def test_writes_and_reads_that_the_kernel_ends_early_are_carried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffers: int, sizes: tuple[int, ...]
) -> None:
    """The system calls are the real ones, each on fewer bytes than were asked for."""
    pwrite, pread, taken = os.pwrite, os.pread, itertools.cycle(sizes)

    def short_write(handle: int, data: bytes, position: int) -> int:
        return pwrite(handle, data[: next(taken)], position)

    def short_read(handle: int, count: int, position: int) -> bytes:
        return pread(handle, min(count, next(taken)), position)

    monkeypatch.setattr(os, "pwrite", short_write)
    monkeypatch.setattr(os, "pwritev", lambda handle, data, at: short_write(handle, b"".join(data), at))
    monkeypatch.setattr(os, "pread", short_read)
    disk = RealDisk(tmp_path)
    handle = disk.open("a", create=True)
    data = random.Random(buffers).randbytes(3 * buffers)
    disk.write(handle, 5, [data[at : at + 3] for at in range(0, len(data), 3)])
    assert (tmp_path / "a").read_bytes() == bytes(5) + data
    for start, end in ((0, len(data) + 5), (4, 9), (5, len(data) + 5), (len(data), len(data) + 5)):
        assert disk.read(handle, start, end - start) == (bytes(5) + data)[start:end]
    assert disk.read(handle, len(data) + 2, 9) == data[-3:]
    disk.close(handle)
    disk.shut()


def test_a_disk_that_takes_no_more_bytes_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 2)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    disk = RealDisk(tmp_path)
    handle = disk.open("a", create=True)
    assert refused_with(lambda: disk.write(handle, 0, [b"abc"])) == errno.ENOSPC
    disk.close(handle)
    disk.shut()


def test_what_is_synced_is_read_from_where_it_is_stored(disk: Disk) -> None:
    data = random.Random(1).randbytes(20_000)
    put(disk, "a", data)
    handle = disk.open("a", create=False)
    disk.sync(handle)
    for position, count in ((0, 20_000), (1, 4_096), (4_095, 2), (8_192, 4_096), (19_990, 100), (30_000, 1)):
        assert disk.read_stored(handle, position, count) == data[position : position + count]
    disk.close(handle)


@pytest.fixture(params=["real", *IN_MEMORY])
def strict(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """Those that say of every mistake what the kernel says."""
    if request.param in IN_MEMORY:
        yield IN_MEMORY[request.param]()
    else:
        real = RealDisk(tmp_path)
        yield real
        real.shut()


def refused_with(call: Callable[[], object]) -> int | None:
    """The number of the error that the call raises."""
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def test_every_mistake_has_the_kernels_number(strict: Disk) -> None:
    disk = strict
    disk.make_folder("d")
    put(disk, "f", b"1")
    mistakes: dict[str, tuple[Callable[[], object], int]] = {
        "a file is no folder to list": (lambda: disk.names("f"), errno.ENOTDIR),
        "nor to sync": (lambda: disk.sync_folder("f"), errno.ENOTDIR),
        "nor to open in": (lambda: disk.open("f/x", create=True), errno.ENOTDIR),
        "nor to make a folder in": (lambda: disk.make_folder("f/x"), errno.ENOTDIR),
        "nor to rename in": (lambda: disk.rename("f", "a", "b"), errno.ENOTDIR),
        "nor to remove from": (lambda: disk.remove("f/x"), errno.ENOTDIR),
        "a folder is no file": (lambda: disk.open("d", create=False), errno.EISDIR),
        "nor is it removed as one": (lambda: disk.remove("d"), errno.EISDIR),
        "a file does not replace it": (lambda: disk.rename("", "f", "d"), errno.EISDIR),
        "a folder needs one above it": (lambda: disk.make_folder("x/y"), errno.ENOENT),
    }
    found = {what: refused_with(call) for what, (call, _) in mistakes.items()}
    assert found == {what: number for what, (_, number) in mistakes.items()}
    assert sorted(disk.names("") or []) == ["d", "f"]


def test_a_handle_that_was_given_back_is_good_for_nothing(strict: Disk) -> None:
    disk = strict
    handle = disk.open("a", create=True)
    disk.close(handle)
    calls: list[Callable[[], object]] = [
        lambda: disk.size(handle),
        lambda: disk.read(handle, 0, 1),
        lambda: disk.read_stored(handle, 0, 1),
        lambda: disk.write(handle, 0, [b"x"]),
        lambda: disk.cut(handle, 0),
        lambda: disk.sync(handle),
        lambda: disk.close(handle),
    ]
    assert [refused_with(call) for call in calls] == [errno.EBADF] * len(calls)


def test_a_handle_stays_with_its_file_when_the_name_goes(disk: Disk) -> None:
    put(disk, "a", b"old")
    handle = disk.open("a", create=False)
    disk.rename("", "a", "b")
    put(disk, "a", b"another")
    disk.write(handle, 3, [b" one"])
    assert disk.read(handle, 0, 99) == b"old one"
    disk.remove("b")
    disk.write(handle, 0, [b"OLD"])
    assert disk.read(handle, 0, 99) == b"OLD one"
    assert disk.names("") == ["a"]
    disk.close(handle)


def test_a_cut_makes_a_file_shorter_or_longer(disk: Disk) -> None:
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [b"hello"])
    disk.cut(handle, 8)
    assert disk.read(handle, 0, 99) == b"hello\0\0\0"
    disk.sync(handle)
    disk.cut(handle, 2)
    disk.cut(handle, 4)
    assert disk.read(handle, 0, 99) == b"he\0\0"
    assert disk.size(handle) == 4
    disk.close(handle)


def test_what_is_free_is_reported(strict: Disk) -> None:
    free, total = strict.free_space()
    assert 0 < free <= total


def test_a_file_that_was_cut_longer_and_synced_is_that_long_after_a_power_cut() -> None:
    disk = MemoryDisk()
    handle = disk.open("a", create=True)
    disk.sync_folder("")
    disk.write(handle, 0, [b"x"])
    disk.cut(handle, 5)
    disk.sync(handle)
    disk.power_cut(random.Random(1))
    assert disk.content("a") == b"x\0\0\0\0"


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


def test_many_buffers_are_one_write(disk: Disk) -> None:
    handle = disk.open("a", create=True)
    parts = [bytes([i % 256]) * (i % 7) for i in range(3000)]
    disk.write(handle, 3, parts)
    assert disk.read(handle, 3, 100_000) == b"".join(parts)
    disk.close(handle)


def test_rename_replaces_and_remove_removes(disk: Disk) -> None:
    put(disk, "a", b"old")
    put(disk, "b", b"new")
    disk.rename("", "b", "a")
    assert disk.names("") == ["a"]
    handle = disk.open("a", create=False)
    assert disk.read(handle, 0, 9) == b"new"
    disk.close(handle)
    disk.remove("a")
    assert disk.names("") == []


def test_a_closed_handle_is_refused(disk: Disk) -> None:
    handle = disk.open("a", create=True)
    disk.close(handle)
    with pytest.raises(OSError, match=r"[Bb]ad"):
        disk.size(handle)


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


def test_a_file_is_named_until_it_is_removed_replaced_or_renamed(disk: Disk) -> None:
    disk.make_folder("d")
    put(disk, "d/a", b"one")
    handle = disk.open("d/a", create=False)
    assert disk.is_named(handle, "d/a")
    disk.rename("d", "a", "b")
    assert (disk.is_named(handle, "d/a"), disk.is_named(handle, "d/b")) == (False, True)
    put(disk, "d/a", b"another")
    assert not disk.is_named(handle, "d/a")
    disk.rename("d", "a", "b")
    assert not disk.is_named(handle, "d/b")
    assert not disk.is_named(handle, "nowhere/b")
    disk.close(handle)
    handle = disk.open("d/b", create=False)
    disk.remove("d/b")
    assert not disk.is_named(handle, "d/b")
    disk.close(handle)
    assert disk.why_gone() == ""


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


def test_the_fake_loses_what_was_not_synced_and_nothing_else() -> None:
    seen = set()
    for seed in range(60):
        disk = MemoryDisk()
        handle = disk.open("a", create=True)
        disk.sync_folder("")
        disk.write(handle, 0, [b"s" * 700])
        disk.sync(handle)
        disk.write(handle, 700, [b"u" * 1500])
        disk.power_cut(random.Random(seed))
        handle = disk.open("a", create=False)
        data = disk.read(handle, 0, 9999)
        assert data[:700] == b"s" * 700
        assert set(data[700:]) <= {0, ord("u")}
        seen.add(data[700:])
    assert b"" in seen
    assert b"u" * 1500 in seen
    assert len(seen) > 10


def test_the_fake_forgets_what_a_failed_sync_was_to_write() -> None:
    disk = MemoryDisk()
    handle = disk.open("a", create=True)
    disk.sync_folder("")
    disk.write(handle, 0, [b"x"])
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="injected"):
        disk.sync(handle)
    assert disk.read(handle, 0, 1) == b"x"
    disk.power_cut(random.Random(0))
    assert disk.size(disk.open("a", create=False)) == 0


def test_the_fake_fills_up() -> None:
    disk = MemoryDisk(space=10)
    handle = disk.open("a", create=True)
    disk.write(handle, 0, [b"12345678"])
    with pytest.raises(OSError, match="full") as caught:
        disk.write(handle, 8, [b"90ab"])
    assert caught.value.errno == errno.ENOSPC
    assert disk.size(handle) == 10
