"""The region of a soak: one graph, drivers that also answer requests, workers; restarted when they end."""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Final, cast

from checkpoint.core.coordination.vocabulary import Effect, End, NotifyObservers
from checkpoint.core.progress import status_json
from checkpoint.core.records.manifest import Rolling
from checkpoint.core.region import RegionState, answers_directory, requests_directory
from checkpoint.core.requests import Answer, Request, encode_record
from checkpoint.core.verbs import (
    CommandRegion,
    QueueRead,
    RegionNotified,
    RequestArrived,
    RequestEvent,
    RequestHandler,
    WriteAnswer,
)
from checkpoint.requests.queue import QueueReader, write_records
from dataflow import Graph, InputSource, LogSink
from dataflow.graph.plan import GraphPlan
from dataflow.limits import WorkerLimits
from dos_protocol.errors import DosError
from tests.sim.engine.environment import Process
from tests.sim.regions.base import RegionBase, no_part, region_spec
from tests.sim.regions.driver import Driver
from tests.sim.regions.links import KEY
from tests.sim.regions.output import RegionSink
from tests.sim.regions.worker import Worker
from tests.sim.soak.quiet import Commits, TailOutput, TailPart
from tests.sim.soak.store import SoakStore

if TYPE_CHECKING:
    from tests.sim.regions.region import Region
    from tests.sim.soak.run import Soak

SCHEMA: Final = "word string, id bigint"
HANDLE, PRODUCER = "rows", "till"
REQUESTS_S: Final = 1.0
LOG_BYTES: Final = 16_000
"""Limit of each worker's output log. The reader is not registered, and reads every 10 s: if a restart makes
it miss a turn, the rows of three turns must still be there.
"""
PROCESSES_KNOWN: Final = 8
"""Processes that ended and that others may still dial."""


@cache
def _plan() -> GraphPlan:
    graph = Graph("region")
    by_word = graph.source("lines", InputSource(HANDLE, SCHEMA)).key_by("by_word", "word")
    by_word.sink("rows", RegionSink(no_part))  # type: ignore[arg-type]
    by_word.count("count").sink("counts", LogSink(max_bytes=LOG_BYTES))
    return graph.plan()


class SoakRegion(RegionBase):
    """The region, with the interface that `Driver` and `Worker` use. `on_commit`: called with each commit."""

    finishing_pace = 1.0
    producers = (PRODUCER,)

    def __init__(self, soak: "Soak", workers: int) -> None:
        super().__init__(soak.history)
        self.env = soak.env
        self.network = soak.network
        self.machines = [soak.machine]
        self.store = soak.record
        self.quorum = soak.record.ack_quorum
        self.rng = soak.rng
        self.pace_s = 0.02
        self.spec = replace(
            region_spec(
                _plan(), workers, store_url="dos://here", job_key=KEY, checkpoint_interval_s=soak.interval_s
            ),
            retain=3,
        )
        self.rolling = Rolling(
            snapshot_bytes_min=4_000,
            segments_max=8,
            manifest_segment_bytes_max=16_000,
            manifest_replay_bytes_max=16_000,
        )
        self.limits = WorkerLimits(step_bytes_max=10_000)
        self.output = TailOutput()
        self.record = Commits(self)  # type: ignore[assignment]
        self.driver: SoakDriver | None = None
        self.stopped = False
        self.on_commit: Callable[[], None] = lambda: None
        self._plans: dict[int, GraphPlan] = {}
        self._workers: dict[int, Worker] = {}
        self._made = 0
        self._ended: deque[str] = deque()

    # What its processes use

    def plan_for(self, worker: Worker) -> GraphPlan:
        """Return the graph with this process's files."""
        plan = _plan()
        rows = RegionSink(lambda index: cast("TailPart", TailPart(self.output, index, "rows", worker)))  # type: ignore[arg-type,return-value]
        return replace(plan, specs={**plan.specs, "rows": rows})

    def store_for(self, process: Process) -> SoakStore:
        """Return a store for one task of a process."""
        return SoakStore(process, self.network, self.store, self.history, self.rng.stream("stores"))

    def sync_s(self, rng: Random) -> float:
        """Return the length of a sync of an output."""
        return 0.001 * (0.5 + rng.random())

    def committed(self) -> None:
        """A checkpoint is committed."""
        self.on_commit()

    # Drivers and workers

    @property
    def workers(self) -> list[Worker]:
        return [one for one in self._workers.values() if one.alive]

    @property
    def runs(self) -> bool:
        driver = self.driver
        return driver is not None and driver.alive and driver.core.status().state is RegionState.RUNNING

    def start(self) -> None:
        """Start a driver whenever there is none."""
        if not self.stopped and (self.driver is None or not self.driver.alive or self.driver.end is not None):
            self._made += 1
            self.driver = SoakDriver(self, f"d{self._made}")
            self._ended.append(self.driver.address)
            self._prune()
        self.env.after(0.5, self.start)

    def new_worker(self, driver: Driver, index: int, attempt: int) -> Worker:
        self._made += 1
        worker = Worker(cast("Region", self), driver, index, attempt, f"k{index}.{self._made}")
        self._workers[index] = worker
        self._ended.append(worker.address)
        self._prune()
        return worker

    def _prune(self) -> None:
        """Forget the addresses of processes that ended long ago: the network keeps them."""
        while len(self._ended) > PROCESSES_KNOWN:
            address = self._ended.popleft()
            process, _ = self.network._listening[address]
            if process.alive:
                self._ended.append(address)
                continue
            del self.network._listening[address]
            for path in [path for path in self.network._bases if process.name in path]:
                del self.network._bases[path]

    def driver_ended(self, driver: Driver, end: End) -> None:
        """The core of a driver has ended; its process ends too."""
        self.network.process_died(driver, power=False)
        driver.kill()
        self.check_end(end)

    def kill_worker(self, index: int) -> None:
        """SIGKILL."""
        worker = self._workers.get(index)
        if worker is not None and worker.alive:
            worker.die("killed")

    def kill_driver(self) -> None:
        """SIGKILL."""
        driver = self.driver
        if driver is not None and driver.alive:
            self.network.process_died(driver, power=False)
            driver.kill()

    def stop(self) -> None:
        """Kill every process."""
        self.stopped = True
        self.kill_driver()
        for index in list(self._workers):
            self.kill_worker(index)


