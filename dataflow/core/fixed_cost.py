"""How much of the time in which a circuit works is a fixed cost of its steps, not the work for rows. Pure.

Steps are as small as the input allows: with little input they are many, and each costs a millisecond or so
whatever it contains. Under more load they become fewer and larger, so this cost says nothing about how much a
worker could read. `AutoScale` must not count it.

The estimate is the intercept of a line through (rows, seconds) of the recent runs of each stage. It is 0 if
these runs had nearly equal numbers of rows, because the two parts cannot be separated then, and at most
`fixed_s_max`, because a longer time is never the cost of an empty run.
"""

from collections import defaultdict
from typing import Final

fixed_s_max: Final = 0.005
_DECAY: Final = 0.98
"""The weight of a run relative to the next one: about 50 runs count."""
_RUNS_MIN: Final = 10
_SPREAD_MIN: Final = 0.2
"""The least standard deviation of the numbers of rows, as a share of their mean."""


class FixedCost:
    """The fixed cost of the runs of each stage of one circuit."""

    def __init__(self) -> None:
        self._sums: dict[int, list[float]] = defaultdict(lambda: [0.0] * 5)
        """Stage -> weighted sums of 1, rows, seconds, rows * rows, rows * seconds."""

    def of_run(self, stage: int, rows: int, seconds: float) -> float:
        """Note a run of a stage. Return how many of its seconds are fixed cost."""
        sums = self._sums[stage]
        for index, value in enumerate((1.0, rows, seconds, rows * rows, rows * seconds)):
            sums[index] = sums[index] * _DECAY + value
        weight = sums[0]
        mean_rows, mean_s = sums[1] / weight, sums[2] / weight
        variance = sums[3] / weight - mean_rows**2
        if weight < _RUNS_MIN or variance <= (_SPREAD_MIN * mean_rows) ** 2:
            return 0.0
        slope = max(0.0, (sums[4] / weight - mean_rows * mean_s) / variance)
        return min(max(0.0, mean_s - slope * mean_rows), fixed_s_max, seconds)


__all__ = ["FixedCost", "fixed_s_max"]
