"""The process of a worker: its real links, and the circuit's thread, which is a task here.

It does what `dataflow.worker.process.run_worker` and `dataflow.worker.link_thread` do with two threads.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import trio

from checkpoint.errors import OrphanedError
from dataflow.worker.circuit_thread import CircuitLoop, LinksEnded, RestoreCircuit, ToCircuit
from dataflow.worker.link_thread import Links
from dataflow.worker.messages import CircuitFailed, Shared, ToLinks
from dataflow.worker.spec import Identity, WorkerSpec
from tests.shells.region.process import CircuitClock, RegionProcess
from tests.sim.regions.worker import Mailbox

if TYPE_CHECKING:
    from tests.shells.region.process import Driver
    from tests.shells.region.region import ShellRegion


class _ParkingMailbox(Mailbox):
    """The mailbox of a trio task. `saw`: counts events."""

    def __init__(self, saw: Callable[[str], None]) -> None:
        super().__init__()
        self._saw = saw
        self._lot = trio.lowlevel.ParkingLot()

    def put(self, message: ToCircuit) -> None:
        if isinstance(message, RestoreCircuit) and (change := message.change) is not None:
            where = "a fork" if change.forks else "another layout" if change.moves else "another line"
            self._saw(f"a worker {'stays' if change.share.stays else 'joins'} in {where}")
        super().put(message)

    def wake(self) -> None:
        self._lot.unpark_all()

    async def wait(self) -> None:
        """Wait for the next message."""
        while not self._messages:
            await self._lot.park()


class Worker(RegionProcess):
    """One worker process."""

    kind = "worker"

    def __init__(self, region: "ShellRegion", driver: "Driver", index: int, attempt: int, name: str) -> None:
        super().__init__(region, name)
        self.driver = driver
        self.index = index
        self.attempt = attempt
        self.hosted: list[Worker] = []
        """Other workers that run in this process."""
        self.power_is_off = self.given_up = False
        self.silent_since: float | None = None
        """When its machine lost its power, if its driver knew the worker."""
        self.shared = Shared()
        plan = region.plan_for(self)
        self.inbox = _ParkingMailbox(region.saw)
        spec = driver.spec
        graph: Any = SimpleNamespace(plan=lambda: plan)
        self.spec = WorkerSpec(
            region=spec.name,
            worker=index,
            attempt=attempt,
            coordinator=driver.address,
            job_key=spec.job_key,
            graph=graph,
            store_url=spec.store_url,
            listen_host=name,
            limits=region.limits,
            orphan_timeout_s=spec.orphan_timeout_s,
        )
        self.links = Links(self.spec, inbox=self.inbox, shared=self.shared, host=self._host)
        self.loop = CircuitLoop(
            plan,
            Identity(spec.name, index),
            worker_limits=region.limits,
            inbox=self.inbox,
            shared=self.shared,
            post=self._post,
            clock=CircuitClock(),
        )

    async def work(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.links.run)
                ended = await self._circuit()
        finally:
            self.loop.drop()
        if ended.error is not None:
            if isinstance(ended.error, OrphanedError):
                self.region.saw("a worker was orphaned")
            raise ended.error

    def _host(self, worker: int, attempt: int) -> None:
        """Run an attempt of another worker."""
        self.region.saw("a worker runs on its host")
        self.hosted.append(self.region.new_worker(self.driver, worker, attempt))

    def gone(self) -> None:
        for one in self.hosted:
            one.die("its host has ended")
        if not self.power_is_off:
            self.driver.launcher.ended(self, self.failure or None)  # type: ignore[arg-type]

    # The circuit's thread

    async def _circuit(self) -> LinksEnded:
        """Process messages and pieces of work one after the other. Each piece takes virtual time."""
        while True:
            while not self._may_write():  # noqa: ASYNC110 - as a lock is polled
                await trio.sleep(0.05)
            message = self.inbox.take_nowait()
            if message is None and not self.loop.busy:
                await self.inbox.wait()
                continue
            if isinstance(message, LinksEnded):
                return message
            await trio.lowlevel.checkpoint_if_cancelled()  # a killed process does not continue
            step = self.shared.step
            self.loop.turn(message)
            produced = message is None and self.shared.step != step
            await trio.sleep(self.region.work_s(self.rng, produced=produced))

    def _may_write(self) -> bool:
        """Return whether no other process has the locks of its parts."""
        output = self.region.output
        return all(output.free_for(one, self) for one in self.inbox.opens_parts(self.index))

    def _post(self, message: ToLinks) -> None:
        """Pass a message from the circuit to the links, as threads do by trio's token."""
        if isinstance(message, CircuitFailed):
            self.note(f"the circuit failed ({message.report.kind}): {message.report.message}")
            self.region.guarded(self.region.circuit_failed, message, self.index)
        self.cluster.timers.after(0.0, lambda: self._deliver(message))

    def _deliver(self, message: ToLinks) -> None:
        if self.alive:
            self.links.deliver(message)

    # As the launcher sees it

    def die(self, why: str | None) -> None:
        """SIGKILL. If its power is off, the launcher reports its end now."""
        self.failure = self.failure or (why or "")
        if self.power_is_off and not self.given_up:
            self.given_up = True
            self.driver.launcher.ended(self, why)  # type: ignore[arg-type]
        self.kill()

    def power_cut(self) -> None:
        if self.alive:
            self.power_is_off = True
            if self.shared.incarnation:
                self.silent_since = trio.current_time()
            super().power_cut()
