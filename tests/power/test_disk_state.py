"""What a disk may hold after a power cut: all that was synced, and of the rest whatever is possible."""

from collections.abc import Iterator

import pytest

from tests.power import operations as op
from tests.power.disk_state import PAGE, SECTOR, DiskState, Image
from tests.power.model_disk import ModelDisk

SEEDS = 300


@pytest.fixture
def disk() -> ModelDisk:
    """A disk with a synced file `a` of 700 bytes, and a synced folder `d`."""
    disk = ModelDisk(DiskState())
    disk.make_folder("d")
    write(disk, "a", 0, b"s" * 700)
    disk.sync(disk.open("a", create=False))
    disk.sync_folder("")
    return disk


def write(disk: ModelDisk, path: str, position: int, data: bytes) -> None:
    handle = disk.open(path, create=True)
    disk.write(handle, position, [data])
    disk.close(handle)


def images(disk: ModelDisk) -> Iterator[Image]:
    return (disk.state.crash(seed) for seed in range(SEEDS))


def contents(disk: ModelDisk, path: str) -> set[bytes | None]:
    """All that a power cut may make of a file; None for a file that is not there."""
    return {image.get(path) for image in images(disk)}


def test_what_was_synced_exists_with_any_failures(disk: ModelDisk) -> None:
    write(disk, "b", 0, b"x")
    assert contents(disk, "a") == {b"s" * 700}
    assert all("d" in image for image in images(disk))
    assert disk.state.bare() == {"a": b"s" * 700, "d": None}


def test_of_bytes_after_it_any_page_may_be_there_or_zeros_and_the_size_ahead_or_behind(
    disk: ModelDisk,
) -> None:
    write(disk, "a", 700, b"u" * (3 * PAGE))
    found = contents(disk, "a")
    assert all(one is not None and one[:700] == b"s" * 700 for one in found)
    assert all(one is not None and set(one[700:]) <= {0, ord("u")} for one in found)
    assert {b"s" * 700, b"s" * 700 + b"u" * (3 * PAGE)} <= found, "nothing, and everything"
    longest = [one for one in found if one is not None and len(one) == 700 + 3 * PAGE]
    assert any(one[PAGE] == 0 and one[2 * PAGE] != 0 for one in longest), (
        "a later page without an earlier one"
    )
    assert any(one and 700 < len(one) < 700 + 3 * PAGE for one in found), "a size on the way"
    assert any(one[700:] == bytes(3 * PAGE) for one in longest), "a size without data"


def test_a_page_is_torn_between_sectors_and_nowhere_else(disk: ModelDisk) -> None:
    write(disk, "a", 0, b"s" * 700 + bytes(PAGE - 700))
    disk.sync(disk.open("a", create=False))
    write(disk, "a", 0, b"t" * PAGE)
    found = contents(disk, "a")
    edges = set()
    for one in found:
        assert one is not None
        assert all(
            len({byte == ord("t") for byte in one[at : at + SECTOR]}) == 1 for at in range(0, PAGE, SECTOR)
        )
        edges |= {
            at for at in range(SECTOR, PAGE, SECTOR) if (one[at - 1] == ord("t")) != (one[at] == ord("t"))
        }
    assert edges == set(range(SECTOR, PAGE, SECTOR))


def test_an_older_version_of_a_page_may_be_the_one_that_exists(disk: ModelDisk) -> None:
    for letter in (b"1", b"2", b"3"):
        write(disk, "a", 0, letter)
    assert {one[:1] for one in contents(disk, "a") if one} == {b"s", b"1", b"2", b"3"}


def test_a_sync_covers_what_came_before_it_began_only(disk: ModelDisk) -> None:
    begins = disk.state.count
    write(disk, "a", 0, b"late")
    disk.state.apply(op.SyncFile(node=disk.state.folders[1].seen["a"], since=begins))
    assert b"s" * 700 in contents(disk, "a")


def test_a_name_exists_for_sure_once_its_folder_is_synced_and_each_folder_above(disk: ModelDisk) -> None:
    disk.make_folder("d/e")
    write(disk, "d/e/x", 0, b"data")
    disk.sync(disk.open("d/e/x", create=False))
    disk.sync_folder("d/e")
    assert contents(disk, "d/e/x") == {None, b"data"}, "the folder is not in its own folder yet"
    disk.sync_folder("d")
    assert contents(disk, "d/e/x") == {b"data"}


def test_a_rename_is_old_or_new_and_a_removed_name_may_return(disk: ModelDisk) -> None:
    write(disk, "new", 0, b"new")
    disk.sync(disk.open("new", create=False))
    disk.sync_folder("")
    disk.rename("", "new", "a")
    both = [(image.get("a"), image.get("new")) for image in images(disk)]
    assert set(both) == {(b"s" * 700, b"new"), (b"new", None)}
    disk.sync_folder("")
    assert contents(disk, "a") == {b"new"}
    disk.remove("a")
    assert contents(disk, "a") == {b"new", None}
    disk.sync_folder("")
    assert contents(disk, "a") == {None}


def test_a_cut_may_not_have_happened(disk: ModelDisk) -> None:
    handle = disk.open("a", create=False)
    disk.cut(handle, 100)
    assert {len(one) for one in contents(disk, "a") if one} >= {100, 700}
    disk.sync(handle)
    assert contents(disk, "a") == {b"s" * 100}


def test_the_same_seed_is_the_same_disk(disk: ModelDisk) -> None:
    write(disk, "b", 0, b"x" * 9_000)
    assert [disk.state.crash(7) for _ in range(5)] == [disk.state.crash(7)] * 5
