"""A region of a run of shells: its task, its drivers and workers, and the restart of drivers.

As in `tests.sim.regions.region`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import trio

from checkpoint.chains.directory_store import DirectoryStore
from checkpoint.chains.manifest_log import CHAIN, checkpoints_in
from checkpoint.chains.state_store import StateStore
from checkpoint.core.coordination.vocabulary import (
    End,
    ReplaceWanted,
    ResetWanted,
    RestoreWanted,
    ScaleWanted,
)
from checkpoint.core.records.manifest import Checkpoint, Rolling
from checkpoint.core.region import RegionState, coordinator_directory, worker_directory
from checkpoint.errors import NoAnswerError
from checkpoint.requests.client import RequestClient
from checkpoint.runtime import replace_runtime
from dataflow import Graph, LogSink, RuntimeContext, UserOperator
from dataflow.errors import NoOutputError
from dataflow.graph.plan import GraphPlan
from dataflow.limits import WorkerLimits
from dataflow.outputs import StepRows, read_output
from dataflow.state.operator_directory import OperatorDirectory
from dos_client import Claim, QuorumUnavailableError, Store, StoreNotReadyError, open_store
from dos_protocol.errors import DosError
from journal import Position, inspect_chain, read_records
from tests.journal.journaled_files import files as content
from tests.shells.region.process import Driver, RegionProcess, Surroundings
from tests.shells.region.users import Backups, Editor, Forker, SeenSpoiling, Trimmer
from tests.shells.region.worker import Worker
from tests.sim.history import ViolationError
from tests.sim.regions.audit import retained_of
from tests.sim.regions.base import FORK, SINKS, RegionBase, SavepointRequests, no_part, region_spec
from tests.sim.regions.input import Input, RegionSource
from tests.sim.regions.output import Output, Part, RegionSink
from tests.sim.regions.record import Record

if TYPE_CHECKING:
    from tests.shells.run import Cluster


class ShellOutput(Output):
    """The output of one region. `logs`: for each log sink, its steps as they were last read."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.logs: dict[str, list[StepRows]] = {}

    def rows(self, sink: str) -> list[list[str]]:
        if sink not in self.logs:
            return super().rows(sink)
        return [
            row for step in self.logs[sink] for worker in sorted(step.parts) for row in of_step(step, worker)
        ]

    def upto(self, checkpoint: Checkpoint, worker: int, sink: str) -> list[list[str]]:
        if sink not in self.logs:
            return super().upto(checkpoint, worker, sink)
        return [
            row
            for step in self.logs[sink]
            if step.step <= checkpoint.step and worker in step.parts
            for row in of_step(step, worker)
        ]

    def open_files(self) -> list[str]:
        """Return the paths of the open files."""
        return sorted(path for disk in self.disks for _, path in disk._handles.values())


def of_step(step: StepRows, worker: int) -> list[list[str]]:
    """Return one worker's rows of a step."""
    table = step.parts[worker]
    if table is None:
        return []
    columns = [column.to_pylist() for column in table.columns]
    return [[str(value) for value in row] for row in zip(*columns, strict=True)]


# --- files ------------------------------------------------------------------------------------------------


KEEPER = "keeper"


class Keeper(UserOperator):
    """Writes each row to a file, and the number of rows of its word to another one; emits the rows
    unchanged."""

    keeps_files = True
    files: OperatorDirectory

    def open(self, ctx: RuntimeContext) -> None:
        self.files = ctx.directory()

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for word, number in zip(*(batch.column(name).to_pylist() for name in ("word", "id")), strict=True):
            self.files.append("rows", f"{word}\t{number}\n".encode())
            count = self.files.path / "counts" / word
            before = int.from_bytes(count.read_bytes()) if count.exists() else 0
            self.files.write_at(f"counts/{word}", 0, (before + 1).to_bytes(8))
        return batch


def check_files(region: "ShellRegion", audit: "Auditor") -> None:
    """O7: check that the files of a checkpoint contain the rows that the sink received up to it. Raises
    ViolationError."""
    checkpoints = {checkpoint.number: checkpoint for checkpoint in audit.checkpoints}
    for (number, worker), files in audit.files.items():
        _check(region, checkpoints[number], worker, files)


