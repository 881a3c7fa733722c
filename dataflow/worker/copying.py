"""What a worker does ahead of a change of the layout, while the region still runs.

- A worker that joins creates its journals: that needs every member of the store, so it is not done while the
  region waits for it.
- Each worker copies the state that it takes over, as of a checkpoint. Its blocks never change, so what is
  copied stays right: when the layout changes, at a later checkpoint, only the blocks since are read.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from checkpoint import CopyAhead, Restore, TakenPart, worker_directory
from checkpoint.chains.directory_store import DirectoryStore
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.state_reading import StoredStateBlock, blocks_at, blocks_between
from checkpoint.chains.state_store import StateStore
from checkpoint.chains.steps_log import StepsLog
from checkpoint.errors import StateNotRecordedError
from dataflow.graph.plan import GraphPlan
from dataflow.sinks.log import LogSink
from dataflow.state.snapshot_spool import SnapshotSpool
from dataflow.worker.layout_change import LayoutChange
from dataflow.worker.outputs import log_position
from dos_client import Store
from journal import Position
from journal.ports import ClaimPort, StorePort

StoredBlocks = Callable[[], AsyncGenerator[tuple[int, str, bytes]]]
"""Yields the (checkpoint, operator, encoded block) of a worker's own chain, as `StateStore.blocks` does."""
Report = Callable[[int, int], Awaitable[None]]
"""Called with the bytes that are copied, and the bytes of all of it."""


class CopiedState:
    """The copied state of other workers, on disk if it is large. Read each part once."""

    def __init__(self, scratch: str = "") -> None:
        self._scratch = scratch
        self._parts: dict[int, tuple[Position, SnapshotSpool]] = {}

    async def copy(self, store: Store, order: CopyAhead, change: LayoutChange, report: Report) -> int:
        """Copy the parts that the ordered worker takes over; return their bytes. If it fails or is cancelled,
        less is copied.

        Raises as `blocks_at`, and UserFault if the disk fails.
        """
        parts = [(part.worker, order.restore.workers[part.worker]) for part in change.share.parts]
        total, copied = sum(part.restore_bytes for _, part in parts), 0
        await report(0, total)
        for worker, part in parts:
            spool = SnapshotSpool(self._scratch)
            async with aclosing(blocks_at(store, order.job, worker, part.state)) as blocks:
                async for block in blocks:
                    spool.append(block.operator, block.data)
                    copied += len(block.data)
                    await report(copied, max(total, copied))
            self._parts[worker] = part.state, spool
        return copied

    async def restored(
        self, store: StorePort, order: Restore, own: StoredBlocks, change: LayoutChange | None
    ) -> AsyncGenerator[tuple[TakenPart | None, StoredStateBlock]]:
        """Yield the stored state blocks that the ordered worker restores: those of its own, which `own`
        yields unless the region begins as a fork, and those that it takes over, part by part.

        What is not in its own chain is read without a claim: nobody writes below a committed position. Raises
        what `own` raises, and as `blocks_at`.
        """
        if order.restore is None or not order.forks:
            blocks = own()
        elif order.worker in order.restore.workers:
            region, at = order.restore.chains_of(order.job), order.restore.workers[order.worker].state
            blocks = blocks_at(store, region, order.worker, at)
        else:
            blocks = _nothing()
        async with aclosing(blocks) as restored:
            async for block in restored:
                yield None, StoredStateBlock(*block)
        if change is not None and change.moves:
            async with aclosing(self._taken_over(store, order, change)) as taken:
                async for part, block in taken:
                    yield part, block

    async def _taken_over(
        self, store: StorePort, order: Restore, change: LayoutChange
    ) -> AsyncGenerator[tuple[TakenPart, StoredStateBlock]]:
        assert order.restore is not None
        region = order.restore.chains_of(order.job)
        for part in change.share.parts:
            at = order.restore.workers[part.worker].state
            async with aclosing(self.blocks(store, region, part.worker, at)) as blocks:
                async for block in blocks:
                    yield part, block

    async def blocks(
        self, store: StorePort, region: str, worker: int, at: Position
    ) -> AsyncGenerator[StoredStateBlock]:
        """Yield the state of a worker at a checkpoint: what was copied, and what followed. Raises as
        `blocks_at`.
        """
        before, spool = self._parts.pop(worker, (None, None))
        since: list[StoredStateBlock] = []
        if before is not None:
            try:
                async with aclosing(blocks_between(store, region, worker, before, at)) as blocks:
                    since = [block async for block in blocks]
            except StateNotRecordedError:  # a snapshot has replaced what followed
                spool = None
        if spool is None:
            async with aclosing(blocks_at(store, region, worker, at)) as blocks:
                async for block in blocks:
                    yield block
            return
        for operator, data in spool:
            yield StoredStateBlock(0, operator, data)
        for block in since:
            yield block


async def _nothing() -> AsyncGenerator[StoredStateBlock]:
    nothing: tuple[StoredStateBlock, ...] = ()
    for block in nothing:
        yield block


async def create_journals(
    claim: ClaimPort, order: CopyAhead, change: LayoutChange, plan: GraphPlan, *, generation: int
) -> None:
    """Create the journals of a worker that joins, if they do not exist. Raises as opening them does."""
    state = await StateStore.open(claim, version=0, at=None, generation=generation)
    await state.aclose()
    steps = await StepsLog.open(claim, after_step=order.restore.step, generation=generation)
    await steps.aclose()
    for name, spec in plan.specs.items():
        if spec.keeps_files:
            files = await DirectoryStore.open(claim, name, at=None, generation=generation)
            await files.aclose()
        if isinstance(spec, LogSink):
            at = log_position(name, change.part.sinks.get(name))
            after = order.restore.step
            workers = len(order.layout.workers)
            log = await OutputLog.open(
                claim, name, spec.publish, after_step=after, at=at, generation=generation, workers=workers
            )
            await log.aclose()


async def copy_ahead(
    store: Store, order: CopyAhead, plan: GraphPlan, copies: CopiedState, report: Report, fresh_id: bytes
) -> int:
    """Carry out an order to copy ahead; return the bytes that were copied. Raises what the store raises."""
    change = LayoutChange.of(order, plan)
    assert change is not None, "the layout changes"
    if order.creates and not change.share.stays:
        directory = worker_directory(order.job, order.worker)
        async with await store.claim(directory, order.incarnation, fresh_id) as claim:
            await create_journals(claim, order, change, plan, generation=store.record.generation)
    return await copies.copy(store, order, change, report)
