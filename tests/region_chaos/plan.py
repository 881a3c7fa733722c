"""What is broken in a run, and when: drawn from its seed. Pure.

A seed determines the faults, their order and the number of checkpoints before each; how they fall together in
time, the machine decides.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FAULTS_MIN: Final = 2
FAULTS_MAX: Final = 4
CHECKPOINTS_BETWEEN_MAX: Final = 2
DELAY_S_MAX: Final = 0.4
"""A checkpoint every 0.2 s, so that faults happen at any moment of one."""
DOWN_S: Final = (0.5, 4.0)


class Kind(StrEnum):
    """What can happen."""

    worker = "worker"
    """SIGKILL of a worker's process."""
    server = "server"
    """SIGKILL of a server, which is started again on its data after a while."""
    driver = "driver"
    """SIGKILL of the driver, and another one with the same name and store."""
    hang = "hang"
    """SIGSTOP of a worker."""
    link = "link"
    """The connections between the two workers end."""


DEFAULT: Final = (Kind.worker, Kind.server, Kind.driver)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: after so many more checkpoints and seconds."""

    kind: Kind
    victim: int
    checkpoints: int
    delay_s: float
    down_s: float = 0.0

    def __str__(self) -> str:
        names = {Kind.driver: "driver killed", Kind.link: "link broken"}
        what = {Kind.hang: "stopped"}.get(self.kind, "killed")
        who = "worker" if self.kind is Kind.hang else self.kind.value
        return names.get(self.kind, f"{who} {self.victim} {what}")


def draw(seed: int, kinds: Sequence[Kind], *, workers: int, servers: int) -> list[Fault]:
    """The faults of one run. Its driver dies once at most: a Spark session takes seconds to start."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    for _ in range(rng.randint(FAULTS_MIN, FAULTS_MAX)):
        left = [kind for kind in kinds if kind is not Kind.driver or all(f.kind is not kind for f in faults)]
        kind = rng.choice(left or list(kinds))
        victim = rng.randrange(servers if kind is Kind.server else workers)
        checkpoints, delay_s = rng.randint(0, CHECKPOINTS_BETWEEN_MAX), rng.uniform(0, DELAY_S_MAX)
        faults.append(Fault(kind, victim, checkpoints, delay_s, rng.uniform(*DOWN_S)))
    return faults
