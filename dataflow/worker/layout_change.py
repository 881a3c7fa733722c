"""What one worker does when an incarnation has another layout than the checkpoint that it restores, or begins
a line of history or a fork.

It takes over its parts of other workers (`dataflow/state/base.py`). Sources are dealt anew. The output of a
worker that leaves is completed by its heir. The workers of a fork restore from the chains of the original,
and begin their own chains and output. While the region still runs with the former layout, it is prepared
(`copy_ahead`).
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from checkpoint import (
    CopyAhead,
    Layout,
    Restore,
    RetiredWorker,
    TakenPart,
    Vote,
    WorkerCheckpoint,
    region_of_worker,
    state_parts,
    stored_under,
    worker_directory,
)
from checkpoint.chains.directory_store import DirectoryStore
from checkpoint.chains.output_log import OutputLog
from checkpoint.chains.state_index import HashRanges
from checkpoint.chains.state_store import StateStore, StoredStateBlock, blocks_at, blocks_between
from checkpoint.chains.steps_log import StepsLog
from checkpoint.errors import StateNotRecordedError
from dataflow.graph.plan import GraphPlan
from dataflow.operators.apply import ApplySpec
from dataflow.schema import columns_of_text
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.log import LogSink
from dataflow.sources.base import Positions, SourceSpec, own_positions
from dataflow.state.base import Share
from dataflow.state.scratch import SnapshotSpool
from dos_client import Store
from dos_protocol.errors import CorruptDataError
from journal import ORIGIN, Position
from journal.ports import ClaimPort, StorePort


class LayoutChange(NamedTuple):
    """The duties of one worker in the first incarnation of a layout, of a line of history or of a fork."""

    checkpoint: int
    """The checkpoint that it votes for before it starts."""
    share: Share
    part: WorkerCheckpoint
    """Where its sources and sinks continue. The positions of chains are those of its own former part."""
    completes: "dict[int, dict[str, Any] | None]"
    """Workers whose output it completes, as their heir -> what the checkpoint stores of their sinks; None:
    all of it is taken back.
    """
    moves: bool
    """Whether the layout is another one, so that state, files and sources move."""
    forks: bool
    """Whether the region begins as a fork: its own chains and its output are empty."""

    @property
    def joins(self) -> bool:
        """Whether the output logs of the worker have nothing before the checkpoint."""
        return self.forks or not self.share.stays

    @classmethod
    def of(cls, order: Restore | CopyAhead, plan: GraphPlan) -> "LayoutChange | None":
        """Return the duties of the ordered worker, None if it just continues. order: with the names of the
        graph (`by_name`). Raises SchemaError if a source
        cannot be dealt to other workers.
        """
        if order.restore is None or not order.moves:
            return None
        checkpoint, worker = order.restore, order.worker
        # The state of a user's operator is divided by a function of all of it.
        of_all = any(isinstance(spec, ApplySpec) for spec in plan.specs.values())
        parts = state_parts(checkpoint.layout, order.layout, of_all=of_all)[worker]
        share = Share.of(order.layout, worker, parts)
        completes: dict[int, dict[str, Any] | None] = {
            part.worker: checkpoint.workers[part.worker].sinks
            for part in share.parts
            if part.stays and part.worker not in order.layout.workers
        }
        if worker == order.layout.workers[0]:
            completes |= {orphan: None for orphan in checkpoint.orphans if orphan not in order.layout.workers}
        before = RetiredWorker() if checkpoint.in_origin else checkpoint.retired.get(worker, RetiredWorker())
        files = {name: ORIGIN for name, spec in plan.specs.items() if spec.keeps_files}
        new = WorkerCheckpoint(state=ORIGIN, steps=ORIGIN, sinks=before.sinks, directories=files)
        own = checkpoint.workers.get(worker, new)
        # An operator that comes with this graph has no files there.
        own = msgspec.structs.replace(own, directories=files | own.directories)
        if checkpoint.in_origin:
            own = msgspec.structs.replace(new, sources=own.sources)
        moves = checkpoint.layout != order.layout
        if moves:
            of_workers = [checkpoint.workers[one].sources for one in sorted(checkpoint.workers)]
            own = msgspec.structs.replace(own, sources=dealt_sources(plan, of_workers, share))
        return cls(order.checkpoint + 1, share, own, completes, moves, checkpoint.in_origin)


class RemovedOutput(NamedTuple):
    """A sink outside of the store that the graph gives up."""

    name: str
    """In the checkpoint."""
    uid: str
    spec: SinkSpec
    columns: pa.Schema
    """Of the rows that it got."""
    completes: "dict[int, dict[str, Any] | None]"
    """As `LayoutChange.completes`, with the own output of the worker."""


def removed_outputs(
    order: Restore, change: LayoutChange | None, specs: Mapping[str, SinkSpec]
) -> tuple[RemovedOutput, ...]:
    """Return the removed sinks with what the ordered worker completes: its own output, and that of the
    workers whose heir it is. order: with uids. specs: removed sink -> its specification.
    """
    checkpoint = order.restore
    if checkpoint is None or not order.removed:
        return ()
    assert change is not None, "a graph begins"
    parts, orphans = checkpoint.workers, checkpoint.orphans
    mine = {one for one in (order.worker, *change.completes) if one in parts or one in orphans}
    return tuple(
        RemovedOutput(
            name,
            uid,
            specs[name],
            columns_of_text(checkpoint.operators[name].stored[0]),
            {
                worker: {name: parts[worker].sinks.get(uid)} if worker in parts else None
                for worker in sorted(mine)
            },
        )
        for name, uid in sorted(order.removed.items())
    )


logger: Final = logging.getLogger("dos.dataflow")

Order = TypeVar("Order", Restore, CopyAhead)


def by_name(order: Order, uids: Mapping[str, str]) -> Order:
    """Return an order whose checkpoint has the names of the graph. uids: operator of the graph -> its uid."""
    if order.restore is None:
        return order
    restore = order.restore.under({uid: name for name, uid in uids.items()})
    return msgspec.structs.replace(order, restore=restore)


def after_step(order: Restore) -> int:
    """Return the step of the checkpoint to restore, 0 for the beginning."""
    return 0 if order.restore is None else order.restore.step


def part_of(order: Restore, change: LayoutChange | None) -> WorkerCheckpoint | None:
    """Return the part of the checkpoint from which the ordered worker continues, None for the beginning."""
    if change is not None:
        return change.part
    return None if order.restore is None else order.restore.workers[order.worker]


def is_of_vote(order: Restore, voted: Vote | None) -> bool:
    """Return whether the checkpoint to restore has what a process has voted for, byte for byte."""
    part = None if order.restore is None else order.restore.workers.get(order.worker)
    if part is None or voted is None or voted.checkpoint != order.checkpoint:
        return False
    return (part.state, part.steps) == (voted.positions.state, voted.positions.steps)


async def left_before(store: Store, order: Restore) -> "dict[int, dict[str, Any] | None]":
    """Return the workers that a region that begins once had: they made no checkpoint, but perhaps output,
    which the first worker completes. Raises QuorumUnavailableError.
    """
    if order.restore is not None or order.worker != order.layout.workers[0]:
        return {}
    names = await store.list_directories(f"{order.job}.w")
    found = [region_of_worker(name) for name in names]
    workers = {one[1] for one in found if one is not None and one[0] == order.job}
    return {worker: {} for worker in sorted(workers - set(order.layout.workers))}


def log_position(sink: str, prepared: Any) -> Position | None:
    """Return the position of an output log that a checkpoint stores. Raises CorruptDataError."""
    if prepared is None:
        return None
    try:
        return msgspec.convert(prepared, Position)
    except msgspec.ValidationError as error:
        raise CorruptDataError(f"sink {sink}", 0, "the position of an output log", str(error)) from error


def dealt_sources(
    plan: GraphPlan, of_workers: list[dict[str, Positions]], share: Share
) -> dict[str, Positions]:
    """Return where the sources of a worker continue, and the watermarks of all splits. `of_workers`: what the
    checkpoint stores of the workers before, in their order.
    """
    dealt = {}
    for name in {name: None for sources in of_workers for name in sources}:
        positions = [sources.get(name, {}) for sources in of_workers]
        spec = plan.specs.get(name)
        dealt[name] = (
            spec.redeal(positions, share.worker, share.workers)
            if isinstance(spec, SourceSpec)
            # An `event_time`: each worker forgets the splits that it does not have, in its first step.
            else own_positions(positions, lambda _: True)
        )
    return dealt


# --- copying ahead ------------------------------------------------------------------------------------------

StoredBlocks = Callable[[], AsyncGenerator[tuple[int, str, bytes]]]
"""Yields the (checkpoint, operator, encoded block) of a worker's own chain, as `StateStore.blocks` does."""
Load = Callable[[TakenPart, StoredStateBlock], Awaitable[None]]
"""Loads a block of another worker into operators that are opened ahead."""
Report = Callable[[int, int], Awaitable[None]]
"""Called with the bytes that are copied, and the bytes of all of it."""


