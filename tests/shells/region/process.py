"""A process of a region: a host in the network, a scope that can be canceled anywhere, threads.

This file determines how such processes end and what must be true then; `driver` and `worker` implement their
work.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from checkpoint.coordinator import shell
from checkpoint.coordinator.shell import RegionShell, listening, run_region
from checkpoint.core.coordination.vocabulary import (
    AppendCheckpoint,
    CheckpointAppended,
    Effect,
    End,
    Event,
    ManifestOpened,
    OpenManifest,
    SavepointWanted,
    SendControl,
)
from checkpoint.core.links.messages import Restore
from checkpoint.core.region import FellBack, RegionEvent, RegionSpec, SavepointSettled
from checkpoint.errors import OrphanedError
from dataflow.worker.failures import first_error
from dataflow.worker.spec import Clock
from dos_protocol.errors import DosError
from dos_server.memory.network import MemoryNetwork, here
from tests.shells.clients import Client
from tests.sim.history import ViolationError
from tests.sim.regions.driver import Launcher, WatchedRun, record_event
from tests.support.memory_streams import (
    MemoryTcpListener,
    MemoryTcpStream,
    open_memory_listeners,
    open_memory_stream,
)

if TYPE_CHECKING:
    from tests.shells.region.region import ShellRegion


T = TypeVar("T")
_BEGAN_NS: Final = 1_700_000_000 * 1_000_000_000
"""When runs begin, as their clocks say."""


class Threads:
    """The threads of one process. `end` when it is killed: what they were at is never done."""

    def __init__(self) -> None:
        self._scopes: dict[trio.CancelScope, None] = {}
        self._over = False

    def end(self) -> None:
        self._over = True
        for scope in self._scopes:
            scope.cancel()

    async def run(self, takes_s: tuple[float, float], call: Callable[..., T], *args: Any) -> T:
        """Begin the work; some time later it is done; some time later that is reported. A canceled caller
        waits for it, as with a real thread."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True) as scope:
            self._scopes[scope] = None
            try:
                await trio.sleep(takes_s[0])
                await trio.lowlevel.checkpoint_if_cancelled()
                result = call(*args)
                await trio.sleep(takes_s[1])
                return result
            finally:
                del self._scopes[scope]
        assert self._over, "nobody else cancels this"
        await trio.sleep_forever()  # the process is gone
        raise AssertionError("unreachable")


class Surroundings:
    """The environment of all processes of one run."""

    def __init__(self, network: MemoryNetwork, rng: Random) -> None:
        self._network = network
        self._rng = rng
        self.threads: dict[str, Threads] = {}

    async def connect(self, host: str, port: int) -> MemoryTcpStream:
        return await open_memory_stream(self._network, host, port)

    async def listen(self, host: str, port: int, backlog: int) -> list[MemoryTcpListener]:
        del backlog
        return await open_memory_listeners(self._network, host, port)

    def silent_s(self, stream: Any) -> float:
        return self._network.silent_s(stream.socket)

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        typical_s = 0.002 * self._rng.lognormvariate(0.0, 0.7)
        before_s = typical_s * self._rng.random()
        return await self.threads[here.get()].run((before_s, typical_s - before_s), call, *args)

    def wall_time_ns(self) -> int:
        return _BEGAN_NS + int(trio.current_time() * 1e9)

    def host_name(self) -> str:
        return here.get()

    def process_id(self) -> int:
        return 1

    def user_name(self) -> str:
        return "user"


class CircuitClock(Clock):
    """A circuit's time: a piece of work takes none in itself."""

    def seconds(self) -> float:  # type: ignore[override]
        return trio.current_time()

    def wall_ms(self) -> int:  # type: ignore[override]
        return (_BEGAN_NS + int(trio.current_time() * 1e9)) // 1_000_000


# --- oracles of processes ---------------------------------------------------------------------------------


