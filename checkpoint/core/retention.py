"""Which checkpoints are retained, and what may be deleted with the others (R14, docs/decisions/0110). Pure.

The record of a checkpoint names the checkpoints that are retained from it on. Once it is acknowledged, all
others are released permanently. A worker's chains keep what a retained checkpoint needs: from the lowest
segment that its restore reads up to its position, and everything after the last one. The shells delete the
rest.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from checkpoint import limits
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX
from journal import ORIGIN, Floor, Gap, below_or_within, gaps_between, lowest


@dataclass(frozen=True, slots=True)
class Rolling:
    """When a chain continues in a new segment that begins with a snapshot.

    After that only older checkpoints need the segments below, which are deleted with them.
    """

    snapshot_bytes_min: int = field(default_factory=lambda: limits.snapshot_bytes_min)
    segments_max: int = field(default_factory=lambda: limits.chain_segments_max)
    manifest_segment_bytes_max: int = field(default_factory=lambda: limits.manifest_segment_bytes_max)
    manifest_replay_bytes_max: int = field(default_factory=lambda: limits.manifest_replay_bytes_max)


def retained_with(
    kept: Sequence[Checkpoint], number: int, retain: int, pinned: Collection[int] = ()
) -> tuple[int, ...]:
    """Return the checkpoints that are retained when `number` is committed after `kept`.

    These are the last `retain` numbers, including `number`, and those that savepoints hold (`pinned`).
    """
    numbers = (*(checkpoint.number for checkpoint in kept), number)
    return tuple(one for one in numbers if one > number - retain or one in pinned)


def keep(kept: Sequence[Checkpoint], checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that are retained once `checkpoint` is acknowledged after `kept`.

    A record of version 1 does not state them. Then the newest `checkpoints_retained_min` are retained; such
    a record releases nothing of its chains, because it has no floors.
    """
    if not checkpoint.retained:
        return (*kept, checkpoint)[-limits.checkpoints_retained_min :]
    return (*(one for one in kept if one.number in checkpoint.retained), checkpoint)


def floors_of(kept: Sequence[Checkpoint], worker: int) -> dict[str, Floor]:
    """Return chain -> the lowest segment of this worker that a retained checkpoint needs.

    Of a worker in none of them that is a segment which cannot exist yet: if it was there before, nothing of
    its state and its files is needed. (Its steps chain and its output continue at their heads if it comes
    back.)
    """
    parts = [
        checkpoint.workers[worker]
        for checkpoint in kept
        if worker in checkpoint.workers and not checkpoint.in_origin
    ]
    if kept and not parts:
        chains = {"state"}.union(*(part.floors for part in kept[-1].workers.values()))
        begin_anew = [one for one in chains if one != "steps" and not one.startswith(OUTPUT_CHAIN_PREFIX)]
        return dict.fromkeys(sorted(begin_anew), (kept[-1].incarnation + 1, 0))
    return lowest(part.floors for part in parts)


def gaps_of(kept: Sequence[Checkpoint], worker: int) -> dict[str, tuple[Gap, ...]]:
    """Return chain -> the gaps above its floor, which no retained checkpoint needs (decision 0245).

    A checkpoint needs a chain from its floor up to its position, and only the last one needs what follows. So
    a savepoint does not hold what was written after it. Output logs have no gaps: they have other readers.
    """
    parts = [
        checkpoint.workers[worker]
        for checkpoint in kept
        if worker in checkpoint.workers and not checkpoint.in_origin
    ]
    found = {}
    for chain in floors_of(kept, worker) if parts else ():
        positions = [(part.floors[chain], part.chains().get(chain, ORIGIN)) for part in parts]
        needed = [(floor, (at.epoch, at.size)) for floor, at in positions[:-1] if at != ORIGIN]
        if not chain.startswith(OUTPUT_CHAIN_PREFIX):
            found[chain] = tuple(gaps_between(needed, positions[-1][0]))
    return {chain: gaps for chain, gaps in found.items() if gaps}


def unneeded_of(kept: Sequence[Checkpoint], worker: int) -> Callable[[str], bool]:
    """Return a test of object names: whether it is a segment of this worker's chains, without output logs,
    that no retained checkpoint needs.
    """
    floors = {
        chain: floor
        for chain, floor in floors_of(kept, worker).items()
        if not chain.startswith(OUTPUT_CHAIN_PREFIX)
    }
    return below_or_within(floors, gaps_of(kept, worker))


def steps_kept_after(kept: Sequence[Checkpoint]) -> int:
    """Return the step up to which no input division is needed again. A restore to an older checkpoint than
    the last one voids the steps that were recorded after it.
    """
    return kept[-1].step if kept else 0
