"""A region of a run: its task, its drivers and workers, and the restart of drivers.

Cores and tasks are in `driver` and `worker`.
"""

from dataclasses import replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING, ClassVar, Final

from checkpoint.core.coordination.vocabulary import (
    End,
    PauseWanted,
    ReplaceWanted,
    ResetWanted,
    RestoreWanted,
    ScaleWanted,
)
from checkpoint.core.records.manifest import Checkpoint, Rolling
from checkpoint.core.region import RegionState
from dataflow import Graph
from dataflow.graph.plan import GraphPlan
from dataflow.limits import WorkerLimits
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.regions.base import FORK, SINKS, RegionBase, SavepointRequests, no_part, region_spec
from tests.sim.regions.damage import Spoiling
from tests.sim.regions.driver import Driver
from tests.sim.regions.input import Input, Reader, RegionSource
from tests.sim.regions.links import KEY
from tests.sim.regions.output import Output, Part, RegionSink
from tests.sim.regions.record import Record
from tests.sim.regions.users import Forker, Trimmer
from tests.sim.regions.worker import Worker

if TYPE_CHECKING:
    from tests.sim.run import Cluster

RUNS_WITH_ONE: Final = 8
"""One run in so many has a region."""
STEP_ROWS: Final = 3
WORKERS_MAX: Final = 4


def has_region(rng: RandomStreams) -> bool:
    """Return whether the run of that seed has a region."""
    return rng.stream("region").randrange(RUNS_WITH_ONE) == 0


@cache
def _plan() -> GraphPlan:
    """Return the graph of every region: rows by their word, unchanged and counted."""
    given = Input(Random(0), 1, 1)
    graph = Graph("region")
    lines = graph.source("lines", RegionSource(given, Random, bool))
    by_word = lines.key_by("by_word", "word")
    by_word.sink("rows", RegionSink(no_part))
    by_word.count("count").sink("counts", RegionSink(no_part))
    return graph.plan()


def _short(rng: Random) -> Rolling:
    """Draw limits with which chains roll often, so that much is deleted."""
    return Rolling(
        snapshot_bytes_min=rng.choice([300, 300, 1_000, 4_000]),
        segments_max=rng.choice([1, 1, 2, 64]),
        manifest_segment_bytes_max=rng.choice([4_000, 20_000]),
        manifest_replay_bytes_max=rng.choice([4_000, 20_000]),
    )


