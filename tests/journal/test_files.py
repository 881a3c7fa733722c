"""Journaled files: any changes, restored at every position and moment; refusals; the edges of paths."""

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dos_client import open_store
from dos_protocol.errors import ClosedError, DosError, LocalProtocolError, NotFoundError
from dos_server.testing import memory_store
from journal import (
    AtCheckpoint,
    AtStep,
    ChainWriter,
    Directory,
    Op,
    Record,
    StopNotFoundError,
    restore,
    take_over,
)
from journal.core.errors import (
    FileConflictError,
    HistoryTrimmedError,
    LocalFilesError,
    UnsafePathError,
)
from journal.core.file_ops import (
    FileRemove,
    FileSizes,
    FilesReplay,
    FileTruncate,
    FileWrite,
    ReplayStop,
    file_op,
    path_bytes,
    re_rooted,
    record_of,
)
from journal.files.tree import FileTree
from journal.limits import file_bytes_max
from tests.journal.journaled_files import BEGIN_MS, CHANGE, NAMES, Clock, changed, files, names, opened, write
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


SMALL: dict[str, Any] = {"recovery_bytes": 600, "segment_bytes": 250}
AT = st.one_of(
    st.tuples(st.just("at offset"), st.integers(0, 1100)),
    st.tuples(st.just("at time"), st.integers(-1500, 40_000)),
    st.tuples(st.just("at checkpoint"), st.integers(0, 12)),
)
HISTORIES = st.lists(st.one_of(CHANGE, CHANGE, st.tuples(st.just("checkpoint")), AT), max_size=25)


class Version(NamedTuple):
    """The state after a change, on the present line of history. The records of a rename begin at `begin`."""

    begin: int
    end: int
    ms: int
    checkpoint: int
    files: dict[str, bytes]


class VersionModel:
    """A directory, and its versions. A second or more lies between changes, so each follows a MARK record."""

    def __init__(self, root: Path) -> None:
        self.path, self.store, self.clock, self.epoch = root / "live", MemoryStore(), Clock(), 0
        self.line = [Version(0, 0, 0, 0, {})]

    @property
    def now(self) -> Version:
        return self.line[-1]

    async def open(self, at: Any = None) -> None:
        self.epoch += 1
        claim = self.store.claim(self.epoch)
        self.directory = await Directory.open(self.path, claim, at=at, clock_ms=self.clock, **SMALL)

    async def step(self, kind: str, *rest: Any) -> None:
        self.clock.ms += 1100
        begin, now = self.directory.end.size, self.now
        if kind in ("reopen", "tamper"):
            await self.open()
        elif kind.startswith("at "):
            await self.directory.wait_synced()
            await self.directory.aclose()
            await {"at offset": self.at_offset, "at time": self.at_time, "at checkpoint": self.at_checkpoint}[
                kind
            ](*rest)
        elif kind == "checkpoint":
            number = now.checkpoint + 1
            end = await self.directory.checkpoint(number, 10 * number)
            self.line.append(Version(end.size, end.size, now.ms, number, now.files))
        elif kind not in ("remove", "rename") or rest[0] in now.files:
            end = await getattr(self.directory, kind)(*rest)
            after = changed(now.files, (kind, *rest))
            begin = begin if kind == "rename" else end.size
            self.line.append(Version(begin, end.size, self.clock.ms, now.checkpoint, after))
        await self.directory.wait_synced()
        assert files(self.path) == self.now.files, (kind, rest)

    async def at_offset(self, permille: int) -> None:
        at = permille * self.directory.end.size // 1000
        inside = [one.end for one in self.line if one.begin < at < one.end]  # a rename is several records
        at = inside[0] if inside else at
        self.line = [one for one in self.line if one.end <= at]
        await self.open(at)

    async def at_time(self, ms: int) -> None:
        self.line = [one for one in self.line if one.ms <= BEGIN_MS + ms]
        await self.open(datetime.fromtimestamp((BEGIN_MS + ms) / 1000, UTC))

    async def at_checkpoint(self, number: int) -> None:
        at = AtCheckpoint(number) if number % 2 else AtStep(10 * number)
        there = [n for n, one in enumerate(self.line) if number and one.checkpoint == number]
        if there:
            self.line = self.line[: there[0] + 1]
            await self.open(at)
            return
        with pytest.raises(StopNotFoundError, match="does not hold"):
            await self.open(at)
        await self.open()


