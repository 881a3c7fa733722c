"""A worker's process: the real circuit loop and the real participant core, and the tasks that connect them.

It does as tasks of one process what the two threads of a worker do. It executes the coordinator's orders in
the order in which they arrive, and ends one incarnation before it begins the next.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from checkpoint.core.links.frames import FrameType, control_frame, decode_from_coordinator
from checkpoint.core.links.handshake import LinkHello
from checkpoint.core.links.messages import (
    VERSIONS,
    Committed,
    CopiedAhead,
    CopyAhead,
    Counters,
    Failed,
    Finished,
    Join,
    Pause,
    Paused,
    RequestCheckpoint,
    Restore,
    Restored,
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
from checkpoint.core.records.layout import TakenPart
from checkpoint.core.region import worker_directory
from checkpoint.errors import ManifestError, StaleIncarnationError
from dataflow import limits
from dataflow.errors import StepDiffersError, StepsMissingError
from dataflow.worker.circuit_thread import (
    CircuitIncarnation,
    CircuitLoop,
    Inbox,
    LinksEnded,
    RestoreCircuit,
    ToCircuit,
    Woken,
)
from dataflow.worker.companion import RunningOperator
from dataflow.worker.failures import failure_of
from dataflow.worker.journals import FloorCollector, Journals
from dataflow.worker.layout_change import (
    CopiedState,
    LayoutChange,
    after_step,
    create_journals,
    is_of_vote,
    part_of,
    these,
)
from dataflow.worker.messages import (
    BlockLoaded,
    CheckpointTaken,
    CircuitFailed,
    CircuitPositioned,
    OutputMade,
    PausedAt,
    PeerHeld,
    Published,
    Shared,
    StageEnded,
    StateLoaded,
    ToLinks,
)
from dataflow.worker.spec import Clock, Identity
from dos_client.errors import MissingDataError
from dos_protocol.errors import CorruptDataError, DosError, LocalProtocolError
from journal.core.errors import ChainError, CorruptRecordError, LostBytesError
from tests.sim.engine.environment import Process, Signal, Task
from tests.sim.engine.network import Wire
from tests.sim.history import ViolationError
from tests.sim.regions.claiming import Host, RegionClaim
from tests.sim.regions.feeds import Feeds
from tests.sim.regions.links import Channel, PlainLinks, ResumedLinks, accept, dial
from tests.sim.regions.output import LogOutputs
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.regions.driver import Driver
    from tests.sim.regions.region import Region


class DeadlineTimer:
    """Calls `on_due` with the deadline that was armed last, when it is reached."""

    def __init__(self, process: Process, on_due: Callable[[float], None]) -> None:
        self._process = process
        self._on_due = on_due
        self._armed: float | None = None

    def arm(self, due: float | None) -> None:
        """Set the deadline, in the time of the process; None: keep the previous one."""
        if due is not None and due != self._armed:
            self._armed = due
            self._process.after(max(due - self._process.now, 0.0), self._reached, due)

    def _reached(self, due: float) -> None:
        if self._armed == due:
            self._armed = None
            self._on_due(due)


# --- its mailbox ------------------------------------------------------------------------------------------


MESSAGES_MAX: Final = 200
"""Limit of a mailbox: peers are at most four steps ahead, and a state arrives in few blocks at a time."""


class Mailbox(Inbox):
    """Messages to the circuit. A subclass wakes the task that waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[ToCircuit] = deque()

    def put(self, message: ToCircuit) -> None:
        if len(self._messages) >= MESSAGES_MAX:
            raise ViolationError("O10", f"{MESSAGES_MAX} messages wait for a circuit")
        self._messages.append(message)
        self.wake()

    def wake(self) -> None:
        """Wake the waiting task."""
        raise NotImplementedError

    def take_nowait(self) -> ToCircuit | None:
        return self._messages.popleft() if self._messages else None

    def opens_parts(self, worker: int) -> list[int]:
        """Return the workers whose output the next message opens: this one's, and those that it completes."""
        first = self._messages[0] if self._messages else None
        if not isinstance(first, RestoreCircuit):
            return []
        return [worker, *first.completes]

    @property
    def next_restores(self) -> bool:
        return bool(self._messages) and isinstance(self._messages[0], RestoreCircuit)


