"""`dos fsck`: what it says is what a start decides, what no start reads it reads, and it changes nothing.

The directories are real ones, written by the server's own core and storage.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest, prefix_digest
from dos_protocol.errors import CorruptDataError
from dos_protocol.stamps import DiskStamp
from dos_protocol.store_record import Member, StoreRecord, encode_store_record
from dos_server.core import records
from dos_server.core.extent import AcceptedBytes, build_extents, link_after, object_seed
from dos_server.core.findings import Finding, Severity
from dos_server.core.records import ObjectMark
from dos_server.core.recovery import RecoveryDecision
from dos_server.core.recovery_scan import judge
from dos_server.core.scan import DamagedExtentError
from dos_server.core.stamps import decode_history, encode_history
from dos_server.core.verify import VerifiedChain, VerifyGoal, beginning, verify_part
from dos_server.disk import RealDisk
from dos_server.limits import extent_payload_bytes_max, fsck_part_bytes, fsck_part_extents_max, mark_bytes
from dos_server.offline.checking import Check, CheckReport, NotCheckedError
from dos_server.offline.cli import fsck
from dos_server.storage import Storage
from tests.support.core_harness import SERVER_ID, Harness
from tests.support.servers import ServerProcess

PARTS = [b"first record, " * 9, b"the second one, " * 50, b"and a third\0with zeros\0in it" * 3]
CONTENT = b"".join(PARTS)
EDGES = [0, 64 + len(PARTS[0]), 128 + len(PARTS[0] + PARTS[1]), 192 + len(CONTENT)]


def written(root: Path, *names: str, parts: list[bytes] = PARTS) -> Path:
    """A data directory with objects in `dir`, each part an extent of its own, all of it synced and marked."""
    disk = RealDisk(root)
    server = Harness(disk)  # type: ignore[arg-type]
    session = server.connect()
    server.ask(session, m.ChangeDirectory("dir", claim=True, epoch=3, writer_id=b"w" * 16))
    for name in names:
        content = b""
        for part in parts:
            server.send(session, m.Append(name, len(content), prefix_digest(content), part))
            server.settle()
            content += part
    server.storage.stop()
    disk.close(disk.lock("lock"))
    disk.shut()
    return root


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two good objects."""
    return written(tmp_path / "data", "a", "b")