def _check(region: "ShellRegion", checkpoint: Checkpoint, worker: int, files: dict[str, bytes]) -> None:
    output = Counter(map(tuple, region.output.upto(checkpoint, worker, "rows")))
    written = Counter(tuple(line.split("\t")) for line in files.get("rows", b"").decode().splitlines())
    counts = {name: int.from_bytes(data) for name, data in files.items() if name != "rows"}
    expected = Counter(f"counts/{word}" for word, _ in output.elements())
    if written != output or counts != expected:
        raise ViolationError(
            "O7",
            f"checkpoint {checkpoint.number} restores worker {worker} with {written.total()} rows in"
            f" files, counts {counts};"
            f" its output has {output.total()}",
        )


# --- users ------------------------------------------------------------------------------------------------


class Viewer(RegionProcess):
    """Reads the output logs now and then: each read must begin with what the previous one returned."""

    kind = "viewer"

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region, name)
        self.read: dict[str, list[tuple[int, list[list[str]]]]] = {}

    async def work(self) -> None:
        region = self.region
        logs = [sink for sink, kind in region.kinds.items() if kind != "file"]
        while not region.finished:
            await self.sleep(5.0)
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    for sink in logs:
                        steps = await read_all(store, region.spec.name, sink)
                        self._compare(sink, steps)
            except NoOutputError:
                region.saw("viewer: nothing yet")
            except DosError as error:
                region.saw(f"viewer: {type(error).__name__}")

    def _compare(self, sink: str, steps: Sequence[StepRows]) -> None:
        """Check O3 of outputs. Raises ViolationError."""
        found = [
            (step.step, [row for worker in sorted(step.parts) for row in of_step(step, worker)])
            for step in steps
        ]
        known = self.read.setdefault(sink, [])
        if found[: len(known)] != known:
            different = next((one for one, other in zip(known, found, strict=False) if one != other), None)
            raise ViolationError(
                "O3", f"output {sink} had {different} and no longer has it; {len(found)} steps"
            )
        if len(found) > len(known):
            self.region.saw("viewer saw more")
        self.read[sink] = found


class Requester(RegionProcess):
    """Requests the status, a checkpoint or a reset now and then, as `dos region` does."""

    kind = "requester"

    async def work(self) -> None:
        while not self.region.finished:
            await self.sleep(2.0)
            what = self.rng.choice(["status", "status", "checkpoint", "reset"])
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    reply = await RequestClient(store, self.region.spec.name).send(
                        what, patience_s=3.0, wait_s=5.0
                    )
                    self.region.saw(f"requester: {what} {reply.answer.verdict}")
            except NoAnswerError:
                self.region.saw("requester: no answer")
            except DosError as error:
                self.region.saw(f"requester: {type(error).__name__}")
            await trio.sleep(0.5)


# --- the audit --------------------------------------------------------------------------------------------


_AWAY = (QuorumUnavailableError, StoreNotReadyError)


class Auditor(RegionProcess):
    """The audit of one region. `checkpoints`: the manifest's checkpoints; `counts`: (checkpoint, worker) ->
    word -> count; `files`: (checkpoint, worker) -> name -> content; `done`: everything is read.
    """

    kind = "auditor"

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region, name)
        self.checkpoints: list[Checkpoint] = []
        self.counts: dict[tuple[int, int], dict[str, int]] = {}
        self.files: dict[tuple[int, int], dict[str, bytes]] = {}
        self.done = False

    async def work(self) -> None:
        while not self.done:
            try:
                async with open_store(self.cluster.url, client=self.name) as store:
                    await self._audit(store)
            except _AWAY:
                await trio.sleep(1.0)

    async def _audit(self, store: Store) -> None:
        name = self.region.spec.name
        directory = coordinator_directory(name)
        chain = await inspect_chain(store, directory, CHAIN)
        async with aclosing(checkpoints_in(read_records(store, chain, directory=directory))) as checkpoints:
            self.checkpoints = [checkpoint async for checkpoint in checkpoints]
        for sink, kind in self.region.kinds.items():
            if kind != "file":
                self.region.output.logs[sink] = await read_all(store, name, sink)
        for checkpoint in retained_of(self.checkpoints):
            for worker in checkpoint.workers:
                self.counts[checkpoint.number, worker] = await self._state(store, checkpoint, worker)
        self.done = True

    async def _state(self, store: Store, checkpoint: Checkpoint, worker: int) -> dict[str, int]:
        directory = worker_directory(checkpoint.chains_of(self.region.spec.name), worker)
        view = await store.inspect(directory)
        claim = await store.claim(directory, view.epoch_seen + 1, self.rng.randbytes(16))
        async with claim:
            generation = store.record.generation
            at = checkpoint.workers[worker].state
            state = await StateStore.open(claim, version=checkpoint.number, at=at, generation=generation)
            async with aclosing(state):
                block = (await state.load()).get("count")
            for operator, position in checkpoint.workers[worker].directories.items():
                self.files[checkpoint.number, worker] = await _files_at(claim, operator, position, generation)
        if block is None:
            return {}
        words, counts = block.column("word").to_pylist(), block.column("count").to_pylist()
        return dict(zip(words, counts, strict=True))


