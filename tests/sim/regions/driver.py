"""The coordinator's process: the real core, its manifest, its links.

It passes events to the core and performs its effects in order, as `checkpoint.coordinator.shell` does.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from checkpoint.chains import whole_checkpoints
from checkpoint.chains.manifest_log import ManifestLog, retained_checkpoints
from checkpoint.core.coordination.coordinator import Coordinator
from checkpoint.core.coordination.run import PhaseEvent, RegionRun
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    AskForRegion,
    Begin,
    CancelWorker,
    CheckpointAppended,
    CheckpointsExamined,
    CloseLink,
    ControlReceived,
    CoordinatorTick,
    Effect,
    End,
    Event,
    ExaminationWaits,
    ExamineCheckpoints,
    HandOverAnswered,
    HandOverWanted,
    LastCheckpointRead,
    LaunchWorker,
    LinkDown,
    ManifestOpened,
    MessageRefused,
    NotifyObservers,
    OpenManifest,
    ReadLastCheckpoint,
    SendControl,
    WorkerEnded,
    WorkerHosted,
)
from checkpoint.core.links.frames import control_frame, decode_from_worker
from checkpoint.core.region import (
    CheckpointCommitted,
    FellBack,
    HandOverSettled,
    RegionSpec,
    ReplaceSettled,
    RestoreSettled,
    SavepointSettled,
    StateChanged,
    WorkerLost,
)
from dos_protocol.errors import DosError
from tests.sim.engine.environment import Process, Task
from tests.sim.engine.network import Wire
from tests.sim.regions.claiming import Host
from tests.sim.regions.links import Channel, accept
from tests.sim.regions.users import watch_forks
from tests.sim.regions.worker import DeadlineTimer
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.regions.base import RegionBase
    from tests.sim.regions.region import Region
    from tests.sim.regions.worker import Worker


def record_event(region: "RegionBase", event: object) -> str:
    """Count a change of the region's state. Return the text of an event, '' if it has none."""
    if isinstance(event, StateChanged):
        region.saw(f"region: {event.state.name}")
        return f"{event.state.name} {event.reason}"
    if isinstance(event, CheckpointCommitted):
        return f"checkpoint {event.checkpoint} at step {event.step} is committed"
    if isinstance(event, WorkerLost):
        return f"worker {event.worker} is lost: {event.reason}"
    if isinstance(event, ReplaceSettled):
        region.saw("workers are replaced" if event.replaced else "no worker is replaced")
        return str(event)
    if isinstance(event, FellBack):
        region.saw("a region fell back")
        return str(event)
    if isinstance(event, RestoreSettled):
        region.saw("a restore is refused" if event.error else "a checkpoint is restored")
        return f"{event.to}: {event.error or 'restored'}"
    return ""


# --- the launcher -----------------------------------------------------------------------------------------


