"""Which checkpoints are retained, and what may be deleted with the others (R14, docs/decisions/0110). Pure.

The record of a checkpoint names the checkpoints that are retained from it on. Once it is acknowledged, all
others are released permanently. A worker's chains keep everything from the lowest segment that a retained
checkpoint needs. The shells delete the rest.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from checkpoint import limits
from checkpoint.core.manifest import Cut
from checkpoint.core.outputs import OUTPUT_CHAIN_PREFIX
from journal import Floor, lowest


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
    kept: Sequence[Cut], number: int, retain: int, pinned: Collection[int] = ()
) -> tuple[int, ...]:
    """Return the checkpoints that are retained when `number` is committed after `kept`.

    These are the last `retain` numbers, including `number`, and those that savepoints hold (`pinned`).
    """
    numbers = (*(cut.cut for cut in kept), number)
    return tuple(one for one in numbers if one > number - retain or one in pinned)


def keep(kept: Sequence[Cut], cut: Cut) -> tuple[Cut, ...]:
    """Return the checkpoints that are retained once `cut` is acknowledged after `kept`.

    A record of version 1 does not state them. Then the newest `cuts_retained_min` are retained; such a record
    releases nothing of its chains, because it has no floors.
    """
    if not cut.retained:
        return (*kept, cut)[-limits.cuts_retained_min :]
    return (*(one for one in kept if one.cut in cut.retained), cut)


def floors_of(kept: Sequence[Cut], worker: int) -> dict[str, Floor]:
    """Return chain -> the lowest segment of this worker that a retained checkpoint needs.

    Of a worker in none of them that is a segment which cannot exist yet: if it was there before, nothing of
    its state and its files is needed. (Its steps chain and its output continue at their heads if it comes
    back.)
    """
    parts = [cut.workers[worker] for cut in kept if worker in cut.workers and not cut.in_origin]
    if kept and not parts:
        chains = {"state"}.union(*(part.floors for part in kept[-1].workers.values()))
        begin_anew = [one for one in chains if one != "steps" and not one.startswith(OUTPUT_CHAIN_PREFIX)]
        return dict.fromkeys(sorted(begin_anew), (kept[-1].incarnation + 1, 0))
    return lowest(part.floors for part in parts)


def steps_kept_after(kept: Sequence[Cut]) -> int:
    """Return the step up to which no retained checkpoint needs the input divisions."""
    return min((cut.step for cut in kept), default=0)
