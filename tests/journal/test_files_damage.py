"""Damaged journals of files: every flipped bit is named, and the newest whole state before it is found."""

import json
import pickle
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import trio

from dos_protocol.errors import DosError
from journal import Directory, LocalClaim, LocalStore, Op, Record, restore
from journal.core.errors import ChainError, CorruptRecordError, FileConflictError, UnsafePathError
from journal.core.file_ops import FileSizes, FilesReplay
from journal.core.inspection import kind_of
from journal.core.record import encode
from journal.files import damage as damage_module
from journal.files.tree import Rebuilding
from journal.files_cli import replay_target
from tests.journal.journal_command import journal
from tests.journal.journaled_files import files, write
from tests.journal.memory_store import DIRECTORY, MemoryStore

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


SMALL: dict[str, Any] = {"recovery_bytes": 900, "segment_bytes": 300}


async def written(root: Path, changes: int = 30) -> list[tuple[int, dict[str, bytes]]]:
    """A local journal of several openings; returns its versions: each end, and the files then."""
    versions = [(0, dict[str, bytes]())]
    for opening in range(3):
        with LocalClaim(root / "journal") as claim:
            async with await Directory.open(root / "live", claim, **SMALL) as directory:
                for number in range(changes // 3):
                    await directory.write_at(f"f{number % 3}", 0, bytes([opening, number]) * 30)
                    versions.append((directory.end.size, files(root / "live")))
    return versions


def state_at(versions: list[tuple[int, dict[str, bytes]]], size: int) -> dict[str, bytes]:
    return [state for end, state in versions if end <= size][-1]


async def opens_whole(root: Path, versions: list[tuple[int, dict[str, bytes]]], bad: Path, at: int) -> bool:
    """Flip a bit; both a reader and a writer find the newest whole version before it, or refuse."""
    flip(bad, at)
    base = int(bad.name.rpartition(".")[2], 16)
    into = root / f"{bad.name}-{at}"
    try:
        done = await restore(into, LocalStore(root / "journal"), "j", on_damaged="previous")
    except DosError:
        found = None
    else:
        found = files(into)
        assert found == state_at(versions, done.end)
        if done.damage:
            assert done.end <= base + at
            assert f"bytes from offset {done.end} on are left out because of damage" in done.damage
            assert bad.name in done.damage
        else:
            assert found == versions[-1][1], "the bit is in no byte that an opening reads"
    with LocalClaim(root / "journal") as claim:
        try:
            async with await Directory.open(root / "again", claim, on_damaged="previous") as directory:
                assert files(root / "again") == found
                if directory.damage:
                    assert state_at(versions, base + at) == found, (
                        "the newest whole version before the damage"
                    )
        except DosError:
            assert found is None
    for path in (root / "journal").iterdir():  # the opening began a segment
        if path.name > f"files.{3:016x}.g":
            path.unlink()
    flip(bad, at)
    return found is not None


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.trio
async def test_any_flipped_bit_leaves_the_newest_whole_version_before_it(tmp_path: Path) -> None:
    versions, rng = await written(tmp_path), random.Random(5)
    opened = 0
    segments = sorted((tmp_path / "journal").iterdir())
    for bad in segments:
        size = bad.stat().st_size
        for at in [40, size - 1, *(rng.randrange(size) for _ in range(6))]:
            opened += await opens_whole(tmp_path, versions, bad, at)
    assert opened == 8 * len(segments), "one of the last two snapshots is whole"


def test_the_command_restores_the_newest_whole_state_of_a_chain_if_requested(tmp_path: Path) -> None:
    versions = trio.run(written, tmp_path)
    last = max((tmp_path / "journal").glob("files.*"))
    flip(last, last.stat().st_size - 10)
    refused = journal("replay", tmp_path / "journal", "--into", tmp_path / "a")
    assert (refused.returncode, (tmp_path / "a").exists()) == (1, False)
    options = ["--on-damaged", "previous", "--json", "--into", tmp_path / "a"]
    done = journal("replay", tmp_path / "journal", *options)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert f"bytes from offset {told['end']} on are left out because of damage" in told["leftOut"]
    assert told["leftOut"] in done.stderr
    assert files(tmp_path / "a") == state_at(versions, told["end"]) != versions[-1][1]


@pytest.mark.trio
async def test_unless_requested_a_damaged_journal_is_refused_and_unchanged(tmp_path: Path) -> None:
    await written(tmp_path)
    bad = max((tmp_path / "journal").iterdir())
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-30] + bytes(10) + whole[-20:])
    names = {path.name for path in (tmp_path / "journal").iterdir()}
    with LocalClaim(tmp_path / "journal") as claim:
        with pytest.raises((CorruptRecordError, ChainError)):
            await Directory.open(tmp_path / "live", claim)
        with pytest.raises(ValueError, match="leave `at` out"):
            await Directory.open(tmp_path / "live", claim, at=100, on_damaged="previous")
    assert {path.name for path in (tmp_path / "journal").iterdir()} == names


@pytest.mark.trio
@pytest.mark.parametrize("missing", [False, True])
async def test_in_a_store_nothing_is_left_out_while_a_member_is_missing(
    tmp_path: Path, missing: bool
) -> None:
    store, versions = MemoryStore(), list[tuple[int, dict[str, bytes]]]()
    async with await Directory.open(tmp_path / "live", store.claim(1), segment_bytes=300) as directory:
        for number in range(12):
            await directory.append("log", bytes([number]) * 60)
            versions.append((directory.end.size, files(tmp_path / "live")))
        await directory.wait_synced()
    for server in store.servers:
        data = server.objects[DIRECTORY][sorted(server.objects[DIRECTORY])[1]]
        data[-5] ^= 1
    if missing:
        store.servers[2].up = False
        with pytest.raises(DosError):
            await restore(tmp_path / "into", store, DIRECTORY, on_damaged="previous")
        with pytest.raises(DosError):
            await Directory.open(tmp_path / "live", store.claim(2), on_damaged="previous")
        return
    done = await restore(tmp_path / "into", store, DIRECTORY, on_damaged="previous")
    assert done.damage
    assert files(tmp_path / "into") == state_at(versions, done.end)
    async with await Directory.open(tmp_path / "live", store.claim(2), on_damaged="previous") as directory:
        assert directory.damage == done.damage
        assert files(tmp_path / "live") == files(tmp_path / "into")
        await directory.append("log", b"continued")
        await directory.wait_synced()
    after = await restore(tmp_path / "after", store, DIRECTORY, on_damaged="previous")
    assert (after.damage, files(tmp_path / "after")) == ("", files(tmp_path / "live"))


def test_a_search_that_does_not_check_what_it_finds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the first candidate counts, although segments below it are damaged."""
    read_all = damage_module._Search.read_all

    async def once(search: Any, state: Any) -> None:
        if not hasattr(search, "called"):
            search.called = True
            await read_all(search, state)

    monkeypatch.setattr(damage_module._Search, "read_all", once)
    with pytest.raises((AssertionError, DosError)):
        trio.run(test_any_flipped_bit_leaves_the_newest_whole_version_before_it, tmp_path)
