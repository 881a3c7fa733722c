"""Directories of operators over chains: what a vote says is durable, and what a restore finds by it."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from checkpoint.chains.directory_store import DirectoryStore, FilesAt
from checkpoint.core.records.manifest import Rolling, WorkerCheckpoint
from checkpoint.errors import ManifestError
from dataflow import limits
from dataflow.errors import OperatorFailure
from dataflow.state.operator_directory import OperatorDirectory, begin_files
from dataflow.worker.directories import (
    Directories,
    DirectoriesAtCheckpoint,
    FormerFiles,
    PostedChanges,
    temporary_directory,
)
from dataflow.worker.failures import first_error
from dos_protocol.errors import ClosedError, FencedError
from journal import AtCheckpoint, AtStep, LostBytesError, Position, StopNotFoundError, restore
from journal.core.chain import below
from tests.dataflow.test_directory import filing
from tests.journal.journaled_files import CHANGE, changed, files
from tests.journal.memory_store import DIRECTORY, MemoryClaim, MemoryStore

CHAIN = "files-own"
PLAN = filing().plan()
UIDS = {name: name for name in PLAN.specs}
SMALL = Rolling(snapshot_bytes_min=400)


class Worker:
    """One incarnation of a worker: its directory, and what it would vote."""

    def __init__(self, claim: MemoryClaim, directories: Directories, files: OperatorDirectory) -> None:
        self.claim = claim
        self.directories = directories
        self.files = files

    async def vote(self, checkpoint: int) -> DirectoriesAtCheckpoint:
        self.files.checkpoint(checkpoint, 10 * checkpoint)
        return await self.directories.synced(checkpoint)


@asynccontextmanager
async def standing(
    store: MemoryStore,
    incarnation: int,
    scratch: Path,
    at: DirectoriesAtCheckpoint | None = None,
    rolling: Rolling | None = None,
    former: FormerFiles | None = None,
) -> AsyncIterator[Worker]:
    """former: the layout changes, and the worker takes the files of all."""
    directories = Directories(PLAN, DIRECTORY, incarnation, str(scratch), UIDS)
    claim = store.claim(incarnation)
    part = None if at is None else part_of(at)
    try:
        async with trio.open_nursery() as nursery:
            await directories.open(claim, part, generation=1, scratch=None, rolling=rolling or Rolling())
            nursery.start_soon(directories.record_all)
            handover = (await directories.rebuild(former))["own"]
            log = PostedChanges(incarnation, "own", handover, directories.take)
            if handover.sources is not None:
                begin_files(handover.path, handover.sources, log, moved)
            own = OperatorDirectory(handover.path, log)
            own.method = "process"
            if at is not None:
                claim.collect(below(at.floors))
            yield Worker(claim, directories, own)
            nursery.cancel_scope.cancel()
    finally:
        await directories.aclose()


def moved(sources: Mapping[int, Path], target: Path) -> None:
    """Take every file, under the name of its worker."""
    for worker, source in sources.items():
        shutil.copytree(source, target / str(worker))


def part_of(at: DirectoriesAtCheckpoint) -> WorkerCheckpoint:
    any_position = Position(1, 0, 0)
    return WorkerCheckpoint(state=any_position, steps=any_position, directories=at.positions)


@pytest.mark.trio
async def test_a_vote_waits_until_its_changes_are_on_a_quorum(tmp_path: Path) -> None:
    async with standing(MemoryStore(), 1, tmp_path) as worker, trio.open_nursery() as nursery:
        worker.claim.held = True
        worker.files.append("log", b"before the checkpoint")
        voted: list[DirectoriesAtCheckpoint] = []

        async def vote() -> None:
            voted.append(await worker.vote(1))

        nursery.start_soon(vote)
        await wait_all_tasks_blocked()
        worker.claim.deliver(1)
        await wait_all_tasks_blocked()
        assert not voted, "one of three has it"
        worker.claim.deliver(2)
        await wait_all_tasks_blocked()
        assert voted


@pytest.mark.trio
async def test_each_checkpoint_of_a_directory_is_found_by_its_number_and_step_also_below_a_snapshot(
    tmp_path: Path,
) -> None:
    store, held = MemoryStore(), {}
    async with standing(store, 1, tmp_path / "here", rolling=SMALL) as worker:
        for checkpoint in range(1, 13):
            worker.files.append("log", b"%02d" % checkpoint * 40)
            worker.files.truncate("log", 60)
            await worker.vote(checkpoint)
            held[checkpoint] = files(worker.files.path)
        await wait_all_tasks_blocked()
    assert len(store.servers[0].objects[DIRECTORY]) > 2, "snapshots began segments"
    for checkpoint in (1, 6, 12):
        for at in (AtCheckpoint(checkpoint), AtStep(10 * checkpoint)):
            await restore(tmp_path / f"{at}", store, DIRECTORY, CHAIN, at=at)
            assert files(tmp_path / f"{at}") == held[checkpoint]
    for at, why in (
        (AtCheckpoint(13), "does not hold checkpoint 13; the one before"),
        (AtStep(15), "not hold the checkpoint of step 15"),
    ):
        with pytest.raises(StopNotFoundError, match=why):
            await restore(tmp_path / "into", store, DIRECTORY, CHAIN, at=at)


@pytest.mark.trio
async def test_a_vote_that_does_not_wait_loses_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test before finds it; so does the first restore on another machine."""

    async def at_once(_: DirectoryStore, at: FilesAt) -> FilesAt:
        return at

    monkeypatch.setattr(DirectoryStore, "synced", at_once)
    store = MemoryStore()
    async with standing(store, 1, tmp_path / "here") as worker:
        worker.claim.held = True
        worker.files.append("log", b"before the checkpoint")
        taken = await worker.vote(1)
    with pytest.raises(ExceptionGroup) as told:
        async with standing(store, 2, tmp_path / "there", taken):
            pass
    assert isinstance(first_error(told.value), LostBytesError | StopNotFoundError)