# --- one incarnation --------------------------------------------------------------------------------------


_LOST = (
    MissingDataError,
    LostBytesError,
    ChainError,
    CorruptRecordError,
    CorruptDataError,
    LocalProtocolError,
    ManifestError,
    StepsMissingError,
    StepDiffersError,
)
"""Errors to which no fault of a run may lead: a checkpoint that cannot be restored, an impossible order."""


class WorkerIncarnation:
    """One incarnation. `claim`: None until it is granted."""

    def __init__(
        self, worker: "Worker", order: Restore, copies: CopiedState, voted: Vote | None = None
    ) -> None:
        self.voted: Vote | None = None
        self._voted = voted
        self._reads: bool | None = None
        self.number = order.epoch
        self.of_region = order.incarnation
        self._copies = copies
        self.claim: RegionClaim | None = None
        self.over = False
        self._worker = worker
        self._order = order
        self._journals: Journals | None = None
        self._change = LayoutChange.of(order, worker.region.plan_for(worker))
        self._outputs = LogOutputs(worker)
        self._to_serve: deque[StageEnded | Published | PausedAt | Committed] = deque()
        self._to_vote: deque[CheckpointTaken] = deque()
        self._changed = Signal()
        self._blocks_out = 0
        self._loaded = False
        self._sent_eof = False
        self._finishing = False
        self._tasks: list[Task] = []
        self._links: PlainLinks | ResumedLinks = (
            ResumedLinks(worker, order, self._start)
            if order.is_local
            else PlainLinks(worker, order, self._fail)
        )
        self._start("work", self._work)

    # Calls of the worker

    def deliver(self, message: ToLinks) -> None:
        """Accept a message of the circuit."""
        if isinstance(message, BlockLoaded):
            self._blocks_out -= 1
        elif isinstance(message, CircuitPositioned):
            self._reads = message.reads
        elif isinstance(message, StateLoaded):
            self._loaded = True
        elif isinstance(message, CheckpointTaken):
            self._to_vote.append(message)
        elif isinstance(message, OutputMade):
            self._outputs.take(message)
        elif isinstance(message, PeerHeld):
            self.links.held(message)
        elif isinstance(message, StageEnded | Published | PausedAt):
            self._to_serve.append(message)
        self._changed.set()

    def committed(self, order: Committed) -> None:
        """Accept an order: a checkpoint is committed, and others are released by it."""
        self._to_serve.append(order)
        self._changed.set()
        self._links.purge(order.step)

    @property
    def links(self) -> ResumedLinks:
        """Its links with local recovery."""
        assert isinstance(self._links, ResumedLinks)
        return self._links

    def start(self, order: Start) -> None:
        """Accept START: all workers are restored."""
        assert self._journals is not None, "START before RESTORED"
        divisions = self._journals.divisions(order.replay_until_step)
        self._worker.region.saw("steps replayed" if divisions else "nothing to replay")
        if self._order.takes_over:
            self._worker.region.saw("a worker is taken over")
        self._worker.inbox.call(self.number, CircuitIncarnation.start, divisions)
        if isinstance(self._links, ResumedLinks):
            self._links.started(order.replay_until_step, everywhere=not self._order.takes_over)

    def end(self) -> None:
        """Stop everything of this incarnation."""
        if self.over:
            return
        self.over = True
        for task in self._tasks:
            self._worker.soon(task.stop)
        self._links.close()
        if self.claim is not None:
            self.claim.close()

    def _fail(self, error: DosError) -> None:
        """End the incarnation with an error. Later errors are ignored."""
        if self.over or self._finishing:
            return
        if isinstance(error, _LOST) and not self._worker.region.history.spoiled:
            raise ViolationError("O7", f"worker {self._worker.index}: {type(error).__name__}: {error}")
        self.end()
        failure = failure_of(error)
        worker = self._worker
        worker.region.saw(f"worker failed: {failure.kind}")
        worker.note(f"incarnation {self.number} ends ({failure.kind}): {failure.message}")
        worker.report(
            Failed(
                job="",
                worker=worker.index,
                kind=failure.kind,
                message=failure.message,
                peer=failure.peer,
                epoch_held=failure.epoch_held,
                damaged=failure.damaged,
            )
        )

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Task:
        task = self._worker.start(name, self._guarded(work))
        self._tasks.append(task)
        return task

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except DosError as error:
            self._fail(error)

    # Its tasks

    async def _work(self) -> None:
        worker, order, region = self._worker, self._order, self._worker.region
        change = self._change
        part = part_of(order, change)
        if change is not None:
            moves = "a fork" if change.forks else "another layout" if change.moves else "another line"
            worker.region.saw(f"a worker {'stays' if change.share.stays else 'joins'} in {moves}")
        after, store = after_step(order), region.store
        begin = worker.now
        feeds = Feeds(worker, part, self.number, workers=len(order.layout.workers))
        for feed in feeds.each():
            self._start("feed", feed)
        worker.inbox.put(
            RestoreCircuit(
                self.number,
                after,
                order.checkpoint,
                part,
                order.layout,
                store.store_id,
                dict(feeds.buffers),
                change,
                order.is_local,
                order.takes_over,
                self._left_before() if change is None else change.completes,
                voted=is_of_vote(order, self._voted),
            )
        )
        directory = worker_directory(region.spec.name, worker.index)
        self.claim = await worker.host.claim(directory, self.number)
        assert self.claim is not None, "it waits without a limit"
        collecting = FloorCollector(self.claim)
        joins = change is not None and change.joins
        await self._outputs.open(self.claim, order, part, collecting, joins=joins)
        journals = self._journals = await Journals.open(
            self.claim, order, generation=store.generation, rolling=region.rolling, collecting=collecting
        )
        journals.all_open(order)
        await self._load(journals)
        await self._links.dial_all()
        replayed, took = journals.replayed_bytes, worker.now - begin
        worker.report(
            Restored(
                job="",
                worker=worker.index,
                last_step=journals.last_step,
                replayed_bytes=replayed,
                seconds=took,
            )
        )
        self._start("serve", lambda: self._serve(journals))
        if isinstance(self._links, ResumedLinks):
            self._start("announce", lambda: self.links.announce_divisions(journals))
        self._start("vote", lambda: self._vote_all(journals))
        self._start("watch", lambda: self._watch(self.claim))
        for task in self._outputs.tasks():
            self._start("outputs", task)

    def _left_before(self) -> dict[int, dict[str, Any]]:
        """Return what `left_before` of `dataflow.worker.layout_change` does."""
        region, order = self._worker.region, self._order
        if not region.scales or order.restore is not None or self._worker.index:
            return {}
        return {worker: {} for worker in range(len(order.layout.workers), len(region.output.disks))}

    async def _load(self, journals: Journals) -> None:
        worker, region = self._worker, self._worker.region
        store = SimStore(worker, region.network, region.store)
        store.spoiled = region.history.spoiled
        try:
            while self._reads is None:
                await worker.wait(self._changed)
            worker.region.saw("state is read" if self._reads else "state is kept")
            own = journals.blocks if self._reads else these
            stored = self._copies.restored(store, self._order, own, self._change)
            async for part, block in stored:
                await self._load_block(*block, part)
        finally:
            store.close()
        worker.inbox.call(self.number, CircuitIncarnation.loaded)
        while not self._loaded:
            await worker.wait(self._changed)

    async def _load_block(self, checkpoint: int, operator: str, data: bytes, part: TakenPart | None) -> None:
        while self._blocks_out >= limits.state_blocks_ahead:
            await self._worker.wait(self._changed)
        self._blocks_out += 1
        self._worker.inbox.call(self.number, CircuitIncarnation.load, checkpoint, operator, data, part)

    async def _serve(self, journals: Journals) -> None:
        """Process the messages of the circuit in order: record, then send."""
        while True:
            while not self._to_serve:
                await self._worker.wait(self._changed)
            message = self._to_serve.popleft()
            if isinstance(message, Committed):
                await journals.released(message)
                continue
            if isinstance(message, Published):
                if message.final:
                    self._finishing = True
                    self._worker.report(Finished(job="", worker=self._worker.index))
                continue
            if isinstance(message, PausedAt):
                worker = self._worker
                at, counters = message.step, worker.counters()
                paused = Paused(job="", worker=worker.index, pause=message.pause, step=at, counters=counters)
                worker.report(paused)
                continue
            journals.record(message)
            self._links.send(message)
            if self._worker.shared.exhausted and not self._sent_eof:
                self._sent_eof = True
                self._links.announce(FrameType.EOF, message.step)

    async def _vote_all(self, journals: Journals) -> None:
        worker = self._worker
        while True:
            while not self._to_vote:
                await worker.wait(self._changed)
            taken = self._to_vote.popleft()
            for writer in taken.writers.values():
                await worker.sleep(worker.region.sync_s(worker.rng))
                writer.sync()
            positions = await journals.prepare(taken)
            outputs, floors = await self._outputs.synced(taken.step, taken.sinks)
            positions = msgspec.structs.replace(
                positions,
                sinks={**taken.voted(RunningOperator()), **outputs},
                floors={**positions.floors, **floors},
            )
            vote = Vote(
                job="",
                worker=worker.index,
                checkpoint=taken.barrier.checkpoint,
                step=taken.step,
                positions=positions,
                produced=worker.shared.step,
            )
            self.voted = vote
            worker.report(vote)
            self._links.announce(FrameType.DURABLE, taken.step)
            await journals.voted(taken)
            worker.shared.snapshot_due = journals.snapshot_due

    async def _watch(self, claim: RegionClaim) -> None:
        """Stop the sources while the store accepts nothing, and let them continue afterwards."""
        worker = self._worker
        while True:
            room = not claim.waiting
            if room != worker.shared.room:
                worker.region.saw("sources continue" if room else "sources stop for the store")
                worker.shared.room = room
                worker.inbox.put(Woken())
            await worker.sleep(0.25)

    # Peers

    async def serve_peer(self, channel: Channel, hello: LinkHello) -> None:
        """Receive frames from a peer, on the link that it dialed, until this incarnation is over."""
        if self.over:
            self._worker.region.saw("a peer's link was refused")
            channel.close()
        else:
            await self._links.serve(channel, hello)


