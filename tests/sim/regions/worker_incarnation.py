"""One incarnation of a worker: its claim, its chains, its links to peers, its votes.

It does as tasks of a process what `dataflow.worker.link_incarnation` and `dataflow.worker.exchange` do with
trio. `Journals` determines what is durable before what, `IncomingFrames` which frames of a peer are accepted.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from checkpoint.core.channel_frames import ChannelFrame, FrameType
from checkpoint.core.handshake import LinkHello
from checkpoint.core.messages import (
    Committed,
    Failed,
    Finished,
    Paused,
    Prepared,
    Restore,
    Restored,
    Start,
)
from checkpoint.core.region import worker_directory
from checkpoint.errors import ManifestError
from dataflow import limits
from dataflow.core.incoming_frames import IncomingFrames
from dataflow.errors import PeerLostError
from dataflow.worker.collecting import FloorCollector
from dataflow.worker.copying import CopiedState
from dataflow.worker.failures import failure_of
from dataflow.worker.journals import Journals, after_step
from dataflow.worker.layout_change import LayoutChange, part_of
from dataflow.worker.messages import (
    Arrived,
    BlockLoaded,
    CutTaken,
    LoadStateBlock,
    OutputMade,
    PausedAt,
    Published,
    RestoreCircuit,
    StageEnded,
    Started,
    StateComplete,
    StateLoaded,
    ToLinks,
    Woken,
)
from dos_client.errors import MissingDataError
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptDataError,
    DosError,
    LocalProtocolError,
)
from journal.core.errors import ChainError, CorruptRecordError, LostBytesError
from tests.sim.engine.environment import Signal, Task
from tests.sim.history import ViolationError
from tests.sim.regions.channel import Channel, dial
from tests.sim.regions.claiming import RegionClaim
from tests.sim.regions.feeds import Feeds
from tests.sim.regions.log_outputs import LogOutputs
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.regions.worker import Worker

_LOST = (
    MissingDataError,
    LostBytesError,
    ChainError,
    CorruptRecordError,
    CorruptDataError,
    LocalProtocolError,
    ManifestError,
)
"""Errors to which no fault of a run may lead: a checkpoint that cannot be restored, an impossible order."""


class WorkerIncarnation:
    """One incarnation. `claim`: None until it is granted."""

    def __init__(self, worker: "Worker", order: Restore, copies: CopiedState) -> None:
        self.number = order.incarnation
        self._copies = copies
        self.claim: RegionClaim | None = None
        self.over = False
        self._worker = worker
        self._order = order
        self._journals: Journals | None = None
        workers = len(order.layout.workers)
        self._channels = IncomingFrames(worker.region.spec.name, worker.index, workers, order.incarnation)
        self._change = LayoutChange.of(order, worker.region.plan_for(worker))
        self._outputs = LogOutputs(worker)
        self._outgoing: dict[int, Channel] = {}
        self._incoming: list[Channel] = []
        self._to_serve: deque[StageEnded | Published | PausedAt | Committed] = deque()
        self._to_vote: deque[CutTaken] = deque()
        self._changed = Signal()
        self._blocks_out = 0
        self._loaded = False
        self._sent_eof = False
        self._finishing = False
        self._tasks: list[Task] = []
        self._start("work", self._work)

    # Calls of the worker

    def deliver(self, message: ToLinks) -> None:
        """Accept a message of the circuit."""
        if isinstance(message, BlockLoaded):
            self._blocks_out -= 1
        elif isinstance(message, StateLoaded):
            self._loaded = True
        elif isinstance(message, CutTaken):
            self._to_vote.append(message)
        elif isinstance(message, OutputMade):
            self._outputs.take(message)
        elif isinstance(message, StageEnded | Published | PausedAt):
            self._to_serve.append(message)
        self._changed.set()

    def committed(self, order: Committed) -> None:
        """Accept an order: a checkpoint is committed, and others are released by it."""
        self._to_serve.append(order)
        self._changed.set()

    def start(self, order: Start) -> None:
        """Accept START: all workers are restored."""
        assert self._journals is not None, "START before RESTORED"
        divisions = self._journals.divisions(order.replay_until_step)
        self._worker.region.saw("steps replayed" if divisions else "nothing to replay")
        self._worker.inbox.put(Started(self.number, divisions))

    def end(self) -> None:
        """Stop everything of this incarnation."""
        if self.over:
            return
        self.over = True
        for task in self._tasks:
            self._worker.soon(task.stop)
        for channel in (*self._outgoing.values(), *self._incoming):
            channel.close()
        if self.claim is not None:
            self.claim.close()

    def _fail(self, error: DosError) -> None:
        """End the incarnation with an error. Later errors are ignored."""
        if self.over or self._finishing:
            return
        if isinstance(error, _LOST):
            raise ViolationError("O7", f"worker {self._worker.index}: {type(error).__name__}: {error}")
        self.end()
        kind, message, peer, epoch_held = failure_of(error)
        worker = self._worker
        worker.region.saw(f"worker failed: {kind}")
        worker.note(f"incarnation {self.number} ends ({kind}): {message}")
        worker.report(
            Failed(job="", worker=worker.index, kind=kind, message=message, peer=peer, epoch_held=epoch_held)
        )

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(self._worker.start(name, self._guarded(work)))

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
            worker.region.saw(f"a worker {'stays' if change.share.stays else 'joins'} in another layout")
        after, store = after_step(order), region.store
        begin = worker.now
        feeds = Feeds(worker, part, self.number, workers=len(order.layout.workers))
        for feed in feeds.each():
            self._start("feed", feed)
        worker.inbox.put(
            RestoreCircuit(
                self.number,
                after,
                order.cut,
                part,
                order.layout,
                store.store_id,
                dict(feeds.buffers),
                change,
                self._left_before() if change is None else change.completes,
            )
        )
        directory = worker_directory(region.spec.name, worker.index)
        self.claim = await worker.host.claim(directory, self.number)
        assert self.claim is not None, "it waits without a limit"
        collecting = FloorCollector(self.claim)
        joins = change is not None and not change.share.stays
        await self._outputs.open(self.claim, order, part, collecting, joins=joins)
        journals = self._journals = await Journals.open(
            self.claim, order, generation=store.generation, rolling=region.rolling, collecting=collecting
        )
        await self._load(journals)
        for index, peer in enumerate(order.peers):
            if index != worker.index:
                await self._dial(index, peer.host)
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
        worker = self._worker
        async for block in journals.blocks():
            await self._put(LoadStateBlock(self.number, *block))
        if self._change is not None:
            region = worker.region
            store = SimStore(worker, region.network, region.store)
            try:
                async for part, block in self._copies.taken_over(store, self._order, self._change):
                    await self._put(LoadStateBlock(self.number, *block, part))
            finally:
                store.close()
        worker.inbox.put(StateComplete(self.number))
        while not self._loaded:
            await worker.wait(self._changed)

    async def _put(self, block: LoadStateBlock) -> None:
        while self._blocks_out >= limits.state_blocks_ahead:
            await self._worker.wait(self._changed)
        self._blocks_out += 1
        self._worker.inbox.put(block)

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
            for peer, frames in message.frames.items():
                self._send(peer, *frames)
            if self._worker.shared.exhausted and not self._sent_eof:
                self._sent_eof = True
                self._send_to_all(FrameType.EOF, message.step)

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
            outputs, floors = await self._outputs.synced(taken.step)
            positions = msgspec.structs.replace(
                positions, sinks={**taken.voted(), **outputs}, floors={**positions.floors, **floors}
            )
            vote = Prepared(
                job="",
                worker=worker.index,
                cut=taken.barrier.cut,
                step=taken.step,
                positions=positions,
                produced=worker.shared.step,
            )
            worker.report(vote)
            self._send_to_all(FrameType.DURABLE, taken.step)
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

    async def _dial(self, peer: int, address: str) -> None:
        worker, name = self._worker, self._worker.region.spec.name
        hello = LinkHello(
            role="exchange",
            job=name,
            worker=worker.index,
            attempt=worker.attempt,
            incarnation=self.number,
        )
        try:
            channel = await dial(
                worker, worker.region.network, address, hello, worker.rng, limits.peer_dial_s
            )
        except DosError as error:
            raise PeerLostError(peer, str(error.args[0])) from error
        self._outgoing[peer] = channel
        self._send(peer, self._channels.marker(FrameType.RESET, after_step(self._order)))

    def _send(self, peer: int, *frames: ChannelFrame) -> None:
        channel = self._outgoing[peer]
        try:
            for frame in frames:
                channel.send(frame)
        except BrokenConnectionError as error:
            raise PeerLostError(peer, str(error.args[0])) from error

    def _send_to_all(self, kind: FrameType, step: int) -> None:
        for peer in self._outgoing:
            self._send(peer, self._channels.marker(kind, step))

    async def serve_peer(self, channel: Channel, hello: LinkHello) -> None:
        """Receive frames from a peer, on the link that it dialed, until this incarnation is over."""
        if self.over or not self._channels.admits(hello.worker, hello.incarnation):
            self._worker.region.saw("a peer's link was refused")
            channel.close()
            return
        self._incoming.append(channel)
        shared = self._worker.shared
        try:
            while True:
                frame = await channel.receive()
                if self.over:
                    return
                arrived = self._channels.take(hello.worker, frame)
                shared.peers_at = max(shared.peers_at, self._channels.peers_at)
                if arrived is not None:
                    self._worker.inbox.put(Arrived(self.number, arrived))
        except DosError as error:
            channel.close()
            self._fail(PeerLostError(hello.worker, str(error.args[0])))
