"""A worker's process: the real circuit loop and the real participant core, and the tasks that connect them.

It does as tasks of one process what the two threads of a worker do. It executes the coordinator's orders in
the order in which they arrive, and ends one incarnation before it begins the next.
"""

from typing import TYPE_CHECKING, Any

from checkpoint.core.links.frames import control_frame, decode_from_coordinator
from checkpoint.core.links.handshake import LinkHello
from checkpoint.core.links.messages import (
    VERSIONS,
    Committed,
    CopiedAhead,
    CopyAhead,
    Counters,
    Failed,
    Join,
    Pause,
    RequestCheckpoint,
    Restore,
    Start,
    ToCoordinator,
    View,
    Vote,
)
from checkpoint.core.links.participation import (
    LinkGone,
    MessageIn,
    OrderRefused,
    ParticipantCore,
    ParticipantEnded,
    ParticipantInput,
    ParticipantTick,
    ReportWanted,
    SendReport,
)
from checkpoint.core.region import worker_directory
from checkpoint.errors import StaleIncarnationError
from dataflow import limits
from dataflow.worker.circuit_thread import CircuitLoop
from dataflow.worker.layout_change import CopiedState, LayoutChange, create_journals
from dataflow.worker.messages import (
    CheckpointRequested,
    CircuitFailed,
    LinksEnded,
    PauseRequested,
    PublishCheckpoint,
    Shared,
    ToLinks,
)
from dataflow.worker.spec import Clock, Identity
from dos_protocol.errors import DosError
from tests.sim.engine.environment import Process, Signal, Task
from tests.sim.engine.network import Wire
from tests.sim.regions.channel import Channel, accept, dial
from tests.sim.regions.claiming import Host
from tests.sim.regions.deadline_timer import DeadlineTimer
from tests.sim.regions.mailbox import Mailbox
from tests.sim.regions.worker_incarnation import WorkerIncarnation
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.regions.driver import Driver
    from tests.sim.regions.region import Region


class _SignalMailbox(Mailbox):
    """The mailbox of a simulated process. `changed`: set with each message."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = Signal()

    def wake(self) -> None:
        self.changed.set()


class ProcessClock(Clock):
    """The clock of a circuit: that of its process. A piece of work takes no time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def seconds(self) -> float:  # type: ignore[override]
        return self._process.now

    def wall_ms(self) -> int:  # type: ignore[override]
        return int(self._process.now * 1000)


