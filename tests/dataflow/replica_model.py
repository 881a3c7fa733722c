"""A replica on a store in memory: real manifests and output logs. It gives the rows of a list, in an order
and in steps of its own. At random it makes steps, commits checkpoints, dies, is restored to an older
checkpoint, gets other workers, and trims its logs.
"""

import random
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import trio

from checkpoint.chains.consumer_register import Trimmer, TrimPlanner
from checkpoint.chains.manifest_log import ManifestLog
from checkpoint.chains.output_log import OutputLog
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
)
from checkpoint.core.records.consumers import RetentionRule, output_register
from checkpoint.core.records.layout import even_layout
from checkpoint.core.records.lines import restored
from checkpoint.core.records.manifest import (
    Checkpoint,
    RetiredWorker,
    floors_of,
    gaps_of,
    retained_with,
)
from checkpoint.core.records.outputs import BEFORE_ALL, OutputDecision, OutputTime, Publish, output_chain
from checkpoint.core.region import worker_directory
from dataflow.worker.journals import FloorCollector, log_part
from dos_protocol.errors import FencedError
from journal import NO_FLOOR, Position
from tests.checkpoint.manifest_samples import numbered_checkpoint, worker_checkpoint
from tests.checkpoint.restored_output_model import InterruptedStore
from tests.checkpoint.savepoint_model import taken_over

REGION, SINK = "numbers", "out"
CHAIN = output_chain(SINK)
COLUMNS = pa.schema([("at", pa.timestamp("us")), ("n", pa.int64())])
END = (1 << 63) - 1


class ModelRow(NamedTuple):
    """A row: its time in microseconds, and a number. Rows may be equal."""

    at: int
    n: int


class Step(NamedTuple):
    """What a step gives: worker -> its rows, and how far event time is on its log."""

    rows: dict[int, list[ModelRow]]
    times: dict[int, OutputTime]


def arrow(rows: list[ModelRow]) -> bytes:
    if not rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, COLUMNS) as writer:
        at, n = [row.at for row in rows], [row.n for row in rows]
        writer.write_table(pa.table([pa.array(at, pa.timestamp("us")), n], schema=COLUMNS))
    return sink.getvalue().to_pybytes()


