"""A region in one process, without time, sockets or disks: real cores of coordinators and participants around
a model of the manifest and of the launcher. The model lists the named actions that are possible; a test
picks among them. `region_model.py` checks every effect. The manifest is one linear log with a claim: a
claim fences appends of lower epochs for ever; an append may be lost with its coordinator, or be in the log
although nobody received the acknowledgement. The journal's tests show that the real quorum behaves so
(decision 0003, R1-R10).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    Begin,
    CancelWorker,
    CheckpointAppended,
    CloseLink,
    ControlReceived,
    CoordinatorTick,
    End,
    LaunchWorker,
    LinkDown,
    ManifestLost,
    ManifestOpened,
    ManifestSuperseded,
    ManifestTaken,
    MessageRefused,
    NotifyObservers,
    OpenManifest,
    SendControl,
    WorkerEnded,
)
from checkpoint.core.links.messages import (
    VERSIONS,
    Committed,
    Counters,
    Failed,
    Finished,
    Join,
    RequestCheckpoint,
    Restore,
    Restored,
    Start,
    Vote,
)
from checkpoint.core.links.participation import (
    LinkGone,
    MessageIn,
    OrderRefused,
    ParticipantCore,
    ParticipantEnded,
    ParticipantState,
    ParticipantTick,
    ReportWanted,
    SendReport,
)
from checkpoint.core.records.manifest import Checkpoint, WorkerCheckpoint, keep
from checkpoint.core.region import RegionSpec, RegionState
from journal.core.chain import Position

KEY = b"k" * 32


def spec(workers: int = 2, **fields) -> RegionSpec:
    return RegionSpec(name="region", workers=workers, store_url="dos://nowhere", job_key=KEY, **fields)


@dataclass
class Manifest:
    """The log all coordinators share."""

    claimed: int = 0
    opened: list[int] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def last(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None


@dataclass
class Driver:
    """One coordinator with what the shell would hold."""

    number: int
    core: Coordinator
    jobs: deque = field(default_factory=deque)
    """Manifest operations under way, in order."""
    claim: int = 0
    """Claimed for the opening under way; its start is not acknowledged yet."""
    restored: dict[int, Checkpoint | None] = field(default_factory=dict)
    """incarnation -> the last checkpoint when it was opened."""
    attempts: dict[int, int] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    end: End | None = None
    alive: bool = True
    reports: list = field(default_factory=list)
    refused: list = field(default_factory=list)


@dataclass
class Process:
    """One worker process: a real participant core and a toy runtime."""

    driver: Driver
    worker: int
    attempt: int
    link: int
    core: ParticipantCore
    to_worker: deque = field(default_factory=deque)
    to_driver: deque = field(default_factory=deque)
    joined: bool = False
    alive: bool = True
    step: int = 0
    cutting: int = 0
    incarnation: int = 0
    term: int = 0
    """The epoch of its claim: the incarnation, unless it has taken a worker over."""
    ended: bool = False
    """The launcher has reported its end."""


# --- oracles ----------------------------------------------------------------------------------------------


if TYPE_CHECKING:
    from tests.checkpoint.region_model import RegionModel

ORDERS = (Restore, Start, RequestCheckpoint, Committed)


def check_sent(model: "RegionModel", driver: Driver, effect: SendControl) -> None:
    message = effect.message
    if not isinstance(message, ORDERS):
        return
    assert message.incarnation in driver.restored, "an order before its manifest start was acknowledged"
    assert message.incarnation == max(driver.restored), "an order of an incarnation that is over"
    if isinstance(message, Restore):
        if message.takes_over:
            _check_take_over(model, driver, message)
        else:
            last = driver.restored[message.incarnation]
            assert message.restore == last, "not the last checkpoint of the chain"
        key = (message.epoch, message.worker)
        assert key not in model.restores, "two attempts of one worker in one incarnation or term"
        model.restores.add(key)
    if isinstance(message, Committed):
        assert (message.incarnation, message.checkpoint) in driver.acknowledged, (
            "sent before it was committed"
        )


def _check_take_over(model: "RegionModel", driver: Driver, order: Restore) -> None:
    assert not any(isinstance(job, AppendCheckpoint) for job in driver.jobs), "an append is not settled"
    opened, number = driver.restored[order.incarnation], order.incarnation
    committed = [checkpoint for incarnation, checkpoint in driver.acknowledged if incarnation == number]
    assert order.checkpoint == max(committed, default=opened.number if opened else 0), (
        "not the last committed one"
    )
    assert order.epoch > number
    for (incarnation, _), votes in model.votes.items():
        if incarnation == number:
            votes.pop(order.worker, None)  # those of the lost process are void


def check_append(model: "RegionModel", driver: Driver, checkpoint: Checkpoint) -> None:
    assert not any(isinstance(job, AppendCheckpoint) for job in driver.jobs), "two appends at a time"
    assert checkpoint.incarnation == max(driver.restored)
    if checkpoint.rewound:
        assert checkpoint.workers in [one.workers for one in model.manifest.checkpoints], (
            "nobody voted for these positions"
        )
        return
    votes = model.votes.get((checkpoint.incarnation, checkpoint.number), {})
    assert set(votes) == set(range(model.workers)), (
        f"checkpoint {checkpoint.number} without all votes of {checkpoint.incarnation}"
    )
    assert all(checkpoint.workers[worker] == vote.positions for worker, vote in votes.items())
    assert {vote.step for vote in votes.values()} == {checkpoint.step}


def check_manifest(manifest: Manifest) -> None:
    numbers = [checkpoint.number for checkpoint in manifest.checkpoints]
    assert numbers == sorted(set(numbers)), f"checkpoint numbers {numbers}"
    for before, checkpoint in zip(manifest.checkpoints, manifest.checkpoints[1:], strict=False):
        assert checkpoint.step >= before.step or checkpoint.rewound
        assert checkpoint.parent == before.number, (
            "a checkpoint that does not continue the last committed one"
        )


def check_status(driver: Driver) -> None:
    status = driver.core.status()
    if driver.end is None:
        assert status.state is not RegionState.RUNNING or status.incarnation in driver.restored
        assert status.reset_attempts <= driver.core.run.spec.max_consecutive_reset_attempts + 1


# --- the model --------------------------------------------------------------------------------------------


class RegionModel:
    """A region: its manifest, drivers and processes, and the actions that are possible now."""

    def __init__(self, workers: int = 2, **fields) -> None:
        self.workers = workers
        self.fields = fields
        self.now = 0.0
        self.manifest = Manifest()
        self.drivers: list[Driver] = []
        self.processes: list[Process] = []
        self.directories = [0] * workers
        """The epoch that each worker's directory is claimed with."""
        self.votes: dict[tuple[int, int], dict[int, Vote]] = {}
        """(incarnation, checkpoint) -> worker -> vote, as the workers made them."""
        self.checkpoint_steps: dict[tuple[int, int], int] = {}
        self.restores: set[tuple[int, int]] = set()
        self.stale: list[tuple[Driver, int, Vote]] = []
        self.input_steps = 10**9

    # --- running --------------------------------------------------------------------------------------

    def start_driver(self) -> Driver:
        driver = Driver(len(self.drivers), Coordinator(spec(self.workers, **self.fields)))
        self.drivers.append(driver)
        self.feed(driver, Begin())
        return driver

    def feed(self, driver: Driver, event) -> None:
        for effect in driver.core.handle(event, self.now):
            self._perform(driver, effect)
        check_status(driver)

    def _perform(self, driver: Driver, effect) -> None:
        assert driver.end is None, "nothing follows the end"
        if isinstance(effect, SendControl):
            check_sent(self, driver, effect)
            self._put(driver, effect.link, effect.message)
        elif isinstance(effect, CloseLink):
            self._put(driver, effect.link, None)
        elif isinstance(effect, OpenManifest | AppendCheckpoint):
            if isinstance(effect, AppendCheckpoint):
                check_append(self, driver, effect.checkpoint)
            driver.jobs.append(effect)
        elif isinstance(effect, LaunchWorker):
            self._launch(driver, effect)
        elif isinstance(effect, CancelWorker):
            self._cancel(driver, effect.worker, effect.attempt)
        elif isinstance(effect, End):
            driver.end = effect
        elif isinstance(effect, NotifyObservers):
            driver.reports.append(effect.event)
        else:
            assert isinstance(effect, MessageRefused)
            driver.refused.append(effect.refusal)

    def _put(self, driver: Driver, link: int, message) -> None:
        process = self._process(driver, link)
        if process is not None:
            process.to_worker.append(message)

    def _cancel(self, driver: Driver, worker: int, attempt: int) -> None:
        for process in self.processes:
            if (
                process.driver is driver
                and (process.worker, process.attempt) == (worker, attempt)
                and process.alive
            ):
                self.kill(process)

    def _process(self, driver: Driver, link: int) -> Process | None:
        return next((p for p in self.processes if p.driver is driver and p.link == link), None)

    def _launch(self, driver: Driver, effect: LaunchWorker) -> None:
        assert effect.attempt > driver.attempts.get(effect.worker, 0), "attempts only rise"
        driver.attempts[effect.worker] = effect.attempt
        link = len(self.processes)
        core = ParticipantCore("region", effect.worker, now=self.now, orphan_timeout_s=30.0, heartbeat_s=1.0)
        self.processes.append(Process(driver, effect.worker, effect.attempt, link, core))

    # --- what can happen ------------------------------------------------------------------------------

    def actions(self) -> list[tuple[str, Callable[[], None]]]:
        """What can happen next without a fault, in a fixed order."""
        found: list[tuple[str, Callable[[], None]]] = []
        at_work = [driver for driver in self.drivers if driver.alive and driver.jobs]
        found += [(f"manifest {d.number}", lambda d=d: self.do_manifest_job(d)) for d in at_work]
        for process in self.processes:
            found += self._actions_of(process)
        return found

    def _actions_of(self, process: Process) -> list[tuple[str, Callable[[], None]]]:
        name = f"{process.driver.number}.{process.worker}.{process.attempt}"
        live, driver_alive = process.alive, process.driver.alive
        running = live and process.core.state is ParticipantState.RUNNING
        table: list[tuple[object, str, Callable[[Process], None]]] = [
            (live and not process.joined, "join", self.join),
            (live and process.joined and process.to_worker, "to worker", self.deliver_to_worker),
            (driver_alive and process.to_driver, "to driver", self.deliver_to_driver),
            (live and process.core.orders, "order", self.carry_out),
            (running, "step", self.work),
            (driver_alive and not live and not process.ended, "ended", self.report_ended),
        ]
        return [(f"{verb} {name}", lambda a=act: a(process)) for can, verb, act in table if can]

    def faults(self) -> list[tuple[str, Callable[[], None]]]:
        """What can go wrong next."""
        found: list[tuple[str, Callable[[], None]]] = []
        living = [process for process in self.processes if process.alive]
        found += [(f"kill {p.worker}.{p.attempt}", lambda p=p: self.kill(p)) for p in living]
        linked = [process for process in living if process.joined and process.driver.alive]
        found += [(f"checkpoint link {p.worker}.{p.attempt}", lambda p=p: self.cut_link(p)) for p in linked]
        for driver in self.drivers:
            if driver.alive and driver.end is None:
                found.append((f"kill driver {driver.number}", lambda d=driver: self.kill_driver(d)))
                if driver.jobs:
                    found.append(("append and die", lambda d=driver: self.append_and_die(d)))
        if len(self.drivers) < 4:
            found.append(("new driver", lambda: self.start_driver() and None))
        for driver, link, vote in self.stale:
            if driver.alive and driver.end is None:
                found.append(
                    ("stale vote", lambda d=driver, k=link, v=vote: self.feed(d, ControlReceived(k, v)))
                )
        return found

    # --- manifest -------------------------------------------------------------------------------------

    def do_manifest_job(self, driver: Driver) -> None:
        job = driver.jobs[0]
        if isinstance(job, OpenManifest):
            self._open(driver, job)
            return
        driver.jobs.popleft()
        if self.manifest.claimed != job.checkpoint.incarnation:
            self.feed(driver, ManifestLost(job.checkpoint.incarnation, self.manifest.claimed))
            return
        self.manifest.checkpoints.append(job.checkpoint)
        check_manifest(self.manifest)
        driver.acknowledged.add((job.checkpoint.incarnation, job.checkpoint.number))
        self.feed(driver, CheckpointAppended(job.checkpoint))

    def _open(self, driver: Driver, job: OpenManifest) -> None:
        """In two actions: the claim, then the start. Another claim may come between."""
        claim, driver.claim = driver.claim, 0
        if not claim:
            if job.held and any(epoch > job.held for epoch in self.manifest.opened):
                driver.jobs.popleft()
                self.feed(driver, ManifestTaken(max(self.manifest.opened)))
                return
            self.manifest.claimed = (max(self.manifest.claimed, job.above) // job.step + 1) * job.step
            driver.claim = self.manifest.claimed
            return
        driver.jobs.popleft()
        if self.manifest.claimed != claim:
            event = ManifestTaken if job.held else ManifestSuperseded
            arguments = (self.manifest.claimed,) if job.held else (self.manifest.claimed, 0.5)
            self.feed(driver, event(*arguments))
            return
        self.manifest.opened.append(claim)
        driver.restored[claim] = self.manifest.last
        kept: tuple[Checkpoint, ...] = ()
        for checkpoint in self.manifest.checkpoints:
            kept = keep(kept, checkpoint)
        self.feed(driver, ManifestOpened(claim, self.manifest.last, kept))

    def append_and_die(self, driver: Driver) -> None:
        """The driver dies while an append is in flight, which then gets into the log."""
        job = driver.jobs[0]
        if isinstance(job, AppendCheckpoint) and self.manifest.claimed == job.checkpoint.incarnation:
            self.manifest.checkpoints.append(job.checkpoint)
            check_manifest(self.manifest)
        self.kill_driver(driver)

    def kill_driver(self, driver: Driver) -> None:
        driver.alive = False
        driver.jobs.clear()
        for process in self.processes:
            if process.driver is driver:
                process.to_worker.append(None)

    # --- workers --------------------------------------------------------------------------------------

    def join(self, process: Process) -> None:
        process.joined = True
        join = Join(
            job="",
            worker=0,
            attempt=process.attempt,
            pid=1,
            host="h",
            exchange_host="h",
            exchange_port=9,
            speaks=VERSIONS,
        )
        self.report(process, join)

    def report(self, process: Process, message, of: int | None = None) -> None:
        self._participant(process, ReportWanted(message, of))

    def _participant(self, process: Process, event) -> None:
        for effect in process.core.handle(event, self.now):
            if isinstance(effect, SendReport):
                process.to_driver.append(effect.message)
            elif isinstance(effect, ParticipantEnded):
                self.kill(process)
            else:
                assert isinstance(effect, OrderRefused)

    def deliver_to_worker(self, process: Process) -> None:
        message = process.to_worker.popleft()
        event = LinkGone("closed") if message is None else MessageIn(message)
        self._participant(process, event)

    def deliver_to_driver(self, process: Process) -> None:
        message = process.to_driver.popleft()
        event = (
            LinkDown(process.link, "closed") if message is None else ControlReceived(process.link, message)
        )
        self.feed(process.driver, event)

    def kill(self, process: Process) -> None:
        if process.alive:
            process.alive = False
            process.to_worker.clear()
            if None not in process.to_driver:
                process.to_driver.append(None)

    def cut_link(self, process: Process) -> None:
        """The link breaks at the coordinator's end first: the worker continues until it notices."""
        if None not in process.to_driver:
            process.to_driver.append(None)
            process.to_worker.append(None)

    def report_ended(self, process: Process) -> None:
        process.ended = True
        self.feed(process.driver, WorkerEnded(process.worker, process.attempt, "killed"))

    def carry_out(self, process: Process) -> None:
        order = process.core.orders.popleft()
        if isinstance(order, Restore):
            if self.directories[process.worker] >= order.epoch:
                held = self.directories[process.worker]
                self.report(
                    process, Failed(job="", worker=0, kind="fenced", message="fenced", epoch_held=held)
                )
                return
            self.directories[process.worker] = process.term = order.epoch
            process.incarnation = order.incarnation
            process.step = order.restore.step if order.restore else 0
            process.cutting = 0
            self.report(process, Restored(job="", worker=0, last_step=process.step), of=order.incarnation)
            if order.moves:  # it votes for the first checkpoint of the line before it runs
                self.checkpoint_steps[order.incarnation, order.checkpoint + 1] = process.step
                self._vote_if_due(process)
        elif isinstance(order, RequestCheckpoint):
            self._agree_on_checkpoint(process, order.checkpoint)
        elif isinstance(order, Committed) and order.final:
            self.report(process, Finished(job="", worker=0))

    def _agree_on_checkpoint(self, process: Process, checkpoint: int) -> None:
        """The alignment, in short: the first worker that hears of it puts it at the end of a step for all."""
        key = (process.incarnation, checkpoint)
        if key not in self.checkpoint_steps:
            steps = [p.step for p in self.processes if p.alive and p.incarnation == process.incarnation]
            self.checkpoint_steps[key] = max(steps) + 1

    def work(self, process: Process) -> None:
        """Execute one step. Vote at its end if it has a checkpoint and the worker owns its directory."""
        incarnation = process.incarnation
        requested = {
            checkpoint: step for (i, checkpoint), step in self.checkpoint_steps.items() if i == incarnation
        }
        # an empty step may have a checkpoint, too
        if process.step < max(self.input_steps, *requested.values(), 0):
            process.step += 1
        self._vote_if_due(process)

    def _vote_if_due(self, process: Process) -> None:
        incarnation = process.incarnation
        requested = {
            checkpoint: step for (i, checkpoint), step in self.checkpoint_steps.items() if i == incarnation
        }
        checkpoints = [checkpoint for checkpoint, step in requested.items() if step <= process.step]
        for checkpoint in sorted(c for c in checkpoints if c > process.core.voted):
            if self.directories[process.worker] != process.term:
                held = self.directories[process.worker]
                self.report(
                    process, Failed(job="", worker=0, kind="fenced", message="fenced", epoch_held=held)
                )
                return
            step = self.checkpoint_steps[incarnation, checkpoint]
            positions = self.positions(process, checkpoint, step)
            vote = Vote(job="", worker=0, checkpoint=checkpoint, step=step, positions=positions)
            self.report(process, vote, of=incarnation)
            sent = process.to_driver[-1]
            self.votes.setdefault((incarnation, checkpoint), {})[process.worker] = sent
            self.stale.append((process.driver, process.link, sent))

    def positions(self, process: Process, checkpoint: int, step: int) -> WorkerCheckpoint:
        """What a worker votes for."""
        del step
        at = Position(process.term, 100 * process.step + process.worker + 1, checkpoint)
        return WorkerCheckpoint(state=at, steps=at)

    # --- time -----------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Time passes in one-second steps; every loop is on time."""
        for _ in range(max(int(seconds), 1)):
            self.now += 1.0
            for process in list(self.processes):
                due = process.core.deadline()
                if process.alive and process.joined and due is not None and due <= self.now:
                    exhausted = process.step >= self.input_steps
                    counters = Counters(step=process.step, exhausted=exhausted)
                    self._participant(process, ParticipantTick(self.now, counters))
            for driver in self.drivers:
                due = driver.core.deadline()
                if driver.alive and driver.end is None and due is not None and due <= self.now:
                    self.feed(driver, CoordinatorTick(self.now))

    def settle(self, rounds: int = 2_000, until: Callable[[], bool] = lambda: False) -> None:
        """Everything that can happen without a fault happens, in turn."""
        for _ in range(rounds):
            if until():
                return
            for turn in range(200):
                busy = [action for name, action in self.actions() if not name.startswith("step")]
                if not busy:
                    break
                busy[turn % len(busy)]()
            for process in self.processes:
                if process.alive and process.core.state is ParticipantState.RUNNING:
                    self.work(process)
            self.pass_time(1)