class Worker(Process):
    """One worker process. `slowness`: the factor by which its work takes longer."""

    def __init__(self, region: "Region", driver: "Driver", index: int, attempt: int, name: str) -> None:
        super().__init__(region.env, name)
        self.region = region
        self.driver = driver
        self.index = index
        self.attempt = attempt
        self.address = f"{name}:x"
        self.rng = region.rng.stream(f"worker {name}")
        self.slowness = 1.0
        self.hosted: list[Worker] = []
        """Other workers that run in this process."""
        self.shared = Shared()
        self.inbox = _SignalMailbox()
        self.host = Host(self, region.network, region.store, region.history, self.rng)
        spec = region.spec
        self.core = ParticipantCore(
            spec.name, index, now=self.now, orphan_timeout_s=spec.orphan_timeout_s, heartbeat_s=1.0
        )
        self.incarnation: WorkerIncarnation | None = None
        self.incarnation_began = Signal()
        self._control: Channel | None = None
        self._copies = CopiedState()
        self._copying: Task | None = None
        self._taken = 0
        self._ordered = Signal()
        self._timer = DeadlineTimer(self, self._tick)
        self.loop = CircuitLoop(
            region.plan_for(self),
            Identity(spec.name, index),
            worker_limits=region.limits,
            inbox=self.inbox,
            shared=self.shared,
            post=lambda message: self.soon(lambda: self._deliver(message)),
            clock=ProcessClock(self),
        )
        region.network.listen(self.address, self, self._accept)
        self.start("links", self._links())
        self.start("circuit", self._circuit())

    def die(self, why: str | None) -> None:
        """End the process. `why`: a signal or an error; None: it was ordered to stop."""
        if self.alive:
            self.note(f"ends: {why or 'as ordered'}")
            self.region.network.process_died(self, power=False)
            self.kill()
            self.loop.drop()
            self.driver.launcher.ended(self, why)
            for one in self.hosted:
                one.die(why)

    def note(self, what: str) -> None:
        self.env.trace.note(self.env.now, self.name, what)

    # The circuit's thread

    async def _circuit(self) -> None:
        """Process messages and pieces of work one after the other. Each piece takes virtual time."""
        while True:
            output = self.region.output
            while not all(output.free_for(one, self) for one in self.inbox.opens_parts(self.index)):
                await self.sleep(0.05)  # another process has the lock of the part
            message = self.inbox.take_nowait()
            if message is None and not self.loop.busy:
                await self.wait(self.inbox.changed)
                continue
            step = self.shared.step
            self.loop.turn(message)
            if isinstance(message, LinksEnded):
                return
            if message is None:
                produced = self.shared.step != step
                await self.sleep(self.slowness * self.region.work_s(self.rng, produced=produced))

    def _deliver(self, message: ToLinks) -> None:
        """Deliver a message of the circuit, unless its incarnation is over."""
        incarnation = self.incarnation
        if incarnation is None or message.incarnation != incarnation.number:
            return
        if isinstance(message, CircuitFailed):
            self._circuit_failed(message)
        else:
            incarnation.deliver(message)

    def _circuit_failed(self, failure: CircuitFailed) -> None:
        self.note(f"the circuit failed ({failure.kind}): {failure.message}")
        self.region.circuit_failed(failure, self.index)
        failed = Failed(
            job="",
            worker=self.index,
            kind=failure.kind,
            operator=failure.operator,
            position=failure.position,
            message=failure.message,
            traceback=failure.traceback,
        )
        if self.report(failed) and failure.kind == "internal":
            self.soon(lambda: self.die(failure.message))

    # The links' thread

    async def _links(self) -> None:
        spec = self.region.spec
        hello = LinkHello(role="control", job=spec.name, worker=self.index, attempt=self.attempt)
        try:
            channel = await dial(self, self.region.network, self.driver.address, hello, self.rng, 5.0)
        except DosError as error:
            why = str(error)
            self.soon(lambda: self.die(why))
            return
        self._control = channel
        self.start("orders", self._take_orders())
        self.report(
            Join(
                job="",
                worker=self.index,
                attempt=self.attempt,
                pid=1,
                host=self.name,
                exchange_host=self.address,
                exchange_port=1,
                speaks=VERSIONS,
            )
        )
        self._timer.arm(self.core.deadline())
        try:
            while True:
                self.handle(MessageIn(decode_from_coordinator(await channel.receive())))
        except DosError as error:
            self.handle(LinkGone(str(error.args[0])))

    def handle(self, event: ParticipantInput) -> None:
        """Pass an event to the core and perform its effects. Raises StaleIncarnationError for a report."""
        before = self.core.state
        effects = self.core.handle(event, self.now)
        for effect in effects:
            if isinstance(effect, SendReport):
                self._send(effect.message)
            elif isinstance(effect, OrderRefused):
                self.region.saw(f"worker refused: {effect.refusal.name}")
                self.note(f"refuses {effect.refusal.name}: {effect.refusal.text}")
            else:
                assert isinstance(effect, ParticipantEnded)
                why = None if self.core.state is before else str(effect.error)
                self.region.saw(f"worker ended: {type(effect.error).__name__}")
                self.soon(lambda why=why: self.die(why))
        if self.core.state is not before:
            self.region.saw(f"participant: {before.name} to {self.core.state.name}")
        self._ordered.set()
        self._timer.arm(self.core.deadline())

    def _send(self, message: ToCoordinator) -> None:
        if isinstance(message, Vote):
            self.region.record.voted(self.index, message.incarnation, message)
            self.region.saw("voted")
        channel = self._control
        if channel is not None and not channel.over:
            channel.send(control_frame(message))

    def report(self, message: ToCoordinator) -> bool:
        """Send a report to the coordinator. Return False if a newer order has made it obsolete."""
        try:
            self.handle(ReportWanted(message, of=self._taken))
        except StaleIncarnationError:
            return False
        return True

    def _tick(self, due: float) -> None:
        self.handle(ParticipantTick(due, self.counters()))

    def counters(self) -> Counters:
        shared, claim = self.shared, self.incarnation.claim if self.incarnation is not None else None
        return Counters(
            step=shared.step,
            rows_in=shared.rows_in,
            exhausted=shared.exhausted,
            waiting_for_store=claim is not None and claim.waiting,
            lag_bytes=0 if claim is None else claim.lag_bytes,
        )

    async def _take_orders(self) -> None:
        while True:
            while not self.core.orders:
                await self.wait(self._ordered)
            order = self.core.orders.popleft()
            if not isinstance(order, CopyAhead):
                self._taken = order.incarnation
            self.note(
                f"receives {type(order).__name__} {order.checkpoint} of incarnation {order.incarnation}"
            )
            if isinstance(order, Restore):
                self._begin(order)
            elif isinstance(order, CopyAhead):
                self._stop_copying()
                self._copying = self.start("copying", self._copy_ahead(order))
            elif self.incarnation is None or order.incarnation != self.incarnation.of_region:
                self.note(f"ignores an order of incarnation {order.incarnation}, which it does not run")
            elif isinstance(order, Start):
                self.incarnation.start(order)
            elif isinstance(order, View):
                self.incarnation.links.view(order)
            elif isinstance(order, RequestCheckpoint):
                self.inbox.put(CheckpointRequested(self.incarnation.number, order.checkpoint, order.final))
            elif isinstance(order, Committed):
                self.incarnation.committed(order)
                self.inbox.put(
                    PublishCheckpoint(self.incarnation.number, order.checkpoint, order.final, order.step)
                )
            elif isinstance(order, Pause):
                self.shared.pausing = order.pause > 0
                self.inbox.put(PauseRequested(self.incarnation.number, order.pause))

    def _begin(self, order: Restore) -> None:
        """End the previous incarnation and begin the next."""
        self.shared.incarnation = order.epoch
        if self.incarnation is not None:
            self.incarnation.end()
        self.shared.peers_at = 0
        self.shared.room = True
        self.shared.pausing = False
        self.shared.snapshot_due = order.forks
        self._stop_copying()
        copies, self._copies = self._copies, CopiedState()
        self.incarnation = WorkerIncarnation(self, order, copies)
        self.incarnation_began.set()

    def _stop_copying(self) -> None:
        if self._copying is not None:
            self._copying.stop()

    async def _copy_ahead(self, order: CopyAhead) -> None:
        """Prepare for another layout, as `dataflow.worker.link_thread`."""
        region, self._copies = self.region, CopiedState()
        plan = region.plan_for(self)
        change = LayoutChange.of(order, plan)
        assert change is not None
        store = SimStore(self, region.network, region.store)

        async def report(copied: int, total: int) -> None:
            self._send_copied(copied, total)

        try:
            if order.creates and not change.share.stays:
                claim = await self.host.claim(worker_directory(order.job, self.index), order.incarnation)
                assert claim is not None, "it waits without a limit"
                await create_journals(claim, order, change, plan, generation=region.store.generation)
                claim.close()
            total = await self._copies.copy(store, order, change, report)
        except DosError as error:
            region.saw("state could not be copied ahead")
            self._send_copied(0, 0, error=str(error))
        else:
            region.saw("state was copied ahead")
            self._send_copied(total, total, done=True)
        finally:
            store.close()

    def _send_copied(self, copied: int, total: int, *, done: bool = False, error: str = "") -> None:
        fields: dict[str, Any] = {"copied_bytes": copied, "total_bytes": total, "done": done, "error": error}
        self.report(CopiedAhead(job="", worker=self.index, **fields))

    # Peers

    def _accept(self, wire: Wire) -> Channel:
        channel = Channel(self, wire, dialler=False)
        self.start("peer", self._serve_peer(channel))
        return channel

    async def _serve_peer(self, channel: Channel) -> None:
        """Accept a peer. It may be one order ahead, so wait for its incarnation."""
        try:
            hello = await accept(channel, self.region.spec.name, self.rng)
        except DosError:
            return
        deadline = self.now + limits.peer_wait_s
        wanted = hello.to_term or hello.incarnation
        while (self.incarnation is None or self.incarnation.number < wanted) and self.now < deadline:
            await self.wait(self.incarnation_began, deadline - self.now)
        if hello.role != "exchange" or self.incarnation is None:
            channel.close()
            return
        await self.incarnation.serve_peer(channel, hello)
