"""The faults and their times, drawn from a seed, so that another person can repeat a run. Pure.

A moment is a part of the input: the fault comes when so much of it is counted. The same seed gives the same
faults in the same order at the same parts; what the machine does between them is its own.
"""

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["worker", "server"]

WINDOWS = ((0.08, 0.28), (0.33, 0.53), (0.57, 0.75))
"""Apart from each other, so that each is seen; the last ends early enough to come before the end for sure."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Lose the victim's process, and its scratch (a worker) or its data (a server)."""

    kind: Kind
    victim: int
    moment: float

    def __str__(self) -> str:
        return f"{self.kind} {self.victim} at {self.moment:.0%}"


def draw_faults(seed: int, *, workers: int, servers: int) -> list[Fault]:
    """Two workers and one server, in an order and at moments of the seed."""
    rng = random.Random(seed)
    kinds: list[Kind] = ["worker", "worker", "server"]
    rng.shuffle(kinds)
    return [
        Fault(kind, rng.randrange(workers if kind == "worker" else servers), rng.uniform(*window))
        for kind, window in zip(kinds, WINDOWS, strict=True)
    ]
