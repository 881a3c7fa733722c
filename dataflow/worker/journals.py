"""The two chains of a worker in one incarnation: opened at the checkpoint, appended to, synced before a vote.

This module defines which data must be durable before which; it has no trio, no links and no user code.

1. A restore opens the state chain at the ordered checkpoint, and the steps chain at its head, or also at the
   checkpoint if a line of history begins there.
2. An input division is recorded before the frames of its step are sent.
3. A vote means that outputs, state and the division of the step are on stable storage or on the quorum.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Protocol

from checkpoint import NO_MARK, Committed, Division, Mark, Restore, Rolling, WorkerCheckpoint
from checkpoint.chains.state_reading import STATE_CHAIN
from checkpoint.chains.state_store import StateStore
from checkpoint.chains.steps_log import STEPS_CHAIN, StepsLog
from checkpoint.errors import ManifestError
from dataflow.worker.collecting import FloorCollector
from dataflow.worker.messages import CheckpointTaken, StageEnded
from journal import Scratch
from journal.ports import ClaimPort


class RunAll(Protocol):
    """Runs all of some works, and returns when the last one has ended."""

    async def __call__(self, *works: Callable[[], Awaitable[None]]) -> None: ...


async def one_by_one(*works: Callable[[], Awaitable[None]]) -> None:
    """Run works in their order: a `RunAll`."""
    for work in works:
        await work()


class Journals:
    """The state chain and the steps chain of a worker. Use `open`; call `aclose` before closing the claim."""

    def __init__(
        self, claim: ClaimPort, order: Restore, state: StateStore, steps: StepsLog, collecting: FloorCollector
    ) -> None:
        self._claim = claim
        self._collecting = collecting
        self._state = state
        self._steps = steps
        self._after = after_step(order)
        self._local = order.is_local
        self._region_incarnation = order.incarnation
        self._takes_over = order.takes_over
        self._forks = order.forks
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
        collecting: FloorCollector | None = None,
        shows_steps: bool = False,
        run_all: RunAll = one_by_one,
    ) -> "Journals":
        """Open both chains for the ordered checkpoint. shows_steps: output of recorded steps may be visible.
        run_all: opens the two chains, both at once if it can.

        Raises what `StateStore.open` and `StepsLog.open` raise; ManifestError if output may be visible that
        another number of workers made before the first checkpoint.
        """
        own = None if order.restore is None or order.forks else order.restore.workers.get(order.worker)
        at, version = (None, 0) if own is None else (own.state, order.checkpoint)
        rewound = order.restore is not None and order.restore.rewound
        opened: dict[str, StateStore | StepsLog] = {}

        async def open_state() -> None:
            opened[STATE_CHAIN] = await StateStore.open(
                claim, version=version, at=at, generation=generation, scratch=scratch, rolling=rolling
            )

        async def open_steps() -> None:
            opened[STEPS_CHAIN] = await StepsLog.open(
                claim,
                at=own.steps if own is not None and rewound else None,
                after_step=after_step(order),
                workers=len(order.layout.workers) if order.restore is None else 0,
                generation=generation,
                scratch=scratch,
                rolling=rolling,
            )

        try:
            await run_all(open_state, open_steps)
            state, steps = opened[STATE_CHAIN], opened[STEPS_CHAIN]
            assert isinstance(state, StateStore)
            assert isinstance(steps, StepsLog)
            if steps.of_others and shows_steps:
                raise ManifestError(
                    f"the region has no checkpoint, and another number of workers than"
                    f" {len(order.layout.workers)} has made output that may be visible",
                    remedy="run it with that number until its first checkpoint, or under another name",
                )
        except BaseException:
            for one in opened.values():
                await one.aclose()
            raise
        return cls(claim, order, state, steps, collecting or FloorCollector(claim))

    @property
    def replayed_bytes(self) -> int:
        return self._state.replayed_bytes + self._steps.replayed_bytes

    @property
    def last_step(self) -> int:
        """The highest step whose input division is recorded here."""
        return self._steps.last_step

    @property
    def snapshot_due(self) -> bool:
        return self._state.snapshot_due

    def blocks(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        """Return the state blocks of the checkpoint, as `StateStore.blocks` does."""
        return self._state.blocks()

    def divisions(self, until: int) -> tuple[Division, ...]:
        """Return the divisions of the steps to replay exactly."""
        return self._marks(self._steps.divisions(self._after, until))

    def _marks(self, divisions: Iterable[Division]) -> tuple[Division, ...]:
        """Drop the marks that do not count: only those of this incarnation do, and only for a worker that is
        taken over. After a reset, nobody has requested these checkpoints.
        """
        number = self._region_incarnation if self._takes_over else -1
        return tuple(
            division if division.mark.incarnation == number else division._replace(mark=NO_MARK)
            for division in divisions
        )

    def record(self, ended: StageEnded) -> None:
        """Record the division of a stage. Call it before the frames of the stage are sent."""
        if ended.sources is not None:
            self._steps.record(ended.step, ended.time_ms, ended.sources, self._mark_of(ended))

    def _mark_of(self, ended: StageEnded) -> Mark:
        marked = self._local and ended.barrier.checkpoint
        return Mark(*ended.barrier, self._region_incarnation) if marked else NO_MARK

    async def division_synced(self, step: int) -> None:
        """Wait until the divisions up to `step` are synced on the quorum. Raises FencedError."""
        await self._steps.synced(step)

    async def prepare(self, taken: CheckpointTaken) -> WorkerCheckpoint:
        """Make the data of a checkpoint durable and return the vote, which is valid once the sinks are synced
        too.
        """
        if self._is_whole(taken) and taken.snapshot is not None:
            state = await self._state.commit_whole(taken.barrier.checkpoint, taken.snapshot)
        else:
            state = await self._state.commit(taken.barrier.checkpoint, taken.blocks)
        if taken.step == self._after:
            self._steps.void(taken.step)  # the layout changes
        steps = await self._steps.synced(taken.step)
        floors = {STATE_CHAIN: self._state.floor, STEPS_CHAIN: self._steps.floor}
        return WorkerCheckpoint(
            state=state, steps=steps, sources=taken.sources, sinks=taken.sinks, floors=floors
        )

    def _is_whole(self, taken: CheckpointTaken) -> bool:
        """Return whether it is the first checkpoint of a fork, whose chain has nothing before it."""
        return self._forks and taken.step == self._after

    async def voted(self, taken: CheckpointTaken) -> None:
        """Append the snapshot of the checkpoint, if any. It follows the vote so as not to delay it."""
        if taken.snapshot is not None and not self._is_whole(taken):
            await self._state.snapshot(taken.snapshot)

    async def released(self, order: Committed) -> None:
        """Delete in the background what only released checkpoints need. The release is acknowledged (R14)."""
        self._release(order)
        await self._steps.forget(order.steps_kept_after)

    def _release(self, order: Restore | Committed) -> None:
        """Collect objects below the floors and in the gaps.

        Both chains are open in this incarnation and their starts are acknowledged. No retained checkpoint
        needs what lies below the floors, nor does anything that follows one.
        """
        self._collecting.release(order.floors, order.gaps)

    async def aclose(self) -> None:
        """Stop appending."""
        await self._steps.aclose()
        await self._state.aclose()


class NoJournals(Journals):
    """The journals of a worker without checkpoints: it records nothing and restores nothing."""

    replayed_bytes = 0
    last_step = 0
    snapshot_due = False

    def __init__(self) -> None:
        """There is nothing to hold."""

    async def blocks(self) -> AsyncGenerator[tuple[int, str, bytes], None]:
        empty: tuple[tuple[int, str, bytes], ...] = ()
        for block in empty:
            yield block

    def divisions(self, until: int) -> tuple[Division, ...]:
        del until
        return ()

    def record(self, ended: StageEnded) -> None:
        """Record nothing: the input is read once and never again."""

    async def division_synced(self, step: int) -> None:
        """Return at once."""

    async def released(self, order: Committed) -> None:
        """There is nothing to delete."""

    async def aclose(self) -> None:
        """There is nothing to stop."""


def after_step(order: Restore) -> int:
    """Return the step of the checkpoint to restore, 0 for the beginning."""
    return 0 if order.restore is None else order.restore.step
