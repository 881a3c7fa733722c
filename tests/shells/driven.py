"""A region that the micro-batches of a query drive, in the second tier: real shells of both sides.

The query is played: its offset log, commit log and sink survive everything; its tasks are processes with real
links. A driver of the region is also the query's, so its tasks end with it. The oracle is a plain computation
of each batch: its rows come out once, and the windows that are over by the largest time of all rows so far.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, Final

import pyarrow as pa
import trio

from checkpoint import (
    BatchAsked,
    BatchNeeded,
    BatchOffered,
    BatchProcessed,
    BatchRefused,
    BatchShare,
    ChannelFrame,
    FrameType,
    LinkHello,
    Peer,
    control_frame,
    decode_share,
    decode_to_task,
    job_digest,
)
from checkpoint.chains.visible_log import BatchOutputReader
from checkpoint.core.coordination.vocabulary import End, PauseWanted, StopWanted
from checkpoint.core.region import RegionState
from checkpoint.link import Link, connect_link
from dataflow import Graph, LogSink
from dataflow.graph.plan import GraphPlan
from dataflow.operators.aggregates import Count
from dataflow.operators.windows import Tumbling
from dataflow.sources.batches import BatchSource
from dataflow.worker.partitioning import encode_batch
from dos_client import Store, open_store
from dos_protocol.errors import DosError
from tests.shells.oracles import check_nothing_left
from tests.shells.region.nemesis import plan as fault_plan
from tests.shells.region.nemesis import strike
from tests.shells.region.phases import LIVES_S, SETTLED_S, _finish, _no_orphans, _recorded, _watch
from tests.shells.region.process import Driver, RegionProcess
from tests.shells.region.region import ShellRegion
from tests.shells.region.worker import Worker
from tests.shells.run import Cluster, run_seed
from tests.sim.engine.random_streams import RandomStreams
from tests.sim.history import ViolationError
from tests.sim.nemesis.fault import Fault
from tests.sim.result import Result

BATCHES: Final = 7
ROWS_MAX: Final = 7
LATENESS: Final = 5
SIZE: Final = 10
"""Of a window; times are microseconds."""
SINKS: Final = ("rows", "windows")
SCHEMA: Final = pa.schema([("word", pa.string()), ("id", pa.int64()), ("at", pa.timestamp("us"))])
Row = tuple[str, int, int]


@cache
def driven_plan() -> GraphPlan:
    graph = Graph("region")
    lines = graph.source("lines", BatchSource(SCHEMA))
    timed = lines.event_time("timed", "at", lateness=timedelta(microseconds=LATENESS), max_ahead=None)
    by_word = timed.key_by("by_word", "word")
    by_word.sink("rows", LogSink(retain="unread"))
    window = Tumbling("at", timedelta(microseconds=SIZE))
    by_word.aggregate("per_window", window, rows=Count()).sink("windows", LogSink(retain="unread"))
    return graph.plan()


# --- the query --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A batch in the offset log. `windows`: (word, start, rows) that come out with it."""

    number: int
    time_us: int
    rows: tuple[Row, ...]
    windows: tuple[tuple[str, int, int], ...]