def checked(root: Path, *, repair: bool = False) -> CheckReport:
    return Check(root, repair=repair).run()


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything of a directory: names, kinds, times of modification, bytes."""
    found = {}
    for path in [root, *root.rglob("*")]:
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(root))] = (about.st_mode, about.st_mtime_ns, content)
    return found


def dos(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dos_cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def started(root: Path, copy: Path) -> tuple[Storage, RealDisk]:
    """A start on a copy, as the server makes it."""
    shutil.copytree(root, copy, symlinks=True)
    disk = RealDisk(copy)
    storage = Storage(disk)
    storage.start(SERVER_ID)
    return storage, disk


def test_a_sound_directory_is_verified_whole_and_left_as_it_is(data: Path) -> None:
    before = tree(data)
    report = checked(data)
    assert (report.findings, report.complete) == ([], True)
    assert (report.directories, report.objects, report.bytes_verified) == (1, 2, 2 * EDGES[-1])
    shown = dos("fsck", str(data))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "2 objects in 1 directories" in shown.stdout
    assert "nothing damaged" in shown.stdout
    assert tree(data) == before


def test_without_a_lock_file_none_is_made(data: Path) -> None:
    (data / "lock").unlink()
    before = tree(data)
    assert checked(data).complete
    assert tree(data) == before


def test_a_running_server_keeps_it_out_and_a_place_without_data_is_none(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "served") as server:
        refused = dos("fsck", str(server.data))
        assert refused.returncode == 2
        assert "is in use by a server" in refused.stderr
        assert refused.stdout == ""
    assert dos("fsck", str(server.data), "--json").returncode == 0
    for place, why in ((tmp_path, "is not a data directory"), (tmp_path / "nowhere", "No such file")):
        missing = dos("fsck", str(place))
        assert (missing.returncode, missing.stdout) == (2, "")
        assert why in missing.stderr


LARGE = [bytes([number]) * 100_000 for number in (1, 2, 3, 4)]


def test_damage_that_no_start_reads_is_told_by_object_and_offset_with_what_to_do(tmp_path: Path) -> None:
    data = written(tmp_path / "data", "a", parts=LARGE)
    flip(data / "d" / "dir" / "a", 100_064 + 64 + 5)
    before = tree(data)
    (one,) = checked(data).findings
    told = (one.verdict, one.place, one.offset, one.position, one.case)
    assert told == (Severity.DAMAGED, "dir/a", 100_000, 100_064 + 64, "")
    assert "payload digest" in one.expected
    assert one.todo.endswith("dos store repair URL")
    shown = dos("fsck", str(data), "--json")
    assert shown.returncode == 1
    document = json.loads(shown.stdout)
    assert (document["good"], document["complete"]) == (False, True)
    assert document["findings"][0]["offset"] == 100_000
    assert dos("fsck", str(data), "--repair").returncode == 1
    assert tree(data) == before


def verdicts(root: Path) -> dict[str, tuple[Severity, int | None, str]]:
    return {one.place: (one.verdict, one.offset, one.case) for one in checked(root).findings}


def agrees(root: Path, copy: Path, where: str) -> Severity | None:
    """The rule: what fsck says of `dir/a` is what a start decides, and what reading all of it finds."""
    told = verdicts(root).get("dir/a")
    storage, disk = started(root, copy)
    try:
        found = storage.load("dir").objects["a"]
        if found.corrupt:
            assert told == (Severity.DAMAGED, found.size, found.letter), where
        elif found.decision is not RecoveryDecision.KEEP:
            assert told == (Severity.TORN, found.size, found.letter), where
        else:
            damage = read_through(storage, found.size)
            assert told == (None if damage is None else (Severity.DAMAGED, damage, "")), where
    finally:
        storage.stop()
        disk.shut()
        shutil.rmtree(copy)
    return None if told is None else told[0]


def read_through(storage: Storage, size: int) -> int | None:
    """Where reading all of the object finds damage."""
    from dos_server.core import vocabulary as v
    from dos_server.core.index import ExtentStart

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
        told = agrees(data, tmp_path / "copy", f"bit in byte {position}")
        assert told is Severity.DAMAGED, f"a flip in byte {position} of what was synced is {told}"
        path.write_bytes(whole)


def test_for_cuts_and_zeros_with_and_without_a_mark_it_reports_what_a_start_decides(
    data: Path, tmp_path: Path
) -> None:
    path, marks = data / "d" / "dir" / "a", data / "d" / "dir" / ".marks"
    whole, marked, rng, told = path.read_bytes(), marks.read_bytes(), random.Random(5), set()
    for size in sorted({*EDGES, *(edge + 64 for edge in EDGES[:-1]), *rng.sample(range(len(whole)), 25)}):
        for file in (whole[:size], whole[:size] + bytes(len(whole) - size)):
            for slots in (marked, bytes(mark_bytes) + marked[mark_bytes:]):
                path.write_bytes(file)
                marks.write_bytes(slots)
                verdict = agrees(data, tmp_path / "copy", f"cut at {size}, {slots == marked}")
                assert slots != marked or file == whole or verdict is Severity.DAMAGED, size
                told.add(verdict)
    assert told == {None, Severity.TORN, Severity.DAMAGED}


def test_a_torn_tail_is_good_and_repair_cuts_it_as_a_start_does(data: Path, tmp_path: Path) -> None:
    torn, zeros, rotten = (data / "d" / "dir" / name for name in ("a", "b", "c"))
    written(tmp_path / "more", "c")
    rotten.write_bytes((tmp_path / "more" / "d" / "dir" / "c").read_bytes())
    flip(rotten, 70)
    for path, tail in ((torn, b"\xd0\x58\x01" + bytes(30)), (zeros, bytes(700)), (rotten, bytes(90))):
        path.write_bytes(path.read_bytes() + tail)
    before = tree(data)
    bad = rotten.read_bytes()
    assert {place: told[0] for place, told in verdicts(data).items()} == {
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


def test_repair_holds_the_lock_also_where_there_was_no_lock_file(data: Path) -> None:
    path = data / "d" / "dir" / "a"
    path.write_bytes(path.read_bytes() + bytes(90))
    (data / "lock").unlink()
    held: list[bool] = []

    def look(*_: object) -> None:
        disk = RealDisk(data)
        with pytest.raises(BlockingIOError):
            disk.lock("lock")
        held.append(True)
        disk.shut()

    assert Check(data, repair=True, on_progress=look).run().cut == ["dir/a"]
    assert held


def test_the_mark_is_held_against_the_object(data: Path) -> None:
    folder = data / "d" / "dir"
    (folder / "a").write_bytes((folder / "a").read_bytes()[: EDGES[2]])
    (folder / "b").unlink()
    told = verdicts(data)
    assert told["dir/a"] == (Severity.DAMAGED, len(PARTS[0] + PARTS[1]), "G")
    assert told["dir/b"] == (Severity.DAMAGED, 0, "G")


def set_mark(data: Path, mark: ObjectMark) -> None:
    path = data / "d" / "dir" / ".marks"
    slots = [one for one in records.decode_marks(path.read_bytes()) if one is not None]
    path.write_bytes(b"".join(records.encode_mark(mark if one.name == mark.name else one) for one in slots))


def test_flags_of_marks_are_reported(data: Path) -> None:
    set_mark(data, ObjectMark("a", len(CONTENT), damaged=True))
    set_mark(data, ObjectMark("b", len(PARTS[0]), poisoned=True))
    told = verdicts(data)
    assert told["dir/a"] == (Severity.DAMAGED, len(CONTENT), "R")
    assert told["dir/b"] == (Severity.TORN, len(PARTS[0]), "P")
    set_mark(data, ObjectMark("b", len(CONTENT), poisoned=True))
    assert verdicts(data)["dir/b"] == (Severity.NOTE, None, "P")
    set_mark(data, ObjectMark("b", len(CONTENT), removed=True))
    report = checked(data)
    assert report.objects == 1
    assert [one.found for one in report.of(Severity.NOTE)] == ["its file"]
    flip(data / "d" / "dir" / ".marks", mark_bytes + 3)
    (mark,) = [one for one in checked(data).findings if one.place == "d/dir/.marks"]
    assert (mark.verdict, mark.position) == (Severity.DAMAGED, mark_bytes)


def test_a_swapped_or_foreign_file_is_noticed(data: Path) -> None:
    folder = data / "d" / "dir"
    a = (folder / "a").read_bytes()
    (folder / "a").write_bytes((folder / "b").read_bytes())
    (folder / "b").write_bytes(a)
    assert {told[:2] for told in verdicts(data).values()} == {(Severity.DAMAGED, 0)}


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
    names = [".mend.a.7", ".broken.a.0", ".torn.a.64", ".claim.new", "not a name", ".hidden"]
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
    from dos_server.offline.disk import ReadOnlyDisk

    before = ReadOnlyDisk.open

    def refused(self: ReadOnlyDisk, path: str, *, create: bool) -> int:
        if path.endswith("/a"):  # a test may run as root, to whom nothing is refused
            raise PermissionError(13, "Permission denied", path)
        return before(self, path, create=create)

    monkeypatch.setattr(ReadOnlyDisk, "open", refused)
    (one,) = checked(data).findings
    assert (one.verdict, one.place) == (Severity.UNCHECKED, "dir/a")


def test_an_interrupted_look_keeps_what_it_found(data: Path) -> None:
    flip(data / "d" / "dir" / "a", 70)

    def interrupt(place: str, done: int, total: int) -> None:
        assert (place, done, total) == ("dir/b", EDGES[-1], 2 * EDGES[-1])
        raise KeyboardInterrupt

    check = Check(data, on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        check.run()
    assert not check.report.complete
    assert [one.place for one in check.report.findings] == ["dir/a"]
    assert checked(data).complete  # the lock was given back


def test_an_interrupted_command_tells_what_it_found_and_that_it_was_not_all(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> VerifiedChain:
        raise KeyboardInterrupt

    monkeypatch.setattr("dos_server.offline.checking.verify_part", interrupted)
    with pytest.raises(typer.Exit) as caught:
        fsck(data, repair=False, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert caught.value.exit_code == 2
    assert (document["complete"], document["good"]) == (False, False)
    assert document["problem"].startswith("interrupted")


def test_a_server_that_starts_meanwhile_is_noticed(data: Path) -> None:
    (data / "lock").unlink()
    check = Check(data, on_progress=lambda *_: (data / "lock").touch())
    with pytest.raises(NotCheckedError, match="was started"):
        check.run()


class Endless:
    """A file of any size that is in no memory: extents of 256 KiB, made when they are read."""

    def __init__(self, extents: int) -> None:
        self.seed = object_seed("dir", "big")
        payload, fold, link = b"z" * extent_payload_bytes_max, PrefixDigest(), 1
        self.payload = payload
        self.heads: list[bytes] = []
        for _ in range(extents):
            piece = AcceptedBytes(fold.size, fold.blocks_digest, payload)
            ((_, (head, _)),) = build_extents([piece], seed=self.seed, epoch=1, durable=fold.size, link=link)
            link = link_after(head)
            self.heads.append(bytes(head))
            fold.update(payload)
        self.digest = fold.value
        self.size, self.file_bytes = fold.size, extents * (64 + len(payload))
        self.longest_read = 0

    def read(self, position: int, count: int) -> bytes:
        self.longest_read = max(self.longest_read, count)
        parts, end = [], min(position + count, self.file_bytes)
        while position < end:
            number, within = divmod(position, 64 + len(self.payload))
            extent = self.heads[number] + self.payload
            parts.append(extent[within : within + end - position])
            position += len(parts[-1])
        return b"".join(parts)


def parts_of(file: Endless) -> Iterator[VerifiedChain]:
    chain, goal = beginning(1), VerifyGoal(file.size, file.digest)
    while chain.offset < goal.size:
        chain = verify_part(file.read, file.seed, chain, goal, fsck_part_bytes, fsck_part_extents_max)
        yield chain


def test_memory_does_not_grow_with_the_object() -> None:
    # EVIDENCE-OF: P-9
    file = Endless(1_000)
    tracemalloc.start()
    try:
        found = judge(file.read, file.file_bytes, file.seed, ObjectMark("big", file.size))
        *_, last = parts_of(file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.size, last.offset, last.position) == (file.size, file.size, file.file_bytes)
    assert file.longest_read <= fsck_part_bytes
    assert peak < 4 * fsck_part_bytes


def test_a_goal_with_another_digest_is_damage_of_what_no_header_vouches_for() -> None:
    file = Endless(3)
    goal = VerifyGoal(file.size, file.digest ^ 1)
    with pytest.raises(DamagedExtentError) as caught:
        verify_part(file.read, file.seed, beginning(1), goal, fsck_part_bytes, 100)
    assert caught.value.offset == 2 * extent_payload_bytes_max


def test_every_row_that_is_not_kept_has_its_words() -> None:
    from dos_server.core.findings import of_object
    from dos_server.core.index import SparseIndex
    from dos_server.core.recovery import CASES
    from dos_server.core.recovery_scan import RecoveredObject

    rows = [(case.letter, case.decision) for case in CASES] + [("R", RecoveryDecision.QUARANTINE)]
    for letter, decision in rows:
        found = RecoveredObject(10, 74, PrefixDigest(), SparseIndex(), letter, decision)
        one = of_object("dir/a", found, 100, ObjectMark("a", 20))
        if decision is RecoveryDecision.KEEP:
            assert one is None
            continue
        assert isinstance(one, Finding)
        assert one.case == letter
        assert (one.verdict is Severity.DAMAGED) == found.corrupt
        assert all((one.expected, one.found, one.means, one.todo))


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


@pytest.mark.parametrize("lacks", [1, 64])
def test_an_extent_beyond_the_goal_is_damage(lacks: int) -> None:
    """A goal is the end of an extent: an extent that crosses it was not acknowledged like that."""
    file = Endless(3)
    goal = VerifyGoal(file.size - lacks, file.digest)
    with pytest.raises(DamagedExtentError, match="an extent of the bytes from"):
        verify_part(file.read, file.seed, beginning(1), goal, fsck_part_bytes, fsck_part_extents_max)
