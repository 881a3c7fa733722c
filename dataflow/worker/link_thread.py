"""The link thread of a worker: control link, exchange listener, store, and one incarnation after the other.

It runs on trio, without user code or long computation. Orders of the coordinator are executed in the order of
arrival; an incarnation is ended before the next one begins. A restore claims the worker's directory, opens
the chains and dials every peer, while the circuit takes the state; only after all of this it sends RESTORED.
Any failure ends the incarnation and is reported once.

Local recovery: a worker that takes another one over has read all of its state then, and restores the part
that its peers do not wait for while it makes the first steps.
"""

import logging
import math
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
import trio

from checkpoint import (
    Committed,
    CopiedAhead,
    CopyAhead,
    Counters,
    Failed,
    Finished,
    FrameType,
    Host,
    OpenBatch,
    Pause,
    Paused,
    RequestCheckpoint,
    Restore,
    Restored,
    Rolling,
    Start,
    Suspects,
    TakenPart,
    View,
    Vote,
    WantsCheckpoint,
    WorkerCheckpoint,
    control_frame,
    stored_under,
    worker_directory,
)
from checkpoint.chains.state_store import StoredStateBlock, blocks_at
from checkpoint.chains.whole_checkpoints import SoundStore, read_part
from checkpoint.errors import (
    CheckpointDamagedError,
    LinkClosedError,
    OrphanedError,
    OutputDiffersError,
    StaleIncarnationError,
    StateNotRecordedError,
    StoppedError,
)
from checkpoint.limits import stop_grace_s
from checkpoint.link import Link, ports_of, serve_links
from checkpoint.participant import Participant, open_participant
from dataflow import limits
from dataflow.errors import UserFault
from dataflow.limits import WorkerLimits
from dataflow.state.base import Share
from dataflow.worker.circuit_thread import (
    CircuitIncarnation,
    Inbox,
    LinksEnded,
    LoadAhead,
    OpenAhead,
    RestoreCircuit,
    Woken,
)
from dataflow.worker.directories import Directories, FormerFiles
from dataflow.worker.exchange import Exchange, PeerSuspected
from dataflow.worker.failures import failure_of, first_error, reported_first
from dataflow.worker.journals import FloorCollector, Journals, NoJournals, Outputs, made_durable
from dataflow.worker.layout_change import (
    CopiedState,
    LayoutChange,
    Load,
    LoadedState,
    Report,
    StoredBlocks,
    after_step,
    blocks_since,
    by_name,
    copy_ahead,
    is_of_vote,
    left_before,
    part_of,
    removed_outputs,
    these,
)
from dataflow.worker.messages import (
    AheadDone,
    BlockLoaded,
    CheckpointTaken,
    CircuitFailed,
    CircuitPositioned,
    OfDirectories,
    OutputMade,
    PausedAt,
    PeerHeld,
    Published,
    Shared,
    SourceWaits,
    StageEnded,
    StateLoaded,
    ToLinks,
)
from dataflow.worker.prefetching import feeds_of
from dataflow.worker.shares import HeldShares
from dataflow.worker.spec import WorkerSpec
from dos_client import Claim, Store, open_store, randomness
from dos_client.errors import QuorumUnavailableError
from dos_monitoring import SilentLoopError, answer_of_loop, log_fields
from dos_protocol.errors import BrokenConnectionError, DosError
from journal import Scratch

# --- the claim ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def claimed(store: Store, order: Restore) -> AsyncGenerator[Claim]:
    """Claim the directory of the ordered worker. Waits while too few members are available. Raises
    CheckpointDamagedError if what must be restored is damaged on too many members, and as `Store.claim`.
    """
    disregard = frozenset[str]()
    writer_id = randomness.fresh_id()  # the same for a second claim: one epoch has one writer
    # A claim is not granted while too few members are without damage (R4). Then one of these is the case: the
    # damaged segments are needed, and the checkpoint cannot be restored, which is an error, not a wait; they
    # are not, because a restore to an older checkpoint has left them behind (decision 0240), and the claim is
    # made without them; or members are missing and nothing is known, and the claim waits.
    while True:
        claim = await _claim_unless_damaged(store, order, writer_id, disregard)
        if isinstance(claim, Claim):
            break
        disregard = claim
    async with claim:
        yield claim


