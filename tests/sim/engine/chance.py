"""One seed, and a stream of random numbers for each purpose, so that a draw more for one shifts no other."""

import random


class Chance:
    """The streams of a run. Strings seed them: the same in every process, whatever its hash seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.topology = self.stream("topology")
        self.workload = self.stream("workload")
        self.disk = self.stream("disk")
        self.network = self.stream("network")
        self.nemesis = self.stream("nemesis")
        self.scheduler = self.stream("scheduler")

    def stream(self, purpose: str) -> random.Random:
        """A stream of its own."""
        return random.Random(f"{self.seed}/{purpose}")
