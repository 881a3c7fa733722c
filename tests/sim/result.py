"""The result of one run, of either tier."""

from dataclasses import dataclass, field

from tests.sim.history import History
from tests.sim.nemesis.fault import Fault


@dataclass
class Result:
    """The result of a run. `violation`: '' if there was none; `steps`: of the environment, or of trio's
    tasks."""

    seed: int
    violation: str
    oracle: str
    faults: list[Fault]
    steps: int
    seconds: float
    """Virtual."""
    digest: str
    history: History
    lines: list[str] = field(default_factory=list)
