"""A region that a Spark query drives, in one process: the cores of `region_model.py`, Spark's offset and
commit logs, its tasks, and rows. A row comes out with the number under which its worker counted it, so that
the output shows a loss, a double, and state that differs from the output.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from checkpoint.core.coordination.vocabulary import (
    CheckpointWanted,
    ControlReceived,
    LinkDown,
    PauseWanted,
    ResetWanted,
    RestoreWanted,
    SavepointWanted,
)
from checkpoint.core.links.messages import (
    BatchAsked,
    BatchNeeded,
    BatchOffered,
    BatchProcessed,
    BatchRefused,
    Failed,
    OpenBatch,
    RequestCheckpoint,
    Restore,
    WantsCheckpoint,
)
from checkpoint.core.records.manifest import WorkerCheckpoint
from checkpoint.core.records.outputs import output_chain
from journal.core.chain import Position
from tests.checkpoint.manifest_samples import notes
from tests.checkpoint.region_model import Driver, Process, RegionModel

SINK = "out"
FIRST_TASK = 10_000
"""Links of tasks are numbered from here on."""
ROWS_MAX = 9
BATCHES_MAX = 4


class ViolationError(AssertionError):
    """A promise is broken."""


class LegitRefusalError(Exception):
    """The query ends with a refusal that a person has caused."""


@dataclass
class Task:
    """An attempt of the task of one evaluation."""

    driver: Driver
    link: int
    asked: BatchAsked
    rows: list[int]
    to_task: deque = field(default_factory=deque)
    to_driver: deque = field(default_factory=deque)
    alive: bool = True
    result: list | None = None
    needed: BatchNeeded | None = None
    attempt: str = ""
    unsent: dict[int, list[int]] = field(default_factory=dict)
    """Worker -> its share, not delivered yet."""
    offered: bool = False


@dataclass
class Circuit:
    """What a worker process has beside its core."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    """(step, row) that it has counted."""
    shares: dict[tuple[int, int, str], list[int]] = field(default_factory=dict)
    open: OpenBatch | None = None
    left: list[int] = field(default_factory=list)
    fed: bool = True


class Spark:
    """The offset log, the commit log, the sink, and the driver of one query."""

    def __init__(self) -> None:
        self.query = "q1"
        self.available = 0
        self.offsets: dict[int, tuple[int, int, int]] = {}
        """Batch -> (first row, end, time)."""
        self.commits: set[int] = set()
        self.sink: dict[int, list] = {}
        self.planned = 0
        self.line = 0
        """The line of history of the region that its checkpoint fits."""
        self.running = False
        self.driver = 0
        self.number = 0
        self.tasks: list[Task] = []
        """Of the current batch in this run of the driver."""

    def start(self) -> None:
        last = max(self.offsets, default=-1)
        self.number = last if last >= 0 and last not in self.commits else last + 1
        self.tasks, self.running = [], True

    def stop(self) -> None:
        self.running = False
        for task in self.tasks:
            task.alive = False


class BatchModel(RegionModel):
    """A region of some workers and the query that drives it."""

    def __init__(self, rng: random.Random, workers: int = 2) -> None:
        super().__init__(
            workers,
            max_consecutive_reset_attempts=10_000,
            trigger="operator",
            operators=notes(**{SINK: "sink"}),
        )
        self.rng = rng
        self.spark = Spark()
        self.tasks: list[Task] = []
        self.circuits: dict[int, Circuit] = {}
        self.states: dict[Position, list[tuple[int, int]]] = {}
        self.logs: list[list[tuple[int, Any]]] = [[] for _ in range(workers)]
        """Worker -> (step, output)."""
        self.lost = ""
        """What is wrong with Spark's checkpoint, "" for nothing: then refusals are right."""

    # --- Spark ----------------------------------------------------------------------------------------

    def moves(self) -> list[tuple[str, Any]]:
        """What Spark can do next."""
        spark, found = self.spark, []
        if spark.available < ROWS_MAX:
            found.append(("a row arrives", self.arrive))
        if not spark.running:
            found.append(("spark starts", self.start_spark))
            return found
        if not self.is_live(self.drivers[spark.driver]):
            found.append(("spark stops", spark.stop))
            return found
        done = [task for task in spark.tasks if task.result is not None]
        live = [task for task in spark.tasks if task.alive and task.result is None]
        if spark.number not in spark.offsets:
            if spark.number < BATCHES_MAX:
                found.append(("plan", self.plan))
        elif done:
            found.append(("commit", self.commit))
        elif not live:
            found.append(("launch", self.launch))
        return found + [move for task in self.tasks if task.alive for move in self.moves_of(task)]

    def moves_of(self, task: Task) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        if task.to_driver and self.is_live(task.driver):
            found.append(("task to driver", lambda: self.to_driver(task)))
        if task.to_task:
            found.append(("to task", lambda: self.to_task(task)))
        if task.unsent:
            found.append(("share", lambda: self.send_share(task)))
        elif task.needed is not None and not task.offered:
            found.append(("offer", lambda: self.offer(task)))
        return found

    def is_live(self, driver: Driver) -> bool:
        return driver.alive and driver.end is None

    def arrive(self) -> None:
        self.spark.available += 1

    def start_spark(self) -> None:
        spark = self.spark
        spark.driver = self.start_driver().number
        last = self.manifest.last
        if last is not None and last.line > spark.line:  # a person restored the region: Spark's end goes, too
            spark.line = last.line
            number = -1 if last.batch is None else last.batch.number
            keeps = self.rng.randrange(2)  # the plan of the next batch may stay
            spark.offsets = {n: plan for n, plan in spark.offsets.items() if n <= number + keeps}
            spark.commits = {n for n in spark.commits if n <= number}
            spark.sink = {n: out for n, out in spark.sink.items() if n <= number}
        spark.start()

    def plan(self) -> None:
        spark = self.spark
        begin = spark.offsets[spark.number - 1][1] if spark.number else 0
        spark.planned += 1
        end = self.rng.randint(begin, spark.available)  # a batch without rows has its time, too
        spark.offsets[spark.number] = (begin, end, spark.planned)

    def launch(self, number: int = -1) -> None:
        """Launch a task. number: of the batch whose DataFrame is evaluated, an earlier one or the current."""
        spark = self.spark
        begin, end, time_us = spark.offsets[spark.number if number < 0 else number]
        rows = list(range(begin, end))
        self.rng.shuffle(rows)
        asked = BatchAsked(job="region", query=spark.query, number=spark.number, time_us=time_us)
        task = Task(self.drivers[spark.driver], FIRST_TASK + len(self.tasks), asked, rows)
        self.tasks.append(task)
        if number < 0:
            spark.tasks.append(task)
        task.to_driver.append(asked)

    def commit(self) -> None:
        """The sink has the batch, and Spark commits it."""
        spark = self.spark
        results = [task.result for task in spark.tasks if task.result is not None]
        if any(result != results[0] for result in results):
            raise ViolationError(f"two evaluations of batch {spark.number} differ: {results}")
        out = results[0]
        last = self.manifest.last
        assert last is not None
        restored = last.line > spark.line  # by a person, who corrects Spark's side when it complains
        if spark.sink.get(spark.number, out) != out and not (self.lost or restored):
            raise ViolationError(f"batch {spark.number} came out twice: {spark.sink[spark.number]}, {out}")
        spark.sink[spark.number] = out
        if self.rng.random() < 0.2:
            spark.stop()  # it dies between its sink and its commit log
            return
        spark.commits.add(spark.number)
        if not restored:
            self.check_sink()
        spark.number += 1
        spark.tasks = []

    def check_sink(self) -> None:
        spark = self.spark
        rows = [row for n in range(spark.number + 1) for row, *_ in spark.sink[n]]
        if sorted(rows) != list(range(spark.offsets[spark.number][1])):
            raise ViolationError(f"rows {sorted(rows)} after batch {spark.number}: {spark.offsets}")
        for worker in range(self.workers):
            counts = [k for n in range(spark.number + 1) for _, w, k in spark.sink[n] if w == worker]
            if counts != list(range(1, len(counts) + 1)):
                raise ViolationError(f"worker {worker} counted {counts} up to batch {spark.number}")

    # --- tasks ----------------------------------------------------------------------------------------

    def _put(self, driver: Driver, link: int, message: Any) -> None:
        if link >= FIRST_TASK:
            self.tasks[link - FIRST_TASK].to_task.append(message)
        else:
            super()._put(driver, link, message)

    def to_driver(self, task: Task) -> None:
        self.feed(task.driver, ControlReceived(task.link, task.to_driver.popleft()))

    def to_task(self, task: Task) -> None:
        message = task.to_task.popleft()
        if isinstance(message, BatchNeeded):
            task.needed, task.offered = message, False
            task.attempt = f"{task.link}.{message.incarnation}"
            dealt: dict[int, list[int]] = {worker: [] for worker in range(self.workers)}
            for row in task.rows:
                dealt[self.rng.randrange(self.workers)].append(row)
            task.unsent = dealt
        elif isinstance(message, BatchProcessed):
            task.result = self.read(message)
            task.needed, task.unsent = None, {}
        elif isinstance(message, BatchRefused):
            task.alive = False
            last = self.manifest.last
            if message.problem == "ended" or (last is not None and last.line > self.spark.line):
                self.spark.stop()
            elif self.lost:
                raise LegitRefusalError(f"{message.problem}: {self.lost}")
            elif task in self.spark.tasks:
                raise ViolationError(f"refused for no reason: {message.text}")

    def read(self, message: BatchProcessed) -> list:
        """Read the output of a batch from the logs."""
        found = []
        for worker in sorted(message.logs):
            begin = message.batch.begins.get(worker, {}).get(SINK, 0)
            end = message.batch.ends[worker][SINK]
            for step, made in self.logs[worker][begin:end]:
                assert message.batch.after_step < step <= message.batch.step
                found.append(made)
        return found

    def send_share(self, task: Task) -> None:
        """A whole share reaches a worker, which acknowledges it; or nobody, if none is in the incarnation."""
        worker = self.rng.choice(sorted(task.unsent))
        assert task.needed is not None
        incarnation = task.needed.incarnation
        for process in self.processes:
            if process.alive and process.worker == worker and process.incarnation == incarnation:
                share = task.unsent.pop(worker)
                circuit = self.circuit(process)
                circuit.shares[task.asked.number, task.asked.time_us, task.attempt] = share
                return
        task.needed, task.unsent = None, {}  # its link breaks; the coordinator tells what follows

    def offer(self, task: Task) -> None:
        assert task.needed is not None
        task.offered = True
        incarnation, rows = task.needed.incarnation, len(task.rows)
        task.to_driver.append(
            BatchOffered(job="region", incarnation=incarnation, attempt=task.attempt, rows=rows)
        )

    # --- workers --------------------------------------------------------------------------------------

    def _actions_of(self, process: Process) -> list[tuple[str, Any]]:
        found = super()._actions_of(process)
        return [one for one in found if not one[0].startswith("step") or self.has_work(process)]

    def circuit(self, process: Process) -> Circuit:
        return self.circuits.setdefault(id(process), Circuit())

    def carry_out(self, process: Process) -> None:
        order = process.core.orders[0]
        if isinstance(order, OpenBatch):
            process.core.orders.popleft()
            circuit = self.circuit(process)
            key = order.number, order.time_us, order.attempt
            if key not in circuit.shares:
                raise ViolationError(f"worker {process.worker} does not hold share {key}")
            circuit.left, circuit.open, circuit.fed = list(circuit.shares[key]), order, False
            circuit.shares.clear()
            return
        if isinstance(order, RequestCheckpoint):
            # The next step of the worker that receives it first, which may be behind others.
            key = process.incarnation, order.checkpoint
            self.checkpoint_steps.setdefault(key, max(process.step + 1, order.step))
        if isinstance(order, Restore) and self.directories[process.worker] < order.epoch:
            # Before the first vote, and in the turn of the claim, which fences the former writer of the log.
            part = None if order.restore is None else order.restore.workers[process.worker]
            rows = [] if part is None else self.states[part.state]
            self.circuits[id(process)] = Circuit(list(rows))
            del self.logs[process.worker][0 if part is None else part.sinks[SINK]["size"] :]
        super().carry_out(process)

    def requested(self, process: Process) -> list[int]:
        """The steps of the checkpoints that were requested in its incarnation."""
        return [step for (i, _), step in self.checkpoint_steps.items() if i == process.incarnation]

    def has_work(self, process: Process) -> bool:
        circuit, last = self.circuit(process), max(self.requested(process), default=0)
        return bool(
            circuit.left
            or not circuit.fed
            or process.step < last
            or process.core.voted < self.newest(process)
        )

    def newest(self, process: Process) -> int:
        return max((c for i, c in self.checkpoint_steps if i == process.incarnation), default=0)

    def work(self, process: Process) -> None:
        circuit, incarnation = self.circuit(process), process.incarnation
        if circuit.left and self.directories[process.worker] != process.term:
            held, circuit.left = self.directories[process.worker], []
            self.report(process, Failed(job="", worker=0, kind="fenced", message="fenced", epoch_held=held))
        elif circuit.left:
            process.step += 1
            row = circuit.left.pop()
            circuit.rows.append((process.step, row))
            self.logs[process.worker].append((process.step, (row, process.worker, len(circuit.rows))))
        elif process.step < max(self.requested(process), default=0):
            process.step += 1
        if not circuit.left and not circuit.fed and circuit.open is not None:
            circuit.fed = True  # also of a worker that was fenced: its report comes too late
            message = WantsCheckpoint(job="", step=process.step, batch=circuit.open.number)
            self.report(process, message, of=incarnation)
        self._vote_if_due(process)

    def positions(self, process: Process, checkpoint: int, step: int) -> WorkerCheckpoint:
        rows = [one for one in self.circuit(process).rows if one[0] <= step]
        at = Position(process.term, 100 * step + process.worker + 1, checkpoint)
        self.states[at] = rows
        size = sum(made <= step for made, _ in self.logs[process.worker])
        sink = {"epoch": process.term, "size": size, "digest": 1}
        return WorkerCheckpoint(state=at, steps=at, sinks={SINK: sink}, floors={output_chain(SINK): (1, 0)})

    # --- faults ---------------------------------------------------------------------------------------

    def troubles(self) -> list[tuple[str, Any]]:
        """What can go wrong, and what people request."""
        spark, driver = self.spark, self.drivers[self.spark.driver]
        found = self.faults()
        found += [("kill task", lambda t=t: self.kill_task(t)) for t in spark.tasks if t.alive]
        if not self.is_live(driver):
            return found
        wanted = [
            CheckpointWanted(),
            PauseWanted(on=True),
            PauseWanted(on=False),
            ResetWanted(),
            SavepointWanted(f"s{self.rng.randrange(3)}"),
        ]
        found += [(f"request {event}", lambda e=event: self.feed(driver, e)) for event in wanted]
        if spark.running and spark.number in spark.offsets:
            found.append(("second evaluation", self.launch))
            if spark.number:
                found.append(("old DataFrame", lambda: self.launch(spark.number - 1)))
        return found

    def tamperings(self) -> list[tuple[str, Any]]:
        """What a person does to the region, or to Spark's checkpoint."""
        found: list[tuple[str, Any]] = []
        driver, spark, kept = self.drivers[self.spark.driver], self.spark, self.manifest.checkpoints[-3:-1]
        asked = {task.asked.number for task in self.tasks}
        if spark.running and spark.number in spark.offsets and spark.number not in asked and not self.lost:
            found.append(("foreachBatch ignores its DataFrame", self.ignore_batch))
        if not spark.running and spark.offsets and not self.lost:
            found += [("lose the tail", self.lose_tail), ("another query", self.other_query)]
        if self.is_live(driver):
            found += [(f"restore {one.number}", lambda n=one.number: self.restore(driver, n)) for one in kept]
        return found

    def lose_tail(self) -> None:
        self.lost = "the tail"
        last = max(self.spark.offsets)
        self.spark.commits.discard(last)
        del self.spark.offsets[last]

    def ignore_batch(self) -> None:
        self.lost = "an ignored DataFrame"
        self.spark.commits.add(self.spark.number)
        self.spark.sink[self.spark.number] = []
        self.spark.number, self.spark.tasks = self.spark.number + 1, []

    def other_query(self) -> None:
        self.lost = "the query"
        self.spark.query, self.spark.offsets, self.spark.commits, self.spark.sink = "q2", {}, set(), {}

    def restore(self, driver: Driver, number: int) -> None:
        self.feed(driver, RestoreWanted(f"checkpoint:{number}", allow_republish=True))

    def kill_task(self, task: Task) -> None:
        """Its link ends, too; a message on its way may arrive before."""
        task.alive = False
        if self.is_live(task.driver):
            if task.to_driver and self.rng.random() < 0.5:
                self.to_driver(task)
            self.feed(task.driver, LinkDown(task.link, "closed"))

    def kill_driver(self, driver: Driver) -> None:
        super().kill_driver(driver)
        if driver.number == self.spark.driver:
            self.spark.stop()
        for task in self.tasks:
            if task.driver is driver:
                task.alive = False