class NoGrowth:
    """Never tells that an object has grown: readers poll."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    async def beyond(self, size: int) -> int:
        await trio.sleep_forever()
        return size


class ReplicaStore(InterruptedStore):
    """The store of a site."""

    def growth(self, directory: str, name: str, size: int) -> NoGrowth:
        del directory, name, size
        return NoGrowth()


class ReplicaModel:
    """One replica. rows: all that it gives in the end, in any order."""

    def __init__(self, rows: list[ModelRow], rng: random.Random, publish: Publish = Publish.STEP) -> None:
        self.rng, self.publish, self.store = rng, publish, ReplicaStore()
        self.order = sorted(rows, key=lambda row: row.at + rng.randrange(400))
        self.history: dict[int, list[Step]] = {0: []}
        self.at_checkpoint: dict[int, list[Step]] = {}
        self.workers: tuple[int, ...] = (0,)
        self.logs: dict[int, OutputLog] = {}
        self.trimmers: dict[int, Trimmer] = {}
        self.collecting: dict[int, FloorCollector] = {}
        self.made: dict[int, int] = {}
        self.events: list[Any] = []
        self.manifest: ManifestLog | None = None
        self.restores = self.changes = 0
        self.keeps_for_consumers = False
        """Whether it trims what all consumers have acknowledged, instead of all but the newest bytes."""

    @property
    def line(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.line

    # --- processes ------------------------------------------------------------------------------------------

    async def open(self, workers: tuple[int, ...] | None = None) -> None:
        """A driver takes over, with the workers of the last checkpoint, or others. They open their logs at
        the same time.
        """
        self.manifest, opened = await taken_over(self.manifest, self.store, REGION, self.events)
        self.kept, self.incarnation, self.checkpoint = opened.kept, opened.incarnation, opened.last_checkpoint
        before = (0,) if self.checkpoint is None else tuple(sorted(self.checkpoint.workers))
        self.workers = before if workers is None else workers
        self.logs, self.made, self.trimmers = {}, {}, {}
        for worker in self.workers:
            await self._open_worker(worker, joins=worker not in before)
        if workers is not None or (self.checkpoint is not None and self.checkpoint.rewound):
            await self._commit(0 if self.checkpoint is None else self.checkpoint.step)

    async def _open_worker(self, worker: int, *, joins: bool) -> None:
        checkpoint = self.checkpoint
        step = 0 if checkpoint is None else checkpoint.step
        part = None if checkpoint is None else checkpoint.outputs().get(worker)
        prepared = None if part is None else part.sinks.get(SINK)
        claim = await self.store.claim(worker_directory(REGION, worker), self.incarnation)
        floors = floors_of(self.kept, worker)
        self.collecting[worker] = FloorCollector(claim)
        log = await OutputLog.open(
            claim,
            SINK,
            self.publish,
            after_step=step,
            at=None if prepared is None else msgspec.convert(prepared, Position),
            generation=1,
            line=self.line,
            rewound=joins or (checkpoint is not None and checkpoint.rewound),
            released=floors.get(CHAIN, NO_FLOOR),
            workers=len(self.workers),
        )
        if joins:
            time = OutputTime() if prepared is None else msgspec.convert(prepared, OutputTime)
            await log.begin_after(SINK, step, time)
        self.logs[worker], self.made[worker] = log, step
        self.collecting[worker].release(floors, gaps_of(self.kept, worker))
        planner = TrimPlanner(
            self.store,
            output_register(REGION, SINK),
            RetentionRule()
            if self.keeps_for_consumers
            else RetentionRule(by_consumers=False, bytes_max=self.rng.choice([400, 1500])),
        )
        self.trimmers[worker] = log.trimmer(planner, partial(self.collecting[worker].permit, CHAIN))

    def _step(self, number: int) -> Step:
        """What a step gives: as before if it was made on this line."""
        steps = self.history[self.line]
        assert number <= len(steps) + 1
        if number == len(steps) + 1:
            steps.append(self._made_now(steps))
        return steps[number - 1]

    def _made_now(self, steps: list[Step]) -> Step:
        given = sum(len(rows) for step in steps for rows in step.rows.values())
        upto = min(given + self.rng.choice([0, 1, 2, 5]), len(self.order))
        rows: dict[int, list[ModelRow]] = {worker: [] for worker in self.workers}
        for row in self.order[given:upto]:
            rows[self.workers[row.n % len(self.workers)]].append(row)
        lowest = min((row.at for row in self.order[upto:]), default=END + 1) - 1
        times = {}
        for worker in self.workers:
            before = self._time_before(worker, steps)
            high = max([before.high, *(row.at for row in rows[worker])])
            lag = self.rng.choice([0, 0, 30]) if lowest < END else 0
            times[worker] = OutputTime(max(before.mark, lowest - lag), high)
        return Step(rows, times)

    @staticmethod
    def _time_before(worker: int, steps: list[Step]) -> OutputTime:
        found = (step.times[worker] for step in reversed(steps) if worker in step.times)
        return next(found, OutputTime(BEFORE_ALL, BEFORE_ALL))

    async def make(self, worker: int) -> None:
        """A step of one worker."""
        number = self.made[worker] + 1
        if number > min(self.made.values()) + 3:
            return  # it waits for the others
        step = self._step(number)
        log, rows = self.logs[worker], step.rows[worker]
        try:
            if log.judge(number, number) is OutputDecision.APPEND:
                await log.append(SINK, number, len(rows), number, arrow(rows), {}, time=step.times[worker])
                await log.synced(number)
        except FencedError:
            return
        self.made[worker] = number

    async def commit(self) -> None:
        """A checkpoint of the step that all workers reach. What was made before is made again first."""
        while min(self.made.values()) < len(self.history[self.line]):
            await self.make(min(self.made, key=lambda worker: self.made[worker]))
        await self._commit(min(self.made.values()))

    async def _commit(self, step: int) -> None:
        number, last = (self.kept[-1].number + 1 if self.kept else 1), self.kept[-1] if self.kept else None
        workers, steps = {}, self.history[self.line][:step]
        for worker in self.workers:
            time = msgspec.to_builtins(self._time_before(worker, steps))
            sinks = {SINK: log_part(await self.logs[worker].synced(step), time)}
            floors = {CHAIN: self.logs[worker].vote_floor}
            workers[worker] = worker_checkpoint(self.incarnation, sinks=sinks, floors=floors)
        former = {} if last is None else {**last.retired, **last.workers}
        retired = {
            worker: RetiredWorker(sinks=part.sinks, floors=part.floors)
            for worker, part in former.items()
            if worker not in workers
        }
        record = numbered_checkpoint(
            number,
            incarnation=self.incarnation,
            parent=number - 1,
            step=step,
            workers=workers,
            layout=even_layout(len(workers)),
            retired=retired,
            retained=retained_with(self.kept, number, 3),
            line=self.line,
            rewinds=() if last is None else last.rewinds,
        )
        self.at_checkpoint[number] = steps
        await self._append(record)
        for worker in self.workers:
            self.collecting[worker].release(floors_of(self.kept, worker), gaps_of(self.kept, worker))

    async def _append(self, record: Checkpoint) -> None:
        assert self.manifest is not None
        await self.manifest.append(AppendCheckpoint(record))
        assert isinstance(self.events[-1], CheckpointAppended), self.events[-1]
        self.kept, self.checkpoint = self.manifest._kept, record

    # --- what happens to it ---------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Go back to one of the retained checkpoints, as a new line of history."""
        target = self.rng.choice(self.kept)
        record = restored(self.kept, target, self.incarnation)
        self.at_checkpoint[record.number] = list(self.at_checkpoint[target.number])
        self.history[record.line] = list(self.at_checkpoint[target.number])
        await self._append(record)
        await self.open()
        self.restores += 1

    async def change_workers(self) -> None:
        await self.commit()
        await self.open(tuple(range(self.rng.choice([1, 2, 3]))))
        self.changes += 1

    async def trim(self) -> None:
        for worker in self.workers:
            allowed = self.collecting[worker].released.get(CHAIN, NO_FLOOR)
            directory = worker_directory(REGION, worker)
            await self.logs[worker].trim(self.trimmers[worker], directory, f"w{worker:04d}", allowed)

    @property
    def has_trimmed(self) -> bool:
        """Whether the last checkpoint needs less than everything of a log."""
        return any(one.released.get(CHAIN, NO_FLOOR)[1] > 0 for one in self.collecting.values())

    async def trim_all(self) -> None:
        """Trim what nobody needs, and forget the checkpoints that need it."""
        for _ in range(5):
            await self.trim()
            await self.commit()

    async def happen(self, often: str = "") -> None:
        """Something happens to it. often: what happens more often than in other lives."""
        weights = {"make": 14, "commit": 4, "restore": 1, "open": 1, "workers": 1, "trim": 0}
        if often:
            weights[often] = 6
        what = self.rng.choices([*weights], [*weights.values()])[0]
        if what == "make":
            for _ in range(self.rng.choice([1, 3, 8])):
                await self.make(self.rng.choice(self.workers))
        elif what == "commit":
            await self.commit()
        elif what == "restore" and self.kept:
            await self.restore()
        elif what == "open":
            await self.open()
        elif what == "workers" and self.kept:
            await self.change_workers()
        elif what == "trim":
            await self.trim()

    async def settle(self) -> None:
        """Everything is given, and committed."""
        while sum(len(rows) for step in self.history[self.line] for rows in step.rows.values()) < len(
            self.order
        ):
            for worker in self.workers:
                await self.make(worker)
        for worker in self.workers:
            await self.make(worker)
        await self.commit()
