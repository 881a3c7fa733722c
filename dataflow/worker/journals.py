"""The two chains of a worker in one incarnation: opened at the cut, appended to, synced before a vote.

Rules of this file: the order of what must be durable before what; no trio, no links, no user code. A restore
opens the state chain at the cut ordered and the steps chain at its head. A division is recorded before the
frames of its step are sent. A vote says that outputs, state and the step's division are on stable storage or
on the quorum.
"""

from collections.abc import AsyncGenerator

from checkpoint import Committed, Division, Restore, Rolling, WorkerCut
from checkpoint.chains.state_reading import STATE_CHAIN
from checkpoint.chains.state_store import StateStore
from checkpoint.chains.steps_log import STEPS_CHAIN, StepsLog
from dataflow.worker.messages import CutTaken, StageEnded
from journal import Scratch, below
from journal.ports import ClaimPort


class Journals:
    """See the module. Make it with `open`; `aclose` it before the claim."""

    def __init__(self, claim: ClaimPort, order: Restore, state: StateStore, steps: StepsLog) -> None:
        self._claim = claim
        self._state = state
        self._steps = steps
        self._after = after_step(order)
        self._release(order)

    @classmethod
    async def open(
        cls,
        claim: ClaimPort,
        order: Restore,
        *,
        generation: int,
        scratch: Scratch | None = None,
        rolling: Rolling | None = None,
    ) -> "Journals":
        """Stand at the cut ordered. Raises what `StateStore.open` and `StepsLog.open` raise."""
        at = None if order.restore is None else order.restore.workers[order.worker].state
        state = await StateStore.open(
            claim, version=order.cut, at=at, generation=generation, scratch=scratch, rolling=rolling
        )
        try:
            after = after_step(order)
            steps = await StepsLog.open(
                claim,
                after_step=after,
                kept_after=order.steps_kept_after,
                generation=generation,
                scratch=scratch,
                rolling=rolling,
            )
        except BaseException:
            await state.aclose()
            raise
        return cls(claim, order, state, steps)

    @property
    def replayed_bytes(self) -> int:
        return self._state.replayed_bytes + self._steps.replayed_bytes

    @property
    def last_step(self) -> int:
        """The highest step whose division is on record here."""
        return self._steps.last_step

    @property
    def snapshot_due(self) -> bool:
        return self._state.snapshot_due

    def blocks(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        """The state of the cut, as `StateStore.blocks` gives it."""
        return self._state.blocks()

    def divisions(self, until: int) -> tuple[Division, ...]:
        """Of the steps to be replayed exactly."""
        return tuple(self._steps.divisions(self._after, until))

    def record(self, ended: StageEnded) -> None:
        """Before the frames of this stage are sent."""
        if ended.sources is not None:
            self._steps.record(ended.step, ended.time_ms, ended.sources)

    async def division_synced(self, step: int) -> None:
        """Wait until the divisions up to that step are synced on the quorum. Raises FencedError."""
        await self._steps.synced(step)

    async def prepare(self, taken: CutTaken) -> WorkerCut:
        """Make what a cut took durable; what to vote with, once the sinks are synced as well."""
        state = await self._state.commit(taken.barrier.cut, taken.blocks)
        steps = await self._steps.synced(taken.step)
        floors = {STATE_CHAIN: self._state.floor, STEPS_CHAIN: self._steps.floor}
        return WorkerCut(state=state, steps=steps, sources=taken.sources, sinks=taken.sinks, floors=floors)

    async def voted(self, taken: CutTaken) -> None:
        """The vote is out: a snapshot that was taken with the cut may follow."""
        if taken.snapshot is not None:
            await self._state.snapshot(taken.snapshot)

    async def released(self, order: Committed) -> None:
        """What only released cuts need goes, in the background; the release is acknowledged (R14)."""
        self._release(order)
        await self._steps.forget(order.steps_kept_after)

    def _release(self, order: Restore | Committed) -> None:
        """Both chains stand in this incarnation, their starts acknowledged: what lies below the floors is
        needed by no cut that is retained, nor by anything that follows one.
        """
        self._claim.collect(below(order.floors))

    async def aclose(self) -> None:
        """Stop appending."""
        await self._steps.aclose()
        await self._state.aclose()


class NoJournals(Journals):
    """Of a worker without cuts: it keeps nothing, and comes back to nothing."""

    replayed_bytes = 0
    last_step = 0
    snapshot_due = False

    def __init__(self) -> None:
        """Nothing to hold."""

    async def blocks(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        nothing: tuple[tuple[int, str, bytes], ...] = ()
        for block in nothing:
            yield block

    def divisions(self, until: int) -> tuple[Division, ...]:
        del until
        return ()

    def record(self, ended: StageEnded) -> None:
        """It is read once, and never again."""

    async def division_synced(self, step: int) -> None:
        """Nobody waits for it."""

    async def released(self, order: Committed) -> None:
        """Nothing to let go."""

    async def aclose(self) -> None:
        """Nothing to stop."""


def after_step(order: Restore) -> int:
    """The step of the cut that is restored."""
    return 0 if order.restore is None else order.restore.step