class LoadedState(NamedTuple):
    """What the operators of a worker that takes its region over have loaded ahead."""

    layout: Layout
    uids: Mapping[str, str]
    """As `Restore.uids`: they write under these."""
    at: Position | None
    """Up to where in the worker's own chain; None: nothing of it."""
    parts: tuple[TakenPart, ...] = ()
    """What a worker that joins has loaded of others, as it was copied."""

    def fits(self, order: Restore | CopyAhead, parts: tuple[TakenPart, ...] = ()) -> bool:
        """Return whether the operators may continue with an order. parts: that it takes over."""
        loaded = not self.parts or self.parts == parts
        return loaded and (self.layout, self.uids) == (order.layout, order.uids)


class CopiedState:
    """The copied state of other workers, on disk if it is large. Read each part once."""

    def __init__(self, scratch: str = "", loaded: LoadedState | None = None) -> None:
        self.loaded = loaded
        """What the worker's operators have of its own state; None: they are not opened."""
        self.voted: Vote | None = None
        """The last vote of this process."""
        self._scratch = scratch
        self._parts: dict[int, tuple[Position, SnapshotSpool]] = {}
        self._since: dict[int, list[StoredStateBlock]] = {}
        """Worker -> the blocks of its part that followed what was loaded."""

    async def copy(
        self,
        store: Store,
        order: CopyAhead,
        change: LayoutChange,
        report: Report,
        load: Load | None = None,
    ) -> int:
        """Copy the parts that the ordered worker takes over; return their bytes. load: loads them instead. A
        failure leaves fewer. Raises as `blocks_at`, what `load` raises, and UserFault if the disk fails.
        """
        parts = [(part, order.restore.workers[part.worker]) for part in change.share.parts]
        total, copied = sum(one.restore_bytes for _, one in parts), 0
        await report(0, total)
        for part, at in parts:
            spool = SnapshotSpool(self._scratch)
            ranges = change.share.hashes_of(part)
            async with aclosing(blocks_at(store, order.job, part.worker, at.state, ranges=ranges)) as blocks:
                async for block in blocks:
                    if load is None:
                        spool.append(block.operator, block.data)
                    else:
                        await load(part, block)
                    copied += len(block.data)
                    await report(copied, max(total, copied))
            # Blocks never change: when the layout changes, at a later checkpoint, only those since are read.
            self._parts[part.worker] = at.state, spool
        if load is not None:  # not earlier: with a part of the blocks, they would have the state of no moment
            self.loaded = LoadedState(order.layout, order.uids, None, change.share.parts)
        return copied

    async def since_loaded(
        self, store: StorePort, order: Restore, change: LayoutChange | None
    ) -> list[StoredStateBlock] | None:
        """Return the blocks of its own state that the ordered worker has not loaded ahead; None if it has to
        load all. If the operators are not as the order needs them, they count as not opened from now on.
        Raises as `blocks_at`.
        """
        loaded = self.loaded
        if loaded is None:
            return None
        try:
            if loaded.fits(order, () if change is None else change.share.parts):
                # All before the operators are ordered: those with a part of what followed cannot go back.
                for part in loaded.parts:
                    assert change is not None
                    ranges = change.share.hashes_of(part)
                    self._since[part.worker] = await self._followed(store, order, part.worker, ranges)
                return None if loaded.at is None else await blocks_since(store, order, loaded.at)
        except StateNotRecordedError as error:  # a snapshot has replaced what followed, or it went back
            logger.info("what worker %d has loaded ahead is not used: %s", order.worker, error)
        self.loaded = None
        for part in loaded.parts:
            del self._parts[part.worker]
        self._since.clear()
        return None

    async def _followed(
        self, store: StorePort, order: Restore, worker: int, ranges: HashRanges
    ) -> list[StoredStateBlock]:
        """Return the blocks of a worker that followed what was copied. Raises as `blocks_between`."""
        assert order.restore is not None
        region, at = order.restore.chains_of(order.job), order.restore.workers[worker].state
        before = self._parts[worker][0]
        async with aclosing(blocks_between(store, region, worker, before, at, ranges=ranges)) as blocks:
            return [block async for block in blocks]

    async def restored(
        self,
        store: StorePort,
        order: Restore,
        own: StoredBlocks,
        change: LayoutChange | None,
        since: list[StoredStateBlock] | None = None,
    ) -> AsyncGenerator[tuple[TakenPart | None, StoredStateBlock]]:
        """Yield the stored blocks that the ordered worker restores: its own, which `own` yields unless the
        region begins as a fork, and those that it takes over, part by part. since: `since_loaded`. Raises
        what `own` raises, and as `blocks_at`.
        """
        # What is not in its own chain is read without a claim: nobody writes below a committed position.
        blocks: AsyncGenerator[tuple[int, str, bytes]]
        if since is not None:
            blocks = these(since)
        elif order.restore is None or not order.forks:
            blocks = own()
        elif order.worker in order.restore.workers:
            region, at = order.restore.chains_of(order.job), order.restore.workers[order.worker].state
            blocks = blocks_at(store, region, order.worker, at)
        else:
            blocks = these()
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
            async with aclosing(
                self.blocks(store, region, part.worker, at, change.share.hashes_of(part))
            ) as blocks:
                async for block in blocks:
                    yield part, block

    async def blocks(
        self, store: StorePort, region: str, worker: int, at: Position, ranges: HashRanges
    ) -> AsyncGenerator[StoredStateBlock]:
        """Yield the state of a worker at a checkpoint: what was copied, and what followed. ranges: of the
        copied part. Raises as `blocks_at`.
        """
        before, spool = self._parts.pop(worker, (None, None))
        since = self._since.pop(worker, [])
        if before is not None and (self.loaded is None or not self.loaded.parts):
            try:
                async with aclosing(
                    blocks_between(store, region, worker, before, at, ranges=ranges)
                ) as blocks:
                    since = [block async for block in blocks]
            except StateNotRecordedError:  # a snapshot has replaced what followed
                spool = None
        if spool is None:
            async with aclosing(blocks_at(store, region, worker, at, ranges=ranges)) as blocks:
                async for block in blocks:
                    yield block
            return
        for operator, data in spool:
            yield StoredStateBlock(0, operator, data)
        for block in since:
            yield block