def walk(seed: str, steps: int = 300) -> BatchModel:
    """Play a random walk, then let the troubles end; return the model, whose batches are all committed.
    Raises ViolationError, LegitRefusalError.
    """
    rng = random.Random(seed)
    model = BatchModel(rng, rng.randint(1, 3))
    model.start_spark()
    trouble, tampering = rng.choice([0.02, 0.05, 0.1]), rng.choice([0.0, 0.0, 0.01])
    for _ in range(steps):
        dice = rng.random()
        choices = [*model.actions(), *model.moves() * 2]
        if dice < trouble:
            choices = model.troubles()
        elif dice > 1 - tampering:
            choices = model.tamperings() or choices
        if not choices or trouble < dice < trouble + 0.03:
            model.pass_time(rng.choice([1, 1, 1, 15]))
            continue
        rng.choice(choices)[1]()
    for _ in range(5_000):
        if len(model.spark.commits) == BATCHES_MAX:
            return model
        for driver in model.drivers:
            if model.is_live(driver) and driver.core.checkpoints.pause:
                model.feed(driver, PauseWanted(on=False))
        choices = [*model.actions(), *model.moves() * 3]
        if not choices or rng.random() < 0.02:
            model.pass_time(1)
        else:
            rng.choice(choices)[1]()
    raise ViolationError(f"stuck: {model.drivers[-1].core.status()}")
