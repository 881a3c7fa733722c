"""Directories that must not be used are refused, and nothing in them changes."""

import json
import os
from pathlib import Path

import pytest

from dos_chaos import RunRefusedError
from dos_chaos.servers import FREE_BYTES_MIN, KEPT, MARKER, RUNNING, Place, mount_of, take_places
from dos_protocol.limits import MIB


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def earlier_run(path: Path, state: str) -> None:
    """A run that was killed, or kept its evidence."""
    place = Place(path, discard=False)
    place.mark(state, 7)
    (path / "s1").mkdir()
    (path / "s1" / "lock").write_text("")
    place.close()


def refused(path: Path, words: str, *, discard: bool = False) -> None:
    before = tree(path)
    with pytest.raises(RunRefusedError, match=words):
        take_places([path], space_bytes=MIB, discard=discard)
    assert tree(path) == before


def test_a_directory_with_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    refused(tmp_path, "is not empty: it has mine")
    refused(tmp_path, "is not empty: it has mine", discard=True)


def test_a_marker_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text(json.dumps({"program": "other"}))
    refused(tmp_path, "is not the marker of a run", discard=True)
    (tmp_path / MARKER).write_text("[]")
    refused(tmp_path, "is not the marker of a run", discard=True)


def test_a_marker_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / MARKER).symlink_to(target)
    refused(folder, "cannot be used", discard=True)
    assert target.read_text() == "precious"


def test_something_added_to_a_runs_directory_is_never_deleted(tmp_path: Path) -> None:
    earlier_run(tmp_path, RUNNING)
    (tmp_path / "mine").write_text("precious")
    refused(tmp_path, "also has mine", discard=True)


def test_what_a_killed_run_left_is_deleted_and_evidence_only_on_request(tmp_path: Path) -> None:
    earlier_run(tmp_path, RUNNING)
    (place,) = take_places([tmp_path], space_bytes=MIB, discard=False)
    assert tree(tmp_path).keys() == {MARKER}
    place.remove()
    earlier_run(tmp_path, KEPT)
    refused(tmp_path, "evidence of an earlier run .seed 7.; pass --discard")
    (place,) = take_places([tmp_path], space_bytes=MIB, discard=True)
    place.remove()
    assert tree(tmp_path) == {}
    assert tmp_path.exists(), "the run did not create it"


def test_two_runs_do_not_use_one_directory(tmp_path: Path) -> None:
    place = Place(tmp_path, discard=False)
    place.mark(RUNNING, 1)
    refused(tmp_path, "in use by another run", discard=True)
    place.close()


def test_too_little_space_is_refused_and_what_was_created_is_removed(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    too_much = space.f_bavail * space.f_frsize - FREE_BYTES_MIN + 100 * MIB
    with pytest.raises(RunRefusedError, match="MiB free; needed are"):
        take_places([tmp_path / "new"], space_bytes=too_much, discard=False)
    assert tree(tmp_path) == {}


def test_directories_inside_of_one_another_are_refused(tmp_path: Path) -> None:
    for second in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(RunRefusedError, match="separate directories"):
            take_places([tmp_path / "a", second], space_bytes=MIB, discard=False)
    assert tree(tmp_path) == {}


def test_space_is_counted_as_the_disk_counts_it(tmp_path: Path) -> None:
    place = Place(tmp_path / "new", discard=False)
    empty = place.used_bytes()
    (place.path / "s1").mkdir()
    (place.path / "s1" / "file").write_bytes(os.urandom(MIB))
    os.sync()
    assert place.used_bytes() - empty >= MIB
    assert place.info().sync_ms[0] > 0
    place.remove()
    assert tree(tmp_path) == {}


def test_the_file_system_of_a_path_is_the_one_mounted_deepest() -> None:
    assert mount_of(Path("/proc/self"))[1] == "proc"
