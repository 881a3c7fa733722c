"""Journaled directories: restored as of any moment, after any crash, they have the recorded files."""

import os
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dos_client.store import open_store
from dos_protocol.errors import ClosedError
from journal import ChainWriter, Directory, Op, restore, take_over
from journal.core.errors import (
    LocalFilesError,
)
from journal.files.tree import FileTree
from tests.journal.journaled_files import BEGIN_MS, CHANGE, Clock, changed, files, names, opened
from tests.journal.memory_store import DIRECTORY, MemoryStore


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(CHANGE, max_size=25), snapshots=st.booleans())
def test_any_changes_restored_at_every_position(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Any, ...]], snapshots: bool
) -> None:
    trio.run(any_changes, tmp_path_factory.mktemp("files"), changes, snapshots)


async def any_changes(tmp_path: Path, changes: list[tuple[Any, ...]], snapshots: bool) -> None:
    store, path, model = MemoryStore(), tmp_path / "files", dict[str, bytes]()
    options = {"recovery_bytes": 200, "segment_bytes": 100} if snapshots else {}
    directory = await Directory.open(path, store.claim(epoch := 1), **options)
    moments = []
    for change in changes:
        kind, *rest = change
        if kind == "reopen":
            directory = await Directory.open(path, store.claim(epoch := epoch + 1), **options)
        elif kind == "tamper":  # behind the journal's back; the next opening takes it back
            if rest[0] not in model:
                continue
            (path / rest[0]).write_bytes(b"tampered with")
            directory = await Directory.open(path, store.claim(epoch := epoch + 1), **options)
        elif kind in ("remove", "rename") and rest[0] not in model:
            with pytest.raises(FileNotFoundError):
                await getattr(directory, kind)(*rest)
            continue
        else:
            await getattr(directory, kind)(*rest)
            model = changed(model, change)
        assert files(path) == model
        moments.append((directory.end, model))
    await directory.wait_synced()
    for number, (end, then) in enumerate(moments):
        at = end if number % 2 else end.size
        await restore(tmp_path / str(number), store, DIRECTORY, at=at)
        assert files(tmp_path / str(number)) == then
    await directory.aclose()


@pytest.mark.trio
async def test_a_moment_can_be_gone_back_to_and_one_file_alone(tmp_path: Path) -> None:
    store, clock = MemoryStore(), Clock()
    async with opened(store, tmp_path / "live", 1, clock_ms=clock, recovery_bytes=4000) as directory:
        for second in range(60):
            clock.ms = BEGIN_MS + 1000 * second
            await directory.append("log", b"%02d " % second)
            await directory.append("sub/other", b"x" * 50)
        await directory.wait_synced()
    assert len(store.servers[0].objects[DIRECTORY]) > 2, "there are snapshots to go below"
    for second in (0, 7, 31, 59):
        at = datetime.fromtimestamp((BEGIN_MS + 1000 * second + 999) / 1000, UTC)
        into = tmp_path / f"at-{second}"
        done = await restore(into, store, DIRECTORY, at=at, only="log")
        assert files(into) == {"log": b"".join(b"%02d " % n for n in range(second + 1))}
        assert done.wall_ms == BEGIN_MS + 1000 * second
    before = await restore(tmp_path / "before", store, DIRECTORY, at=datetime(2000, 1, 1, tzinfo=UTC))
    assert (files(tmp_path / "before"), before.wall_ms) == ({}, None)
    with pytest.raises(ValueError, match="time zone"):
        await restore(tmp_path / "naive", store, DIRECTORY, at=datetime(2000, 1, 1))  # noqa: DTZ001


@pytest.mark.trio
async def test_marks_are_at_most_a_second_apart_while_there_is_traffic(tmp_path: Path) -> None:
    store, clock, marks = MemoryStore(), Clock(), list[int]()
    async with opened(store, tmp_path / "live", 1, clock_ms=clock) as directory:
        put = directory.writer.append
        directory.writer.append = lambda record: (  # type: ignore[method-assign]
            marks.append(record.ints[0]) if record.op is Op.MARK else None,
            put(record),
        )[1]
        for _ in range(100):
            clock.ms += 130
            await directory.append("log", b"x")
        clock.ms -= 5000  # a clock that was set back
        await directory.append("log", b"x")
    gaps = [later - earlier for earlier, later in pairwise(marks)]
    assert gaps[-1] < 0
    assert all(0 < gap <= 1130 for gap in gaps[:-1])


@pytest.mark.trio
async def test_a_snapshot_has_empty_files_and_holes_and_nothing_that_was_removed(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store, tmp_path / "live", 1, recovery_bytes=2000) as directory:
        await directory.append("empty", b"")
        await directory.write_at("hole", 100, b"end")
        await directory.append("removed", b"x")
        await directory.remove("removed")
        writer = directory.writer
        assert isinstance(writer, ChainWriter)
        below = writer.floor
        while writer.floor == below:
            await directory.append("log", b"x" * 100)
            await directory.wait_synced()
        await restore(tmp_path / "copy", store, DIRECTORY)
        assert files(tmp_path / "copy") == files(tmp_path / "live")
        assert set(files(tmp_path / "copy")) == {"empty", "hole", "log"}


