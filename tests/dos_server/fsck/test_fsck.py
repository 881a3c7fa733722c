"""`dos fsck`: what it says is what a start decides, what no start reads it reads, and it changes nothing.

The directories are real ones, written by the server's own core and storage.
"""

import json
from pathlib import Path

import pytest
import typer

from dos_protocol.digests import PrefixDigest
from dos_server.core.files.findings import Finding, Severity
from dos_server.core.files.records import ObjectMark
from dos_server.core.files.recovery import RecoveryDecision
from dos_server.core.files.scan import VerifiedChain
from dos_server.disk import RealDisk
from dos_server.offline.fsck import Check, NotCheckedError, fsck
from tests.dos_server.fsck.data_directories import (
    EDGES,
    LARGE,
    checked,
    dos,
    flip,
    tree,
    written,
)
from tests.support.servers import ServerProcess


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


def test_damage_that_no_start_reads_is_told_by_object_and_offset_with_what_to_do(tmp_path: Path) -> None:
    data = written(tmp_path / "data", "a", parts=LARGE)
    flip(data / "d" / "dir" / "a", 100_064 + 64 + 5)
    before = tree(data)
    (one,) = checked(data).findings
    reported = (one.verdict, one.place, one.offset, one.position, one.case)
    assert reported == (Severity.DAMAGED, "dir/a", 100_000, 100_064 + 64, "")
    assert "payload digest" in one.expected
    assert one.todo.endswith("dos store repair URL")
    shown = dos("fsck", str(data), "--json")
    assert shown.returncode == 1
    document = json.loads(shown.stdout)
    assert (document["good"], document["complete"]) == (False, True)
    assert document["findings"][0]["offset"] == 100_000
    assert dos("fsck", str(data), "--repair").returncode == 1
    assert tree(data) == before


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

    monkeypatch.setattr("dos_server.offline.fsck.verify_part", interrupted)
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


def test_every_row_that_is_not_kept_has_its_words() -> None:
    from dos_server.core.files.findings import of_object
    from dos_server.core.files.recovery import CASES, RecoveredObject
    from dos_server.core.files.scan import SparseIndex

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
