"""The order in which splits are read if the graph takes event time from their rows.

This file handles names and watermarks; it reads nothing. The split with the lowest watermark is read next;
splits that have produced no row come first. A worker's splits therefore stay close together in event time,
and few windows are open at a time, whatever the number and sizes of the splits. A split has one turn per
step, because a division holds one range per split, in the order of reading.
"""

from collections.abc import Callable, Collection
from typing import Final

from dataflow.core.event_time import UNKNOWN, Watermark

begin_bytes: Final = 4 * 1024
"""The number of bytes read first of a split if there are others: enough to learn its time."""


class RoundRobin:
    """The turns of one reader."""

    def __init__(self) -> None:
        self._split = ""
        self._limit: Watermark = UNKNOWN
        """The lowest watermark of the other splits at the start of the turn."""
        self._had_turn: set[str] = set()

    def next(self, waiting: Collection[str], reached: Callable[[str], Watermark]) -> str | None:
        """Return the split to read next; None if each waiting split has had its turn in this step.

        A split without a watermark keeps its turn for one batch only; then others are read.
        """
        if self._split in waiting and (len(waiting) == 1 or UNKNOWN < reached(self._split) <= self._limit):
            return self._split
        watermarks = {split: reached(split) for split in waiting}
        left = [split for split in waiting if split not in self._had_turn]
        if not left:
            return None
        self._split = min(left, key=watermarks.__getitem__)
        self._limit = min(
            (watermark for split, watermark in watermarks.items() if split != self._split), default=UNKNOWN
        )
        self._had_turn.add(self._split)
        return self._split

    def begin(self, split: str) -> None:
        """Start the turn of a split that is read for the first time."""
        self._split, self._limit = split, UNKNOWN
        self._had_turn.add(split)

    def step_over(self) -> None:
        """Start the next step."""
        self._had_turn.clear()
        self._split = ""
