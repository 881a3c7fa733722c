"""Which cuts are retained, and what may go with the others. Pure.

Rules of this file: the decisions of R14 that a manifest makes (docs/decisions/0110). The record of a cut
names the cuts that are retained from it on; acknowledged, it releases all others, for ever. What a worker's
chains must keep is the lowest of what the retained cuts say that they need. Who deletes, and when, is for the
shells.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from checkpoint import limits
from checkpoint.core.manifest import Cut
from journal.core.trimming import Floor, lowest


@dataclass(frozen=True, slots=True)
class Rolling:
    """When a chain goes on in a new segment that begins with a snapshot: what lies below is needed for older
    cuts only then, and goes with them."""

    snapshot_bytes_min: int = field(default_factory=lambda: limits.snapshot_bytes_min)
    segments_max: int = field(default_factory=lambda: limits.chain_segments_max)
    manifest_segment_bytes_max: int = field(default_factory=lambda: limits.manifest_segment_bytes_max)
    manifest_replay_bytes_max: int = field(default_factory=lambda: limits.manifest_replay_bytes_max)


def retained_with(
    kept: Sequence[Cut], number: int, retain: int, pinned: Collection[int] = ()
) -> tuple[int, ...]:
    """The cuts that are retained when cut `number` is committed behind `kept`: the last `retain` numbers,
    itself included, and those that are pinned."""
    numbers = (*(cut.cut for cut in kept), number)
    return tuple(one for one in numbers if one > number - retain or one in pinned)


def keep(kept: Sequence[Cut], cut: Cut) -> tuple[Cut, ...]:
    """What is retained once `cut` is acknowledged behind `kept`. A record of the old format does not say:
    then the last ones are, and nothing of them is known to be free."""
    if not cut.retained:
        return (*kept, cut)[-limits.cuts_retained_min :]
    return (*(one for one in kept if one.cut in cut.retained), cut)


def floors_of(kept: Sequence[Cut], worker: int) -> dict[str, Floor]:
    """Chain -> the lowest segment that any retained cut needs of this worker."""
    return lowest(cut.workers[worker].floors for cut in kept if worker in cut.workers)


def steps_kept_after(kept: Sequence[Cut]) -> int:
    """Divisions of steps up to this one are needed by no retained cut."""
    return min((cut.step for cut in kept), default=0)
