"""One incarnation of a worker on the link thread: its claim, its chains and its votes.

It runs on trio and executes no user code and no long computations. Order of a restore:

1. Claim the worker's directory with its epoch: the incarnation, or the term of a worker that is taken over.
2. Open the chains (`worker/journals.py`).
3. Send the state to the circuit and dial every peer.
4. Send RESTORED, only after all of this.

Input is prefetched from the beginning. Any failure ends the incarnation and is reported once. Votes are
prepared one after the other while the circuit runs the next steps.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial

import trio

from checkpoint import Committed, FrameType, Restore, Rolling, Start, View, WorkerCheckpoint, worker_directory
from checkpoint.chains.whole_checkpoints import SoundStore
from checkpoint.errors import OutputDiffersError, StaleIncarnationError
from checkpoint.link import Link
from checkpoint.participant import Participant
from dataflow import limits
from dataflow.core.phase_timer import PhaseTimer
from dataflow.worker.claiming import claimed
from dataflow.worker.collecting import FloorCollector
from dataflow.worker.copying import CopiedState
from dataflow.worker.directories import Directories, FormerFiles
from dataflow.worker.exchange import PeerSuspected, ResumedExchange
from dataflow.worker.failures import first_error, reported_first
from dataflow.worker.journals import Journals, NoJournals, after_step
from dataflow.worker.layout_change import LayoutChange, left_before, part_of
from dataflow.worker.making_durable import made_durable
from dataflow.worker.messages import (
    BlockLoaded,
    CheckpointTaken,
    DivisionsDurable,
    Inbox,
    LoadStateBlock,
    OfDirectories,
    OutputMade,
    PausedAt,
    PeerHeld,
    Published,
    RestoreCircuit,
    Shared,
    SourceWaits,
    StageEnded,
    Started,
    StateComplete,
    StateLoaded,
    ToLinks,
    Woken,
)
from dataflow.worker.outputs import Outputs
from dataflow.worker.peer_exchange import make_exchange
from dataflow.worker.prefetching import feeds_of
from dataflow.worker.room import watch_room
from dataflow.worker.spec import WorkerSpec
from dos_client import Claim, Store
from journal import Scratch

logger = logging.getLogger("dos.dataflow")


class LinkIncarnation:
    """One incarnation on the link thread. Run `run` in a task; await `end` before the next one begins."""

    def __init__(
        self,
        spec: WorkerSpec,
        order: Restore,
        control: Participant,
        store: Store,
        *,
        inbox: Inbox,
        shared: Shared,
        copies: CopiedState,
    ) -> None:
        self.number = order.epoch
        self.of_region = order.incarnation
        self._copies = copies
        self.claim: Claim | None = None
        self._spec = spec
        self._order = order
        self._control = control
        self._store = store
        self._inbox = inbox
        self._shared = shared
        self._workers = len(order.layout.workers)
        self._plan = spec.graph.plan()
        self._change: LayoutChange | None = None
        """What this worker does if the layout changes."""
        self._part: WorkerCheckpoint | None = None
        name = worker_directory(spec.region, spec.worker)
        self._directories = Directories(self._plan, name, self.number, spec.scratch_dir)
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        self._failure: Exception | None = None
        self.is_ending = False
        """Errors do not count any more."""
        self._journals: Journals | None = None
        self._to_serve, self._from_circuit = trio.open_memory_channel[
            StageEnded | Published | SourceWaits | PausedAt | Committed | PeerSuspected
        ](math.inf)
        self._to_vote, self._checkpoints = trio.open_memory_channel[CheckpointTaken](math.inf)
        self._exchange = make_exchange(
            spec,
            order,
            self._plan,
            inbox=inbox,
            shared=shared,
            lost=self.fail,
            suspects=self._to_serve.send_nowait,
        )
        self._outputs = Outputs(
            self._plan,
            self._exchange,
            peers=self._workers - 1,
            gates=order.is_local or self._plan.delivery == "at-most-once",
            durable=lambda step: self._inbox.put(DivisionsDurable(self.number, step)),
        )
        self._exchange.on_durable = self._outputs.on_peer_durable
        self._circuit_ordered = trio.Event()
        """The circuit has its order to restore, or this is over. What it got before, it would drop."""
        self._loaded = trio.Event()
        self._block_room = trio.Semaphore(limits.state_blocks_ahead)
        self._announced_exhausted = False

    # --- from outside -------------------------------------------------------------------------------------

    def deliver(self, message: ToLinks) -> None:
        """Take a message of the circuit. Call it on the trio thread; never blocks."""
        if isinstance(message, BlockLoaded):
            self._block_room.release()
        elif isinstance(message, StateLoaded):
            self._loaded.set()
        elif isinstance(message, OutputMade):
            self._outputs.take(message)
        elif isinstance(message, OfDirectories):
            self._directories.take(message)
        elif isinstance(message, CheckpointTaken):
            self._to_vote.send_nowait(message)
        elif isinstance(message, PeerHeld):
            self._resumed.held(message)
        elif isinstance(message, StageEnded | Published | SourceWaits | PausedAt):
            self._to_serve.send_nowait(message)

    def start(self, order: Start) -> None:
        """Start the circuit: all workers are at the checkpoint. Recorded steps are replayed first."""
        assert self._journals is not None, "START before RESTORED"
        self._outputs.replays_until(order.replay_until_step, everywhere=not self._order.takes_over)
        if self._order.is_local:  # also for peers that connect later
            self._exchange.announce(FrameType.DURABLE, order.replay_until_step)
        self._inbox.put(Started(self.number, self._journals.divisions(order.replay_until_step)))

    def committed(self, order: Committed) -> None:
        """Note that a checkpoint is committed and that it released older ones."""
        self._to_serve.send_nowait(order)
        self._exchange.purge(order.step)

    def view(self, order: View) -> None:
        """Connect to the process that has taken a peer over."""
        self._resumed.view(order)

    @property
    def _resumed(self) -> ResumedExchange:
        assert isinstance(self._exchange, ResumedExchange), "only with local recovery"
        return self._exchange

    async def receive_from(self, link: Link) -> None:
        """Serve a link that a peer has dialled in this incarnation, perhaps before its circuit restores."""
        await self._circuit_ordered.wait()
        await self._exchange.receive_from(link)

    def fail(self, error: Exception) -> None:
        """End the incarnation with this error. Only the first error counts."""
        if self._failure is None and not self.is_ending:
            self._failure = error
            self._scope.cancel()

    async def end(self) -> None:
        """Stop all tasks of this incarnation and wait for their end."""
        self.is_ending = True
        self._scope.cancel()
        await self._over.wait()

    # --- the incarnation ----------------------------------------------------------------------------------

    async def run(self) -> Exception | None:
        """Run until the incarnation fails or is ended. Return its error, None if it was ended.

        Also returns None if it failed while it was being ended: the next incarnation has begun, and this
        error is not one of it. (Peers that reset earlier close their links; that must not end the new
        incarnation.)
        """
        try:
            with self._scope:
                await self._claim_and_work()
        except Exception as error:
            self.fail(first_error(error))
        finally:
            self._exchange.end()
            self._circuit_ordered.set()
            self._over.set()
        return None if self.is_ending else self._failure

    async def _claim_and_work(self) -> None:
        phases = PhaseTimer(trio.current_time())
        order, after = self._order, after_step(self._order)
        self._change = change = LayoutChange.of(order, self._plan)
        self._part = part = part_of(order, change)
        number, store_id = self.number, self._store.record.store_id
        feeds = feeds_of(
            self._spec,
            self._plan,
            self._store,
            part,
            order.restore,
            workers=self._workers,
            again=self.number > 1,
            woken=lambda: self._inbox.put(Woken()),
        )
        buffers = {name: feed.buffer for name, feed in feeds.items()}
        completes = await left_before(self._store, order) if change is None else change.completes
        owner, local = None if order.restore is None else order.restore.identity, order.is_local
        restores = RestoreCircuit(
            number,
            after,
            order.checkpoint,
            part,
            order.layout,
            store_id,
            buffers,
            change,
            local,
            completes,
            owner,
        )
        self._inbox.put(restores)
        self._circuit_ordered.set()
        async with trio.open_nursery() as reading:
            for feed in feeds.values():  # before the claim: reading needs none, and steps find their input
                reading.start_soon(reported_first, feed.run, self._control)
            async with claimed(self._store, order) as claim:
                self.claim = claim
                phases.end("claim", trio.current_time())
                await self._work(claim, phases)

    async def _work(self, claim: Claim, phases: PhaseTimer) -> None:
        """With the claim held: open the chains, restore the state, then serve steps and votes."""
        order, after, spec = self._order, after_step(self._order), self._spec
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            await stack.enter_async_context(aclosing(self._outputs))
            await stack.enter_async_context(aclosing(self._directories))
            journals = await self._open_chains(claim, stack)
            phases.end("open", trio.current_time())
            nursery.start_soon(self._directories.record_all)
            # RESTORED promises both: the state is loaded, and every peer can be reached.
            async with trio.open_nursery() as loading:
                loading.start_soon(self._load, journals)
                await self._exchange.dial_all(nursery, order.peers, step=after)
            phases.end("load", trio.current_time())
            await self._control.restored(
                last_step=journals.last_step,
                replayed_bytes=sum(
                    one.replayed_bytes for one in (journals, self._outputs, self._directories)
                ),
                seconds=sum(phases.phases_s.values()),
                phases_s=phases.phases_s,
            )
            nursery.start_soon(self._exchange.watch)
            nursery.start_soon(self._serve, journals)
            nursery.start_soon(reported_first, partial(self._vote_all, journals), self._control)
            nursery.start_soon(self._outputs.announce, journals.division_synced)
            if not spec.without_checkpoints:
                nursery.start_soon(
                    self._outputs.trim_all, self._store, spec.region, spec.worker, self._collecting
                )
            nursery.start_soon(self._publish)
            nursery.start_soon(
                partial(
                    watch_room,
                    claim,
                    self._exchange,
                    self._shared,
                    self._inbox,
                    spec.limits,
                    self._control.wants_checkpoint,
                )
            )

    async def _open_chains(self, claim: Claim, stack: AsyncExitStack) -> Journals:
        """Open all chains concurrently; they are independent. `stack` closes what was opened."""
        order, spec, part = self._order, self._spec, self._part
        scratch = Scratch(spec.scratch_dir) if spec.scratch_dir else None
        generation = self._store.record.generation
        journals: Journals = NoJournals()
        self._collecting = FloorCollector(claim)
        async with trio.open_nursery() as opening:
            opening.start_soon(
                partial(
                    self._outputs.open,
                    claim,
                    part,
                    after_step=after_step(order),
                    generation=generation,
                    scratch=scratch,
                    floors=order.floors,
                    joins=self._change is not None and self._change.joins,
                    line=0 if order.restore is None else order.restore.line,
                    rewound=order.restore is not None and order.restore.rewound,
                    workers=len(order.layout.workers),
                )
            )
            if not spec.without_checkpoints:
                rolling = Rolling(snapshot_bytes_min=spec.limits.snapshot_bytes_min)
                # Before the journals: opening them deletes what lies below the floor of any chain.
                await self._directories.open(
                    claim, part, generation=generation, scratch=scratch, rolling=rolling
                )
                journals = await Journals.open(
                    claim,
                    order,
                    generation=generation,
                    scratch=scratch,
                    rolling=rolling,
                    collecting=self._collecting,
                    shows_steps=self._plan.shows_steps,
                    run_all=_at_once,
                )
                await stack.enter_async_context(aclosing(journals))
        self._journals = journals
        return journals

    async def _load(self, journals: Journals) -> None:
        store = SoundStore(self._store)  # without a claim, positions of the checkpoint are read
        stored = self._copies.restored(store, self._order, journals.blocks, self._change)
        async with aclosing(stored) as blocks:
            async for part, block in blocks:
                await self._block_room.acquire()
                self._inbox.put(LoadStateBlock(self.number, *block, part))
        former = FormerFiles.of(store, self._order, self._change, self._plan)
        self._inbox.put(StateComplete(self.number, await self._directories.rebuild(former)))
        await self._loaded.wait()

    async def _serve(self, journals: Journals) -> None:
        """Handle the circuit's messages in order. Record an input division before sending its frames."""
        async for message in self._from_circuit:
            if isinstance(message, Published):
                await self._published(message)
                continue
            if isinstance(message, Committed):
                await journals.released(message)
                continue
            if isinstance(message, SourceWaits):
                await self._control.wants_checkpoint(message.step)
                continue
            if isinstance(message, PausedAt):
                await self._control.paused(message.pause, message.step)
                continue
            if isinstance(message, PeerSuspected):
                await self._control.suspects(*message)
                continue
            journals.record(message)
            if message.sources is not None:
                self._outputs.recorded(message.step)
            self._exchange.send(message)
            if self._shared.exhausted and not self._announced_exhausted:
                self._announced_exhausted = True
                self._exchange.announce(FrameType.EOF, message.step)

    async def _publish(self) -> None:
        """Publish output until a replay yields other output than was published before.

        The links stay open then, as after an error of the circuit: if they closed, peers could report this
        worker as lost before the coordinator gets this report.
        """
        try:
            await self._outputs.publish_all()
        except OutputDiffersError as error:
            with suppress(StaleIncarnationError):
                await self._control.failed("operator", message=str(error), operator=error.sink)

    async def _published(self, message: Published) -> None:
        if message.final:
            self.is_ending = True
            await self._control.finished()

    async def _vote_all(self, journals: Journals) -> None:
        async for checkpoint in self._checkpoints:
            await self._vote(checkpoint, journals)

    async def _vote(self, taken: CheckpointTaken, journals: Journals) -> None:
        begin = trio.current_time()
        positions = await made_durable(
            taken, journals, self._outputs, self._directories, self._shared.running
        )
        phases = {**taken.phases_s, "sync": trio.current_time() - begin}
        await self._control.vote(
            checkpoint=taken.barrier.checkpoint, step=taken.step, positions=positions, phases_s=phases
        )
        self._exchange.announce(FrameType.DURABLE, taken.step)
        await journals.voted(taken)
        # After a change of the layout the chain is full of rows that moved away. A fork has written all anew.
        changed = taken.step == after_step(self._order) and not self._order.forks
        self._shared.snapshot_due = journals.snapshot_due or changed


async def _at_once(*works: Callable[[], Awaitable[None]]) -> None:
    """Run works concurrently: a `RunAll`. Raises what they raise, in a group."""
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)