@pytest.mark.trio
async def test_a_checkpoint_holds_what_was_written_before_it_whatever_the_circuit_has_done_since(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    async with standing(store, 1, tmp_path / "here") as worker:
        worker.files.append("log", b"one ")
        worker.files.checkpoint(1, 10)
        worker.files.append("log", b"two ")
        worker.files.write_at("log", 0, b"ONE")
        worker.files.method_over()
        await wait_all_tasks_blocked()  # these are in the chain, too
        taken = await worker.directories.synced(1)
        assert taken.positions["own"].epoch == 1
    here = worker.files.path
    assert files(here) == {"log": b"ONE two "}
    for scratch in ("here", "there"):  # a disk that has more, and one that has nothing
        incarnation = 2 if scratch == "here" else 3
        async with standing(store, incarnation, tmp_path / scratch, taken) as worker:
            assert files(worker.files.path) == {"log": b"one "}
            worker.files.append("log", b"again")
    assert not here.exists(), "what another incarnation left is gone"
    await restore(tmp_path / "as-of-the-checkpoint", store, DIRECTORY, CHAIN, at=taken.positions["own"])
    assert files(tmp_path / "as-of-the-checkpoint") == {"log": b"one "}


@pytest.mark.trio
async def test_without_a_checkpoint_a_directory_begins_empty_whatever_was_written(tmp_path: Path) -> None:
    store = MemoryStore()
    async with standing(store, 1, tmp_path) as worker:
        worker.files.append("log", b"x")
        await worker.vote(1)
    async with standing(store, 2, tmp_path) as worker:
        assert files(worker.files.path) == {}


@pytest.mark.trio
async def test_a_checkpoint_that_says_nothing_of_a_directory_is_refused_by_the_operators_name(
    tmp_path: Path,
) -> None:
    with pytest.raises(ExceptionGroup) as told:
        async with standing(MemoryStore(), 1, tmp_path, DirectoriesAtCheckpoint({}, {})):
            pass
    error = first_error(told.value)
    assert isinstance(error, ManifestError)
    assert "no position for the files of operator 'own'" in str(error)


@pytest.mark.trio
async def test_an_operator_that_is_superseded_is_let_go_when_it_waits_for_room(tmp_path: Path) -> None:
    """In a thread, as the circuit, while nobody takes its changes."""
    store = MemoryStore()
    failed: list[BaseException] = []

    async with trio.open_nursery() as outer, standing(store, 1, tmp_path) as worker:
        room = worker.directories._handovers["own"]
        room.reserve(limits.directory_bytes_ahead)

        def write() -> None:
            worker.files._thread = threading.get_ident()
            try:
                worker.files.append("log", b"too late")
                worker.files.method_over()
            except ClosedError as error:
                failed.append(error)

        outer.start_soon(trio.to_thread.run_sync, write)
        await wait_all_tasks_blocked(0.01)
        assert not failed
    assert "to an incarnation that has ended" in str(failed[0])


@pytest.mark.trio
async def test_an_operator_that_does_not_know_that_it_is_superseded_changes_no_file_of_the_next(
    tmp_path: Path,
) -> None:
    """As in a process that was stopped, with the scratch directory of the one in its place."""
    store = MemoryStore()
    async with standing(store, 1, tmp_path) as old:
        old.files.append("log", b"of the checkpoint")
        taken = await old.vote(1)
        directories = Directories(PLAN, DIRECTORY, 2, str(tmp_path), UIDS)
        claim = store.claim(2)
        await directories.open(claim, part_of(taken), generation=1, scratch=None, rolling=Rolling())
        path = (await directories.rebuild())["own"].path
        assert not old.files.path.exists()
        for change in (lambda: old.files.append("log", b"!"), lambda: old.files.append("other", b"!")):
            with pytest.raises(
                OperatorFailure, match=r"changed by other means|cannot apply a recorded change"
            ):
                change()
        assert files(path) == {"log": b"of the checkpoint"}
        await directories.aclose()


@pytest.mark.trio
async def test_a_worker_that_is_superseded_votes_no_more(tmp_path: Path) -> None:
    store = MemoryStore()

    async def vote_too_late() -> None:
        async with standing(store, 1, tmp_path / "old") as old, standing(store, 2, tmp_path / "new"):
            old.files.append("log", b"x")
            await old.vote(1)

    with pytest.raises(ExceptionGroup) as told:
        await vote_too_late()
    assert isinstance(first_error(told.value), FencedError)


@pytest.mark.trio
async def test_nothing_that_the_last_checkpoint_needs_is_deleted_before_a_snapshot(tmp_path: Path) -> None:
    store, taken = MemoryStore(), None
    for incarnation in range(1, 5):
        async with standing(store, incarnation, tmp_path, taken) as worker:
            assert files(worker.files.path) == ({"log": b"x" * (incarnation - 1)} if taken else {})
            worker.files.append("log", b"x")
            taken = await worker.vote(incarnation)
            worker.claim.collect(below(taken.floors))


@pytest.mark.trio
async def test_snapshots_let_what_released_checkpoints_needed_be_deleted(tmp_path: Path) -> None:
    store, taken, rewritten = MemoryStore(), None, 200
    for incarnation in range(1, 4):
        async with standing(store, incarnation, tmp_path / str(incarnation), taken, SMALL) as worker:
            for checkpoint in range(20):
                worker.files.append("log", b"%02d" % checkpoint)
                worker.files.write_at("page", 0, os.urandom(rewritten))
                taken = await worker.vote(checkpoint)
                worker.claim.collect(below(taken.floors))  # all older ones are released
            kept = files(worker.files.path)
    held = sum(map(len, store.servers[0].objects[DIRECTORY].values()))
    assert held < 20 * rewritten, "60 times the page was written, and about five of them are kept"
    async with standing(store, 4, tmp_path / "4", taken, SMALL) as worker:
        assert files(worker.files.path) == kept
        assert worker.directories.replayed_bytes < 20 * rewritten


@settings(max_examples=40, deadline=None)
@given(
    changes=st.lists(
        st.one_of(CHANGE, st.just(("checkpoint",)), st.just(("commit",)), st.just(("crash",))), max_size=30
    ),
    rng=st.randoms(use_true_random=False),
)
def test_any_changes_checkpoints_and_crashes_leave_the_files_of_the_last_checkpoint_that_counts(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Any, ...]], rng: Any
) -> None:
    trio.run(_any_changes, tmp_path_factory.mktemp("any"), changes, rng)


