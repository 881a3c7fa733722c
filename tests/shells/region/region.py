"""A region of a run of shells: its task, its drivers and workers, and the restart of drivers.

As in `tests.sim.regions.region`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Final

import trio

from checkpoint.core.coordination.vocabulary import End
from checkpoint.core.region import RegionState
from checkpoint.runtime import replace_runtime
from dataflow import Graph, LogSink
from dataflow.graph.plan import GraphPlan
from dataflow.limits import WorkerLimits
from tests.shells.region.driver import Driver
from tests.shells.region.files import KEEPER, Keeper
from tests.shells.region.output import ShellOutput
from tests.shells.region.process import RegionProcess
from tests.shells.region.surroundings import Surroundings
from tests.shells.region.worker import Worker
from tests.sim.regions.base import SINKS, RegionBase, no_part, region_spec
from tests.sim.regions.input import Input, RegionSource
from tests.sim.regions.output import Part, RegionSink
from tests.sim.regions.record import Record

if TYPE_CHECKING:
    from tests.shells.run import Cluster

RUNS_WITH_ONE: Final = 5
"""One run in so many has a region."""
WITH_FILES: Final = 0.5
"""The share of the regions in which an operator keeps files."""
_STEP_ROWS: Final = 3


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


class ShellRegion(RegionBase):
    """The region of a run."""

    finishing_pace = 0.2

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster.history)
        self.cluster = cluster
        self.machines = cluster.machines
        self.quorum = cluster.record.ack_quorum
        self.surroundings = Surroundings(cluster.network, cluster.rng.stream("threads"))
        replace_runtime(self.surroundings)
        rng = cluster.rng.stream("region topology")
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
        plan = self._plan()
        self.spec = region_spec(
            plan,
            workers,
            store_url=cluster.url,
            job_key=bytes(32),
            checkpoint_interval_s=rng.choice([0.5, 1.0]),
        )
        self.limits = WorkerLimits(step_bytes_max=_STEP_ROWS)
        self.output = ShellOutput(workers)
        self.record = Record(self)  # type: ignore[arg-type]
        self.drivers: list[Driver] = []
        self.workers: list[Worker] = []
        self._supervised = rng

    # What its processes use

    def _plan(self) -> GraphPlan:
        return _plan(self.kinds["rows"], self.kinds["counts"], keeps_files=self.keeps_files)

    def plan_for(self, worker: Worker) -> GraphPlan:
        """Return the graph with this process's source and files."""
        plan = self._plan()
        own: dict[str, Any] = {
            sink: RegionSink(lambda index, sink=sink: Part(self.output, index, sink, worker))
            for sink in SINKS
            if self.kinds[sink] == "file"
        }
        source = RegionSource(self.given, self._reads, lambda: self.broken)
        return replace(plan, specs={**plan.specs, "lines": source, **own})

    def _reads(self, worker: int) -> Random:
        return self.cluster.rng.stream(self.next_reader(worker))

    def guarded(self, call: Callable[..., Any], *args: Any) -> None:
        """Make the call; a ViolationError ends the run."""
        self.cluster.guarded(call, *args)

    # Drivers and workers

    @property
    def processes(self) -> list[RegionProcess]:
        """Return the running processes."""
        found: list[RegionProcess] = [*self.drivers, *self.workers]
        return [one for one in found if one.alive]

    @property
    def running(self) -> Driver | None:
        """Return the newest driver that is alive and has not ended."""
        return next((one for one in reversed(self.drivers) if one.alive and one.end is None), None)

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

    async def supervise(self) -> None:
        """Start a driver if none runs and the region has not finished."""
        while True:
            started = self.running
            if started is None and not self.finished:
                self.new_driver()
            if started is not None and started.shell.status().state is RegionState.RUNNING:
                self.made = True
            await trio.sleep(0.2 + 0.8 * self._supervised.random())

    # The end

    def heal(self) -> None:
        """End all faults of the region."""
        self.broken = False
        self.finishing = True

    def kill_all(self) -> None:
        """Kill every process."""
        for process in self.processes:
            process.kill()

    def run_again(self) -> None:
        """Let a fresh driver and fresh workers restore the finished region."""
        self.kill_all()
        self.finished = False
