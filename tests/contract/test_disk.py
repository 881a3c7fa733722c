"""The contract of a disk, kept by the real one and by those that other tests make fail: the fake that faults
are injected into, the model of a disk that loses its power, and the real one on that model as a file system.
"""

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dos_server.disk import Disk, RealDisk
from dos_server.memory.disk import MemoryDisk
from tests.contract.files import put
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
