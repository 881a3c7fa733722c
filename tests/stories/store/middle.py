"""Chance that always takes the middle: every message takes as long as every other, every sync too, and of
what was not synced a power cut leaves half, to the edge of a sector.

So a story's only surprises are those that it asks for.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import Any


class Middle(Random):
    """A random generator that always returns the middle. Only identities (`randbytes`) differ, as with any
    seed.
    """

    def random(self) -> float:
        return 0.5

    def randint(self, a: int, b: int) -> int:
        return (a + b) // 2

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        first, end = (0, start) if stop is None else (start, stop)
        return first + (end - first) // 2

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[len(seq) // 2]

    def lognormvariate(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return math.exp(mu)
