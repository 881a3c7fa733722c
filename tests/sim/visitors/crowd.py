"""Decide which runs have visitors, and start them. They run from the begin of a run to its end."""

from typing import TYPE_CHECKING, Final

from tests.sim.engine.random_streams import RandomStreams
from tests.sim.visitors.version0 import Visitor0
from tests.sim.visitors.version1 import Visitor1
from tests.sim.visitors.visitor import Visitor

if TYPE_CHECKING:
    from tests.sim.run import Cluster

SHARE: Final = 0.1
"""The share of the runs that have visitors."""


def has_visitors(rng: RandomStreams) -> bool:
    """Return whether that seed's run has visitors. The result is the same for each call."""
    return rng.stream("visitors").random() < SHARE


class Crowd:
    """The visitors of a run: two or three of version 0, two of version 1."""

    def __init__(self, cluster: "Cluster") -> None:
        rng = cluster.rng
        kinds: list[type[Visitor]] = [Visitor0] * rng.stream("crowd").choice([2, 3]) + [Visitor1] * 2
        self._network = cluster.network
        self._machines = cluster.machines
        self.visitors = [
            kind(f"v{number}", cluster.network, cluster.known, rng.stream(f"visitor {number}"))
            for number, kind in enumerate(kinds)
        ]

    def leave(self) -> None:
        """Kill all visitors."""
        for one in self.visitors:
            self._network.process_died(one, power=False)
            one.kill()

    def judge(self) -> None:
        """Check the files of all machines at the end of a run. Raises ViolationError."""
        for machine in self._machines:
            machine.loose.judge()