class Expected:
    """The plain computation."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, int]] = Counter()
        self._highest: int | None = None

    def windows_after(self, rows: Iterable[Row]) -> list[tuple[str, int, int]]:
        """Take the rows of the next batch; return the windows that are over after it."""
        rows = list(rows)
        for word, _, at in rows:
            start = at - at % SIZE
            if not self._is_over(start):  # otherwise late by the batches before
                self._open[word, start] += 1
        if rows:
            self._highest = max(
                [at for _, _, at in rows] + ([] if self._highest is None else [self._highest])
            )
        over = [key for key in self._open if self._is_over(key[1])]
        return sorted((*key, self._open.pop(key)) for key in over)

    def _is_over(self, start: int) -> bool:
        return self._highest is not None and start + SIZE <= self._highest - LATENESS


class Query:
    """The one query of a region."""

    def __init__(self, region: "DrivenRegion") -> None:
        self.region = region
        self.rng = region.stream("query")
        self.offsets: dict[int, Planned] = {}
        self.sink: dict[int, Any] = {}
        self.committed = 0
        self._expected = Expected()
        self._ids = 0
        self._now = 0

    @property
    def done(self) -> bool:
        return self.committed == BATCHES

    async def run(self) -> None:
        """Run micro-batches, one after the other, with whichever driver runs; then end the region."""
        while not self.region.finished:
            driver = self.region.running
            if driver is None or not driver.address[1]:
                await trio.sleep(0.1)
            elif self.done:
                driver.post(StopWanted())
                await trio.sleep(0.5)
            else:
                await self._micro_batch(driver)

    def _plan(self, number: int) -> Planned:
        rows = []
        for _ in range(self.rng.choice([0, 1, self.rng.randint(2, ROWS_MAX), ROWS_MAX])):
            self._ids += 1
            at = self._now + self.rng.randint(-2 * SIZE, SIZE)
            rows.append((self.rng.choice("abcde"), self._ids, max(at, 0)))
        self._now += self.rng.choice([0, SIZE, 2 * SIZE])
        windows = tuple(self._expected.windows_after(rows))
        time_us = 1_000 + number + int(trio.current_time() * 1e6)
        return Planned(number, time_us, tuple(rows), windows)

    async def _micro_batch(self, driver: Driver) -> None:
        """Evaluate the batch until there is a result, and commit it; or until its driver is gone."""
        number, region = self.committed, self.region
        if number not in self.offsets:
            self.offsets[number] = self._plan(number)
        planned = self.offsets[number]
        tasks = [self._launch(driver, planned) for _ in range(self.rng.choice([1, 1, 2]))]
        try:
            while not any(task.result is not None for task in tasks):
                await trio.sleep(0.05)
                if region.running is not driver:
                    return
                if not region.finishing and self.rng.random() < 0.02:
                    region.saw("a task is killed")
                    self.rng.choice(tasks).kill()
                tasks = [
                    task if task.alive or task.result is not None else self._launch(driver, planned)
                    for task in tasks
                ]
            results = [task.result for task in tasks if task.result is not None]
        finally:
            for task in tasks:
                task.kill()
        for result in results:
            self.region.guarded(self._check, planned, result)
        self.sink[number] = results[0]
        if self.rng.random() < 0.2:
            region.saw("a batch is repeated")
            return  # the query dies between its sink and its commit log
        self.committed += 1

    def _launch(self, driver: Driver, planned: Planned) -> "Task":
        task = self.region.cluster.begin(lambda name: Task(self.region, driver, planned, name), "q")
        assert isinstance(task, Task)
        return task

    def _check(self, planned: Planned, result: dict[str, list[tuple[Any, ...]]]) -> None:
        number = planned.number
        if self.sink.get(number, result) != result:
            raise ViolationError("O8", f"batch {number} gave {self.sink[number]}, and repeated {result}")
        for sink, expected in (("rows", planned.rows), ("windows", planned.windows)):
            if sorted(result[sink]) != sorted(expected):
                raise ViolationError(
                    "O8", f"the {sink} of batch {number} are {sorted(result[sink])}, not {sorted(expected)}"
                )


# --- a task -----------------------------------------------------------------------------------------------


class Task(RegionProcess):
    """A task that carries one batch. `result`: the output of each sink, once it has it."""

    kind = "task"
    offers_early: ClassVar[bool] = False
    """A planted bug: it offers the batch before the workers hold their shares."""

    def __init__(self, region: "DrivenRegion", driver: Driver, planned: Planned, name: str) -> None:
        super().__init__(region, name)
        self.driver = driver
        self.planned = planned
        self.result: dict[str, list[tuple[Any, ...]]] | None = None

    async def work(self) -> None:
        link = await self._dial(self.driver.address, 0)
        try:
            processed = await self._processed(link)
        finally:
            await closed(link)
        if processed is None:
            return
        async with open_store(self.cluster.url, client=self.name) as store:
            self.result = {sink: await self._read(store, processed, sink) for sink in SINKS}

    async def _dial(self, address: tuple[str, int], incarnation: int) -> Link:
        job = self.driver.spec.name
        hello = LinkHello(role="batch", job=job, worker=-1, attempt=0, incarnation=incarnation)
        return await connect_link(*address, key=self.driver.spec.job_key, hello=hello)

    async def _processed(self, link: Link) -> BatchProcessed | None:
        job, planned = self.driver.spec.name, self.planned
        asked = BatchAsked(job=job, query="query", number=planned.number, time_us=planned.time_us)
        await link.send(control_frame(asked))
        sending = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            while True:
                message = decode_to_task(await link.receive())
                sending.cancel()
                if not isinstance(message, BatchNeeded):
                    nursery.cancel_scope.cancel()
                    break
                sending = trio.CancelScope()
                nursery.start_soon(self._send_all, sending, link, message)
        if isinstance(message, BatchRefused):
            self.region.saw(f"a batch is refused: {message.problem}")
            if message.problem != "ended":
                raise ViolationError("O8", f"refused for no reason: {message.text}")
            return None
        return message

    async def _send_all(self, scope: trio.CancelScope, link: Link, needed: BatchNeeded) -> None:
        with scope:
            while True:
                attempt = self.rng.randbytes(8).hex()
                if self.offers_early:
                    await self._offer(link, needed, attempt)
                try:
                    async with trio.open_nursery() as nursery:
                        for worker, peer in enumerate(needed.peers):
                            nursery.start_soon(self._send, needed, attempt, worker, peer)
                    break
                except ExceptionGroup as errors:
                    if errors.split(DosError)[1] is not None:
                        raise
                self.region.saw("a share is sent again")
                await trio.sleep(0.2)
            await self._offer(link, needed, attempt)
            self.region.saw("a batch is offered")

    async def _offer(self, link: Link, needed: BatchNeeded, attempt: str) -> None:
        rows, job = len(self.planned.rows), self.driver.spec.name
        offered = BatchOffered(job=job, incarnation=needed.incarnation, attempt=attempt, rows=rows)
        await link.send(control_frame(offered))

    async def _send(self, needed: BatchNeeded, attempt: str, worker: int, peer: Peer) -> None:
        """Send a worker its share, a row in each frame, and wait for the acknowledgement."""
        planned, job, count = self.planned, self.driver.spec.name, len(needed.peers)
        # Each attempt deals its rows in another way, and some workers get none.
        first = int(attempt[:4], 16)
        dealt = [row for index, row in enumerate(planned.rows) if (first + index // 3) % count == worker]
        share = BatchShare(
            job=job,
            incarnation=needed.incarnation,
            number=planned.number,
            time_us=planned.time_us,
            attempt=attempt,
        )
        link = await self._dial((peer.host, peer.port), needed.incarnation)
        try:
            await link.send(control_frame(share))
            for seq, row in enumerate(dealt):
                batch = pa.RecordBatch.from_arrays(
                    [pa.array([value], kind) for value, kind in zip(row, SCHEMA.types, strict=True)],
                    schema=SCHEMA,
                )
                await link.send(
                    ChannelFrame(
                        FrameType.DATA,
                        job=job_digest(job),
                        sender_epoch=needed.incarnation,
                        seq=seq,
                        payload=encode_batch(batch),
                    )
                )
            end = ChannelFrame(FrameType.STEP_END, 0, job_digest(job), needed.incarnation, seq=len(dealt))
            await link.send(end)
            decode_share(await link.receive())
        finally:
            await closed(link)

    async def _read(self, store: Store, processed: BatchProcessed, sink: str) -> list[tuple[Any, ...]]:
        """Return the output of the batch in one sink, worker by worker, step by step."""
        found = list[tuple[Any, ...]]()
        for worker in sorted(processed.logs):
            reader = BatchOutputReader(store, self.driver.spec.name, worker, sink)
            async with aclosing(reader.read(processed)) as outputs:
                async for output in outputs:
                    if output.rows:
                        with pa.ipc.open_stream(output.data) as reader:
                            found += rows_of(sink, reader.read_all())
        return found


def rows_of(sink: str, table: pa.Table) -> list[tuple[Any, ...]]:
    names = ("word", "id", "at") if sink == "rows" else ("word", "window_start", "rows")
    columns = [table.column(name) for name in names]
    plain = [one.cast(pa.int64()) if pa.types.is_timestamp(one.type) else one for one in columns]
    return list(zip(*(one.to_pylist() for one in plain), strict=True))


async def closed(link: Link) -> None:
    with trio.CancelScope(shield=True):
        await link.aclose()


# --- the region -------------------------------------------------------------------------------------------


class DrivenRegion(ShellRegion):
    """The region of such a run."""

    pauses: ClassVar[bool] = False
    """Whether a person pauses it now and then. A test sets it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.kinds = dict.fromkeys(SINKS, "checkpoint")
        self.keeps_files = False
        self.plan = plan = driven_plan()
        self.spec = replace(self.spec, operators=plan.operators)
        self.query = Query(self)
        self._pausing = self.stream("pauses")

    def plan_for(self, worker: Worker) -> GraphPlan:
        del worker
        return self.plan

    def check_end(self, end: End) -> None:
        super().check_end(end)
        if end.state is RegionState.STOPPED and self.query.done:
            self.finished = True

    def _request(self, driver: Driver) -> None:
        super()._request(driver)
        if self.pauses and self._pausing.random() < 0.3:
            driver.post(PauseWanted(on=True))
            self.cluster.later(0.5 + self._pausing.random(), driver.post, PauseWanted(on=False))


class DrivenCluster(Cluster):
    """A run with such a region. Its seed is none of a run with another region."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert self.region is None
        self.directories = []
        self.driven = DrivenRegion(self)

    async def run_phases(self, faults: list[Fault]) -> None:
        self.region = region = self.driven
        with _recorded(region):
            async with trio.open_nursery() as processes:
                self.processes = processes
                region.begin()
                processes.start_soon(region.query.run)
                processes.start_soon(_watch, region)
                for fault in faults:
                    self.later(fault.at_s, strike, self, fault)
                await trio.sleep(LIVES_S)
                await self.heal()
                region.heal()
                await _finish(region, "the query has not committed all batches")
                await _no_orphans(region)
                region.kill_all()
                processes.cancel_scope.cancel()
        self.network.expire_keep_alive()
        await trio.sleep(SETTLED_S)
        self.guarded(check_nothing_left, self)
        self.guarded(self.history.bench.ended, self)


def run_driven(seed: int, *, quiet: bool = False, keep: bool = False) -> Result:
    """Run one seed; none that is divisible by `RUNS_WITH_ONE`."""
    faults = [] if quiet else fault_plan(RandomStreams(seed), LIVES_S)
    return run_seed(seed, faults=faults, make=DrivenCluster, keep=keep)
