"""The nemesis: draws faults from a seed and injects them, and keeps a writer in every directory.

A seed determines for each lane the order and the details of its faults. The relative times of the lanes
depend on the machine.
"""

import random
from collections import Counter
from collections.abc import Iterable

import trio

from tests.chaos.cluster import Cluster
from tests.chaos.faults import LANES, Act, Say

LOOK_EVERY_S = 0.05
CAN_STOP_ALL = ("network", "servers")
"""Lanes whose faults may separate writers from a quorum."""


class Nemesis:
    """`counts`: faults by kind. `longest_s`: the longest fault that could make a quorum unavailable. `stop`:
    no new faults; `run` returns when the last one is over."""

    def __init__(
        self, cluster: Cluster, seed: int, say: Say, lanes: Iterable[str] = tuple(LANES), pace: float = 1.0
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.longest_s = 0.0
        self.lanes = tuple(lanes)
        self._cluster = cluster
        self._seed = seed
        self._say = say
        self._pace = pace
        self._stopping = trio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for lane in self.lanes:
                nursery.start_soon(self._lane, lane)

    async def _lane(self, lane: str) -> None:
        pause_s, weights = LANES[lane]
        rng = random.Random(f"{self._seed}/{lane}")
        while True:
            with trio.move_on_after(rng.expovariate(self._pace / pause_s)):
                await self._stopping.wait()
                return
            fault = rng.choices(list(weights), list(weights.values()))[0]
            self.counts[fault.__name__] += 1
            begun = trio.current_time()
            await fault(Act(self._cluster, random.Random(rng.random()), self._say))
            if lane in CAN_STOP_ALL:
                self.longest_s = max(self.longest_s, trio.current_time() - begun)


async def keep_writers(cluster: Cluster) -> None:
    """Start a writer in every directory that has none. Runs until cancelled."""
    while True:
        for directory in cluster.writers:
            if not cluster.living(directory):
                await cluster.add_writer(directory)
        await trio.sleep(LOOK_EVERY_S)


class Pauses:
    """The longest time in which a directory had nothing acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self.longest_s = 0.0
        self._cluster = cluster
        self._last: dict[str, tuple[int, float]] = {}

    async def watch(self) -> None:
        """Runs until cancelled."""
        while True:
            self.inspect(trio.current_time())
            await trio.sleep(LOOK_EVERY_S)

    def inspect(self, now: float) -> None:
        for directory in self._cluster.writers:
            count = self._cluster.acknowledged_in(directory)
            before, since = self._last.get(directory, (0, now))
            if count > before:
                self.longest_s = max(self.longest_s, now - since if before else 0.0)
                self._last[directory] = (count, now)
            else:
                self._last.setdefault(directory, (0, now))