async def _any_changes(folder: Path, changes: list[tuple[Any, ...]], rng: Any) -> None:
    """A crash comes while appends wait, and on a disk of its own or with what the last life left."""
    store = MemoryStore()
    counts: DirectoriesAtCheckpoint | None = None
    waiting, numbers = [*changes, ("crash",)], iter(range(1, 1000))
    committed = dict[str, bytes]()
    for incarnation in range(1, sum(one[0] == "crash" for one in waiting) + 1):
        scratch = folder / rng.choice(["a", "b"])
        model = dict(committed)
        async with standing(store, incarnation, scratch, counts, SMALL) as worker:
            assert files(worker.files.path) == committed
            while (change := waiting.pop(0))[0] != "crash":
                if change[0] == "checkpoint":  # that never counts
                    await worker.vote(next(numbers))
                elif change[0] == "commit":
                    counts, committed = await worker.vote(next(numbers)), model
                    worker.claim.collect(below(counts.floors))
                elif is_possible(change, model):
                    getattr(worker.files, change[0])(*change[1:])
                    model = changed(model, change)
                if rng.random() < 0.5:
                    worker.files.method_over()
                    worker.files.method = "process"
                    await wait_all_tasks_blocked()  # recorded; otherwise it may not be when the crash comes
            if rng.random() < 0.5:  # some of it is on one member only, or on none
                worker.claim.held = True
                worker.files.append("a-last-word", b"x")
                worker.files.method_over()
                await wait_all_tasks_blocked()
                worker.claim.deliver(rng.choice([1, 2, 3]))


