"""The description of one fault."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.run import Cluster


@dataclass(frozen=True)
class Fault:
    """One fault: its number in the plan, its moment, kind and length, and a seed for its details."""

    number: int
    at_s: float
    kind: str
    seconds: float
    seed: str

    def __str__(self) -> str:
        return f"{self.number}:{self.kind}"


Kind = Callable[["Cluster", Fault, Random], None]


def by_name(*kinds: Kind) -> dict[str, Kind]:
    """Return a table of kinds, by the names of their functions."""
    return {kind.__name__: kind for kind in kinds}
