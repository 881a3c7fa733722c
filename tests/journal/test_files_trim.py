"""Trimming journaled files: what is kept is restored exactly, whatever was trimmed or cut short."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dos_client import init_store
from dos_client.store import open_store
from dos_protocol.errors import DosError, LocalProtocolError
from journal import (
    AtCheckpoint,
    AtStep,
    ChainWriter,
    Directory,
    Op,
    Record,
    StopNotFoundError,
    restore,
)
from journal.core.chain import SegmentStart, parse_segment_name, parse_start, start_record
from journal.core.errors import ChainError, HistoryTrimmedError
from journal.core.file_ops import ReplayStop
from journal.files import history, restoring
from journal.files.history import plan_trim
from tests.journal.journaled_files import files, opened
from tests.journal.memory_store import DIRECTORY, MemoryStore
from tests.support.dos_command import dos
from tests.support.servers import ServerProcess, one_server

__all__ = ["one_server"]
SMALL = {"recovery_bytes": 600, "segment_bytes": 250}


class DirectoryModel:
    """A directory, and what it held after each change of its present line of history."""

    def __init__(self, root: Path) -> None:
        self.root, self.store, self.epoch = root, MemoryStore(), 0
        self.moments: list[Any] = []
        self.keeps_from = 0
        self.went_back = False

    async def open(self, at: Any = None) -> None:
        self.epoch += 1
        path = self.root / "live"
        self.directory = await Directory.open(path, self.store.claim(self.epoch), at=at, **SMALL)

    async def change(self, number: int) -> None:
        await self.directory.append(f"f{number % 3}", bytes([number]) * 40)
        if number % 5 == 0:
            await self.directory.truncate("f0", 10)
        await self.directory.wait_synced()
        self.moments.append((self.directory.end, files(self.root / "live")))

    async def trim(self, number: int, *, crash: bool) -> None:
        if not self.moments:
            return
        position, _ = self.moments[number % len(self.moments)]
        claim = self.directory.writer._claim  # type: ignore[attr-defined]
        if crash:  # the release is acknowledged, and nothing is deleted
            claim.collect = lambda _: None
        try:
            plan = await self.directory.trim(self.store, DIRECTORY, position.size)  # type: ignore[arg-type]
        except HistoryTrimmedError:
            assert position.size <= self.keeps_from
            return
        assert plan.keeps_from <= position.size
        again = await plan_trim(self.store, DIRECTORY, "files", ReplayStop(size=position.size))
        assert again.released or not plan.segments, "what is deleted, a start on the quorum has released"
        self.keeps_from = max(self.keeps_from, plan.keeps_from)
        if crash:
            await self.directory.aclose()
            await self.open()

    async def back(self, number: int) -> None:
        """Go back by hand, to a moment that is kept."""
        kept = [n for n, (position, _) in enumerate(self.moments) if position.size > self.keeps_from]
        if not kept:
            return
        chosen, self.went_back = kept[number % len(kept)], True
        await self.directory.aclose()
        del self.moments[chosen + 1 :]
        await self.open(at=self.moments[chosen][0])

    async def check(self) -> None:
        for number, (position, held) in enumerate(self.moments):
            into = self.root / f"at-{number}"
            for at in (position, position.size):
                if position.size > self.keeps_from:
                    await restore(into, self.store, DIRECTORY, at=at)
                    assert files(into) == held
                    for path in sorted(into.rglob("*"), reverse=True):
                        path.unlink()
        state = await plan_trim(self.store, DIRECTORY, "files", ReplayStop(size=self.keeps_from + 1))
        assert self.keeps_from == 0 or self.went_back or state.released


async def play(root: Path, history: list[tuple[str, int]]) -> None:
    model = DirectoryModel(root)
    await model.open()
    for kind, number in history:
        if kind == "change":
            await model.change(number)
        elif kind == "reopen":
            await model.directory.aclose()
            await model.open()
        elif kind == "back":
            await model.back(number)
        else:
            await model.trim(number, crash=kind == "trim, crash")
    await model.check()
    await model.directory.aclose()


KINDS = ["change", "change", "change", "change", "reopen", "back", "trim", "trim, crash"]
HISTORIES = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 255)), max_size=30)


@given(HISTORIES)
@settings(max_examples=40)
def test_every_moment_from_which_on_nothing_was_let_go_is_restored(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]
) -> None:
    trio.run(play, tmp_path_factory.mktemp("life"), history)


def at_random(seed: int) -> list[tuple[str, int]]:
    rng = random.Random(seed)
    return [(rng.choice(KINDS), rng.randrange(256)) for _ in range(40)]


def test_a_floor_that_is_one_segment_too_high_is_found_out(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = history.plan_trim

    async def one_higher(store: Any, directory: str, chain: str, before: Any) -> history.TrimPlan:
        plan = await planned(store, directory, chain, before)
        spans = (await history.stretch_at(store, directory, chain, before)).segments
        floor = spans[min(1, len(spans) - 1)].segment.order
        return replace(plan, floor=floor, segments=plan.segments or (("any", 0),), released=False)

    monkeypatch.setattr(history, "plan_trim", one_higher)
    with pytest.raises((AssertionError, DosError)):
        play_some(tmp_path_factory)


def test_a_deletion_that_no_start_released_is_found_out(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(writer: ChainWriter, floor: Any) -> None:
        writer._released = floor
        writer.collect_released()

    monkeypatch.setattr(ChainWriter, "release", at_once)
    with pytest.raises((AssertionError, DosError)):
        play_some(tmp_path_factory)


def play_some(folders: pytest.TempPathFactory) -> None:
    for seed in range(12):
        trio.run(play, folders.mktemp("life"), at_random(seed))


@pytest.mark.trio
async def test_what_was_trimmed_is_said_to_be_so_and_what_is_written_now_cannot_be(tmp_path: Path) -> None:
    store = MemoryStore()
    async with opened(store, tmp_path / "live", 1, **SMALL) as directory:
        for number in range(40):
            end = await directory.append("log", bytes([number]) * 40)
            await directory.truncate("log", 40)
        await directory.wait_synced()
        plan = await directory.trim(store, DIRECTORY, end.size)
        assert plan.segments
        with pytest.raises(HistoryTrimmedError, match=f"was trimmed: it begins at {plan.keeps_from} now"):
            await restore(tmp_path / "into", store, DIRECTORY, at=100)
        writer = directory.writer
        assert isinstance(writer, ChainWriter)
        with pytest.raises(LocalProtocolError, match="cannot release chain"):
            await writer.release((9, 0))
    for server in store.servers:
        names = server.objects[DIRECTORY]
        assert min(parse_segment_name(name).order for name in names) == plan.floor  # type: ignore[union-attr]


@pytest.mark.trio
async def test_a_directory_with_other_chains_is_somebody_elses_to_trim(tmp_path: Path) -> None:
    store = MemoryStore()
    claim = store.claim(1)
    await ChainWriter.open(claim, "state", None, 1)
    async with await Directory.open(tmp_path / "live", claim) as directory:
        await directory.append("log", b"x")
        await directory.wait_synced()
        with pytest.raises(LocalProtocolError, match=r"other chains besides files: state.*dos region trim"):
            await directory.trim(store, DIRECTORY, None)


@pytest.mark.parametrize("released", [(0, 0), (3, 0), (9, 9)])
def test_a_start_that_releases_itself_is_refused(released: tuple[int, int]) -> None:
    start = SegmentStart("J", 3, 0, None, 1, "00" * 16, released=released)
    with pytest.raises(ChainError, match="a release of segments below an earlier one"):
        parse_start(start_record(start), start.name)


def test_a_start_that_releases_nothing_has_the_bytes_it_always_had() -> None:
    record = start_record(SegmentStart("J", 3, 0, None, 1, "00" * 16))
    assert b"released" not in record.strings[0]


# --- cuts and steps of journaled files --------------------------------------------------------------------


@pytest.mark.trio
async def test_files_are_restored_as_of_a_checkpoint_or_its_step_also_below_snapshots(tmp_path: Path) -> None:
    store, held = MemoryStore(), {}
    async with opened(store, tmp_path / "live", 1, **SMALL) as directory:
        for number in range(1, 31):
            await directory.append("log", bytes([number]) * 40)
            await directory.truncate("log", 40 - number)
            await directory.checkpoint(number, 10 * number)
            held[number] = files(tmp_path / "live")
        await directory.append("log", b"behind the last cut")
        await directory.wait_synced()
        with pytest.raises(
            LocalProtocolError, match="checkpoint 30 at step 300 must come after checkpoint 30"
        ):
            await directory.checkpoint(30, 300)
    for number in (1, 7, 16, 29, 30):
        for at in (AtCheckpoint(number), AtStep(10 * number)):
            into = tmp_path / f"at-{at}"
            await restore(into, store, DIRECTORY, at=at)
            assert files(into) == held[number]
    for at, text in [
        (AtCheckpoint(31), "does not hold checkpoint 31; the one before is checkpoint 30"),
        (AtStep(45), "does not hold the checkpoint of step 45; the one before is checkpoint"),
        (AtCheckpoint(0), "does not hold checkpoint 0; the one before is no checkpoint"),
    ]:
        with pytest.raises(StopNotFoundError, match=text):
            await restore(tmp_path / "into", store, DIRECTORY, at=at)
    assert not (tmp_path / "into").exists()
    async with opened(store, tmp_path / "live", 2, **SMALL) as directory:
        with pytest.raises(LocalProtocolError, match="after checkpoint 30"):
            await directory.checkpoint(30)


@pytest.mark.trio
async def test_a_step_is_not_looked_for_where_checkpoints_say_none(tmp_path: Path) -> None:
    """Directories of operators that older programs wrote: their cuts have a number alone."""
    store = MemoryStore()
    async with opened(store, tmp_path / "live", 1) as directory:
        await directory.append("log", b"x")
        directory.writer.append(Record(Op.CHECKPOINT, ints=(12,)))
        await directory.wait_synced()
    await restore(tmp_path / "at", store, DIRECTORY, at=AtCheckpoint(12))
    with pytest.raises(
        StopNotFoundError, match="the one before is checkpoint 12, which says no step: name it as"
    ):
        await restore(tmp_path / "into", store, DIRECTORY, at=AtStep(40))


# --- the command ------------------------------------------------------------------------------------------


@pytest.mark.process
def test_the_command_shows_and_deletes_and_reports_what_it_refuses(
    one_server: ServerProcess, tmp_path: Path
) -> None:
    async def write() -> None:
        async with open_store(one_server.url) as store:
            claim = await store.claim("ledger", 1, b"w" * 16)
            async with await Directory.open(tmp_path / "live", claim, **SMALL) as directory:
                for number in range(1, 41):
                    await directory.append("log", bytes([number]) * 40)
                    await directory.truncate("log", 40)
                    await directory.checkpoint(number, number)
                await directory.wait_synced()
            await claim.aclose()

    trio.run(lambda: init_store(one_server.url))
    trio.run(write)
    url = f"{one_server.url}/ledger/files"
    result = dos("journal", "trim", "--before", "checkpoint:35", url, "--json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["segments"]
    assert not plan["applied"]
    alone = dos("journal", "trim", "--before", "checkpoint:35", "--apply", url)
    assert (alone.returncode, "pass --apply and --stopped together" in alone.stderr) == (2, True)
    early = dos("journal", "cat", "--at", "checkpoint:2", url, "log")
    assert early.stdout.encode() == bytes([1]) * 40
    done = dos("journal", "trim", "--before", "checkpoint:35", "--apply", "--stopped", url)
    assert done.returncode == 0, done.stderr
    assert f"deleted {len(plan['segments'])} segments" in done.stdout
    again = json.loads(dos("journal", "trim", "--before", "checkpoint:35", url, "--json").stdout)
    assert again["segments"] == []
    assert dos("journal", "files", "--at", "checkpoint:35", url).returncode == 0
    gone = dos("journal", "cat", "--at", "checkpoint:2", url, "log")
    assert (gone.returncode, "was trimmed" in gone.stderr) == (2, True)
    assert dos("journal", "verify", url).returncode == 0
    for target, text in [("s3://b/p/ledger/files", "trim"), (f"{one_server.url}/nobody/files", "no chain")]:
        refused = dos("journal", "trim", "--before", "-1h", target)
        assert refused.returncode in (2, 3), (target, refused.stderr, text)


@pytest.mark.trio
async def test_nothing_is_let_go_before_a_checkpoint_that_is_none(tmp_path: Path) -> None:
    """A number too high would let go of nearly everything."""
    store = MemoryStore()
    async with opened(store, tmp_path / "live", 1, **SMALL) as directory:
        for number in range(1, 31):
            await directory.append("log", bytes([number]) * 40)
            await directory.truncate("log", 40 - number)
            await directory.checkpoint(number, 10 * number)
        for none in (AtCheckpoint(31), AtCheckpoint(99), AtStep(45)):
            with pytest.raises(StopNotFoundError, match="nothing was trimmed"):
                await directory.trim(store, DIRECTORY, before=none)
        await restore(tmp_path / "first", store, DIRECTORY, at=AtCheckpoint(1))
        assert (await directory.trim(store, DIRECTORY, before=AtStep(290))).segments


def test_a_record_of_a_checkpoint_is_visible_in_a_dump(tmp_path: Path) -> None:
    from journal.core.record import encode_v1

    (tmp_path / "j").write_bytes(encode_v1(Record(Op.CHECKPOINT, ints=(7, 41))))
    assert "CHECKPOINT" in dos("journal", "dump", tmp_path / "j").stdout


def test_a_replay_to_a_time_takes_what_was_recorded_at_that_very_moment() -> None:
    """A mark says when what follows was recorded; the stop is the moment after which nothing counts."""
    stop = ReplayStop(wall_ms=1_000)
    marks = [Record(Op.MARK, ints=(at,)) for at in (999, 1_000, 1_001)]
    assert [stop.lies_before(64, mark) for mark in marks] == [False, False, True]
    assert [stop.begins_before(64, mark) for mark in marks] == [False, False, True]
    assert not stop.begins_before(64, None)
    by_size = ReplayStop(size=100)
    assert [by_size.lies_before(end, marks[2]) for end in (99, 100, 101)] == [False, False, True]
    assert [by_size.begins_before(base, None) for base in (99, 100, 101)] == [False, True, True]


@pytest.mark.parametrize("moment", ["now", "first"])
def test_a_restore_reads_again_if_what_it_found_is_trimmed_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    model, found, tries = DirectoryModel(tmp_path), restoring.stretch_at, []

    async def trimmed_as_soon_as_found(*where: Any) -> Any:
        state = await found(*where)
        tries.append(state)
        if len(tries) == 1:
            for number in range(30):  # longer than `recovery_bytes`: a snapshot replaces what was found
                await model.change(number)
            await model.trim(len(model.moments) - 1, crash=False)
        return state

    async def run() -> None:
        await model.open()
        for number in range(10):
            await model.change(number)
        at = model.moments[0][0].size if moment == "first" else None
        try:
            await restore(tmp_path / "copy", model.store, DIRECTORY, at=at)
        finally:
            await model.directory.aclose()

    monkeypatch.setattr(restoring, "stretch_at", trimmed_as_soon_as_found)
    if moment == "first":
        with pytest.raises(HistoryTrimmedError):
            trio.run(run)
    else:
        trio.run(run)
        assert files(tmp_path / "copy") == model.moments[-1][1]
        assert len(tries) == 2
