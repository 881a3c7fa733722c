"""Journals of files with every truncation and every flipped bit: what the commands restore and report."""

import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from journal import Op, Record
from journal.core.errors import FileConflictError, UnsafePathError
from journal.core.inspection import kind_of
from journal.core.record import encode
from journal.files.rebuilding import Rebuilding
from journal.files.replaying import FileSizes, FilesReplay
from journal.files.sources import replay_target
from tests.journal.journaled_files import files, write

VERSIONS = pytest.mark.parametrize("version", [0, 1])


def three_records(version: int) -> tuple[list[bytes], list[dict[str, bytes]]]:
    """Three changes as bytes, and the files after none, one, two and all of them."""
    changes = [
        write(b"log", b"first\n"),
        write(b"d/log", b"second\n"),
        Record(Op.TRUNCATE, ints=(2,), strings=(b"log",)),
    ]
    after = [
        {},
        {"log": b"first\n"},
        {"log": b"first\n", "d/log": b"second\n"},
        {"log": b"fi", "d/log": b"second\n"},
    ]
    return [encode(change, version) for change in changes], after


def replayed(path: Path, into: Path, *, read: bool = True) -> tuple[dict[str, Any], str]:
    """The files, and what was wrong: '', or the kind of the fault."""
    shutil.rmtree(into, ignore_errors=True)
    try:
        with Rebuilding(into) as rebuilding:
            outcome = replay_target(str(path), rebuilding.replay, b"", lambda *_: None)
            rebuilding.put()
    except (UnsafePathError, FileConflictError) as error:
        assert not into.exists()
        return {}, type(error).__name__
    assert outcome is not None
    return files(into) if read else {}, "" if outcome.fault is None else kind_of(outcome.fault)


def listed(path: Path) -> tuple[dict[str, Any], str]:
    """The files with their lengths, and what was wrong."""
    sizes = FileSizes()
    outcome = replay_target(str(path), FilesReplay(sizes), b"", lambda *_: None)
    assert outcome is not None
    assert outcome.fault is not None
    return sizes.sizes, kind_of(outcome.fault)


def three_records_joined(version: int) -> tuple[bytes, list[int], list[dict[str, bytes]]]:
    """The journal of `three_records`, where each number of its records ends, and the files after it."""
    parts, after = three_records(version)
    return b"".join(parts), [len(b"".join(parts[:n])) for n in range(4)], after


@VERSIONS
def test_every_truncation_of_a_journal_gives_the_files_of_its_whole_records(
    tmp_path: Path, version: int
) -> None:
    whole, ends, after = three_records_joined(version)
    path = tmp_path / "some.journal"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        count = sum(end <= length for end in ends[1:])
        assert replayed(path, tmp_path / "into") == (after[count], "" if length in ends else "torn"), length


@VERSIONS
def test_every_flipped_bit_of_a_journal_is_a_named_fault_or_in_version_0_other_data(
    tmp_path: Path, version: int
) -> None:
    # EVIDENCE-OF: P-2
    whole, ends, after = three_records_joined(version)
    path = tmp_path / "some.journal"
    for bit in range(8 * len(whole)):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(broken)
        found, fault = listed(path) if version else replayed(path, tmp_path / "into", read=False)
        before = sum(end <= bit // 8 for end in ends[1:])
        outside = [one.name for one in tmp_path.iterdir() if one.name not in ("some.journal", "into")]
        assert outside == [], f"bit {bit} led out of the target"
        if version == 1:
            sizes = {name: len(data) for name, data in after[before].items()}
            assert (found, fault) == (sizes, "corrupt"), bit
        else:
            assert fault in ("", "torn", "corrupt", "version", "UnsafePathError", "FileConflictError"), bit


def test_journals_that_are_joined_repeated_or_of_another_kind_are_what_their_bytes_say(
    tmp_path: Path,
) -> None:
    parts, after = three_records(1)
    path = tmp_path / "some.journal"
    for data, wanted in [
        (b"", ({}, "")),
        (b"\0", ({}, "torn")),
        (bytes(4096), ({}, "torn")),
        (b"".join(parts) + b"".join(parts[:2]), ({**after[3], "log": b"first\n"}, "")),
        (parts[0] * 3, (after[1], "")),
        (pickle.dumps({"a": 1}), ({}, "corrupt")),
        (struct.pack(">Q", 2**40) + b"x" * 100, ({}, "corrupt")),
    ]:
        path.write_bytes(data)
        assert replayed(path, tmp_path / "into") == wanted, data[:20]
