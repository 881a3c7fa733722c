"""Journaled directories: made again they are what they were, at every moment, whatever the disk says."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dos_client.store import open_store
from dos_protocol.errors import ClosedError, LocalProtocolError
from journal import ChainWriter, Directory, Op, Record, restore, take_over
from journal.core.errors import (
    FileConflictError,
    HistoryTrimmedError,
    LocalFilesError,
    UnsafePathError,
)
from journal.core.file_ops import FileRemove, FileTruncate, FileWrite, file_op, re_rooted, record_of
from journal.files.tree import FileTree
from tests.journal.memory_store import DIRECTORY, MemoryStore

BEGIN_MS = 1_700_000_000_000


def files(root: Path) -> dict[str, bytes]:
    """What is there, as plain reading sees it."""
    return {
        str(Path(folder, name).relative_to(root)): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(root)
        for name in names
    }


def names(root: Path) -> list[str]:
    """What lies in it, hidden things too."""
    return sorted(path.name for path in root.iterdir())


class Clock:
    """A wall clock that the test advances."""

    def __init__(self) -> None:
        self.ms = BEGIN_MS

    def __call__(self) -> int:
        return self.ms


@asynccontextmanager
async def opened(store: MemoryStore, path: Path, epoch: int, **options: Any) -> AsyncIterator[Directory]:
    async with await Directory.open(path, store.claim(epoch), **options) as directory:
        yield directory


# --- any changes ------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "d/a", "d/e/b", "\udcff"])
CHANGE = st.one_of(
    st.tuples(st.just("append"), NAMES, st.binary(max_size=40)),
    st.tuples(st.just("write_at"), NAMES, st.integers(0, 60), st.binary(max_size=20)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 60)),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("tamper"), NAMES),
)


def changed(model: dict[str, bytes], change: tuple[Any, ...]) -> dict[str, bytes]:
    """What the files are after the change."""
    after = dict(model)
    kind, *rest = change
    if kind == "append":
        after[rest[0]] = after.get(rest[0], b"") + rest[1]
    elif kind == "write_at":
        name, offset, data = rest
        old = after.get(name, b"")
        # As the operating system has it: a write of nothing makes the file and moves its end nowhere.
        after[name] = old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :] if data else old
    elif kind == "truncate":
        after[rest[0]] = after.get(rest[0], b"")[: rest[1]].ljust(rest[1], b"\0")
    elif kind == "remove":
        after.pop(rest[0])
    elif kind == "rename":
        after[rest[1]] = after.pop(rest[0])
    return after


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


# --- crashes ----------------------------------------------------------------------------------------------


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


# --- what is refused --------------------------------------------------------------------------------------

Change = Callable[[Directory], Awaitable[object]]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda d: d.append("../out", b"x"), UnsafePathError),
        (lambda d: d.append("/etc/passwd", b"x"), UnsafePathError),
        (lambda d: d.append("a//b", b"x"), UnsafePathError),
        (lambda d: d.append("", b"x"), UnsafePathError),
        (lambda d: d.append("n" * 256, b"x"), UnsafePathError),
        (lambda d: d.append("p/" * 2100 + "x", b"x"), UnsafePathError),
        (lambda d: d.append("z\0", b"x"), (UnsafePathError, ValueError)),
        (lambda d: d.append("log/below", b"x"), FileConflictError),
        (lambda d: d.truncate("sub"), FileConflictError),
        (lambda d: d.append("link/out", b"x"), FileConflictError),
        (lambda d: d.truncate("log", -1), LocalProtocolError),
        (lambda d: d.write_at("log", -1, b""), LocalProtocolError),
        (lambda d: d.append("log", bytes(16 * 1024 * 1024 + 1)), LocalProtocolError),
        (lambda d: d.remove("sub"), FileNotFoundError),
    ],
)
@pytest.mark.trio
async def test_what_does_not_fit_is_refused_and_not_recorded(
    tmp_path: Path, change: Change, error: type[Exception]
) -> None:
    store, outside = MemoryStore(), tmp_path / "outside"
    outside.mkdir()
    async with opened(store, tmp_path / "live", 1) as directory:
        await directory.append("log", b"x")
        await directory.append("sub/file", b"x")
        (tmp_path / "live" / "link").symlink_to(outside)
        before = directory.end
        with pytest.raises(error):
            await change(directory)
        assert directory.end == before
    assert files(outside) == {}


def test_a_tree_follows_no_links_whoever_put_them_there(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"safe")
    (tmp_path / "tree" / "folder").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "file").symlink_to(tmp_path / "outside" / "file")
    with FileTree(tmp_path / "tree") as tree:
        for path in ("folder/file", "folder/new", "file"):
            for change in (FileWrite(path, 0, b"x"), FileTruncate(path, 0)):
                with pytest.raises(FileConflictError, match="through a file or a link"):
                    tree.apply(change)
        with pytest.raises(FileConflictError):
            tree.apply(FileRemove("folder/file"))
    assert files(tmp_path / "outside") == {"file": b"safe"}


def test_many_small_writes_are_held_by_the_memory_they_take_not_by_their_bytes(tmp_path: Path) -> None:
    with FileTree(tmp_path, gather_bytes=1000) as tree:
        for number in range(100):
            tree.write("file", number, b"x")
        assert tree.size("file") >= 80
        tree.flush()
    assert files(tmp_path) == {"file": b"x" * 100}


PATHS = [b"../out", b"/w/a", b"a/../../b", b".", b"", b"a/./b", b"x/..", b"n\0", b"a" * 256]


@pytest.mark.parametrize("raw", PATHS)
@pytest.mark.trio
async def test_a_path_that_would_lead_out_is_refused_by_a_restore_or_taken_below_its_target(
    tmp_path: Path, raw: bytes
) -> None:
    store = MemoryStore()
    claim = store.claim(1)
    async with await ChainWriter.open(claim, "files", None, 1) as writer:
        writer.append(Record(Op.WRITE, ints=(0,), strings=(raw, b"data")))
        await writer.wait_synced()
    with pytest.raises(UnsafePathError, match="is refused"):
        await restore(tmp_path / "into", store, DIRECTORY)
    assert names(tmp_path) == []
    try:
        name = re_rooted(raw)
    except UnsafePathError:
        return
    await restore(tmp_path / "into", store, DIRECTORY, paths="re-rooted")
    assert files(tmp_path / "into") == {name: b"data"}
    assert names(tmp_path) == ["into"]


@pytest.mark.trio
async def test_a_restore_writes_over_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store, tmp_path / "live", 1) as directory:
        await directory.append("log", b"x")
        await directory.wait_synced()
    before = files(tmp_path)
    for into in (tmp_path / "live", tmp_path / "live" / "log"):
        with pytest.raises(FileExistsError, match="does not exist or is empty"):
            await restore(into, store, DIRECTORY)
    assert files(tmp_path) == before


@pytest.mark.trio
async def test_a_moment_below_what_is_left_is_reported_as_gone(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store, tmp_path / "live", 1, recovery_bytes=400) as directory:
        for _ in range(20):
            early = await directory.append("log", b"0123456789")
            await directory.truncate("log", 10)
        await directory.wait_synced()
    low = min(name for name in store.servers[0].objects[DIRECTORY])
    for server in store.servers:
        del server.objects[DIRECTORY][low]
    with pytest.raises(HistoryTrimmedError, match="the history below is missing"):
        await restore(tmp_path / "into", store, DIRECTORY, at=100)
    await restore(tmp_path / "late", store, DIRECTORY, at=early)
    assert not (tmp_path / "into").exists()


@given(
    st.one_of(
        st.builds(FileWrite, NAMES, st.integers(0, 2**62), st.binary(max_size=9)),
        st.builds(FileTruncate, NAMES, st.integers(0, 2**63 - 1)),
        st.builds(FileRemove, NAMES),
    )
)
def test_a_change_is_the_same_after_its_record(change: FileWrite | FileTruncate | FileRemove) -> None:
    assert file_op(record_of(change)) == change


# --- real servers -----------------------------------------------------------------------------------------


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
