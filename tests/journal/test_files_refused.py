"""What journaled directories refuse: changes that do not fit, unsafe paths, targets that exist."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol.errors import LocalProtocolError
from journal import ChainWriter, Directory, Op, Record, restore
from journal.core.errors import (
    FileConflictError,
    HistoryTrimmedError,
    UnsafePathError,
)
from journal.core.file_ops import FileRemove, FileTruncate, FileWrite, file_op, re_rooted, record_of
from journal.files.tree import FileTree
from tests.journal.journaled_files import NAMES, files, names, opened
from tests.journal.memory_store import DIRECTORY, MemoryStore

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
