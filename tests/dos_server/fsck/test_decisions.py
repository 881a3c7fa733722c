"""`dos fsck` reports what a start of the server decides, and its repair does what a start does."""

import random
import shutil
from pathlib import Path

import pytest

from dos_server.core.files.findings import Severity
from dos_server.core.files.recovery import RecoveryDecision
from dos_server.limits import mark_bytes
from dos_server.storage import Storage
from tests.dos_server.fsck.data_directories import (
    EDGES,
    LARGE,
    PARTS,
    checked,
    dos,
    flip,
    started,
    tree,
    verdicts,
    written,
)


def agrees(root: Path, copy: Path, context: str) -> Severity | None:
    """The rule: what fsck says of `dir/a` is what a start decides, and what reading all of it finds."""
    reported = verdicts(root).get("dir/a")
    storage, disk = started(root, copy)
    try:
        found = storage.load("dir").objects["a"]
        if found.corrupt:
            assert reported == (Severity.DAMAGED, found.size, found.letter), context
        elif found.decision is not RecoveryDecision.KEEP:
            assert reported == (Severity.TORN, found.size, found.letter), context
        else:
            damage = read_through(storage, found.size)
            assert reported == (None if damage is None else (Severity.DAMAGED, damage, "")), context
    finally:
        storage.stop()
        disk.shut()
        shutil.rmtree(copy)
    return None if reported is None else reported[0]


def read_through(storage: Storage, size: int) -> int | None:
    """Where reading all of the object finds damage."""
    from dos_server.core import vocabulary as v
    from dos_server.core.files.scan import ExtentStart

    return storage.read(v.ReadData(0, 0, "dir", "a", ExtentStart(0, 0), 0, size)).damaged_at


@pytest.mark.parametrize("parts", [PARTS, LARGE], ids=["small", "large"])
def test_for_flipped_bits_it_reports_what_a_start_decides(tmp_path: Path, parts: list[bytes]) -> None:
    data = written(tmp_path / "data", "a", parts=parts)
    path = data / "d" / "dir" / "a"
    whole, rng = path.read_bytes(), random.Random(4)
    edges = [sum(64 + len(part) for part in parts[:number]) for number in range(len(parts))]
    headers = [position + byte for position in edges for byte in (0, 2, 9, 11, 16, 24, 33, 45, 50, 60)]
    for position in [*headers, *rng.sample(range(len(whole)), 40)]:
        flip(path, position, rng.randrange(8))
        reported = agrees(data, tmp_path / "copy", f"bit in byte {position}")
        assert reported is Severity.DAMAGED, f"a flip in byte {position} of what was synced is {reported}"
        path.write_bytes(whole)


def test_for_cuts_and_zeros_with_and_without_a_mark_it_reports_what_a_start_decides(
    data: Path, tmp_path: Path
) -> None:
    path, marks = data / "d" / "dir" / "a", data / "d" / "dir" / ".marks"
    whole, marked, rng, reported = path.read_bytes(), marks.read_bytes(), random.Random(5), set()
    for size in sorted({*EDGES, *(edge + 64 for edge in EDGES[:-1]), *rng.sample(range(len(whole)), 25)}):
        for file in (whole[:size], whole[:size] + bytes(len(whole) - size)):
            for slots in (marked, bytes(mark_bytes) + marked[mark_bytes:]):
                path.write_bytes(file)
                marks.write_bytes(slots)
                verdict = agrees(data, tmp_path / "copy", f"cut at {size}, {slots == marked}")
                assert slots != marked or file == whole or verdict is Severity.DAMAGED, size
                reported.add(verdict)
    assert reported == {None, Severity.TORN, Severity.DAMAGED}


def test_a_torn_tail_is_good_and_repair_cuts_it_as_a_start_does(data: Path, tmp_path: Path) -> None:
    torn, zeros, rotten = (data / "d" / "dir" / name for name in ("a", "b", "c"))
    written(tmp_path / "more", "c")
    rotten.write_bytes((tmp_path / "more" / "d" / "dir" / "c").read_bytes())
    flip(rotten, 70)
    for path, tail in ((torn, b"\xd0\x58\x01" + bytes(30)), (zeros, bytes(700)), (rotten, bytes(90))):
        path.write_bytes(path.read_bytes() + tail)
    before = tree(data)
    bad = rotten.read_bytes()
    assert {place: reported[0] for place, reported in verdicts(data).items()} == {
        "dir/a": Severity.TORN,
        "dir/b": Severity.TORN,
        "dir/c": Severity.DAMAGED,
    }
    assert tree(data) == before
    storage, disk = started(data, tmp_path / "started")
    storage.load("dir")
    storage.stop()
    disk.shut()
    report = checked(data, repair=True)
    assert sorted(report.cut) == ["dir/a", "dir/b"]
    kept = {path.name: path.read_bytes() for path in (data / "d" / "dir").iterdir()}
    by_start = tmp_path / "started" / "d" / "dir"
    for name in ("a", "b", f".torn.a.{EDGES[-1]}"):
        assert kept[name] == (by_start / name).read_bytes(), name
    assert kept["c"] == bad
    rotten.unlink()
    shown = dos("fsck", str(data))
    assert shown.returncode == 0
    assert "0 torn tails" in shown.stdout
    assert ".torn.a." in shown.stdout