async def _claim_unless_damaged(
    store: Store, order: Restore, writer_id: bytes, disregard: frozenset[str]
) -> Claim | frozenset[str]:
    """Return the claim, or damaged segments that it must disregard, and did not."""
    directory = worker_directory(order.job, order.worker)
    found: list[frozenset[str] | Claim] = []

    async def look(scope: trio.CancelScope) -> None:
        waits = ""
        while True:
            await trio.sleep(limits.damage_look_s)
            try:
                unneeded = await unneeded_damage(store, order)
            except (QuorumUnavailableError, BrokenConnectionError) as error:
                if waits != (waits := str(error.args[0])):
                    logger.warning("the claim of %s waits: %s", directory, waits)
                continue
            if not unneeded <= disregard:
                found.append(unneeded | disregard)
                scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, nursery.cancel_scope)
        found.append(await store.claim(directory, order.epoch, writer_id, disregard=disregard))
        nursery.cancel_scope.cancel()
    return found[-1]


async def unneeded_damage(store: Store, order: Restore) -> frozenset[str]:
    """Return the damaged segments in the directory of the ordered worker that its restore does not need.
    Raises CheckpointDamagedError if it needs some that are damaged on too many members,
    QuorumUnavailableError or BrokenConnectionError while that is not known.
    """
    part = None if order.restore is None or order.forks else order.restore.workers.get(order.worker)
    if order.restore is None or part is None:
        return frozenset()
    rewound = order.restore.rewound
    reading = await read_part(store, order.job, order.worker, part, rewound=rewound, records=False)
    if reading.damage:
        raise CheckpointDamagedError("; ".join(map(str, reading.damage)))
    return reading.disregarded


async def watch_room(
    claim: Claim,
    exchange: Exchange,
    shared: Shared,
    inbox: Inbox,
    worker_limits: WorkerLimits,
    wants_checkpoint: Callable[[int], Awaitable[None]],
) -> None:
    """Stop the sources while the store accepts no data, or too much is retained. Never returns."""
    wanted = 0
    # Only a checkpoint releases what is retained, so it is requested. Steps that peers or a checkpoint need
    # are made nevertheless: without them the region would wait for itself.
    while True:
        full = exchange.retained_bytes > 2 * worker_limits.retained_bytes_max
        if full and shared.step > wanted:
            wanted = shared.step
            await wants_checkpoint(wanted)
        room = not claim.waiting and not full
        if room != shared.room:
            shared.room = room
            inbox.put(Woken())
        await trio.sleep(limits.store_poll_s)


class PhaseTimer:
    """Consecutive phases. Their durations sum up to the time from `begin` to the last `end`."""

    def __init__(self, begin: float) -> None:
        self._last = begin
        self.phases_s: dict[str, float] = {}

    def end(self, phase: str, now: float) -> None:
        """Add the time since the previous end to this phase."""
        self.phases_s[phase] = self.phases_s.get(phase, 0.0) + now - self._last
        self._last = now


# --- the incarnation ----------------------------------------------------------------------------------------

logger = logging.getLogger("dos.dataflow")