async def _files_at(claim: Claim, operator: str, at: Position, generation: int) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        store = await DirectoryStore.open(claim, operator, at=at, generation=generation)
        async with aclosing(store):
            await store.rebuild(root := Path(folder, operator))
        return content(root)


async def read_all(store: Store, region: str, sink: str) -> list[StepRows]:
    """Return all steps of a log."""
    async with aclosing(read_output(store, region, sink)) as steps:
        return [step async for step in steps]


# --- the region -------------------------------------------------------------------------------------------


RUNS_WITH_ONE: Final = 5
"""One run in so many has a region."""
WITH_FILES: Final = 0.5
"""The share of the regions in which an operator keeps files."""
_STEP_ROWS: Final = 3
WORKERS_MAX: Final = 4


def has_region(seed: int) -> bool:
    """Return whether the run of that seed has a region."""
    return seed % RUNS_WITH_ONE == 0


@cache
def _plan(rows: str, counts: str, *, keeps_files: bool) -> GraphPlan:
    """Return the graph of a region: rows by their word, unchanged and counted. Each sink is "file", or a log
    that is published by "checkpoint" or by "step". keeps_files: an operator before the sink of rows writes
    them to files.
    """
    given = Input(Random(0), 1, 1)
    graph = Graph("region")
    lines = graph.source("lines", RegionSource(given, Random, bool))
    by_word = lines.key_by("by_word", "word")
    kept = by_word.apply(KEEPER, Keeper()) if keeps_files else by_word
    kept.sink("rows", _sink(rows))
    by_word.count("count").sink("counts", _sink(counts))
    return graph.plan()


def _sink(kind: str) -> Any:
    return RegionSink(no_part) if kind == "file" else LogSink(publish=kind)


def _short(rng: Random) -> Rolling:
    """Draw limits with which chains roll often, so that much is deleted."""
    return Rolling(
        snapshot_bytes_min=rng.choice([300, 300, 1_000, 4_000]),
        segments_max=rng.choice([1, 1, 2, 64]),
        manifest_segment_bytes_max=rng.choice([4_000, 20_000]),
        manifest_replay_bytes_max=rng.choice([4_000, 20_000]),
    )