async def play(root: Path, history: list[tuple[Any, ...]]) -> None:
    model = VersionModel(root)
    await model.open()
    for step in history:
        await model.step(*step)
    await model.directory.aclose()


@given(HISTORIES)
@settings(max_examples=60)
def test_opening_at_any_version_or_time_is_the_models_state_then(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    trio.run(play, tmp_path_factory.mktemp("versions"), steps)


def at_random(seed: int) -> list[tuple[Any, ...]]:
    rng = random.Random(seed)
    steps: list[tuple[Any, ...]] = []
    for number in range(30):
        steps.append(("append", rng.choice("abc"), bytes([number]) * rng.randrange(60)))
        if number % 4 == 3:
            kind, most = rng.choice([("at offset", 1000), ("at time", 33_000), ("at checkpoint", 5)])
            steps += [("checkpoint",), (kind, rng.randrange(most))]
    return steps


def play_some(folders: pytest.TempPathFactory) -> None:
    for seed in range(15):
        trio.run(play, folders.mktemp("versions"), at_random(seed))


def test_histories_at_random_reach_below_snapshots(tmp_path_factory: pytest.TempPathFactory) -> None:
    play_some(tmp_path_factory)


@pytest.mark.parametrize("planted", ["one record too many", "only the newest stretch", "parts of snapshots"])
def test_a_planted_fault_of_the_search_for_a_moment_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    if planted == "one record too many":
        lies_before = ReplayStop.lies_before
        monkeypatch.setattr(
            ReplayStop, "lies_before", lambda stop, end, record: lies_before(stop, end - 60, record)
        )
    elif planted == "only the newest stretch":
        monkeypatch.setattr(ReplayStop, "begins_before", lambda *_: False)
    else:
        monkeypatch.setattr(FilesReplay, "_is_state_before", lambda *_: False)
    with pytest.raises((AssertionError, pytest.fail.Exception, DosError)):
        play_some(tmp_path_factory)


@pytest.mark.trio
async def test_an_offset_within_a_snapshot_is_the_state_that_the_snapshot_holds(tmp_path: Path) -> None:
    """It was restored as the first records of the snapshot, which are the files of no moment."""
    store, held = MemoryStore(), []
    async with await Directory.open(tmp_path / "live", store.claim(1), **SMALL) as directory:
        for number in range(24):
            await directory.append(f"f{number % 4}", bytes([number]) * 40)
            held.append((directory.end.size, files(tmp_path / "live")))
        await directory.wait_synced()
    for at in range(held[0][0], held[-1][0] + 1, 29):
        await restore(tmp_path / f"{at}", store, DIRECTORY, at=at)
        assert files(tmp_path / f"{at}") == [state for end, state in held if end <= at][-1], at


@pytest.mark.trio
async def test_a_moment_that_was_trimmed_or_of_no_chain_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    with pytest.raises(NotFoundError, match="no chain files"):
        await Directory.open(tmp_path / "live", store.claim(1), at=100)
    async with await Directory.open(tmp_path / "live", store.claim(2), **SMALL) as directory:
        for number in range(40):
            await directory.write_at("log", 0, bytes([number]) * 40)
        await directory.wait_synced()
        assert (await directory.trim(store, DIRECTORY, directory.end.size)).segments
    for at in (100, datetime(2000, 1, 1, tzinfo=UTC)):
        with pytest.raises(HistoryTrimmedError, match="was trimmed: it begins at"):
            await Directory.open(tmp_path / "live", store.claim(store_epoch(store)), at=at)
    with pytest.raises(ValueError, match="no time zone"):
        await Directory.open(tmp_path / "live", store.claim(9), at=datetime(2000, 1, 1))  # noqa: DTZ001
    async with await Directory.open(tmp_path / "live", store.claim(10)):
        assert files(tmp_path / "live") == {"log": bytes([39]) * 40}


def store_epoch(store: MemoryStore) -> int:
    return 1 + max(server.held_epoch(DIRECTORY) for server in store.servers)


@pytest.mark.trio
async def test_on_servers_a_version_below_several_snapshots_is_continued(tmp_path: Path) -> None:
    """A claim of servers settles a segment once, which the walk to an older snapshot must respect."""
    versions = []
    async with memory_store() as servers, open_store(servers.url) as store:
        async with (
            await store.claim("d", 1, b"w" * 16) as claim,
            await Directory.open(tmp_path / "live", claim, **SMALL) as directory,
        ):
            for number in range(40):
                await directory.append(f"f{number % 3}", bytes([number]) * 40)
                versions.append((directory.end.size, files(tmp_path / "live")))
            await directory.wait_synced()
        for epoch, (end, state) in enumerate(reversed(versions[::9]), 2):
            async with (
                await store.claim("d", epoch, b"w" * 16) as claim,
                await Directory.open(tmp_path / "live", claim, at=end, **SMALL) as directory,
            ):
                assert files(tmp_path / "live") == state
                await directory.append("new", b"%d" % epoch)
                await directory.wait_synced()
            await restore(tmp_path / f"{epoch}", store, "d")
            assert files(tmp_path / f"{epoch}") == {**state, "new": b"%d" % epoch}


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


def test_a_tree_that_is_dropped_closes_its_files(tmp_path: Path) -> None:
    """A reset drops the operators, and with them the trees of their directories."""

    def held() -> list[Path]:
        return [one.resolve() for one in Path("/proc/self/fd").iterdir()]

    tree = FileTree(tmp_path)
    tree.write("a", 0, b"x")
    assert {tmp_path, tmp_path / "a"} <= set(held())
    del tree
    assert not [one for one in held() if one.is_relative_to(tmp_path)]


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


EDGE_NAMES = ("a", "b", "d/\udcff")
CHANGES = st.one_of(
    st.tuples(
        st.just("write_at"),
        st.sampled_from(EDGE_NAMES),
        st.sampled_from([0, 1, 5, 7, 40]),
        st.binary(max_size=3),
    ),
    st.tuples(st.just("truncate"), st.sampled_from(EDGE_NAMES), st.sampled_from([0, 1, 5, 40])),
    st.tuples(st.just("remove"), st.sampled_from(EDGE_NAMES)),
)


def edges_of(model: dict[str, bytes], change: tuple) -> set[str]:  # type: ignore[type-arg]
    kind, name, *rest = change
    size = len(model.get(name, b""))
    if kind == "remove":
        return {"a removal of nothing" if name not in model else "a removal"}
    if kind == "append":
        return {"an append of nothing" if not rest[0] else "an append"}
    if kind == "rename":
        onto = "itself" if rest[0] == name else "another file" if rest[0] in model else "a new name"
        return {f"a rename onto {onto}"} if name in model else {"a rename of nothing"}
    if kind == "truncate":
        return (
            {"a truncation to zero"}
            if rest[0] == 0
            else {"an extension" if rest[0] > size else "a truncation"}
        )
    if not rest[1]:
        return {"an empty write past the end" if rest[0] > size else "an empty write"}
    edge = "over a gap" if rest[0] > size else "at the end" if rest[0] == size else "within"
    return {f"a write {edge}", "a write into a new file" if name not in model else "a write"}


EDGES = {
    *("a removal of nothing", "a removal", "a truncation to zero", "an extension", "a truncation"),
    *(
        "an empty write past the end",
        "an empty write",
        "a write over a gap",
        "a write at the end",
        "a write within",
    ),
    *("a write into a new file", "a write"),
}


def record_of_change(change: tuple) -> Record:  # type: ignore[type-arg]
    kind, name, *rest = change
    if kind == "write_at":
        return write(path_bytes(name), rest[1], rest[0])
    return Record(
        Op.TRUNCATE if kind == "truncate" else Op.REMOVE, ints=tuple(rest), strings=(path_bytes(name),)
    )


def test_a_replay_into_files_and_into_sizes_has_what_the_operating_system_makes_of_the_changes(
    tmp_path: Path,
) -> None:
    reached, numbers = Counter[str](), count()

    @given(st.lists(CHANGES, max_size=12), st.sampled_from([0, 200, 1_000]))
    def replay(changes: list[tuple], gather_bytes: int) -> None:  # type: ignore[type-arg]
        model: dict[str, bytes] = {}
        root = tmp_path / str(next(numbers))
        root.mkdir()
        steps = []
        for change in changes:
            reached.update(edges_of(model, change))
            if change[0] != "remove" or change[1] in model:
                model = changed(model, change)
            steps.append((len(steps) + 1, record_of_change(change)))
        sizes = FileSizes()
        assert FilesReplay(sizes).take(steps)
        assert sizes.sizes == {name: len(data) for name, data in model.items()}
        with FileTree(root, gather_bytes=gather_bytes) as tree:
            assert FilesReplay(tree).take(steps)
            tree.flush()
        assert files(root) == model

    replay()
    assert reached.keys() == EDGES


def test_the_changes_that_tests_of_journaled_directories_make_reach_the_same_edges() -> None:
    reached = Counter[str]()

    @settings(max_examples=100, derandomize=True)
    @given(st.lists(CHANGE, max_size=25))
    def play(changes: list[tuple]) -> None:  # type: ignore[type-arg]
        model: dict[str, bytes] = {}
        for change in changes:
            if change[0] in ("reopen", "tamper"):
                continue
            reached.update(edges_of(model, change))
            if change[0] not in ("remove", "rename") or change[1] in model:
                model = changed(model, change)

    play()
    renames = {
        f"a rename {of}" for of in ("of nothing", "onto itself", "onto another file", "onto a new name")
    }
    assert reached.keys() == {*EDGES, *renames, "an append", "an append of nothing"}


@pytest.mark.parametrize("character", ["a", "é", "日", "😀", "\udcff"])
@pytest.mark.parametrize("size", [1, 254, 255, 256, 257])
def test_a_name_is_accepted_exactly_if_the_operating_system_takes_it(
    tmp_path: Path, character: str, size: int
) -> None:
    """The limit is one of bytes, of each part."""
    wide = len(path_bytes(character))
    name = "d/" + "a" * (size % wide) + character * (size // wide)
    assert len(path_bytes(name)) == size + 2
    with suppress(OSError):
        (tmp_path / "d").mkdir()
        (tmp_path / name).write_bytes(b"x")
    taken = files(tmp_path) == {name: b"x"}
    assert taken == (size <= 255)
    change = FileWrite(name, 0, b"x")
    if not taken:
        with pytest.raises(UnsafePathError, match=f"a part has {size} bytes, more than 255"):
            record_of(change)
        return
    assert file_op(record_of(change)) == change
    (tmp_path / "tree").mkdir()
    with FileTree(tmp_path / "tree") as tree:
        tree.apply(change)
    assert files(tmp_path / "tree") == {name: b"x"}


@pytest.mark.parametrize("character", ["a", "日", "😀"])
@pytest.mark.parametrize("size", [4095, 4096, 4097])
def test_a_path_has_at_most_4096_bytes_whatever_its_characters(character: str, size: int) -> None:
    path = (character * (240 // len(character.encode())) + "/") * 16
    path += "b" * (size - len(path.encode()))
    assert len(path.encode()) == size
    if size <= 4096:
        assert record_of(FileWrite(path, 0, b"")).strings[0] == path.encode()
    else:
        with pytest.raises(UnsafePathError, match="it has 4097 bytes, more than 4096"):
            record_of(FileWrite(path, 0, b""))


@pytest.mark.parametrize("op", [Op.WRITE, Op.TRUNCATE])
@pytest.mark.parametrize("length", [0, file_bytes_max, file_bytes_max + 1, 2**64 - 1])
@pytest.mark.parametrize("data", [b"", b"x"])
def test_a_length_that_no_file_can_have_is_refused_with_the_file(op: Op, length: int, data: bytes) -> None:
    data = data if length and op is Op.WRITE else b""
    record = Record(op, ints=(length - len(data),), strings=(b"f", data) if op is Op.WRITE else (b"f",))
    sizes = FileSizes()
    if length > file_bytes_max:
        with pytest.raises(FileConflictError, match=f"it would have {length} bytes"):
            FilesReplay(sizes).take([(1, record)])
    else:
        assert FilesReplay(sizes).take([(1, record)])
        assert sizes.sizes == {"f": 0 if op is Op.WRITE and not data else length}