class LinkIncarnation:
    """One incarnation on the link thread. Run `run` in a task; await `end` before the next one begins."""

    voted: Vote | None = None
    """The last vote of this incarnation."""
    _read_bytes: int | None = None
    """How much of its own state is read to restore it; None: all that its chain has."""
    _reads = True
    """Whether the circuit needs the worker's own stored blocks, once it is positioned."""

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
        self._uids = stored_under(self._plan.operators, order.uids)
        self._named = by_name(order, self._uids)
        """The order with the names of the graph."""
        self._change: LayoutChange | None = None
        """What this worker does if the layout changes."""
        self._part: WorkerCheckpoint | None = None
        name = worker_directory(spec.region, spec.worker)
        self._directories = Directories(self._plan, name, self.number, spec.scratch_dir, self._uids)
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
        self._exchange = Exchange(
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
            durable=lambda step: inbox.call(self.number, CircuitIncarnation.divisions_durable, step),
            uids=self._uids,
        )
        self._exchange.on_durable = self._outputs.on_peer_durable
        self._circuit_ordered = trio.Event()
        """The circuit has its order to restore, or this is over. What it got before, it would drop."""
        self._positioned = trio.Event()
        self._chains_open = trio.Event()
        self._loaded = trio.Event()
        self._block_room = trio.Semaphore(limits.state_blocks_ahead)
        self._announced_exhausted = False
        self._checkpoint_of_batch = 0
        """The checkpoint that was requested last for a batch of a query."""
        self._shares = HeldShares(self._plan.fed_by_batches, spec.scratch_dir)

    # --- from outside -------------------------------------------------------------------------------------

    def deliver(self, message: ToLinks) -> None:
        """Take a message of the circuit. Call it on the trio thread; never blocks."""
        if isinstance(message, BlockLoaded):
            self._block_room.release()
        elif isinstance(message, CircuitPositioned):
            self._reads = message.reads
            if not message.reads:
                self._read_bytes = 0
            self._positioned.set()
        elif isinstance(message, StateLoaded):
            self._loaded.set()
        elif isinstance(message, OutputMade):
            self._outputs.take(message)
        elif isinstance(message, OfDirectories):
            self._directories.take(message)
        elif isinstance(message, CheckpointTaken):
            self._to_vote.send_nowait(message)
        elif isinstance(message, PeerHeld):
            self._exchange.held(message)
        elif isinstance(message, StageEnded | Published | SourceWaits | PausedAt):
            self._to_serve.send_nowait(message)

    def start(self, order: Start) -> None:
        """Start the circuit: all workers are at the checkpoint. Recorded steps are replayed first."""
        assert self._journals is not None, "START before RESTORED"
        self._outputs.replays_until(order.replay_until_step, everywhere=not self._order.takes_over)
        if self._order.is_local:  # also for peers that connect later
            self._exchange.announce(FrameType.DURABLE, order.replay_until_step)
        divisions = self._journals.divisions(order.replay_until_step)
        self._inbox.call(self.number, CircuitIncarnation.start, divisions)

    def request_checkpoint(self, order: RequestCheckpoint) -> None:
        """Attach a checkpoint to the next step."""
        marks = None
        if order.batch >= 0:
            marks, self._checkpoint_of_batch = order.marks, order.checkpoint
        self._inbox.call(
            self.number,
            CircuitIncarnation.request_checkpoint,
            order.checkpoint,
            final=order.final,
            step=order.step,
            marks=marks,
        )

    def committed(self, order: Committed) -> None:
        """Note that a checkpoint is committed and that it released older ones."""
        if order.checkpoint == self._checkpoint_of_batch:
            self._outputs.batch_processed()
        self._to_serve.send_nowait(order)
        self._exchange.purge(order.step)

    def view(self, order: View) -> None:
        """Connect to the process that has taken a peer over."""
        self._exchange.view(order)

    async def receive_from(self, link: Link) -> None:
        """Serve a link that a peer has dialled in this incarnation, perhaps before its circuit restores."""
        await self._circuit_ordered.wait()
        await self._exchange.receive_from(link)

    async def receive_shares(self, link: Link) -> None:
        """Take shares of batches from a task, one after the other, until the link or the incarnation ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_over, nursery.cancel_scope)
            try:
                while True:
                    await link.send(control_frame(await self._shares.receive(link)))
            except UserFault as error:  # of the scratch disk
                self.fail(error)
            except LinkClosedError:
                pass  # the task has ended, or needs the link no more
            except DosError as error:  # only this link ends: the task sends its rows again
                logger.warning("a link with rows of a batch ended: %s", error.args[0])
            nursery.cancel_scope.cancel()

    async def _until_over(self, scope: trio.CancelScope) -> None:
        await self._over.wait()
        scope.cancel()

    def open_batch(self, order: OpenBatch) -> None:
        """Give the circuit the share of an attempt. Shares of other attempts are not needed any more."""
        self._inbox.call(self.number, CircuitIncarnation.open_batch, order, self._shares.take(order))

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
        """Run until the incarnation fails or is ended. Return its error, None if it was ended."""
        try:
            with self._scope:
                await self._claim_and_work()
        except Exception as error:
            self.fail(first_error(error))
        finally:
            self._exchange.end()
            self._circuit_ordered.set()
            self._over.set()
        # A failure while it was being ended is not one of the next incarnation, which has begun: peers that
        # reset earlier close their links, and that must not end it.
        return None if self.is_ending else self._failure

    async def _claim_and_work(self) -> None:
        phases = PhaseTimer(trio.current_time())
        order, after = self._order, after_step(self._order)
        self._change = change = LayoutChange.of(self._named, self._plan)
        self._part = part = part_of(self._named, change)
        number, store_id = self.number, self._store.record.store_id
        feeds = feeds_of(
            self._spec,
            self._plan,
            self._store,
            part,
            order.restore,
            workers=self._workers,
            again=self.number > 1,
            uids=self._uids,
            woken=lambda: self._inbox.put(Woken()),
        )
        if order.latest:
            assert part is not None, "a checkpoint was compared, which does not have them"
            latest = {name: await feeds[name].go_to_latest() for name in order.latest}
            self._part = part = msgspec.structs.replace(part, sources=part.sources | latest)
        self._feeds = tuple(feeds.values())
        buffers = {name: feed.buffer for name, feed in feeds.items()}
        completes = await left_before(self._store, order) if change is None else change.completes
        owner, local = None if order.restore is None else order.restore.identity, order.is_local
        restoring = partial(
            RestoreCircuit,
            number,
            after,
            order.checkpoint,
            part,
            order.layout,
            store_id,
            buffers,
            change,
            local,
            order.takes_over,
            completes,
            owner,
            order.uids,
            removed=removed_outputs(order, change, self._spec.removed),
            voted=is_of_vote(order, self._copies.voted),
        )
        async with trio.open_nursery() as reading:
            for feed in feeds.values():  # before the claim: reading needs none, and steps find their input
                reading.start_soon(reported_first, feed.run, self._control)
            # The stack is closed after all tasks have ended: what it closes, they use.
            async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
                nursery.start_soon(self._restore_circuit, restoring)
                self.claim = await stack.enter_async_context(claimed(self._store, order))
                phases.end("claim", trio.current_time())
                await self._work(self.claim, stack, nursery, phases)

    async def _work(
        self, claim: Claim, stack: AsyncExitStack, nursery: trio.Nursery, phases: PhaseTimer
    ) -> None:
        """With the claim held: open the chains, restore, then serve steps and votes in `nursery`."""
        spec = self._spec
        # RESTORED promises all: the chains are open, the state is loaded, and every peer can be reached.
        async with trio.open_nursery() as opening:
            opening.start_soon(self._exchange.dial_all, nursery)
            journals = await self._open_chains(claim, stack)
            phases.end("open", trio.current_time())
            nursery.start_soon(self._directories.record_all)
            await self._loaded.wait()
        phases.end("load", trio.current_time())
        unread = 0 if self._read_bytes is None else journals.state_bytes - self._read_bytes
        await self._control.report(
            Restored(
                last_step=journals.last_step,
                replayed_bytes=sum(one.replayed_bytes for one in (journals, self._outputs, self._directories))
                - unread,
                seconds=sum(phases.phases_s.values()),
                phases_s=phases.phases_s,
            )
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
                lambda step: self._control.report(WantsCheckpoint(step=step)),
            )
        )

    async def _open_chains(self, claim: Claim, stack: AsyncExitStack) -> Journals:
        """Open all chains concurrently. `stack` closes what was opened, also after a failure, which cancels
        the others and is raised in a group.
        """
        # In no order among themselves, nor among the workers of a region, which are ordered at one time: each
        # chain is taken over at a position of the checkpoint, or at its own head, whatever others have. Three
        # orders are needed. The claim comes first, so that no older process appends to what is read (R1). In
        # each chain, what was taken over is settled before the next segment is opened (R7). All are open
        # before anything is deleted (R14), sent or voted (R8).
        order, spec, part = self._order, self._spec, self._part
        scratch = Scratch(spec.scratch_dir) if spec.scratch_dir else None
        generation = self._store.record.generation
        journals: Journals = NoJournals()
        self._collecting = FloorCollector(claim)
        await stack.enter_async_context(aclosing(self._outputs))
        await stack.enter_async_context(aclosing(self._directories))
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
                opening.start_soon(
                    partial(
                        self._directories.open,
                        claim,
                        part,
                        generation=generation,
                        scratch=scratch,
                        rolling=rolling,
                    )
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
        journals.all_open(order)
        self._journals = journals
        self._chains_open.set()
        return journals

    async def _restore_circuit(self, restoring: Callable[..., RestoreCircuit]) -> None:
        """Order the circuit to restore, and load its state: `_loaded` follows. restoring: returns the order.

        While the directory is claimed and the chains are opened: what is not in the worker's own chains is
        read at positions of a committed checkpoint, below which nobody writes.
        """
        store, order, change = SoundStore(self._store), self._order, self._change
        since = await self._copies.since_loaded(store, order, change)
        if since is not None:
            self._read_bytes = sum(len(block.data) for block in since)
        self._inbox.put(restoring(opened=self._copies.loaded is not None))
        self._circuit_ordered.set()
        await self._positioned.wait()
        own: StoredBlocks = these
        if self._reads:
            await self._chains_open.wait()  # R8: not earlier may anything be done with what they have
            assert self._journals is not None
            own = self._journals.blocks
        async with aclosing(self._copies.restored(store, order, own, change, since)) as blocks:
            async for part, block in blocks:
                await self._block_room.acquire()
                self._inbox.call(self.number, CircuitIncarnation.load, *block, part)
        if self._plan.keeps_files:
            await self._chains_open.wait()
        former = FormerFiles.of(store, self._named, change, self._plan, self._uids)
        directories = await self._directories.rebuild(former)
        self._inbox.call(self.number, CircuitIncarnation.loaded, directories)

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
                marks = dict(message.marks)
                await self._control.report(
                    WantsCheckpoint(step=message.step, batch=message.batch, marks=marks)
                )
                continue
            if isinstance(message, PausedAt):
                await self._control.report(
                    Paused(pause=message.pause, step=message.step, counters=self._control.counters())
                )
                continue
            if isinstance(message, PeerSuspected):
                await self._control.report(Suspects(**message._asdict()))
                continue
            # The division is recorded before a peer can see a row of the step: a row that nobody can replay
            # must not count.
            journals.record(message)
            if message.sources is not None:
                self._outputs.recorded(message.step)
            self._exchange.send(message)
            if self._shared.exhausted and not self._announced_exhausted:
                self._announced_exhausted = True
                self._exchange.announce(FrameType.EOF, message.step)

    async def _publish(self) -> None:
        """Publish output until a replay yields other output than was published before."""
        try:
            await self._outputs.publish_all()
        # The links stay open: if they closed, peers could report this worker as lost before this report.
        except OutputDiffersError as error:
            with suppress(StaleIncarnationError):
                await self._control.report(Failed(kind="operator", message=str(error), operator=error.sink))

    async def _published(self, message: Published) -> None:
        if message.final:
            self.is_ending = True
            await self._control.report(Finished())

    async def _vote_all(self, journals: Journals) -> None:
        async for checkpoint in self._checkpoints:
            await self._vote(checkpoint, journals)

    async def _vote(self, taken: CheckpointTaken, journals: Journals) -> None:
        begin = trio.current_time()
        positions = await made_durable(
            taken, journals, self._outputs, self._directories, self._shared.running
        )
        phases = {**taken.phases_s, "sync": trio.current_time() - begin}
        number, stored = taken.barrier.checkpoint, positions.under(self._uids)
        if self._order.begins and taken.step == after_step(self._order):
            for feed in self._feeds:  # a source that comes with this graph: what it reads is not trimmed
                await feed.registered.wait()
        # All that the positions refer to is durable now. A vote before that could commit what a crash loses.
        self.voted = Vote(checkpoint=number, step=taken.step, positions=stored, phases_s=phases)
        await self._control.report(self.voted)
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


# --- all incarnations ---------------------------------------------------------------------------------------


class Links:
    """The link side of one worker. Run `run`; call `deliver` in the same trio run."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        inbox: Inbox,
        shared: Shared,
        host: Callable[[int, int], None],
        metrics: Callable[[str], str] = lambda _: "",
    ) -> None:
        """host: runs an attempt of another worker in this process. metrics: returns the address of this
        worker's figures, from the host at which others reach it.
        """
        self._metrics = metrics
        self._spec = spec
        self._host = host
        self._inbox = inbox
        self._shared = shared
        self._incarnation: LinkIncarnation | None = None
        self._new_incarnation = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._control: Participant | None = None
        self._copies = CopiedState(spec.scratch_dir)
        """What is copied ahead of a change of the layout."""
        self._copying = trio.CancelScope()
        self._ahead_number = 0
        self._ahead, self._ahead_done = trio.open_memory_channel[AheadDone](math.inf)
        """Answers of the circuit to what it is ordered ahead."""
        self._unpublished = 0
        """The committed checkpoint that the circuit has to publish, 0 for none."""
        self._published = trio.Event()

    def deliver(self, message: ToLinks) -> None:
        """Take a message of the circuit. Never blocks. Drops a message of an earlier incarnation."""
        if isinstance(message, AheadDone):
            self._ahead.send_nowait(message)
            return
        incarnation, nursery = self._incarnation, self._nursery
        if incarnation is None or nursery is None or message.incarnation != incarnation.number:
            return
        failed = isinstance(message, CircuitFailed)
        if failed or (isinstance(message, Published) and message.checkpoint == self._unpublished):
            self._unpublished = 0
            self._published.set()
        if not isinstance(message, CircuitFailed):
            incarnation.deliver(message)
        elif incarnation.is_ending:
            logger.error("worker %d failed as it ended: %s", self._spec.worker, message.report.message)
        else:
            nursery.start_soon(self._report_circuit, message.report)

    # --- the run ------------------------------------------------------------------------------------------

    async def run(self) -> LinksEnded:
        """Run until the coordinator ends this worker or an error does. The result is also sent to the
        circuit.
        """
        try:
            ended = LinksEnded(await self._run())
        except Exception as error:
            first = first_error(error)
            logger.error("the links of worker %d ended: %s", self._spec.worker, first)
            ended = LinksEnded(f"{type(first).__name__}: {first}", first)
        self._inbox.put(ended)
        return ended

    async def _run(self) -> str:
        spec = self._spec
        stopped = ""
        async with (
            open_participant(spec.participant(), counters=self.sample) as control,
            open_store(spec.store_url, token=spec.token, client=f"{spec.region}.w{spec.worker}") as store,
            trio.open_nursery() as nursery,
        ):
            self._control, self._nursery = control, nursery
            serve = partial(
                serve_links,
                self._accepted,
                job=spec.region,
                key=spec.job_key,
                host=spec.listen_host,
                ports=ports_of(spec.port_range),
            )
            address: tuple[str, int] = await nursery.start(serve)
            host = spec.advertise_host or control.local_address[0]
            await control.join(
                exchange_host=host,
                exchange_port=address[1],
                scratch=spec.scratch_dir,
                metrics=self._metrics(host),
            )
            try:
                await self._take_orders(control, store, nursery)
            except StoppedError as error:
                stopped = str(error.args[0])
                await self._publish_committed()
            finally:
                # The nursery closes. A failure of the circuit that arrives from now on cannot be reported; a
                # task for that would end this thread with an internal error of trio.
                if self._incarnation is not None:
                    self._incarnation.is_ending = True
            if self._incarnation is not None:
                await self._incarnation.end()
            nursery.cancel_scope.cancel()
        return stopped

    async def _publish_committed(self) -> None:
        """Wait until the rows of the last checkpoint are visible, for a while; else they are when it runs
        again.
        """
        if self._incarnation is not None:
            self._incarnation.is_ending = True  # peers end too: no loss of them counts
        with trio.move_on_after(stop_grace_s):
            while self._unpublished:
                await self._published.wait()

    async def _take_orders(self, control: Participant, store: Store, nursery: trio.Nursery) -> None:
        while True:
            order = await control.next_order()
            if isinstance(order, Restore):
                await self._begin(order, control, store, nursery)
            elif isinstance(order, CopyAhead):
                nursery.start_soon(self._copy_ahead, order, control, store)
            elif self._incarnation is None or order.incarnation != self._incarnation.of_region:
                logger.warning("ignored an order for incarnation %d: not current", order.incarnation)
            else:
                self._take_order(order, self._incarnation)

    def _take_order(
        self,
        order: View | Host | Start | RequestCheckpoint | Committed | Pause | OpenBatch,
        incarnation: LinkIncarnation,
    ) -> None:
        number = incarnation.number
        if isinstance(order, Start):
            incarnation.start(order)
        elif isinstance(order, View):
            incarnation.view(order)
        elif isinstance(order, Host):
            self._host(order.hosted, order.attempt)
        elif isinstance(order, RequestCheckpoint):
            incarnation.request_checkpoint(order)
        elif isinstance(order, OpenBatch):
            incarnation.open_batch(order)
        elif isinstance(order, Committed):
            incarnation.committed(order)
            self._unpublished, self._published = order.checkpoint, trio.Event()
            self._inbox.call(
                number, CircuitIncarnation.publish, order.checkpoint, final=order.final, step=order.step
            )
        else:
            self._shared.pausing = order.pause > 0
            self._inbox.call(number, CircuitIncarnation.pause, order.pause)

    async def _begin(self, order: Restore, control: Participant, store: Store, nursery: trio.Nursery) -> None:
        # First, so that the circuit stops reading input for the old incarnation.
        self._shared.incarnation = order.epoch
        if self._incarnation is not None:
            await self._incarnation.end()
        self._unpublished = 0
        self._shared.peers_at = 0
        self._shared.room = True
        self._shared.pausing = False
        self._shared.snapshot_due = order.forks
        self._copying.cancel()
        copies, self._copies = self._copies, CopiedState(self._spec.scratch_dir)
        if self._incarnation is not None:
            copies.voted = self._incarnation.voted
        self._incarnation = LinkIncarnation(
            self._spec, order, control, store, inbox=self._inbox, shared=self._shared, copies=copies
        )
        nursery.start_soon(self._run_incarnation, self._incarnation, control)
        self._new_incarnation.set()
        self._new_incarnation = trio.Event()

    async def _copy_ahead(self, order: CopyAhead, control: Participant, store: Store) -> None:
        """Prepare for another layout or a hand-over, in place of what was prepared, and report progress."""
        self._copying.cancel()
        self._copying = trio.CancelScope()
        loaded = self._copies.loaded if order.opens else None
        self._copies = copies = CopiedState(self._spec.scratch_dir)
        number = order.checkpoint
        reported_at = -math.inf

        async def report(copied: int, total: int) -> None:
            nonlocal reported_at
            if trio.current_time() > reported_at + limits.copied_report_s:
                reported_at = trio.current_time()
                await control.report(CopiedAhead(checkpoint=number, copied_bytes=copied, total_bytes=total))

        # Obsolete if an order has arrived meanwhile, which may end this worker.
        with self._copying, suppress(StaleIncarnationError):
            try:
                plan = self._spec.graph.plan()
                total = await copy_ahead(
                    store,
                    order,
                    plan,
                    copies,
                    report,
                    randomness.fresh_id(),
                    partial(self._opened, order, store),
                )
                if order.opens:
                    total += await self._load_ahead(order, store, loaded, report)
            except (DosError, UserFault) as error:
                report_error = CopiedAhead(checkpoint=number, copied_bytes=0, total_bytes=0, error=str(error))
                await control.report(report_error)
            else:
                await control.report(
                    CopiedAhead(checkpoint=number, copied_bytes=total, total_bytes=total, done=True)
                )

    async def _load_ahead(
        self, order: CopyAhead, store: Store, before: LoadedState | None, report: Report
    ) -> int:
        """Let the circuit open its operators and load the worker's own state; return the bytes loaded.

        before: what it has loaded for an earlier order. Raises DosError, also for an operator that fails.
        """
        sound, layout = SoundStore(store), order.layout
        own = None if order.restore.in_origin else order.restore.workers.get(order.worker)
        blocks: AsyncGenerator[StoredStateBlock] | None = None
        if before is not None and before.fits(order) and before.at is not None:
            with suppress(StateNotRecordedError):
                blocks = these(await blocks_since(sound, order, before.at))
        if blocks is None:
            await self._open_ahead(order, store)
            at = None if own is None else own.state
            blocks = these() if at is None else blocks_at(sound, order.job, order.worker, at)
        loaded, total = 0, 0 if own is None else own.restore_bytes
        async with aclosing(blocks):
            async for checkpoint, table, data in blocks:
                await self._do_ahead(partial(LoadAhead, checkpoint=checkpoint, table=table, data=data))
                loaded += len(data)
                await report(loaded, max(total, loaded))
        # Not earlier: with a part of the blocks, the operators would continue from no checkpoint at all.
        self._copies.loaded = LoadedState(layout, order.uids, None if own is None else own.state)
        return loaded

    async def _open_ahead(self, order: CopyAhead, store: Store) -> None:
        store_id = store.record.store_id
        await self._do_ahead(partial(OpenAhead, layout=order.layout, store_id=store_id, uids=order.uids))

    async def _opened(self, order: CopyAhead, store: Store, share: Share) -> Load:
        """Let the circuit open its operators, and return what loads parts of other workers into them."""
        await self._open_ahead(order, store)

        async def load(part: TakenPart, block: StoredStateBlock) -> None:
            checkpoint, table, data = block
            await self._do_ahead(
                partial(LoadAhead, checkpoint=checkpoint, table=table, data=data, part=part, share=share)
            )

        return load

    async def _do_ahead(self, order: Callable[[int], OpenAhead | LoadAhead]) -> None:
        """Let the circuit carry out an order ahead. Raises DosError if it fails."""
        self._ahead_number += 1
        self._inbox.put(order(self._ahead_number))
        async for done in self._ahead_done:
            if done.number == self._ahead_number:  # not of an order that was given up
                if done.error:
                    raise DosError(done.error)
                return

    async def _run_incarnation(self, incarnation: LinkIncarnation, control: Participant) -> None:
        failure = await incarnation.run()
        if failure is None or isinstance(failure, StaleIncarnationError):
            return
        with suppress(StaleIncarnationError):  # a newer order has arrived; the report is obsolete
            await self._report(failure, control)

    async def _report_circuit(self, report: Failed) -> None:
        # The links stay open until the coordinator decides. If they closed, peers would report a lost worker,
        # perhaps before this report arrives: the region would reset, fail on the same row again, and never
        # report the actual error.
        assert self._control is not None
        with suppress(StaleIncarnationError):
            await self._control.report(report)
            if report.kind == "internal":  # the process ends, and another attempt begins
                raise DosError(report.message)

    async def _report(self, error: Exception, control: Participant) -> None:
        """Report the error that ended an incarnation. Raises it if it is internal, which ends the process."""
        failure = failure_of(error)
        level = (
            logging.INFO if failure.kind == "peer" else logging.WARNING
        )  # the driver knows the peer's loss
        where = self._spec.region, self._spec.worker, self._shared.incarnation
        logger.log(level, "region %s, worker %d, incarnation %d: %s", *where, error)
        await control.report(failure)
        if failure.kind == "internal":
            raise error

    async def _accepted(self, link: Link) -> None:
        wanted = link.hello.to_term or link.hello.incarnation
        if link.hello.role not in ("exchange", "batch"):
            logger.warning("refused a link of role %r: not an exchange link", link.hello.role)
            return
        # The peer may have got its order earlier: wait for the incarnation here.
        with trio.move_on_after(limits.peer_wait_s):
            while self._incarnation is None or self._incarnation.number < wanted:
                await self._new_incarnation.wait()
        if self._incarnation is not None and self._incarnation.number == wanted:
            if link.hello.role == "batch":
                await self._incarnation.receive_shares(link)
            else:
                await self._incarnation.receive_from(link)
        else:
            logger.info("refused an exchange link of incarnation %d, which does not run here", wanted)

    def sample(self) -> Counters:
        """Return the counters of now. In the trio run of the links."""
        shared, claim = self._shared, None if self._incarnation is None else self._incarnation.claim
        targets = () if claim is None else claim.targets.values()
        lag_bytes = sum(max(0, one.size - one.synced) for one in targets)  # appended, not synced on a quorum
        return Counters(
            step=shared.step,
            rows_in=shared.rows_in,
            rows_out=shared.rows_out,
            bytes_in=shared.bytes_in,
            exhausted=shared.exhausted,
            waiting_for_store=claim is not None and claim.waiting,
            waiting_reason=claim.status().waiting if claim is not None and claim.waiting else "",
            lag_bytes=lag_bytes,
            busy_s=round(shared.busy_s, 3),
            load_s=round(shared.load_s, 3),
            backlog_bytes=shared.backlog_bytes,
            operators=shared.operators,
            event_times=shared.event_times,
            operator=shared.running.name,
        )