# --- the process ------------------------------------------------------------------------------------------


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
        report = msgspec.structs.replace(failure.report, worker=self.index)
        self.note(f"the circuit failed ({report.kind}): {report.message}")
        self.region.circuit_failed(failure, self.index)
        if self.report(report) and report.kind == "internal":
            self.soon(lambda: self.die(report.message))

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
                request = CircuitIncarnation.request_checkpoint
                self.inbox.call(self.incarnation.number, request, order.checkpoint, final=order.final)
            elif isinstance(order, Committed):
                self.incarnation.committed(order)
                number, publish = self.incarnation.number, CircuitIncarnation.publish
                self.inbox.call(number, publish, order.checkpoint, final=order.final, step=order.step)
            elif isinstance(order, Pause):
                self.shared.pausing = order.pause > 0
                self.inbox.call(self.incarnation.number, CircuitIncarnation.pause, order.pause)

    def _begin(self, order: Restore) -> None:
        """End the previous incarnation and begin the next."""
        self.shared.incarnation = order.epoch
        voted = None if self.incarnation is None else self.incarnation.voted
        if self.incarnation is not None:
            self.incarnation.end()
        self.shared.peers_at = 0
        self.shared.room = True
        self.shared.pausing = False
        self.shared.snapshot_due = order.forks
        self._stop_copying()
        copies, self._copies = self._copies, CopiedState()
        self.incarnation = WorkerIncarnation(self, order, copies, voted)
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
            self._send_copied(order.checkpoint, copied, total)

        try:
            if order.creates and not change.share.stays:
                claim = await self.host.claim(worker_directory(order.job, self.index), order.incarnation)
                assert claim is not None, "it waits without a limit"
                await create_journals(claim, order, change, plan, generation=region.store.generation)
                claim.close()
            total = await self._copies.copy(store, order, change, report)
        except DosError as error:
            region.saw("state could not be copied ahead")
            self._send_copied(order.checkpoint, 0, 0, error=str(error))
        else:
            region.saw("state was copied ahead")
            self._send_copied(order.checkpoint, total, total, done=True)
        finally:
            store.close()

    def _send_copied(
        self, checkpoint: int, copied: int, total: int, *, done: bool = False, error: str = ""
    ) -> None:
        fields: dict[str, Any] = {"copied_bytes": copied, "total_bytes": total, "done": done, "error": error}
        self.report(CopiedAhead(job="", checkpoint=checkpoint, worker=self.index, **fields))

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
