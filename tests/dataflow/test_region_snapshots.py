"""Workers as threads of the test, so that limits can be small: snapshots of state, going back by hand."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from checkpoint import limits as checkpoint_limits
from checkpoint.chains.manifest_log import ManifestView, read_manifest
from checkpoint.coordinator.control import RegionControl
from checkpoint.core.records.manifest import OutputIdentity
from checkpoint.core.region import RegionSpec, RegionState, ResetReport, worker_directory
from dataflow import Graph
from dataflow.limits import WorkerLimits
from dataflow.worker.process import run_worker
from dataflow.worker.spec import WorkerSpec
from dos_client import init_store, open_store
from tests.dataflow.support import last_counts, true_counts
from tests.dataflow.test_region_processes import SMALL_STEPS, WAIT_S, Watch, hurry, slow_word_count
from tests.support.servers import ServerProcess, one_server

__all__ = ["one_server"]
pytestmark = pytest.mark.process


class ThreadLauncher:
    """Each attempt of a worker is a thread. They cannot be killed, only told to stop."""

    def __init__(self, spec_of: Callable[[int, int], WorkerSpec], control: RegionControl) -> None:
        self._spec_of = spec_of
        self._control = control
        self.threads: list[threading.Thread] = []

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        self.threads.append(threading.Thread(target=self._run, args=(worker, attempt), daemon=True))
        self.threads[-1].start()

    standbys = 0

    def cancel(self, worker: int, attempt: int) -> None:
        """Nothing to be done."""

    def _run(self, worker: int, attempt: int) -> None:
        try:
            run_worker(self._spec_of(worker, attempt))
        except Exception as error:
            self._control.worker_ended(worker, attempt, str(error))
        else:
            self._control.worker_ended(worker, attempt, None)


def run_in_threads(
    graph: Graph, store: str, watch: Watch, limits: WorkerLimits, retain: int = 5
) -> RegionControl:
    plan = graph.plan()
    spec = RegionSpec(
        name="words",
        workers=2,
        store_url=store,
        job_key=b"k" * 32,
        operators=plan.operators,
        checkpoint_interval_s=0.1,
        retain=retain,
    )
    return started_in_threads(graph, spec, limits, watch)


def started_in_threads(
    graph: Graph,
    spec: RegionSpec,
    limits: WorkerLimits,
    watch: Watch,
    *,
    application: str = "",
    check: Callable[[bytes, OutputIdentity | None], None] | None = None,
) -> RegionControl:
    """Start a region whose workers are threads."""
    control = RegionControl(spec, observer=watch, check=check)
    address = control.listen()

    def spec_of(worker: int, attempt: int) -> WorkerSpec:
        return WorkerSpec(
            region=spec.name,
            application=application,
            worker=worker,
            attempt=attempt,
            coordinator=address,
            job_key=spec.job_key,
            graph=graph,
            store_url=spec.store_url,
            limits=limits,
        )

    control.start(ThreadLauncher(spec_of, control))
    return control


@contextmanager
def running_in_threads(graph: Graph, spec: RegionSpec, **options: Any) -> Iterator[RegionControl]:
    """Run a region of the application `shop` with small steps in threads, and stop it in the end."""
    control = started_in_threads(graph, spec, SMALL_STEPS, Watch(), application="shop", **options)
    try:
        yield control
    finally:
        control.stop()
        assert control.wait(WAIT_S)


def segments_of(store_url: str, worker: int) -> set[tuple[str, str]]:
    """(epoch, base) of every segment of a worker's state chain."""

    async def look() -> set[tuple[str, str]]:
        async with open_store(store_url) as store:
            view = await store.inspect(worker_directory("words", worker))
            names = {name for objects in view.answers.values() for name in objects}
        parts = [name.split(".") for name in names]
        return {(epoch, base) for chain, epoch, base in parts if chain == "state"}

    return trio.run(look)


def write_input(folder: Path, words: int) -> Path:
    """A file of 15,000 lines, with this many different first words."""
    path = folder / "input.txt"
    with path.open("w") as file:
        for number in range(15_000):
            file.write(f"word{number * 7919 % words} and{number % 7} another\n")
    return path


# EVIDENCE-OF: P-6
def test_a_restore_begins_at_the_newest_snapshot(
    one_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_limits, "snapshot_growth", 2)
    limits = replace(SMALL_STEPS, snapshot_bytes_min=20_000)
    path = write_input(tmp_path, words=3001)
    trio.run(lambda: init_store(one_server.url))
    watch = Watch()
    graph = slow_word_count([path], tmp_path / "out", repeat=8)
    control = run_in_threads(graph, one_server.url, watch, limits, retain=1_000)
    for round_ in (1, 2):
        watch.checkpoints(3 * round_)
        control.reset()
        watch.wait(lambda event: isinstance(event, ResetReport), round_)
    hurry(tmp_path / "out")
    assert control.wait(WAIT_S), control.status()
    assert control.status().state is RegionState.FINISHED, control.exception()
    assert control.status().incarnation == 3
    assert last_counts(tmp_path / "out") == dict(true_counts([path], 8))
    for worker in (0, 1):
        segments = segments_of(one_server.url, worker)
        epochs = [epoch for epoch, _ in segments]
        assert len(epochs) > len(set(epochs)), "a snapshot is a new segment of the same epoch"


# EVIDENCE-OF: P-6, P-9
def test_a_store_stays_as_small_as_the_checkpoints_that_are_retained(
    one_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers write several times what the store has at any time; the last checkpoints can be restored."""
    monkeypatch.setattr(checkpoint_limits, "snapshot_growth", 1)
    monkeypatch.setattr(checkpoint_limits, "manifest_segment_bytes_max", 20_000)
    limits = replace(SMALL_STEPS, snapshot_bytes_min=20_000)
    path = write_input(tmp_path, words=997)
    trio.run(lambda: init_store(one_server.url))
    watch, sizes = Watch(), list[int]()
    control = run_in_threads(
        slow_word_count([path], tmp_path / "out", repeat=9), one_server.url, watch, limits, retain=2
    )
    for checkpoints in range(8, 48, 4):
        watch.checkpoints(checkpoints)
        sizes.append(bytes_of(one_server))
        if checkpoints == 24:
            control.reset()
    hurry(tmp_path / "out")
    assert control.wait(WAIT_S), control.status()
    assert control.status().state is RegionState.FINISHED, control.exception()
    assert last_counts(tmp_path / "out") == dict(true_counts([path], 9))
    view, written = trio.run(lambda: written_by(one_server.url))
    assert [checkpoint.number for checkpoint in view.checkpoints if checkpoint.number in view.retained] == [
        view.checkpoints[-2].number,
        view.checkpoints[-1].number,
    ]
    assert max(sizes) < written / 2, f"{sizes}, of {written} bytes written"
    assert max(sizes[5:]) < 2 * max(sizes[:5]), f"it grows: {sizes}"


def bytes_of(server: ServerProcess) -> int:
    """What the region's journals take on the server's disk."""
    found = 0
    for folder in (server.data / "d").iterdir():
        for name in list(folder.iterdir()):
            with suppress(FileNotFoundError):
                found += name.stat().st_size if not name.name.startswith(".") else 0
    return found


async def written_by(store_url: str) -> tuple[ManifestView, int]:
    """Return the manifest, and the bytes appended to all state and steps chains up to the last checkpoint."""
    async with open_store(store_url) as store:
        view = await read_manifest(store, "words")
    assert view.last is not None
    return view, sum(part.state.size + part.steps.size for part in view.last.workers.values())
