"""What `dos fsck` finds: each kind of damage, and what it reports without calling it damage."""

import os
from pathlib import Path

import pytest

from dos_protocol.errors import CorruptDataError
from dos_protocol.store_record import DiskStamp, Member, StoreRecord, encode_store_record
from dos_server.core.files import records
from dos_server.core.files.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.core.files.findings import Severity
from dos_server.core.files.records import ObjectMark
from dos_server.core.requests.stamps import decode_history, encode_history, encode_witnesses
from dos_server.disk import RealDisk
from dos_server.limits import mark_bytes
from dos_server.offline.fsck import Check
from tests.dos_server.fsck.data_directories import (
    CONTENT,
    EDGES,
    PARTS,
    checked,
    dos,
    flip,
    started,
    verdicts,
    written,
)
from tests.support.core_harness import SERVER_ID, Harness


def test_the_mark_is_held_against_the_object(data: Path) -> None:
    folder = data / "d" / "dir"
    (folder / "a").write_bytes((folder / "a").read_bytes()[: EDGES[2]])
    (folder / "b").unlink()
    reported = verdicts(data)
    assert reported["dir/a"] == (Severity.DAMAGED, len(PARTS[0] + PARTS[1]), "G")
    assert reported["dir/b"] == (Severity.DAMAGED, 0, "G")


def set_mark(data: Path, mark: ObjectMark) -> None:
    path = data / "d" / "dir" / ".marks"
    slots = [one for one in records.decode_marks(path.read_bytes()) if one is not None]
    path.write_bytes(b"".join(records.encode_mark(mark if one.name == mark.name else one) for one in slots))


def test_flags_of_marks_are_reported(data: Path) -> None:
    set_mark(data, ObjectMark("a", len(CONTENT), damaged=True))
    set_mark(data, ObjectMark("b", len(PARTS[0]), poisoned=True))
    reported = verdicts(data)
    assert reported["dir/a"] == (Severity.DAMAGED, len(CONTENT), "R")
    assert reported["dir/b"] == (Severity.TORN, len(PARTS[0]), "P")
    set_mark(data, ObjectMark("b", len(CONTENT), poisoned=True))
    assert verdicts(data)["dir/b"] == (Severity.NOTE, None, "P")
    set_mark(data, ObjectMark("b", len(CONTENT), removed=True))
    report = checked(data)
    assert report.objects == 1
    assert [one.found for one in report.of(Severity.NOTE)] == ["its file"]
    flip(data / "d" / "dir" / ".marks", mark_bytes + 3)
    (mark,) = [one for one in checked(data).findings if one.place == "d/dir/.marks"]
    assert (mark.verdict, mark.position) == (Severity.NOTE, mark_bytes)  # a start serves all that is there


def test_a_swapped_or_foreign_file_is_noticed(data: Path) -> None:
    folder = data / "d" / "dir"
    a = (folder / "a").read_bytes()
    (folder / "a").write_bytes((folder / "b").read_bytes())
    (folder / "b").write_bytes(a)
    assert {reported[:2] for reported in verdicts(data).values()} == {(Severity.DAMAGED, 0)}


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_what_is_no_regular_file_of_one_name_is_reported_and_never_followed(data: Path, kind: str) -> None:
    folder = data / "d" / "dir"
    path = folder / "a"
    aside = path.rename(data.parent / "aside")
    match kind:
        case "link":
            path.symlink_to(aside)
        case "hard link":
            path.hardlink_to(aside)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    (one,) = checked(data).findings
    assert (one.place, one.verdict, one.offset, one.case) == ("dir/a", Severity.DAMAGED, 0, "G")
    assert kind.split()[-1] in one.found
    storage, disk = started(data, data.parent / "copy") if kind != "pipe" else (None, None)
    if storage is not None and disk is not None:
        found = storage.load("dir").objects["a"]
        assert found.corrupt == (kind != "hard link")  # a copy of a hard link has one name
        storage.stop()
        disk.shut()


def test_a_directory_that_is_a_link_is_reported(data: Path) -> None:
    (data / "d" / "other").symlink_to(data / "d" / "dir")
    assert verdicts(data)["other"][0] is Severity.DAMAGED


def test_leftovers_and_unknown_names_are_notes(data: Path) -> None:
    folder = data / "d" / "dir"
    names = [".repair.a.7", ".broken.a.0", ".torn.a.64", ".claim.new", "not a name", ".hidden"]
    for name in names:
        (folder / name).write_bytes(b"x")
    (data / ".identity.new").write_bytes(b"x")
    (data / "notes.txt").write_bytes(b"x")
    report = checked(data)
    assert {one.place for one in report.findings} == {
        *(f"d/dir/{name}" for name in names),
        ".identity.new",
        "notes.txt",
    }
    assert {one.verdict for one in report.findings} == {Severity.NOTE}
    assert dos("fsck", str(data)).returncode == 0


def test_identity_store_record_and_claim_are_verified(data: Path) -> None:
    record = StoreRecord(b"s" * 16, 1, 1, (Member(SERVER_ID, "a:1"),))
    (data / "store").write_bytes(encode_store_record(record))
    assert checked(data).findings == []
    other = StoreRecord(b"s" * 16, 1, 1, (Member(b"o" * 16, "a:1"),))
    (data / "store").write_bytes(encode_store_record(other))
    assert [(one.place, one.verdict) for one in checked(data).findings] == [("store", Severity.NOTE)]
    for path in (data / "store", data / "d" / "dir" / ".claim", data / "identity"):
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 0x80]))
        place = str(path.relative_to(data))
        assert verdicts(data)[place][0] is Severity.DAMAGED, place
        path.write_bytes(good)
    (data / "identity").unlink()
    assert verdicts(data)["identity"][0] is Severity.DAMAGED


