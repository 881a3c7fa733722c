"""Entry points over an entry store, in a simulation: when a reader sees what they record, and their marks.

Each source has an entry point at its server, which gives rows their times with the code of the real one
(`OriginTime`) and writes them to each server of the entry store. A reader sees what a majority of these
servers has told it of.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from checkpoint import EntrySettings, OriginTime
from sites.core.description import Description
from tests.sites.simulation.network import Network, Times

CLOCK_ERROR_S: Final = 0.25
"""Clocks of entry points differ by at most this from the time of the trace (E6 of the design)."""
_US: Final = 1_000_000


class EntryStore:
    """The servers of an entry store, and the clocks of the entry points by server."""

    def __init__(self, network: Network, members: Sequence[str], seed: int) -> None:
        self._network = network
        self.members = tuple(members)
        self._majority = len(self.members) // 2 + 1
        rng = np.random.default_rng([seed, 30])
        self._clocks = dict(
            zip(
                network.servers, rng.uniform(-CLOCK_ERROR_S, CLOCK_ERROR_S, len(network.servers)), strict=True
            )
        )

    def visible(self, sources: Sequence[str], reader: str, sent: Times) -> Times:
        """Return when a reader sees what is recorded. sent: [time, source], when an entry point has it."""
        told = []
        for member in self.members:
            there = self._network.arrive(self._network.links([*sources], member), sent)
            told.append(self._network.arrive(self._network.links([member], reader)[0], there))
        times: Times = np.sort(np.stack(told), axis=0)[self._majority - 1]
        return times

    def marked(self, sources: Sequence[str], rounds: Times) -> Times:
        """Return when the entry point of each source gives a mark at or above its row of a round."""
        return np.stack([self._marked(source, rounds) for source in sources], axis=1)

    def _marked(self, source: str, rounds: Times) -> Times:
        offset, settings = self._clocks[source], EntrySettings()
        origin = OriginTime(settings, 1, None)
        origin.begin(int((rounds[0] + offset) * _US) - 1)
        every_s = settings.marks_every_us / _US
        found = np.empty(len(rounds))
        for number, now in enumerate(rounds + offset):
            time = origin.stamp(int(now * _US))
            due = (now // every_s + 1) * every_s
            while origin.mark < time:
                origin.next_mark(round(due * _US), version=1)
                found[number] = due - offset
                due += every_s
        return found


def entry_members(description: Description, count: int) -> list[str]:
    """Return the servers of an entry store: those with the least sum of latencies to all, far from one
    another.
    """
    latency, distance = description.latencies(), description.distances()
    names = [site.name for site in description.sites]
    by_cost = sorted(names, key=lambda one: (sum(latency[one, other] for other in names), one))
    found: list[str] = []
    for one in by_cost:
        if len(found) < count and all(distance[one, other] > description.distance_ms for other in found):
            found.append(one)
    return found + [one for one in by_cost if one not in found][: count - len(found)]