@pytest.mark.trio
async def test_a_directory_exists_for_as_long_as_a_file_is_in_it(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store, tmp_path / "live", 1) as directory:
        await directory.append("d/e/one", b"x")
        await directory.append("d/two", b"x")
        await directory.remove("d/e/one")
        assert names(tmp_path / "live" / "d") == ["two"]
        await directory.remove("d/two")
        assert names(tmp_path / "live") == []
        await directory.append("d", b"a file now")
        assert files(tmp_path / "live") == {"d": b"a file now"}


@pytest.mark.trio
@pytest.mark.parametrize("file_bytes", [400, 40_000])
async def test_a_restore_reads_no_more_than_was_reported_or_twice_the_files(
    tmp_path: Path, file_bytes: int
) -> None:
    store, most = MemoryStore(), 20_000
    async with opened(store, tmp_path / "live", 1, recovery_bytes=most) as directory:
        for number in range(300):
            await directory.write_at("file", 400 * number % file_bytes, bytes(400))
            await directory.wait_synced()
            if number % 20 == 0:
                done = await restore(tmp_path / str(number), store, DIRECTORY)
                assert done.bytes_read <= 1.2 * max(most, 2 * min(400 * (number + 1), file_bytes)) + 1000
    assert len(store.servers[0].objects[DIRECTORY]) > 2


@pytest.mark.trio
async def test_a_change_that_was_recorded_and_not_applied_exists_after_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with opened(store, tmp_path / "live", 1) as directory:
        await directory.append("log", b"one ")
        with monkeypatch.context() as patch:
            patch.setattr(FileTree, "apply", full)
            with pytest.raises(LocalFilesError, match=r"cannot apply a recorded change to log.*No space"):
                await directory.append("log", b"two")
        with pytest.raises(ClosedError, match="behind their journal"):
            await directory.append("log", b"three")
    assert files(tmp_path / "live") == {"log": b"one "}
    async with opened(store, tmp_path / "live", 2):
        assert files(tmp_path / "live") == {"log": b"one two"}


@pytest.mark.trio
async def test_a_change_that_reached_no_quorum_is_taken_back_by_the_next_opening(tmp_path: Path) -> None:
    store = MemoryStore()
    claim = store.claim(1)
    old = await Directory.open(tmp_path / "live", claim)
    await old.append("log", b"safe")
    await old.wait_synced()
    claim.held = True
    await old.append("log", b" and not")
    assert files(tmp_path / "live") == {"log": b"safe and not"}
    async with opened(store, tmp_path / "live", 2) as directory:
        assert files(tmp_path / "live") == {"log": b"safe"}
        await directory.append("log", b", again")
        assert files(tmp_path / "live") == {"log": b"safe, again"}


@pytest.mark.trio
async def test_what_a_crash_left_beside_a_directory_disappears(tmp_path: Path) -> None:
    store = MemoryStore()
    for left in (".live.rebuilding", ".live.replaced"):
        (tmp_path / left / "sub").mkdir(parents=True)
        (tmp_path / left / "sub" / "file").write_text("left")
    async with opened(store, tmp_path / "live", 1) as directory:
        await directory.append("log", b"x")
    assert names(tmp_path) == ["live"]


@pytest.mark.trio
async def test_what_was_written_after_a_position_is_undone_by_opening_there(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store, tmp_path / "live", 1) as directory:
        there = await directory.append("log", b"kept")
        await directory.append("log", b" and not")
        await directory.wait_synced()
    async with opened(store, tmp_path / "live", 2, at=there) as directory:
        assert files(tmp_path / "live") == {"log": b"kept"}
        await directory.append("log", b" otherwise")
        await directory.wait_synced()
    await restore(tmp_path / "copy", store, DIRECTORY)
    assert files(tmp_path / "copy") == {"log": b"kept otherwise"}


@pytest.mark.process
@pytest.mark.trio
async def test_on_real_servers_another_machine_has_what_was_acknowledged(
    tmp_path: Path, store_url: str
) -> None:
    directory_name = f"files.{os.urandom(4).hex()}"
    async with open_store(store_url) as store:
        claim = await store.claim(directory_name, 1, os.urandom(16))
        async with claim, await Directory.open(tmp_path / "here", claim, recovery_bytes=1 << 16) as directory:
            for number in range(200):
                await directory.append(f"part-{number % 3}", b"%06d\n" % number * 100)
            await directory.rename("part-0", "done/part-0")
            await directory.wait_synced()
        here = files(tmp_path / "here")
        done = await restore(tmp_path / "there", store, directory_name)
        assert files(tmp_path / "there") == here
        assert done.end == directory.end.size
        again = await store.claim(directory_name, 2, os.urandom(16))
        async with again:
            state = await take_over(again, "files", generation=1)
            assert state.end == directory.end