# --- the thread ---------------------------------------------------------------------------------------------


class LinkThread:
    """The thread that runs `Links`. `start` it, `post` messages to it, `join` it."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        inbox: Inbox,
        shared: Shared,
        host: Callable[[int, int], None],
        metrics: Callable[[str], str],
    ) -> None:
        self._spec = spec
        self._inbox = inbox
        self._shared = shared
        self._links = Links(spec, inbox=inbox, shared=shared, host=host, metrics=metrics)
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, name="dos-links", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def post(self, message: ToLinks) -> None:
        """Send a message from the circuit thread. Never blocks. Dropped if its incarnation or the thread has
        ended.
        """
        assert self._token is not None, "a message before the first order"
        try:
            self._token.run_sync_soon(self._links.deliver, message)
        except trio.RunFinishedError:
            logger.debug("dropped %s: the links have ended", type(message).__name__)

    def sample(self) -> Counters:
        """Return the counters of the worker, in a third thread. Raises SilentLoopError if the loop does not
        answer.
        """
        if self._token is None:
            raise SilentLoopError("its event loop has not started")
        return answer_of_loop(self._token, self._links.sample)

    def log_fields(self) -> dict[str, Any]:
        """Return what each line of the log has in addition."""
        of = self._spec
        return {"region": of.region, "worker": of.worker, "incarnation": self._shared.incarnation}

    def _run(self) -> None:
        try:
            with log_fields(self.log_fields):
                ended = trio.run(self._main)
        except BaseException as error:  # from trio itself: the main thread must end too
            self._inbox.put(LinksEnded(f"{type(error).__name__}: {error}", error))
            raise
        if isinstance(ended.error, OrphanedError):
            self._end_process_later()

    async def _main(self) -> LinksEnded:
        self._token = trio.lowlevel.current_trio_token()
        return await self._links.run()

    def _end_process_later(self) -> None:
        """Kill the process if the circuit does not end in time."""
        # The coordinator is gone, so nothing else would end it, and user code may never return. A process
        # that outlives its region would hold its slot and its files.
        if not self._shared.over.wait(limits.orphan_exit_s):
            logger.critical("the circuit did not end within %g s: ending the process", limits.orphan_exit_s)
            os._exit(limits.orphan_exit_code)