@pytest.mark.parametrize("left", [None, records.ClaimRecord(2, b"w" * 16)])
def test_a_claim_below_the_extents_is_damage_as_it_is_for_a_start(
    data: Path, tmp_path: Path, left: records.ClaimRecord | None
) -> None:
    path = data / "d" / "dir" / ".claim"
    if left is None:
        path.unlink()
    else:
        path.write_bytes(records.encode_claim(left))
    (one,) = checked(data).findings
    assert (one.verdict, one.place) == (Severity.DAMAGED, "d/dir/.claim")
    assert "epoch 3" in one.expected
    storage, _ = started(data, tmp_path / "copy")
    assert storage.load("dir").problem
    assert dos("fsck", str(data)).returncode == 1


def test_a_claim_that_is_lost_is_raised_above_every_epoch_when_a_person_asks_for_it(
    data: Path, tmp_path: Path
) -> None:
    path = data / "d" / "dir" / ".claim"
    path.unlink()
    report = Check(data, raise_claims=True).run()
    assert [one.verdict for one in report.findings] == [Severity.DAMAGED]
    assert report.raised == ["dir: epoch 1048579"]
    assert checked(data).findings == []
    storage, _ = started(data, tmp_path / "copy")
    loaded = storage.load("dir")
    assert (loaded.claim.epoch, loaded.problem) == (1048579, "")
    held = path.read_bytes()
    assert Check(data, raise_claims=True).run().raised == []
    assert path.read_bytes() == held


def test_a_block_of_another_time_is_found_by_its_root(tmp_path: Path) -> None:
    old, new = [b"o" * 200_000, b"x" * 200_000], [b"n" * 200_000, b"x" * 200_000]
    written(tmp_path / "old", "a", parts=old)
    data = written(tmp_path / "new", "a", parts=new)
    path = data / "d" / "dir" / "a"
    stale = (tmp_path / "old" / "d" / "dir" / "a").read_bytes()[:200_064]
    path.write_bytes(stale + path.read_bytes()[200_064:])
    assert verdicts(data) == {"dir/a": (Severity.DAMAGED, 0, "E")}


def test_content_that_the_headers_contradict_is_found_though_no_start_sees_it(tmp_path: Path) -> None:
    """All fits but the prefix digest: no disk does that, an error of ours might."""
    data = written(tmp_path / "data", "a", parts=[b"n" * 200_000, b"x" * 200_000])
    path = data / "d" / "dir" / "a"
    seed, file = object_seed("dir", "a"), path.read_bytes()
    piece = AcceptedBytes(200_000, 7, b"x" * 200_000)
    ((_, buffers),) = build_extents([piece], seed=seed, epoch=3, durable=0, link=link_after(file))
    path.write_bytes(file[:200_064] + b"".join(buffers))
    assert verdicts(data) == {"dir/a": (Severity.DAMAGED, 0, "")}


def test_what_may_not_be_read_is_not_checked_and_not_called_damaged(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dos_server.offline.reading import ReadOnlyDisk

    before = ReadOnlyDisk.open

    def refused(self: ReadOnlyDisk, path: str, *, create: bool) -> int:
        if path.endswith("/a"):  # a test may run as root, to whom nothing is refused
            raise PermissionError(13, "Permission denied", path)
        return before(self, path, create=create)

    monkeypatch.setattr(ReadOnlyDisk, "open", refused)
    (one,) = checked(data).findings
    assert (one.verdict, one.place) == (Severity.UNCHECKED, "dir/a")


def test_a_disk_that_went_back_and_a_damaged_history_of_stamps_are_reported(data: Path) -> None:
    assert not checked(data).findings
    path = data / "stamps"
    history = decode_history(path.read_bytes())
    path.write_bytes(encode_history(history._replace(missing=DiskStamp(9, b"9" * 16))))
    (finding,) = checked(data).findings
    assert (finding.verdict, finding.place) == (Severity.DAMAGED, "stamps")
    assert "went back in time" in finding.means
    assert "`dos store replace`" in finding.todo
    for name in ("stamps", "witnessed"):
        (data / name).write_bytes(b"nonsense")
    assert {one.place for one in checked(data).findings} == {"stamps", "witnessed"}
    with pytest.raises(CorruptDataError, match="stamps"):
        Harness(RealDisk(data))  # type: ignore[arg-type]


def test_a_disk_that_lost_its_stamps_alone_is_damaged_and_without_the_witnessed_ones_its_history_begins_anew(
    data: Path,
) -> None:
    (data / "witnessed").write_bytes(encode_witnesses({}))
    (data / "store").write_bytes(
        encode_store_record(StoreRecord(b"s" * 16, 1, 1, (Member(SERVER_ID, "a:1"),)))
    )
    assert not checked(data).findings
    (data / "stamps").unlink()
    (finding,) = checked(data).findings
    assert (finding.verdict, finding.place) == (Severity.DAMAGED, "stamps")
    with pytest.raises(CorruptDataError, match=r"stamps.*beside witnessed.*no file"):
        Harness(RealDisk(data))  # type: ignore[arg-type]
    assert not (data / "stamps").exists(), "the next start must not find a new one"
    (data / "witnessed").unlink()
    (finding,) = checked(data).findings
    assert (finding.verdict, finding.place) == (Severity.NOTE, "stamps")
    assert "begins anew" in finding.means
    Harness(RealDisk(data))  # type: ignore[arg-type]
    assert not checked(data).findings
