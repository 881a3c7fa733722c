"""One incarnation of a worker on the link thread: its claim, its chains, its votes.

Rules of this file: trio only, no user code, nothing that takes long on the processor. Order of a restore:
claim the directory with epoch = incarnation; open the state chain at the cut and the steps chain at its
head; give the circuit its state; dial every peer; only then say RESTORED. Whatever fails ends the
incarnation here, and is told once.

A vote: outputs synced, state committed and the step's division synced, all on stable storage or on the
quorum. Votes are made one after the other, while the circuit runs the next steps.
"""

import logging
import math
import os
from contextlib import AsyncExitStack

import trio

from checkpoint.core.channel_frames import FrameType
from checkpoint.core.manifest import WorkerCut
from checkpoint.core.messages import Restore, Start
from checkpoint.core.region import worker_directory
from checkpoint.link import Link
from checkpoint.participant import Participant
from checkpoint.state_store import StateStore
from checkpoint.steps_log import StepsLog
from dataflow import limits
from dataflow.errors import PeerLostError
from dataflow.worker_exchange import Exchange
from dataflow.worker_messages import (
    BlockLoaded,
    CutTaken,
    Inbox,
    Published,
    Restoring,
    Shared,
    StageEnded,
    Started,
    StateBlock,
    StateComplete,
    StateLoaded,
    ToLinks,
    Woken,
)
from dataflow.worker_spec import WorkerSpec
from dos_client import Claim, Store
from journal import Scratch

logger = logging.getLogger("dos.dataflow")