class Launcher:
    """The launcher of one driver."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._running: dict[tuple[int, int], Worker] = {}
        """(worker, attempt) -> its process."""
        self._waiting: dict[int, list[int]] = {}
        """Worker -> the attempts that start after its earlier ones have ended."""
        self._beside: set[tuple[int, int]] = set()
        """(worker, attempt) that start beside one that runs."""
        self._cancelled: set[tuple[int, int]] = set()
        """Attempts that were canceled before they ran."""

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        """Start an attempt; unless `beside`, after the earlier attempts of this worker have ended."""
        if beside:
            self._beside.add((worker, attempt))
            self._driver.after(0.05 + 0.3 * self._rng(), lambda: self._start_beside(worker, attempt))
            return
        self._waiting.setdefault(worker, []).append(attempt)
        if not self._runs(worker) and len(self._waiting[worker]) == 1:
            self._later(worker)

    def cancel(self, worker: int, attempt: int) -> None:
        """Kill the process after a while, also if it is paused."""
        process = self._running.get((worker, attempt))
        if process is not None:
            self._driver.after(0.02 + 0.2 * self._rng(), lambda: process.die("cancelled"))
        elif attempt in self._waiting.get(worker, ()) or (worker, attempt) in self._beside:
            self._cancelled.add((worker, attempt))

    @property
    def standbys(self) -> int:
        """Draw whether a stand-by waits. If not, a worker that is taken over runs on its host."""
        return int(self._rng() < 0.5)

    def host(self, host: int, worker: int, attempt: int) -> None:
        """Let the newest process of a host run another worker as well, until it ends."""
        region = self._driver.region
        hosts = [one for one in region.living_workers() if one.index == host and one.driver is self._driver]
        if hosts:
            region.saw("a worker runs on its host")
            hosts[-1].hosted.append(region.new_worker(self._driver, worker, attempt))

    def ended(self, process: "Worker", error: str | None) -> None:
        """A process has ended; report it to the driver after a delay."""
        driver, worker = self._driver, process.index
        self._running.pop((worker, process.attempt), None)
        event = WorkerEnded(worker, process.attempt, error)
        driver.after(0.01 + 0.2 * self._rng(), lambda: driver.post(event))
        if self._waiting.get(worker) and not self._runs(worker):
            self._later(worker)

    def _runs(self, worker: int) -> bool:
        return any(index == worker for index, _ in (*self._running, *self._beside))

    def _later(self, worker: int) -> None:
        self._driver.after(0.05 + 0.3 * self._rng(), lambda: self._launch(worker))

    def _launch(self, worker: int) -> None:
        self._run(worker, self._waiting[worker].pop(0))
        if self._waiting[worker] and not self._runs(worker):
            self._later(worker)

    def _start_beside(self, worker: int, attempt: int) -> None:
        self._beside.discard((worker, attempt))
        self._run(worker, attempt)

    def _run(self, worker: int, attempt: int) -> None:
        driver = self._driver
        if (worker, attempt) in self._cancelled or driver.end is not None:
            self._cancelled.discard((worker, attempt))
            driver.post(WorkerEnded(worker, attempt, "cancelled before it ran"))
            return
        self._running[worker, attempt] = driver.region.new_worker(driver, worker, attempt)

    def _rng(self) -> float:
        return self._driver.rng.random()


# --- the driver -------------------------------------------------------------------------------------------


class WatchedRun(RegionRun):
    """What the core stands on, with counted transitions."""

    def __init__(self, region: "RegionBase", spec: RegionSpec) -> None:
        super().__init__(spec)
        self._region = region

    def move(self, event: PhaseEvent) -> None:
        before = self.phase
        super().move(event)
        if self.phase is not before:
            self._region.saw(f"coordinator: {before.name} to {self.phase.name}")


class Driver(Process):
    """One coordinator process. `end`: its outcome, None while it runs."""

    def __init__(self, region: "Region", name: str) -> None:
        super().__init__(region.env, name)
        self.region = region
        self.address = f"{name}:7077"
        self.end: End | None = None
        self.heirs: dict[str, Driver] = {}
        """Request -> the driver that asked for the region."""
        self._request = 0
        self._answered: set[str] = set()
        self.core = Coordinator(region.spec, WatchedRun(region, region.spec))
        self.launcher = Launcher(self)
        self.rng = region.rng.stream(f"driver {name}")
        host = Host(self, region.network, region.store, region.history, self.rng)
        self.manifest = ManifestLog(host, region.spec.name, self.post, rolling=region.rolling)
        self._links: dict[int, Channel] = {}
        self._last_link = 0
        self._orders: deque[OpenManifest | AppendCheckpoint] = deque()
        self._working: Task | None = None
        self._examining: Task | None = None
        self._timer = DeadlineTimer(self, self._tick)
        region.network.listen(self.address, self, self._accept)
        self.start("watch", self.manifest.watch())
        if region.forker is not None:
            self.start("forks", watch_forks(self))
        seen = region.record.committed[-1:] if region.spec.hand_over else []
        self.post(Begin(seen[0] if seen else None))

    def post(self, event: Event) -> None:
        """Schedule an event for the core, after those posted before."""
        self.soon(lambda: self._handle(event))

    def _handle(self, event: Event) -> None:
        if self.end is not None:
            return
        record = self.region.record
        if isinstance(event, ManifestOpened):
            record.started(event.incarnation, event.last_checkpoint)
            if self.core.run.spec.hand_over:
                self.region.saw("a region was handed over")
        elif isinstance(event, CheckpointAppended):
            record.acknowledged(event.checkpoint)
        self.region.saw(f"event: {type(event).__name__}")
        for effect in self.core.handle(event, self.now):
            self._perform(effect)
        self._timer.arm(self.core.deadline())

    def _tick(self, due: float) -> None:
        self._handle(CoordinatorTick(due))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case OpenManifest() | AppendCheckpoint() | ExamineCheckpoints():
                self._order(effect)
            case LaunchWorker() | CancelWorker():
                self._launch(effect)
            case AskForRegion():
                self._ask_for_region()
            case ReadLastCheckpoint():
                self.start("last checkpoint", self._read_last())
            case SendControl(link, message):
                self.region.record.sent(message)
                self.region.sent(self.name, link, message)
                channel = self._links.get(link)
                if channel is not None and not channel.over:
                    channel.send(control_frame(message))
            case NotifyObservers(event):
                self._notified(event)
            case CloseLink(link):
                channel = self._links.get(link)
                if channel is not None:
                    channel.close()
            case MessageRefused(_, refusal):
                self.region.saw(f"refused: {refusal.name}")
                self.note(f"refuses {refusal.name}: {refusal.text}")
            case End():
                self._ended(effect)

    def _launch(self, effect: LaunchWorker | CancelWorker) -> None:
        match effect:
            case LaunchWorker(worker, attempt, beside, host):
                if host is not None and not self.launcher.standbys:
                    self.launcher.host(host, worker, attempt)
                    self.post(WorkerHosted(worker, attempt, host))
                else:
                    self.launcher.start(worker, attempt, beside=beside)
            case CancelWorker(worker, attempt):
                self.launcher.cancel(worker, attempt)

    def _ask_for_region(self) -> None:
        """Ask the driver that runs the region, if one does; without an answer, do not wait for ever."""
        self._request += 1
        request = f"{self.name} {self._request}"
        for one in self.region.drivers:
            if one is not self and one.alive and one.end is None:
                one.heirs[request] = self
                one.after(0.05 + 0.3 * self.rng.random(), partial(one.post, HandOverWanted(request)))
        self.after(10.0, lambda: self._handed_over(request, ""))

    def _handed_over(self, request: str, error: str) -> None:
        """Take the answer to a request, the first time."""
        if request != f"{self.name} {self._request}" or request in self._answered:
            return
        self._answered.add(request)
        self.region.saw("a hand-over is refused" if error else "a region is lent")
        if error:  # it was reset meanwhile, or is being changed: ask again, as the shell does
            self.after(1.0, self._ask_for_region)
        else:
            self.post(HandOverAnswered())

    async def _read_last(self) -> None:
        """Do what `RegionShell` does."""
        store = SimStore(self, self.region.network, self.region.store)
        while True:
            try:
                kept = await retained_checkpoints(store, self.region.spec.name)
            except DosError:
                await self.sleep(0.25)
            else:
                break
            finally:
                store.close()
        self.post(LastCheckpointRead(kept[-1] if kept else None))

    async def _examine(self, order: ExamineCheckpoints) -> None:
        """Do what `RegionShell` does."""
        store = SimStore(self, self.region.network, self.region.store)
        store.spoiled = self.region.history.spoiled
        while True:
            try:
                found = await whole_checkpoints.examine(store, self.region.spec.name, order.kept)
            except DosError as error:
                self.region.saw("checkpoints cannot be examined")
                self.post(ExaminationWaits(order.incarnation, str(error.args[0])))
                await self.sleep(0.25)
            else:
                break
            finally:
                store.close()
        self.region.saw("checkpoints were examined")
        self.post(CheckpointsExamined(order.incarnation, found))

    def _notified(self, event: object) -> None:
        if isinstance(event, HandOverSettled):
            heir = self.heirs[event.by]
            heir.after(0.02 + 0.3 * self.rng.random(), partial(heir._handed_over, event.by, event.error))
        if isinstance(event, FellBack):
            self.region.spoiling.fell_back(event.last, event.checkpoint)
        if isinstance(event, SavepointSettled) and self.region.forker is not None:
            self.region.forker.settled(event)
        if isinstance(event, SavepointSettled) and self.region.makes_savepoints:
            self.region.savepoints.settled(event)
        if text := record_event(self.region, event):
            self.note(text)

    def _ended(self, end: End) -> None:
        self.end = end
        self.start("closing", self.manifest.aclose())
        for channel in list(self._links.values()):
            channel.close()
        self.soon(lambda: self.soon(lambda: self.region.driver_ended(self, end)))

    # The manifest: one order at a time; an opening cancels the order in progress

    def _order(self, order: OpenManifest | AppendCheckpoint | ExamineCheckpoints) -> None:
        if isinstance(order, ExamineCheckpoints):
            if self._examining is not None:
                self._examining.stop()
            self._examining = self.start("examination", self._examine(order))
            return
        if isinstance(order, AppendCheckpoint):
            self.region.record.appended(order.checkpoint, len(self.core.run.roster))
            self.region.saw("appends a checkpoint")
        else:
            self.region.saw("manifest opens")
        if isinstance(order, OpenManifest) and self._working is not None:
            self._working.stop()
        self._orders.append(order)
        self._next_order()

    def _next_order(self) -> None:
        if (self._working is not None and not self._working.done) or not self._orders:
            return
        order = self._orders.popleft()
        self._working = self.start("manifest", self._execute(order))

    async def _execute(self, order: OpenManifest | AppendCheckpoint) -> None:
        try:
            if isinstance(order, OpenManifest):
                await self.manifest.open(order)
            else:
                await self.manifest.append(order)
        finally:
            self.soon(self._next_order)

    # Links

    def _accept(self, wire: Wire) -> Channel:
        channel = Channel(self, wire, dialler=False)
        self.start("link", self._serve(channel))
        return channel

    async def _serve(self, channel: Channel) -> None:
        try:
            await accept(channel, self.region.spec.name, self.rng)
        except DosError:
            return
        self._last_link += 1
        number = self._last_link
        self._links[number] = channel
        try:
            while True:
                self.post(ControlReceived(number, decode_from_worker(await channel.receive())))
        except DosError as error:
            reason = str(error.args[0])
        finally:
            channel.close()
            self._links.pop(number, None)
        self.post(LinkDown(number, reason))

    def note(self, what: str) -> None:
        self.env.trace.note(self.env.now, self.name, what)
