"""Whose turn it is: the order in which splits are read where the graph takes event time from their rows.

Rules of this file: names and watermarks; nothing is read. The split whose watermark is least is read next,
one that has given no row before all others. So the splits of a worker stay together in event time, and few
windows are open at a time, whatever the number and sizes of the splits. A split comes once in a step,
because a division says of each split from where to where, in the order of reading.
"""

from collections.abc import Callable, Collection
from typing import Final

from dataflow.core.event_time import UNKNOWN, Watermark

begin_bytes: Final = 4 * 1024
"""What is read first of a split where there are others: enough to know its time."""


class RoundRobin:
    """The turns of one reader."""

    def __init__(self) -> None:
        self._split = ""
        self._limit: Watermark = UNKNOWN
        """The least watermark of the other splits, when the turn began."""
        self._had_turn: set[str] = set()

    def next(self, waiting: Collection[str], reached: Callable[[str], Watermark]) -> str | None:
        """The split to read next; None: each of those that wait had its turn in this step.

        A split whose watermark is not known yet keeps its turn for one batch: others are read meanwhile.
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
        """A split is read for the first time: that is its turn in this step."""
        self._split, self._limit = split, UNKNOWN
        self._had_turn.add(split)

    def step_over(self) -> None:
        """The next step begins."""
        self._had_turn.clear()
        self._split = ""