def is_possible(change: tuple[Any, ...], model: dict[str, bytes]) -> bool:
    kind, *rest = change
    return kind in ("append", "write_at", "truncate") or (kind in ("remove", "rename") and rest[0] in model)


# EVIDENCE-OF: P-6
@pytest.mark.trio
async def test_the_history_of_files_is_bounded_by_retained_checkpoints(tmp_path: Path) -> None:
    """The files stay of one size; the oldest of two retained checkpoints decides what is released. The second
    half of the run needs no more than the first one.
    """
    store, retained, most = MemoryStore(), [], [0, 0]
    checkpoints = 120
    async with standing(store, 1, tmp_path / "here", rolling=SMALL) as worker:
        for checkpoint in range(checkpoints):
            worker.files.append(f"part-{checkpoint:03d}", b"%03d" % checkpoint * 20)
            if checkpoint >= 5:
                worker.files.remove(f"part-{checkpoint - 5:03d}")
            retained = [*retained[-1:], await worker.vote(checkpoint)]
            worker.claim.collect(below(retained[0].floors))
            await wait_all_tasks_blocked()
            half = 2 * checkpoint // checkpoints
            most[half] = max(most[half], sum(map(len, store.servers[0].objects[DIRECTORY].values())))
    assert most[1] <= 1.25 * most[0], most
    await restore(tmp_path / "there", store, DIRECTORY, CHAIN, at=retained[0].positions["own"])
    assert sorted(files(tmp_path / "there")) == [f"part-{checkpoint:03d}" for checkpoint in range(114, 119)]


# --- the temporary directories of workers without a scratch directory ---------------------------------------


HOLDS = """
import sys, pathlib
from dataflow.worker.directories import temporary_directory
class Owner: pass
owner = Owner()
path = temporary_directory(owner)
(path / "large").write_bytes(b"x" * 10)
print(path, flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_files_of_a_worker_that_was_killed_are_removed_by_the_next_one_and_those_of_living_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", HOLDS]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(command, env=environment, **pipes) as killed,
        subprocess.Popen(command, env=environment, **pipes) as living,
    ):
        assert killed.stdout is not None
        assert living.stdout is not None
        left, used = (Path(one.stdout.readline().strip()) for one in (killed, living) if one.stdout)
        first, second = set[int](), set[int]()  # any objects that can be referred to weakly
        own = temporary_directory(first)
        assert {left, used, own} == set(tmp_path.iterdir()), "all of them live"
        killed.kill()
        killed.wait()
        other = temporary_directory(second)
        assert {used, own, other} == set(tmp_path.iterdir())
        del first
        assert {used, other} == set(tmp_path.iterdir()), "removed with its owner"
        assert living.stdin is not None
        living.stdin.close()
        living.wait()
        assert {other} == set(tmp_path.iterdir()), "a process that ends removes its own"


def test_a_directory_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take it for one that was left, between the two calls."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made, lock = tempfile.mkdtemp, fcntl.flock
    sweeps = ["open", "lock"]

    def make(**how: Any) -> str:
        path = made(**how)
        if "open" in sweeps:
            sweeps.remove("open")
            Path(path).rmdir()
        return path

    def locks(file: int, how: int) -> None:
        if "lock" in sweeps and how == fcntl.LOCK_EX:
            sweeps.remove("lock")
            (path,) = tmp_path.iterdir()
            path.rmdir()
        lock(file, how)

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    monkeypatch.setattr(fcntl, "flock", locks)
    owner = set[int]()
    assert [temporary_directory(owner)] == [*tmp_path.iterdir()]
    assert not sweeps