TASKS_MAX: Final = 150
"""Tasks of one process: those of its links, of its store's sessions and of its waits."""

NOTICED_S: Final = 3.0
"""Virtual seconds that a launcher and its driver's store may take in addition."""


def check_closed(process: "RegionProcess") -> None:
    """O10: check that an ended process left nothing open. Raises ViolationError."""
    network, name = process.cluster.network, process.name
    ends = [f"{one.port} to {one.peer.host}" for one in network.sockets if one.host == name]
    listening = [port for host, port in network.listeners if host == name]
    if ends or listening:
        raise ViolationError("O10", f"{name} has ended and left open {ends[:5]}, and ports {listening}")


def check_links(region: "ShellRegion") -> None:
    """O10: check that an incarnation's links end with it. The dialing end has the listener's port at the
    other end, the same each time. Raises ViolationError."""
    names = {process.name for process in region.processes}
    dialled = Counter(
        (one.host, one.peer.host, one.peer.port)
        for one in region.cluster.network.sockets
        if one.host in names and one.peer.host in names
    )
    for (host, peer, _), count in dialled.items():
        if count > 1:
            raise ViolationError("O10", f"{host} has {count} links to {peer}")


def check_tasks(region: "ShellRegion") -> None:
    """O10: check the number of tasks. Raises ViolationError."""
    tasks = Counter(task.context.get(here) for task in region.cluster.count.tasks)
    for process in region.processes:
        if tasks[process.name] > TASKS_MAX:
            raise ViolationError("O10", f"{process.name} has {tasks[process.name]} tasks")


def check_silence(region: "ShellRegion") -> None:
    """O11: check that silent workers are given up before a checkpoint or restore times out. Raises
    ViolationError."""
    for worker in region.workers:
        since = worker.silent_since
        if since is None or worker.given_up or not worker.driver.alive:
            continue
        silent = trio.current_time() - since
        if silent > region.spec.suspect_after_s + NOTICED_S:
            raise ViolationError("O11", f"{worker.name} is silent for {silent:.0f} s, and not given up")


def check_orphans(region: "ShellRegion") -> None:
    """O10: check that no worker outlives its driver for long. Raises ViolationError."""
    left = [one.name for one in region.workers if one.alive and not one.driver.alive]
    if left:
        raise ViolationError("O10", f"workers {left} are still there, their drivers are not")


# --- a process --------------------------------------------------------------------------------------------


