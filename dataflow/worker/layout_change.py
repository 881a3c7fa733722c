"""What one worker does when an incarnation has another layout than the checkpoint that it restores, or begins
a line of history or a fork.

The worker restores its own state, if it has any, and takes over its parts of other workers
(`dataflow/state/moving.py`). Sources are dealt anew from the positions of all workers. A worker that comes
back continues its output where it ended. The output of a worker that leaves is completed by its heir. The
workers of a fork restore their state from the chains of the original, and begin their own chains and output.
"""

from typing import Any, NamedTuple

import msgspec

from checkpoint import CopyAhead, Restore, RetiredWorker, WorkerCheckpoint, region_of_worker, state_parts
from dataflow.graph.plan import GraphPlan
from dataflow.operators.apply import ApplySpec
from dataflow.sources.base import Positions, SourceSpec, own_positions
from dataflow.state.moving import Share
from dos_client import Store
from journal import ORIGIN


class LayoutChange(NamedTuple):
    """The duties of one worker in the first incarnation of a layout, of a line of history or of a fork."""

    checkpoint: int
    """The checkpoint that it votes for before it starts."""
    share: Share
    part: WorkerCheckpoint
    """Where its sources and sinks continue. The positions of chains are those of its own former part."""
    completes: "dict[int, dict[str, Any] | None]"
    """Workers whose output it completes, as their heir, with what the checkpoint stores of their sinks; None:
    all of their output is taken back.
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
        """Return the duties of the ordered worker, None if it just continues.

        Raises SchemaError if a source cannot be dealt to other workers.
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
        if checkpoint.in_origin:
            own = msgspec.structs.replace(new, sources=own.sources)
        moves = checkpoint.layout != order.layout
        if moves:
            of_workers = [checkpoint.workers[one].sources for one in sorted(checkpoint.workers)]
            own = msgspec.structs.replace(own, sources=dealt_sources(plan, of_workers, share))
        return cls(order.checkpoint + 1, share, own, completes, moves, checkpoint.in_origin)


def part_of(order: Restore, change: LayoutChange | None) -> WorkerCheckpoint | None:
    """Return the part of the checkpoint from which the ordered worker continues, None for the beginning."""
    if change is not None:
        return change.part
    return None if order.restore is None else order.restore.workers[order.worker]


async def left_before(store: Store, order: Restore) -> "dict[int, dict[str, Any] | None]":
    """Return the workers that the region once had, and has not now, if it begins: they made no checkpoint,
    but perhaps output. The first worker completes it. Raises QuorumUnavailableError.
    """
    if order.restore is not None or order.worker != order.layout.workers[0]:
        return {}
    names = await store.list_directories(f"{order.job}.w")
    found = [region_of_worker(name) for name in names]
    workers = {one[1] for one in found if one is not None and one[0] == order.job}
    return {worker: {} for worker in sorted(workers - set(order.layout.workers))}


def dealt_sources(
    plan: GraphPlan, of_workers: list[dict[str, Positions]], share: Share
) -> dict[str, Positions]:
    """Return where the sources of a worker continue, and the watermarks of all splits.

    `of_workers`: what the checkpoint stores of the workers before, in their order.
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
