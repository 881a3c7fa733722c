"""The slots of the log never take the reserve: on a disk that is nearly full a server runs without a log."""

import errno

import pytest

from dos_protocol.limits import KIB, MIB
from dos_server.core.tables import reserve_of
from dos_server.limits import log_reserved_bytes, log_slots
from dos_server.storage import Storage
from tests.sim.bugs import planted
from tests.support.fake_disk import FakeDisk

TOTAL = 32 * MIB
SLOT_BYTES = log_reserved_bytes + 64 * KIB
RESERVE = reserve_of(TOTAL)
ENOUGH = RESERVE + 3 * log_slots * SLOT_BYTES
KEY = bytes(range(16))


def begun(disk: FakeDisk, slot_bytes: int) -> tuple[Storage, bool]:
    """Start a server with a log; whether it has one."""
    storage = Storage(disk)
    storage.start(KEY)
    return storage, storage.start_log(KEY, slot_bytes) is not None


def nearly_full(free_bytes: int, earlier_slot_bytes: int) -> FakeDisk:
    """A disk of which others leave so much, with the slots of an earlier log that was ended, if any."""
    disk = FakeDisk(space=TOTAL)
    if earlier_slot_bytes:
        storage, logs = begun(disk, earlier_slot_bytes)
        assert logs
        storage.stop()
    handle = disk.open("ballast", create=True)
    disk.cut(handle, TOTAL - disk.used - free_bytes)
    disk.close(handle)
    return disk


@pytest.mark.parametrize("earlier_slot_bytes", [0, SLOT_BYTES, SLOT_BYTES // 2])
@pytest.mark.parametrize("bug", [None, "the_reserve_ignores_the_log"])
def test_a_log_leaves_the_reserve_and_as_much_as_it_takes(bug: str | None, earlier_slot_bytes: int) -> None:
    # EVIDENCE-OF: P-10
    too_little = list[int]()
    with planted(bug):
        for left in range(RESERVE // 2, ENOUGH + 1, 128 * KIB):
            disk = nearly_full(left, earlier_slot_bytes)
            before = disk.used
            _, logs = begun(disk, SLOT_BYTES)
            taken, free = disk.used - before, disk.free_space().free_bytes
            assert logs or bug is not None or taken < KIB, "what makes no log takes no space"
            if logs and free < RESERVE + taken - 4 * KIB:
                too_little.append(left)
    assert logs, "there is space enough in the end"
    assert bool(too_little) is (bug is not None), f"with so many bytes free at the start: {too_little}"


@pytest.mark.parametrize("earlier", ["in use", "stopped"])
def test_a_log_that_has_its_slots_needs_no_space_to_begin_again(earlier: str) -> None:
    disk = FakeDisk(space=TOTAL)
    storage, _ = begun(disk, SLOT_BYTES)
    if earlier == "stopped":
        storage.stop()
    disk.kill()
    handle = disk.open("ballast", create=True)
    disk.cut(handle, TOTAL - disk.used - RESERVE)
    disk.close(handle)
    before = disk.used
    storage, logs = begun(disk, SLOT_BYTES)
    assert logs
    assert disk.used - before < KIB


@pytest.mark.parametrize("write", range(1, 5))
def test_slots_that_could_not_all_be_made_take_no_space(write: int) -> None:
    """Other programs take the space while the slots are made."""
    disk = FakeDisk(space=TOTAL)
    storage = Storage(disk)
    storage.start(KEY)
    before = disk.used
    disk.fail("write", errno.ENOSPC, nth=write)
    assert storage.start_log(KEY, SLOT_BYTES) is None
    assert disk.used == before
    assert begun(disk, SLOT_BYTES)[1], "when there is space, it has a log"
