"""Opening a journaled directory at a moment: the files are those of the model at that moment."""

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dos_client import open_store
from dos_protocol.errors import DosError, NotFoundError
from dos_server.testing import memory_store
from journal import AtCheckpoint, AtStep, Directory, StopNotFoundError, restore
from journal.core.errors import HistoryTrimmedError
from journal.core.file_ops import ReplayStop
from journal.files.replaying import FilesReplay
from tests.journal.journaled_files import BEGIN_MS, CHANGE, Clock, changed, files
from tests.journal.memory_store import DIRECTORY, MemoryStore

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