class ShellRegion(RegionBase):
    """The region of a run."""

    finishing_pace = 0.2

    def __init__(
        self, cluster: "Cluster", first: Checkpoint | None = None, original: "ShellRegion | None" = None
    ) -> None:
        """first: of a fork, its first record; original: the region of which it is a fork."""
        super().__init__(cluster.history)
        self.first = first
        self.fork: ShellRegion | None = None
        self.cluster = cluster
        self.machines = cluster.machines
        self.quorum = cluster.record.ack_quorum
        self._prefix = "" if original is None else FORK
        if original is None:
            self.surroundings = Surroundings(cluster.network, cluster.rng.stream("threads"))
            replace_runtime(self.surroundings)
        else:
            self.surroundings = original.surroundings
        rng = self.stream("topology")
        workers = rng.choice([2, 2, 2, 3])
        self.pace_s = rng.choice([0.2, 0.3])
        of_worker = rng.choice([1, 2])
        self.given = Input(rng, workers * of_worker, _STEP_ROWS * rng.randint(6, 12) // of_worker)
        self.kinds = {sink: rng.choice(["file", "checkpoint", "step"]) for sink in SINKS}
        if of_worker > 1 and "step" in self.kinds.values():
            # A division does not contain the order of rows of several splits in a step. Such a source is not
            # deterministic, so its output may not be published before its checkpoint.
            self.given = Input(cluster.rng.stream("one split each"), workers, _STEP_ROWS * 8)
        self.keeps_files = cluster.rng.stream("files of operators").random() < WITH_FILES
        interval_s = rng.choice([0.5, 1.0])
        kept = self.stream("retention")
        self.rolling = Rolling() if kept.random() < 0.2 else _short(kept)
        retain = kept.choice([2, 2, 2, 3, 5])
        if self.lives:  # longer than other regions, with output that can be taken back
            self.kinds, self.keeps_files = dict.fromkeys(SINKS, "file"), False
            self.pace_s = rng.choice([0.3, 0.5])
            steps = int(rng.uniform(4.5, 11.0) / self.pace_s)
            self.given = Input(rng, workers * of_worker, _STEP_ROWS * steps // of_worker)
        self.plan = _plan(self.kinds["rows"], self.kinds["counts"], keeps_files=self.keeps_files)
        if original is not None:  # a fork that stays behind, and soon needs the original no more
            self.given = original.given
            self.pace_s *= rng.choice([1, 3])
            retain, interval_s = 2, 0.5
            workers = workers if self.scales else original.spec.workers or workers
        self.spec = replace(
            region_spec(
                self.plan,
                workers,
                store_url=cluster.url,
                job_key=bytes(32),
                checkpoint_interval_s=interval_s,
            ),
            name="region" if original is None else FORK,
            retain=5 if self.is_spoiled else retain,
            recovery="local" if self.recovers_locally else "global",
            warm_standby=self.stands_by,
            on_damaged="previous" if self.is_spoiled else "fail",
        )
        self.limits = WorkerLimits(step_bytes_max=_STEP_ROWS)
        self.output = ShellOutput(WORKERS_MAX if self.scales else workers)
        self.record = Record(self)  # type: ignore[arg-type]
        self.drivers: list[Driver] = []
        self.workers: list[Worker] = []
        self._supervised = rng
        self._scaling, self._losing = self.stream("scaling"), self.stream("losses")
        self._restoring = self.stream("restores")
        self.savepoints = SavepointRequests(self, self.stream("savepoints"))
        self.spoiling = SeenSpoiling(self, cluster.record, self.stream("damage"))
        self.trimmer: Trimmer | None = None
        self.forker: Forker | None = None
        self.editor: Editor | None = None
        self.backups = Backups(self) if self.backs_up and original is None else None

    def stream(self, purpose: str) -> Random:
        """Return the random stream of one purpose of this region."""
        return self.cluster.rng.stream(f"{self._prefix}region {purpose}")

    # What its processes use

    def plan_for(self, worker: Worker) -> GraphPlan:
        """Return the graph with this process's source and files."""
        own: dict[str, Any] = {
            sink: RegionSink(
                lambda index, sink=sink: Part(self.output, index, sink, worker, is_heir=index != worker.index)
            )
            for sink in SINKS
            if self.kinds[sink] == "file"
        }
        source = RegionSource(self.given, self._reads, lambda: self.broken)
        return replace(self.plan, specs={**self.plan.specs, "lines": source, **own})

    def _reads(self, worker: int) -> Random:
        return self.cluster.rng.stream(f"{self._prefix}{self.next_reader(worker)}")

    def guarded(self, call: Callable[..., Any], *args: Any) -> None:
        """Make the call; a ViolationError ends the run."""
        self.cluster.guarded(call, *args)

    # Drivers, workers and users

    @property
    def processes(self) -> list[RegionProcess]:
        """Return the running processes, those of the fork too."""
        found: list[RegionProcess] = [*self.drivers, *self.workers]
        own = [one for one in found if one.alive]
        return own if self.fork is None else own + self.fork.processes

    @property
    def running(self) -> Driver | None:
        """Return the newest driver that is alive and has not ended."""
        return next((one for one in reversed(self.drivers) if one.alive and one.end is None), None)

    def living_workers(self) -> list[Worker]:
        return [one for one in self.workers if one.alive]

    def new_driver(self) -> Driver:
        driver = self.cluster.begin(lambda name: Driver(self, name), "d")
        assert isinstance(driver, Driver)
        self.drivers.append(driver)
        return driver

    def new_worker(self, driver: Driver, index: int, attempt: int) -> Worker:
        """Start a worker for the launcher."""
        worker = self.cluster.begin(lambda name: Worker(self, driver, index, attempt, name), f"k{index}.")
        assert isinstance(worker, Worker)
        self.workers.append(worker)
        return worker

    def driver_ended(self, end: End) -> None:
        """Record the end of a driver's core."""
        self.saw(f"end: {end.state.name}")
        self.guarded(self.check_end, end)

    def begin(self) -> None:
        """Start what runs beside the drivers of this region."""
        cluster = self.cluster
        cluster.processes.start_soon(self._supervise)
        if self.first is not None:
            return
        if self.trims:
            self.trimmer = cast("Trimmer", cluster.begin(lambda name: Trimmer(self, name), "t"))
        if self.forks:
            self.forker = cast("Forker", cluster.begin(lambda name: Forker(self, name), "f"))
        if self.edits:
            self.editor = cast("Editor", cluster.begin(lambda name: Editor(self, name), "e"))
        if self.backups is not None:
            cluster.processes.start_soon(self.backups.supervise)

    async def _supervise(self) -> None:
        """Start a driver if none runs and the region has not finished; request what persons request."""
        while True:
            started = self.running
            if self.forker is not None and self.forker.first is not None and self.fork is None:
                self.fork = ShellRegion(self.cluster, self.forker.first, self)
                self.fork.finishing = self.finishing
                self.fork.begin()
            if started is None and not self.finished:
                if self.scales and self._scaling.random() < 0.3:  # a program that asks for another number
                    self.spec = replace(self.spec, workers=self._scaling.randint(1, self._most_workers))
                self.new_driver()
            if self.is_spoiled and self.finishing:
                self.spoiling.heal()
            if started is not None and not self.finishing:
                self._request(started)
            if started is not None and started.shell.status().state is RegionState.RUNNING:
                self.made = True
            pause_s = self._supervised.random()
            await trio.sleep(0.3 + 1.5 * pause_s if self.lives else 0.2 + 0.8 * pause_s)

    def _request(self, driver: Driver) -> None:
        """Request now and then what persons request of such a region."""
        if self.is_spoiled and self.spoiling.spoil(driver.shell.core):
            driver.post(ResetWanted())
        if self.scales:
            self._scale(driver)
        if self.replaces:
            self._replace(driver)
        if self.recovers_locally or self.stands_by:
            self._lose()
        if self.goes_back and self.record.committed and self._restoring.random() < 0.4:
            number = self._restoring.choice(self.record.committed[-1].retained)
            driver.post(RestoreWanted(f"checkpoint:{number}"))
        if self.makes_savepoints:
            self.savepoints.request(driver.post)

    @property
    def _most_workers(self) -> int:
        """Return how many workers have journals: creating others needs every member (R16), and a member may
        be lost for good."""
        assert self.spec.workers is not None
        made = [len(checkpoint.outputs()) for checkpoint in self.record.committed]
        return max([self.spec.workers, *made])

    def _scale(self, driver: Driver) -> None:
        """Request another number of workers now and then, or that a change is given up."""
        drawn, often = self._scaling.random(), 0.6 if self.makes_savepoints else 0.3
        if drawn < often:
            driver.post(ScaleWanted(self._scaling.randint(1, WORKERS_MAX)))
        elif drawn < often + 0.03:
            driver.post(ScaleWanted(None))

    def _lose(self) -> None:
        """Let a worker die, be cut off, or lose a link to another one, now and then."""
        drawn, living, network = self._losing.random(), self.living_workers(), self.cluster.network
        if drawn > 0.4 or not living:
            return
        worker, names = self._losing.choice(living), {one.name for one in living}
        links = [one for one in network.sockets if one.host == worker.name and one.peer.host in names]
        if drawn < 0.25:
            worker.die("killed")
        elif drawn < 0.3:
            worker.cut_off(0.5 + 5.0 * self._losing.random())
        elif links:
            network.reset(self._losing.choice(links))

    def _replace(self, driver: Driver) -> None:
        """Request other processes for workers now and then, or hand the region to another driver."""
        drawn = self._scaling.random()
        if drawn < 0.25:
            driver.post(ReplaceWanted())
        elif drawn < 0.35:
            driver.post(ReplaceWanted((0,)))
        elif drawn < 0.38:
            driver.post(ScaleWanted(None))
        elif drawn < 0.43 and len([one for one in self.drivers if one.alive and one.end is None]) == 1:
            self.spec = replace(self.spec, hand_over=True)
            self.new_driver()
            self.spec = replace(self.spec, hand_over=False)

    # The end

    @property
    def settled(self) -> bool:
        """Whether the region has finished, and its fork, if there is one."""
        if self.forker is not None and (self.forker.busy or (self.forker.first and self.fork is None)):
            return False
        if self.editor is not None and self.editor.busy:
            return False
        return self.finished and (self.fork is None or self.fork.finished)

    def heal(self) -> None:
        """End all faults of the region."""
        self.broken = False
        self.finishing = True
        if self.fork is not None:
            self.fork.heal()

    def kill_all(self) -> None:
        """Kill every process."""
        for process in (*self.processes, self.trimmer, self.forker, self.editor):
            if process is not None:
                process.kill()
        if self.backups is not None:
            self.backups.end()

    def run_again(self) -> None:
        """Let a fresh driver and fresh workers restore the finished region."""
        self.kill_all()
        self.finished = False
