"""What the fake disk in memory does, and no real one on request: it loses power, fails a sync, fills up."""

import errno
import random

import pytest

from dos_server.memory.disk import MemoryDisk


def test_a_file_that_was_cut_longer_and_synced_is_that_long_after_a_power_cut() -> None:
    disk = MemoryDisk()
    handle = disk.open("a", create=True)
    disk.sync_folder("")
    disk.write(handle, 0, [b"x"])
    disk.cut(handle, 5)
    disk.sync(handle)
    disk.power_cut(random.Random(1))
    assert disk.content("a") == b"x\0\0\0\0"


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
