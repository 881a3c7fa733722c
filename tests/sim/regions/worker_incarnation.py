"""One incarnation of a worker: its claim, its chains, its links to peers, its votes.

It does as tasks of a process what `dataflow.worker.link_thread` and `dataflow.worker.exchange` do with
trio. `Journals` determines what is durable before what, `IncomingFrames` which frames of a peer are accepted.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from checkpoint.core.links.frames import FrameType
from checkpoint.core.links.handshake import LinkHello
from checkpoint.core.links.messages import (
    Committed,
    Failed,
    Finished,
    Paused,
    Restore,
    Restored,
    Start,
    Vote,
)
from checkpoint.core.region import worker_directory
from checkpoint.errors import ManifestError
from dataflow import limits
from dataflow.errors import StepDiffersError, StepsMissingError
from dataflow.worker.companion import RunningOperator
from dataflow.worker.failures import failure_of
from dataflow.worker.journals import FloorCollector, Journals
from dataflow.worker.layout_change import CopiedState, LayoutChange, after_step, part_of
from dataflow.worker.messages import (
    BlockLoaded,
    CheckpointTaken,
    LoadStateBlock,
    OutputMade,
    PausedAt,
    PeerHeld,
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
from dos_protocol.errors import CorruptDataError, DosError, LocalProtocolError
from journal.core.errors import ChainError, CorruptRecordError, LostBytesError
from tests.sim.engine.environment import Signal, Task
from tests.sim.history import ViolationError
from tests.sim.regions.channel import Channel
from tests.sim.regions.claiming import RegionClaim
from tests.sim.regions.feeds import Feeds
from tests.sim.regions.log_outputs import LogOutputs
from tests.sim.regions.plain_links import PlainLinks
from tests.sim.regions.resumed_links import ResumedLinks
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
    StepsMissingError,
    StepDiffersError,
)
"""Errors to which no fault of a run may lead: a checkpoint that cannot be restored, an impossible order."""


class WorkerIncarnation:
    """One incarnation. `claim`: None until it is granted."""

    def __init__(self, worker: "Worker", order: Restore, copies: CopiedState) -> None:
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
        self._worker.inbox.put(Started(self.number, divisions))
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
                self._left_before() if change is None else change.completes,
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
            stored = self._copies.restored(store, self._order, journals.blocks, self._change)
            async for part, block in stored:
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