_MAY_END = (DosError, OrphanedError)
"""Errors that may end a process of a region: an unavailable store, an invalid peer, a lost coordinator. Any
other error is a bug of a shell."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in nested groups, including cancellations."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


class RegionProcess(Client):
    """One process. `failure`: the error that ended it, '' if there was none."""

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region.cluster, name)
        self.region = region
        self.failure = ""
        self.threads = region.surroundings.threads[name] = Threads()

    async def work(self) -> None:
        """Do the work of this process."""
        raise NotImplementedError

    async def perform(self) -> None:
        try:
            await self.work()
        except Exception as group:
            error = next((one for one in leaves(group) if not isinstance(one, _MAY_END)), first_error(group))
            self.failure = f"{type(error).__name__}: {error}"
            self.note(f"ends: {self.failure}")
            self.region.saw(f"{self.kind} ended: {type(error).__name__}")
            if not self.alive:
                return  # it was killed: its last errors have no effect
            if isinstance(error, ViolationError):
                self.cluster.fail(error)
            elif not isinstance(error, _MAY_END):
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.cluster.fail(
                    ViolationError(
                        "shell", f"{self.name} ended with {self.failure} at {where.name}, {where.line}"
                    )
                )

    async def run(self) -> None:
        """Run the process. After its end, nothing of it is open."""
        try:
            await super().run()
        finally:
            self.region.guarded(check_closed, self)
            self.gone()

    def gone(self) -> None:
        """Called at the end of the process, for any reason."""

    def kill(self) -> None:
        if self.alive:
            self.threads.end()
            super().kill()

    def cut_off(self, seconds: float) -> None:
        """Block all its paths for a while, both ways."""
        network, machines = self.cluster.network, self.cluster.machines
        others = [one.name for one in self.region.processes if one is not self]
        for other in [*others, *(machine.name for machine in machines)]:
            for path in ((self.name, other), (other, self.name)):
                network.block(*path)
                self.cluster.later(seconds, network.unblock, *path)

    def power_cut(self) -> None:
        """Its machine loses power, without notice to others."""
        if self.alive:
            self.alive = False
            self.threads.end()
            self.scope.cancel()
            self.cluster.network.power_lost(self.name)
            self.note("lost its power")


# --- the coordinator's ------------------------------------------------------------------------------------


class RecordedShell(RegionShell):
    """The shell of a coordinator, whose events and effects are recorded."""

    def __init__(self, driver: "Driver", spec: RegionSpec) -> None:
        super().__init__(spec, driver.on_event)
        self.core = shell.Coordinator(spec, WatchedRun(driver.region, spec))
        self._driver = driver

    def post(self, event: Event) -> None:
        if isinstance(event, SavepointWanted) and not event.on and event.name.startswith("fork-"):
            self._driver.region.saw("the savepoint of a fork is dropped")
        super().post(event)

    def _handle(self, event: Event) -> None:
        region = self._driver.region
        if isinstance(event, ManifestOpened):
            region.guarded(region.record.started, event.incarnation, event.last_checkpoint)
            if self.spec.hand_over:
                region.saw("a region was handed over")
        elif isinstance(event, CheckpointAppended):
            region.guarded(region.record.acknowledged, event.checkpoint)
        region.saw(f"event: {type(event).__name__}")
        super()._handle(event)

    def _perform(self, effect: Effect) -> None:
        region = self._driver.region
        if isinstance(effect, SendControl):
            region.guarded(region.record.sent, effect.message)
            region.sent(self._driver.name, effect.link, effect.message)
            if isinstance(effect.message, Restore) and effect.message.takes_over:
                region.saw("a worker is taken over")
        elif isinstance(effect, AppendCheckpoint):
            region.guarded(region.record.appended, effect.checkpoint, len(effect.checkpoint.layout.workers))
            region.saw("appends a checkpoint")
        elif isinstance(effect, OpenManifest):
            region.saw("manifest opens")
        super()._perform(effect)


class Driver(RegionProcess):
    """One coordinator process. `end`: its outcome, None while it runs."""

    kind = "driver"

    def __init__(self, region: "ShellRegion", name: str) -> None:
        super().__init__(region, name)
        self.spec = replace(region.spec, listen_host=name, job_key=self.rng.randbytes(32))
        self.shell = RecordedShell(self, self.spec)
        self.address = ("", 0)
        self.end: End | None = None
        self.launcher = Launcher(self)  # type: ignore[arg-type]

    async def work(self) -> None:
        async with listening(self.spec, self.shell) as self.address:
            self.end = await run_region(self.spec, self.shell, self.launcher)
        self.note(f"ends: {self.end.state.name}, {self.end.reason}")
        self.region.driver_ended(self.end)

    def on_event(self, event: RegionEvent) -> None:
        """Receive an event as the observer of the shell."""
        if isinstance(event, SavepointSettled) and self.region.makes_savepoints:
            self.region.savepoints.settled(event)
        if isinstance(event, FellBack):
            self.region.guarded(self.region.spoiling.fell_back, event.last, event.checkpoint)
        if text := record_event(self.region, event):
            self.note(text)

    # For the launcher, which is a part of this process

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Make the call in `seconds`, unless this process has ended by then."""
        self.cluster.later(seconds, partial(self._if_alive, call))

    def _if_alive(self, call: Callable[[], None]) -> None:
        if self.alive:
            call()

    def post(self, event: Event) -> None:
        self.shell.post(event)