class Life:
    """See the top of this file. `run` it in a task; `end` it before the next one begins."""

    def __init__(
        self,
        spec: WorkerSpec,
        order: Restore,
        control: Participant,
        store: Store,
        *,
        inbox: Inbox,
        shared: Shared,
    ) -> None:
        self.number = order.incarnation
        self.claim: Claim | None = None
        self._spec = spec
        self._order = order
        self._control = control
        self._store = store
        self._inbox = inbox
        self._shared = shared
        self._exchange = Exchange(spec, order.incarnation, inbox=inbox, shared=shared, lost=self.fail)
        self._scope = trio.CancelScope()
        self._over = trio.Event()
        self._failure: Exception | None = None
        self._ending = False
        self._steps: StepsLog | None = None
        self._to_serve, self._from_circuit = trio.open_memory_channel[StageEnded | Published](math.inf)
        self._to_vote, self._cuts = trio.open_memory_channel[CutTaken](math.inf)
        self._loaded = trio.Event()
        self._block_room = trio.Semaphore(limits.state_blocks_ahead)
        self._told_exhausted = False
        self._cut_steps = {order.cut: self._after}

    @property
    def _after(self) -> int:
        """The step of the cut that is restored."""
        return 0 if self._order.restore is None else self._order.restore.step

    # --- from outside -------------------------------------------------------------------------------------

    def deliver(self, message: ToLinks) -> None:
        """A message of the circuit. On the trio thread; never blocks."""
        if isinstance(message, BlockLoaded):
            self._block_room.release()
        elif isinstance(message, StateLoaded):
            self._loaded.set()
        elif isinstance(message, CutTaken):
            self._to_vote.send_nowait(message)
        elif isinstance(message, StageEnded | Published):
            self._to_serve.send_nowait(message)

    def start(self, order: Start) -> None:
        """All workers stand: the circuit runs, recorded steps first."""
        assert self._steps is not None, "START before RESTORED"
        divisions = self._steps.divisions(self._after, order.replay_until_step)
        self._inbox.put(Started(self.number, tuple(divisions)))

    async def hear(self, link: Link) -> None:
        """A peer has dialled in this incarnation."""
        await self._exchange.hear(link)

    def fail(self, error: Exception) -> None:
        """End the incarnation with this error; only the first counts."""
        if self._failure is None and not self._ending:
            self._failure = error
            self._scope.cancel()

    async def end(self) -> None:
        """Stop everything of this incarnation and wait until it has stopped."""
        self._ending = True
        self._scope.cancel()
        await self._over.wait()

    # --- the life -----------------------------------------------------------------------------------------

    async def run(self) -> Exception | None:
        """Until it fails or is ended; what it failed with, None if it was ended.

        Also None if it was ended while it failed: the next incarnation has begun, and that did not fail.
        (Peers that reset before us close their links; that must not end the new incarnation as well.)
        """
        try:
            with self._scope:
                await self._live()
        except Exception as error:
            self.fail(first_error(error))
        finally:
            self._exchange.end()
            self._over.set()
        return None if self._ending else self._failure

    async def _live(self) -> None:
        begin = trio.current_time()
        order = self._order
        part = None if order.restore is None else order.restore.workers[self._spec.worker]
        store_id = self._store.record.store_id
        self._inbox.put(Restoring(self.number, self._after, order.cut, part, order.layout, store_id))
        directory = worker_directory(self._spec.region, self._spec.worker)
        claim = await self._store.claim(directory, self.number, os.urandom(16))
        async with claim, AsyncExitStack() as stack, trio.open_nursery() as nursery:
            self.claim = claim
            state, steps = await self._open_chains(claim, part, stack)
            self._steps = steps
            await self._load(state)
            await self._exchange.dial_all(nursery, order.peers, step=self._after)
            await self._control.restored(
                last_step=steps.last_step,
                replayed_bytes=state.replayed_bytes + steps.replayed_bytes,
                seconds=trio.current_time() - begin,
            )
            nursery.start_soon(self._serve, steps)
            nursery.start_soon(self._vote_all, state, steps)
            nursery.start_soon(self._watch, claim)

    async def _open_chains(
        self, claim: Claim, part: WorkerCut | None, stack: AsyncExitStack
    ) -> tuple[StateStore, StepsLog]:
        generation = self._store.record.generation
        scratch = Scratch(self._spec.scratch_dir) if self._spec.scratch_dir else None
        at = None if part is None else part.state
        state = await StateStore.open(
            claim, version=self._order.cut, at=at, generation=generation, scratch=scratch
        )
        stack.push_async_callback(state.aclose)
        steps = await StepsLog.open(claim, after_step=self._after, generation=generation, scratch=scratch)
        stack.push_async_callback(steps.aclose)
        return state, steps

    async def _load(self, state: StateStore) -> None:
        async for cut, operator, data in state.blocks():
            await self._block_room.acquire()
            self._inbox.put(StateBlock(self.number, cut, operator, data))
        self._inbox.put(StateComplete(self.number))
        await self._loaded.wait()

    async def _serve(self, steps: StepsLog) -> None:
        """What the circuit hands over, in order: record, then send."""
        async for message in self._from_circuit:
            if isinstance(message, Published):
                await self._published(message, steps)
                continue
            if message.sources is not None:
                steps.record(message.step, message.time_ms, message.sources)
            self._exchange.send(message.frames)
            if self._shared.exhausted and not self._told_exhausted:
                self._told_exhausted = True
                self._exchange.tell(FrameType.EOF, message.step)

    async def _published(self, message: Published, steps: StepsLog) -> None:
        """Divisions below the cut before this one are needed no more: no retained cut goes back there."""
        before = max((cut for cut in self._cut_steps if cut < message.cut), default=None)
        if before is not None:
            await steps.forget(self._cut_steps[before])
            self._cut_steps = {cut: step for cut, step in self._cut_steps.items() if cut >= before}
        if message.final:
            self._ending = True
            await self._control.finished()

    async def _vote_all(self, state: StateStore, steps: StepsLog) -> None:
        async for cut in self._cuts:
            await self._vote(cut, state, steps)

    async def _vote(self, taken: CutTaken, state: StateStore, steps: StepsLog) -> None:
        begin = trio.current_time()
        async with trio.open_nursery() as nursery:
            for writer in taken.writers:
                nursery.start_soon(trio.to_thread.run_sync, writer.sync)
            state_end = await state.commit(taken.mark.cut, taken.blocks)
            steps_end = await steps.synced(taken.step)
        self._cut_steps[taken.mark.cut] = taken.step
        phases = {**taken.phases_s, "sync": trio.current_time() - begin}
        positions = WorkerCut(state=state_end, steps=steps_end, sources=taken.sources, sinks=taken.sinks)
        await self._control.prepared(
            cut=taken.mark.cut, step=taken.step, positions=positions, phases_s=phases
        )
        self._exchange.tell(FrameType.DURABLE, taken.step)
        if taken.snapshot is not None:
            await state.snapshot(taken.snapshot)
        self._shared.snapshot_due = state.snapshot_due

    async def _watch(self, claim: Claim) -> None:
        """Sources stop while the store takes nothing, and go on by themselves."""
        while True:
            room = not claim.waiting
            if room != self._shared.room:
                self._shared.room = room
                self._inbox.put(Woken())
            await trio.sleep(limits.store_poll_s)

    @property
    def waiting_for_store(self) -> bool:
        return self.claim is not None and self.claim.waiting

    @property
    def waiting_reason(self) -> str:
        """Which members of the store are away, and why; '' when it does not wait."""
        return self.claim.status().waiting if self.claim is not None and self.claim.waiting else ""

    @property
    def lag_bytes(self) -> int:
        """Appended to the chains and not yet synced on the quorum."""
        if self.claim is None:
            return 0
        return sum(max(0, one.size - one.synced) for one in self.claim.targets.values())


def first_error(error: BaseException) -> Exception:
    """The first plain error in a group, or the error itself. A lost peer says less than what lost it."""
    found = list(_flat(error))
    plain = [one for one in found if not isinstance(one, PeerLostError)]
    return (plain or found)[0]


def _flat(error: BaseException) -> list[Exception]:
    if isinstance(error, BaseExceptionGroup):
        return [one for inner in error.exceptions for one in _flat(inner)]
    return [error] if isinstance(error, Exception) else []
