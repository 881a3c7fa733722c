"""A region in one process, without time, sockets or disks: real cores of coordinators and participants
around a model of the manifest and of the launcher.

What may happen next is a list of named actions; a test picks among them. Oracles are checked at every effect:

    no order before the manifest start of its incarnation is acknowledged, and none of another incarnation
    a cut enters the manifest only with every worker's vote of that incarnation, and with their positions
    no two cuts with one number; one append at a time; Committed only after the acknowledgement
    a Restore names the last cut of the chain as it was taken over; at most one a worker and incarnation

The manifest is modelled as one linear log with a claim: a claim fences appends of lower epochs for ever; an
append may be lost with its coordinator, or be in the log without anyone knowing. That the real quorum
behaves so is the journal's matter (decision 0003, R1-R10).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from checkpoint.core.coordinator import Coordinator
from checkpoint.core.coordinator_vocabulary import (
    AppendCut,
    Begin,
    CancelWorker,
    CloseLink,
    ControlReceived,
    CoordinatorTick,
    CutAppended,
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
from checkpoint.core.manifest import Cut, WorkerCut
from checkpoint.core.messages import (
    Committed,
    Counters,
    Failed,
    Finished,
    Join,
    Prepared,
    RequestCut,
    Restore,
    Restored,
    Start,
)
from checkpoint.core.participant import (
    LinkGone,
    MessageIn,
    ParticipantCore,
    ParticipantEnded,
    ParticipantState,
    ReportWanted,
)
from checkpoint.core.participant import OrderRefused as ParticipantRefused
from checkpoint.core.participant import ParticipantTick as ParticipantTick
from checkpoint.core.participant import SendReport as ParticipantSend
from checkpoint.core.region import RegionSpec, RegionState
from journal.core.position import Position

ORDERS = (Restore, Start, RequestCut, Committed)
KEY = b"k" * 32


def spec(workers: int = 2, **fields) -> RegionSpec:
    return RegionSpec(name="region", workers=workers, store_url="dos://nowhere", job_key=KEY, **fields)


@dataclass
class Manifest:
    """The log all coordinators share."""

    claimed: int = 0
    opened: list[int] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)

    @property
    def last(self) -> Cut | None:
        return self.cuts[-1] if self.cuts else None


@dataclass
class Driver:
    """One coordinator with what the shell would hold."""

    number: int
    core: Coordinator
    jobs: deque = field(default_factory=deque)
    """Manifest operations under way, in order."""
    claim: int = 0
    """Claimed for the opening under way; its start is not acknowledged yet."""
    restored: dict[int, Cut | None] = field(default_factory=dict)
    """incarnation -> the last cut when it was opened."""
    attempts: dict[int, int] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    end: End | None = None
    alive: bool = True
    told: list = field(default_factory=list)
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
    ended: bool = False
    """The launcher has said so."""


class World:
    """Everything, and the actions that are possible now."""

    def __init__(self, workers: int = 2, **fields) -> None:
        self.workers = workers
        self.fields = fields
        self.now = 0.0
        self.manifest = Manifest()
        self.drivers: list[Driver] = []
        self.processes: list[Process] = []
        self.directories = [0] * workers
        """The epoch that each worker's directory is claimed with."""
        self.votes: dict[tuple[int, int], dict[int, Prepared]] = {}
        """(incarnation, cut) -> worker -> vote, as the workers made them."""
        self.cut_steps: dict[tuple[int, int], int] = {}
        self.restores: set[tuple[int, int]] = set()
        self.stale: list[tuple[Driver, int, Prepared]] = []
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
        self.check_shown(driver)

    def _perform(self, driver: Driver, effect) -> None:
        assert driver.end is None, "nothing follows the end"
        if isinstance(effect, SendControl):
            self._check_sent(driver, effect)
            self._put(driver, effect.link, effect.message)
        elif isinstance(effect, CloseLink):
            self._put(driver, effect.link, None)
        elif isinstance(effect, OpenManifest | AppendCut):
            if isinstance(effect, AppendCut):
                self._check_append(driver, effect.cut)
            driver.jobs.append(effect)
        elif isinstance(effect, LaunchWorker):
            self._launch(driver, effect)
        elif isinstance(effect, CancelWorker):
            self._cancel(driver, effect.worker)
        elif isinstance(effect, End):
            driver.end = effect
        elif isinstance(effect, NotifyObservers):
            driver.told.append(effect.event)
        else:
            assert isinstance(effect, MessageRefused)
            driver.refused.append(effect.refusal)

    def _put(self, driver: Driver, link: int, message) -> None:
        process = self._process(driver, link)
        if process is not None:
            process.to_worker.append(message)

    def _cancel(self, driver: Driver, worker: int) -> None:
        for process in self.processes:
            if process.driver is driver and process.worker == worker and process.alive:
                self.kill(process)

    def _process(self, driver: Driver, link: int) -> Process | None:
        return next((p for p in self.processes if p.driver is driver and p.link == link), None)

    def _launch(self, driver: Driver, effect: LaunchWorker) -> None:
        assert effect.attempt > driver.attempts.get(effect.worker, 0), "attempts only rise"
        driver.attempts[effect.worker] = effect.attempt
        link = len(self.processes)
        core = ParticipantCore("region", effect.worker, now=self.now, orphan_timeout_s=30.0, heartbeat_s=1.0)
        self.processes.append(Process(driver, effect.worker, effect.attempt, link, core))

    # --- oracles --------------------------------------------------------------------------------------

    def _check_sent(self, driver: Driver, effect: SendControl) -> None:
        message = effect.message
        if not isinstance(message, ORDERS):
            return
        assert message.incarnation in driver.restored, "an order before its manifest start was acknowledged"
        assert message.incarnation == max(driver.restored), "an order of an incarnation that is over"
        if isinstance(message, Restore):
            assert message.restore == driver.restored[message.incarnation], "not the last cut of the chain"
            key = (message.incarnation, message.worker)
            assert key not in self.restores, "two attempts of one worker in one incarnation"
            self.restores.add(key)
        if isinstance(message, Committed):
            assert (message.incarnation, message.cut) in driver.acknowledged, "told before it was committed"

    def _check_append(self, driver: Driver, cut: Cut) -> None:
        assert not any(isinstance(job, AppendCut) for job in driver.jobs), "two appends at a time"
        assert cut.incarnation == max(driver.restored)
        votes = self.votes.get((cut.incarnation, cut.cut), {})
        assert set(votes) == set(range(self.workers)), f"cut {cut.cut} without all votes of {cut.incarnation}"
        assert all(cut.workers[worker] == vote.positions for worker, vote in votes.items())
        assert {vote.step for vote in votes.values()} == {cut.step}

    def check_manifest(self) -> None:
        numbers = [cut.cut for cut in self.manifest.cuts]
        assert numbers == sorted(set(numbers)), f"cut numbers {numbers}"
        steps = [cut.step for cut in self.manifest.cuts]
        assert steps == sorted(steps)
        for before, cut in zip(self.manifest.cuts, self.manifest.cuts[1:], strict=False):
            assert cut.parent == before.cut, "a cut that does not go on from the last committed one"

    def check_shown(self, driver: Driver) -> None:
        status = driver.core.status()
        if driver.end is None:
            assert status.state is not RegionState.RUNNING or status.incarnation in driver.restored
            assert status.reset_attempts <= driver.core.state.spec.max_consecutive_reset_attempts + 1

    # --- what can happen ------------------------------------------------------------------------------

    def actions(self) -> list[tuple[str, Callable[[], None]]]:
        """What can happen next without a fault, in a fixed order."""
        found: list[tuple[str, Callable[[], None]]] = []
        at_work = [driver for driver in self.drivers if driver.alive and driver.jobs]
        found += [(f"manifest {d.number}", lambda d=d: self.do_job(d)) for d in at_work]
        for process in self.processes:
            found += self._actions_of(process)
        return found

    def _actions_of(self, process: Process) -> list[tuple[str, Callable[[], None]]]:
        name = f"{process.driver.number}.{process.worker}.{process.attempt}"
        live, heard = process.alive, process.driver.alive
        running = live and process.core.state is ParticipantState.RUNNING
        table: list[tuple[object, str, Callable[[Process], None]]] = [
            (live and not process.joined, "join", self.join),
            (live and process.joined and process.to_worker, "to worker", self.deliver_to_worker),
            (heard and process.to_driver, "to driver", self.deliver_to_driver),
            (live and process.core.orders, "order", self.obey),
            (running, "step", self.work),
            (heard and not live and not process.ended, "ended", self.say_ended),
        ]
        return [(f"{verb} {name}", lambda a=act: a(process)) for can, verb, act in table if can]

    def faults(self) -> list[tuple[str, Callable[[], None]]]:
        """What can go wrong next."""
        found: list[tuple[str, Callable[[], None]]] = []
        living = [process for process in self.processes if process.alive]
        found += [(f"kill {p.worker}.{p.attempt}", lambda p=p: self.kill(p)) for p in living]
        linked = [process for process in living if process.joined and process.driver.alive]
        found += [(f"cut link {p.worker}.{p.attempt}", lambda p=p: self.cut_link(p)) for p in linked]
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

    def do_job(self, driver: Driver) -> None:
        job = driver.jobs[0]
        if isinstance(job, OpenManifest):
            self._open(driver, job)
            return
        driver.jobs.popleft()
        if self.manifest.claimed != job.cut.incarnation:
            self.feed(driver, ManifestLost(job.cut.incarnation, self.manifest.claimed))
            return
        self.manifest.cuts.append(job.cut)
        self.check_manifest()
        driver.acknowledged.add((job.cut.incarnation, job.cut.cut))
        self.feed(driver, CutAppended(job.cut))

    def _open(self, driver: Driver, job: OpenManifest) -> None:
        """In two actions: the claim, then the start. Another claim may come between."""
        claim, driver.claim = driver.claim, 0
        if not claim:
            if job.held and any(epoch > job.held for epoch in self.manifest.opened):
                driver.jobs.popleft()
                self.feed(driver, ManifestTaken(max(self.manifest.opened)))
                return
            self.manifest.claimed = max(self.manifest.claimed, job.above) + 1
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
        self.feed(driver, ManifestOpened(claim, self.manifest.last))

    def append_and_die(self, driver: Driver) -> None:
        """The driver dies while an append is in flight, which then gets into the log."""
        job = driver.jobs[0]
        if isinstance(job, AppendCut) and self.manifest.claimed == job.cut.incarnation:
            self.manifest.cuts.append(job.cut)
            self.check_manifest()
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
            job="", worker=0, attempt=process.attempt, pid=1, host="h", exchange_host="h", exchange_port=9
        )
        self.report(process, join)

    def report(self, process: Process, message, of: int | None = None) -> None:
        self._participant(process, ReportWanted(message, of))

    def _participant(self, process: Process, event) -> None:
        for effect in process.core.handle(event, self.now):
            if isinstance(effect, ParticipantSend):
                process.to_driver.append(effect.message)
            elif isinstance(effect, ParticipantEnded):
                self.kill(process)
            else:
                assert isinstance(effect, ParticipantRefused)

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

    def say_ended(self, process: Process) -> None:
        process.ended = True
        self.feed(process.driver, WorkerEnded(process.worker, process.attempt, "killed"))

    def obey(self, process: Process) -> None:
        order = process.core.orders.popleft()
        if isinstance(order, Restore):
            if self.directories[process.worker] >= order.incarnation:
                held = self.directories[process.worker]
                self.report(
                    process, Failed(job="", worker=0, kind="fenced", message="fenced", epoch_held=held)
                )
                return
            self.directories[process.worker] = process.incarnation = order.incarnation
            process.step = order.restore.step if order.restore else 0
            process.cutting = 0
            self.report(process, Restored(job="", worker=0, last_step=process.step), of=order.incarnation)
        elif isinstance(order, RequestCut):
            self._agree_on_cut(process, order.cut)
        elif isinstance(order, Committed) and order.final:
            self.report(process, Finished(job="", worker=0))

    def _agree_on_cut(self, process: Process, cut: int) -> None:
        """The alignment, in short: the first worker that hears of it puts it at the end of a step for all."""
        key = (process.incarnation, cut)
        if key not in self.cut_steps:
            steps = [p.step for p in self.processes if p.alive and p.incarnation == process.incarnation]
            self.cut_steps[key] = max(steps) + 1

    def work(self, process: Process) -> None:
        """One step; at its end the vote, if it carries a cut and this worker still owns its directory."""
        incarnation = process.incarnation
        asked = {cut: step for (i, cut), step in self.cut_steps.items() if i == incarnation}
        if process.step < max(self.input_steps, *asked.values(), 0):  # an empty step, too, may carry a cut
            process.step += 1
        cuts = [cut for cut, step in asked.items() if step <= process.step]
        for cut in sorted(c for c in cuts if c > process.core.voted):
            if self.directories[process.worker] != incarnation:
                held = self.directories[process.worker]
                self.report(
                    process, Failed(job="", worker=0, kind="fenced", message="fenced", epoch_held=held)
                )
                return
            at = Position(incarnation, 100 * process.step + process.worker + 1, cut)
            vote = Prepared(
                job="",
                worker=0,
                cut=cut,
                step=self.cut_steps[incarnation, cut],
                positions=WorkerCut(state=at, steps=at),
            )
            self.report(process, vote, of=incarnation)
            sent = process.to_driver[-1]
            self.votes.setdefault((incarnation, cut), {})[process.worker] = sent
            self.stale.append((process.driver, process.link, sent))

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