class Region(RegionBase):
    """The region of a run."""

    finishing_pace = 0.1
    trims: ClassVar[bool] = False
    """Whether a producer trims its input. A test sets it, so that all other runs stay as they are."""

    def __init__(
        self, cluster: "Cluster", first: Checkpoint | None = None, original: "Region | None" = None
    ) -> None:
        """first: of a fork, its first record; original: the region of which it is a fork."""
        super().__init__(cluster.history)
        self.first = first
        self._cluster = cluster
        self._prefix = "" if first is None else FORK
        self.fork: Region | None = None
        self.env = cluster.env
        self.network = cluster.network
        self.machines = cluster.machines
        self.store = cluster.record
        self.quorum = cluster.record.ack_quorum
        self.rng = cluster.rng
        rng = self.stream("topology")
        workers = rng.choice([2, 2, 2, 3])
        self._scaling = self.stream("scaling")
        self._losing = self.stream("losses")
        self._restoring = self.stream("restores")
        self.pace_s = rng.choice([0.3, 0.5, 0.5])
        of_worker = rng.choice([1, 2])
        steps = int(rng.uniform(4.5, 11.0) / self.pace_s)
        given = Input(rng, workers * of_worker, STEP_ROWS * steps // of_worker)
        self.given = given if original is None else original.given
        self.readers: dict[int, Reader] = {}
        """The reader of each worker's newest incarnation."""
        plan = _plan()
        interval_s = rng.choice([0.5, 1.0, 1.0])
        # The name seeds the stream: with another one, every recorded seed of a region is another run.
        if self.rng.stream(f"{self._prefix}rare cuts").random() < 0.25:
            interval_s = 3.0
        self.spec = region_spec(
            plan, workers, store_url="dos://here", job_key=KEY, checkpoint_interval_s=interval_s
        )
        kept = self.stream("retention")
        self.rolling = Rolling() if kept.random() < 0.2 else _short(kept)
        self.spec = replace(
            self.spec,
            name="region" if first is None else FORK,
            retain=kept.choice([2, 2, 2, 3, 5]),
            recovery="local" if self.recovers_locally else "global",
            warm_standby=self.stands_by,
        )
        if self.is_spoiled:
            self.spec = replace(self.spec, on_damaged="previous", retain=5)
        self.limits = WorkerLimits(step_bytes_max=STEP_ROWS)
        if original is not None:  # a fork that stays behind, and soon needs the original no more
            self.pace_s *= rng.choice([1, 3])
            self.spec = replace(self.spec, retain=2, checkpoint_interval_s=0.5)
        if original is not None and not self.scales:
            self.spec = replace(self.spec, workers=original.spec.workers)
        assert self.spec.workers is not None
        self.output = Output(WORKERS_MAX if self.scales else self.spec.workers)
        self.record = Record(self)
        self.savepoints = SavepointRequests(self, self.stream("savepoints"))
        self.spoiling = Spoiling(self, self.store, self.rng.stream("region damage"))
        self.drivers: list[Driver] = []
        self.workers: list[Worker] = []
        self._supervised = rng
        self.trimmer = Trimmer(self) if self.trims and first is None else None
        self.forker = Forker(self) if self.forks and first is None else None
        self.new_driver()
        self._supervise()

    @property
    def plan(self) -> GraphPlan:
        """The graph of every region."""
        return _plan()

    def stream(self, purpose: str) -> Random:
        """Return the random stream of one purpose of this region."""
        return self.rng.stream(f"{self._prefix}region {purpose}")

    # What its processes use

    def plan_for(self, worker: Worker) -> GraphPlan:
        """Return the graph with this process's source and sinks."""
        plan = _plan()
        own = {
            sink: RegionSink(
                lambda index, sink=sink: Part(self.output, index, sink, worker, is_heir=index != worker.index)
            )
            for sink in SINKS
        }
        source = RegionSource(self.given, self._reads, lambda: self.broken, self.readers)
        return replace(plan, specs={**plan.specs, "lines": source, **own})

    def _reads(self, worker: int) -> Random:
        return self.rng.stream(f"{self._prefix}{self.next_reader(worker)}")

    def sync_s(self, rng: Random) -> float:
        """Draw the length of a sync of an output."""
        return 0.002 * rng.lognormvariate(0.0, 0.7)

    # Drivers and workers

    @property
    def running(self) -> Driver | None:
        """Return the newest driver that is alive and has not ended."""
        return next((one for one in reversed(self.drivers) if one.alive and one.end is None), None)

    def new_driver(self) -> Driver:
        driver = Driver(self, f"{self._prefix}d{len(self.drivers) + 1}")
        driver.skew = driver.rng.uniform(-0.1, 0.1)
        self.drivers.append(driver)
        return driver

    def new_worker(self, driver: Driver, index: int, attempt: int) -> Worker:
        name = f"{self._prefix}k{index}.{len(self.workers) + 1}"
        worker = Worker(self, driver, index, attempt, name)
        worker.skew = worker.rng.uniform(-0.1, 0.1)
        self.workers.append(worker)
        return worker

    def driver_ended(self, driver: Driver, end: End) -> None:
        """The core of a driver has ended; its process ends too."""
        driver.note(f"ends: {end.state.name}, {end.reason}")
        self.saw(f"end: {end.state.name}")
        self.network.process_died(driver, power=False)
        driver.kill()
        self.check_end(end)

    def living_workers(self) -> list[Worker]:
        """Return the workers that run, those of the fork too."""
        own = [one for one in self.workers if one.alive]
        return own if self.fork is None else own + self.fork.living_workers()

    def names(self) -> list[str]:
        """Return the names of its running processes; if there are none, of the last driver."""
        found = [one.name for one in (*self.drivers, *self.workers) if one.alive]
        found += [] if self.fork is None else self.fork.names()
        return found or [self.drivers[-1].name]

    def _supervise(self) -> None:
        """Start a driver if none runs and the region has not finished."""
        started = self.running
        if self.forker is not None and self.forker.first is not None and self.fork is None:
            self.fork = Region(self._cluster, self.forker.first, self)
            self.fork.finishing = self.finishing
        if started is None and not self.finished:
            if self.scales and self._scaling.random() < 0.3:  # a program that asks for another number
                self.spec = replace(self.spec, workers=self._scaling.randint(1, self._most_workers))
            self.new_driver()
        if self.scales and started is not None and not self.finishing:
            self._scale(started)
        if self.replaces and started is not None and not self.finishing:
            self._replace(started)
        if (self.recovers_locally or self.stands_by) and started is not None and not self.finishing:
            self._lose()
        if self.goes_back and started is not None and not self.finishing:
            self._restore(started)
        if self.is_spoiled and self.finishing:
            self.spoiling.heal()
        elif self.is_spoiled and started is not None and self.spoiling.spoil(started.core):
            started.post(ResetWanted())
        if self.makes_savepoints and started is not None and not self.finishing:
            self.savepoints.request(started.post)
        if started is not None and started.core.status().state is RegionState.RUNNING:
            self.made = True
        self.env.after(0.3 + 1.5 * self._supervised.random(), self._supervise)

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

    def _restore(self, driver: Driver) -> None:
        """Request that the region goes back to a retained checkpoint now and then."""
        if self.record.committed and self._restoring.random() < 0.4:
            number = self._restoring.choice(self.record.committed[-1].retained)
            driver.post(RestoreWanted(f"checkpoint:{number}"))

    def _lose(self) -> None:
        """Let a worker die, hang, or lose a link to another one, now and then."""
        drawn, living = self._losing.random(), self.living_workers()
        if drawn > 0.4 or not living:
            return
        worker = self._losing.choice(living)
        wires = [one for one in self.network.wires if one.open and worker in one.processes]
        wires = [one for one in wires if all(isinstance(end, Worker) for end in one.processes)]
        if drawn < 0.25:
            worker.die("killed")
        elif drawn < 0.3:
            worker.pause()
            self.env.after(0.5 + 5.0 * self._losing.random(), worker.resume)
        elif wires:
            self._losing.choice(wires).reset()

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

    @property
    def all_made(self) -> bool:
        """Whether all journals exist, of the fork too."""
        return self.made and (self.forker is None or (self.fork is not None and self.fork.made))

    # The end

    @property
    def settled(self) -> bool:
        """Whether the region has finished, and its fork, if there is one."""
        if self.forker is not None and (self.forker.busy or (self.forker.first and self.fork is None)):
            return False
        return self.finished and (self.fork is None or self.fork.finished)

    def heal(self) -> None:
        """End all faults of the region."""
        self.broken = False
        self.finishing = True
        if self.fork is not None:
            self.fork.heal()
        for driver in self.drivers:
            if driver.alive and driver.end is None:
                driver.post(PauseWanted(on=False))
        for process in (*self.drivers, *self.workers):
            if process.alive:
                process.resume()

    def kill_all(self) -> None:
        """Kill every process."""
        if self.trimmer is not None:
            self.trimmer.kill()
        if self.fork is not None:
            self.fork.kill_all()
        for process in (*self.drivers, *self.workers):
            if process.alive:
                self.network.process_died(process, power=False)
                process.kill()

    def run_again(self) -> None:
        """Start a fresh driver and fresh workers on the finished region."""
        self.kill_all()
        self.finished = False
        self.new_driver()