async def blocks_since(
    store: StorePort, order: Restore | CopyAhead, before: Position
) -> list[StoredStateBlock]:
    """Return the blocks of the ordered worker's own state after a position. Raises as `blocks_between`."""
    own = (
        None if order.restore is None or order.restore.in_origin else order.restore.workers.get(order.worker)
    )
    if own is None:
        raise StateNotRecordedError(order.worker, "its chain begins anew")
    async with aclosing(blocks_between(store, order.job, order.worker, before, own.state)) as blocks:
        return [block async for block in blocks]


async def these(blocks: Iterable[StoredStateBlock] = ()) -> AsyncGenerator[StoredStateBlock]:
    """Yield these blocks."""
    for block in blocks:
        yield block


async def create_journals(
    claim: ClaimPort,
    order: CopyAhead,
    change: LayoutChange,
    plan: GraphPlan,
    *,
    generation: int,
) -> None:
    """Create the journals of a worker that joins, if they do not exist. Raises as opening them does."""
    uids = stored_under(plan.operators, order.uids)
    state = await StateStore.open(claim, version=0, at=None, generation=generation)
    await state.aclose()
    steps = await StepsLog.open(claim, after_step=order.restore.step, generation=generation)
    await steps.aclose()
    for name, spec in plan.specs.items():
        if spec.keeps_files:
            files = await DirectoryStore.open(claim, uids[name], at=None, generation=generation)
            await files.aclose()
        if isinstance(spec, LogSink):
            at = log_position(name, change.part.sinks.get(name))
            after = order.restore.step
            workers = len(order.layout.workers)
            log = await OutputLog.open(
                claim,
                uids[name],
                spec.publish,
                after_step=after,
                at=at,
                generation=generation,
                workers=workers,
            )
            await log.aclose()


async def copy_ahead(
    store: Store,
    order: CopyAhead,
    plan: GraphPlan,
    copies: CopiedState,
    report: Report,
    fresh_id: bytes,
    opened: Callable[[Share], Awaitable[Load]],
) -> int:
    """Carry out an order to copy ahead; return the bytes that were copied. opened: opens the operators ahead.
    Raises what the store and `opened` raise.
    """
    uids = stored_under(plan.operators, order.uids)
    change = LayoutChange.of(by_name(order, uids), plan)
    assert change is not None, "the layout changes"
    # Creating journals needs every member of the store, so it is not done while the region waits for it.
    if order.creates and not change.share.stays:
        directory = worker_directory(order.job, order.worker)
        async with await store.claim(directory, order.incarnation, fresh_id) as claim:
            await create_journals(claim, order, change, plan, generation=store.record.generation)
    # The operators of a worker that stays have its own state, and change it, until the region is paused.
    load = None if change.share.stays else await opened(change.share)
    return await copies.copy(store, order, change, report, load)