class SoakDriver(Driver):
    """A driver that answers requests through the store, as `checkpoint.requests.server` does."""

    def __init__(self, region: SoakRegion, name: str) -> None:
        super().__init__(cast("Region", region), name)
        self.handler = RequestHandler(region.spec.name)
        self._outbox: list[WriteAnswer] = []
        self._reading = region.store_for(self)
        self._writing = region.store_for(self)
        self.start("requests", self._answer_requests())

    def _perform(self, effect: Effect) -> None:
        super()._perform(effect)
        if isinstance(effect, NotifyObservers):
            self._decide(RegionNotified(effect.event))

    def _decide(self, event: RequestEvent) -> None:
        for effect in self.handler.handle(event, self.core.status(), self.now):
            if isinstance(effect, CommandRegion):
                self.post(effect.event)
            else:
                self._outbox.append(effect)

    async def _answer_requests(self) -> None:
        queue = QueueReader(self._reading, requests_directory(self.region.spec.name))  # type: ignore[arg-type]
        skipped = False
        while True:
            await self.sleep(REQUESTS_S)
            try:
                if not skipped:
                    await queue.skip_present()
                    skipped = True
                if self.manifest.held:
                    for request in await queue.poll():
                        assert isinstance(request, Request), request
                        self._decide(RequestArrived(request, int(self.now * 1000)))
                    self._decide(QueueRead())
                    await self._write_answers()
            except DosError as error:
                self.region.saw(f"requests: {type(error).__name__}")

    async def _write_answers(self) -> None:
        pending = list(self._outbox)
        if not pending:
            return
        status = json.loads(json.dumps(status_json(self.core.status())))
        data = b"".join(
            encode_record(
                Answer(
                    requests=one.requests,
                    region=self.region.spec.name,
                    incarnation=self.manifest.held,
                    verdict=one.verdict,
                    wall_time_ms=int(self.now * 1000),
                    reason=one.reason,
                    result=status if one.with_status else one.result,
                )
            )
            for one in pending
        )
        directory = answers_directory(self.region.spec.name)
        await write_records(self._writing, directory, data, roll_bytes=0)  # type: ignore[arg-type]
        for one in pending:
            self._outbox.remove(one)
