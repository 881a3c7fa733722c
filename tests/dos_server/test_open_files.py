"""The table of open files: nothing unsynced or in use is ever closed, and not more stay open than allowed."""

from collections.abc import Callable

import pytest

from dos_server.storage import OpenFiles
from tests.support.fake_disk import FakeDisk


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.make_folder("d")
    return disk


def still_open(disk: FakeDisk) -> set[str]:
    return {path for _, path in disk._handles.values()}


def test_no_more_files_stay_open_than_allowed_but_for_unsynced_ones(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # EVIDENCE-OF: P-9
    monkeypatch.setattr("dos_server.storage.open_files_max", 3)
    files = OpenFiles(disk)
    with files.use("d/dirty", create=True) as dirty:
        dirty.writes += 1
    for number in range(10):
        with files.use(f"d/{number}", create=True):
            pass
    assert still_open(disk) == {"d/dirty", "d/8", "d/9"}
    assert [path for path, _ in files.unsynced()] == ["d/dirty"]
    with files.use("d/dirty") as same:
        assert same is dirty


@pytest.mark.parametrize(
    "forget", [lambda files: files.forget("d/a"), lambda files: files.forget_folder("d")]
)
def test_a_file_forgotten_in_use_is_closed_at_the_end_of_its_use(
    disk: FakeDisk, forget: Callable[[OpenFiles], None]
) -> None:
    files = OpenFiles(disk)
    with files.use("d/a", create=True):
        forget(files)
        assert still_open(disk) == {"d/a"}
    assert still_open(disk) == set()


def test_forgetting_one_leaves_others_whose_names_begin_alike(disk: FakeDisk) -> None:
    files = OpenFiles(disk)
    for path in ("d/a", "d/ab"):
        with files.use(path, create=True):
            pass
    files.forget("d/a")
    files.forget("d/missing")
    assert still_open(disk) == {"d/ab"}
