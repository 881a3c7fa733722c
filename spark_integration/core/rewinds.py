"""Where a stream continues on a later line of history of a region that was restored. Pure.

A line parts from another one after a step, and in each worker's log after a size (`checkpoint.parting`). A
point up to there lies on both. A point after it is moved back to where the lines part. If steps were read
after that, they were taken back.
"""

from collections.abc import Mapping
from typing import NamedTuple

from checkpoint import Checkpoint, Rewind, parting
from spark_integration.core.offsets import SplitPoint


class LinePoints(NamedTuple):
    """Points on one line.

    moved: the splits whose point was moved; its epoch is not known then. rewind: the restore that took back
    steps that were read, None if there is none. read: the last step read before it; 0 if it is not known.
    complete: the last step that was read of all workers that the region has, and is valid.
    """

    points: dict[str, SplitPoint]
    moved: frozenset[str] = frozenset()
    rewind: Rewind | None = None
    read: int = 0
    complete: int = 0

    @property
    def steps_text(self) -> str:
        """The number of steps that were read and taken back, for people."""
        if self.rewind is None or not self.read:
            return "an unknown number of steps"
        return f"{self.read - self.rewind.step} steps"


def points_on_line(
    checkpoint: Checkpoint | None, sink: str, points: Mapping[str, SplitPoint], line: int | None = None
) -> LinePoints:
    """Return where a reader of an output continues after `points`, split -> how far it was read.

    checkpoint: the last checkpoint. line: a later line than those of the points; None: that of the
    checkpoint. Points are returned as they are if the checkpoint does not know one of the two lines yet.
    """
    found, moved = dict(points), set()
    rewind, read = None, []
    for split, at in points.items():
        if checkpoint is None:
            break
        to = checkpoint.line if line is None else line
        parted = parting(checkpoint, at.line, to) if at.line < to <= checkpoint.line else None
        if parted is None:
            continue
        size = parted.outputs.get(int(split[1:]), {}).get(sink, 0)
        if at.size <= size:
            found[split] = at._replace(line=to)
            continue
        found[split] = SplitPoint(0, size, to, min(at.step, parted.step))
        moved.add(split)
        if at.step > parted.step or not at.step:  # otherwise only records without rows were read
            read.append(at.step)
            if rewind is None or parted.step < rewind.step:
                rewind = parted
    present = [
        at.step
        for split, at in found.items()
        if checkpoint is not None and int(split[1:]) in checkpoint.workers
    ]
    return LinePoints(found, frozenset(moved), rewind, max(read, default=0), min(present, default=0))
