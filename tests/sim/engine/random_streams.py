"""A stream of random numbers for each purpose from one seed: one more draw from a stream shifts no other."""

import random


class RandomStreams:
    """The streams of a run. Strings seed them, so they do not depend on the hash seed of a process."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.topology = self.stream("topology")
        self.workload = self.stream("workload")
        self.disk = self.stream("disk")
        self.network = self.stream("network")
        self.nemesis = self.stream("nemesis")
        self.scheduler = self.stream("scheduler")

    def stream(self, purpose: str) -> random.Random:
        """Return the stream of one purpose. The text seeds it: another text is another run."""
        return random.Random(f"{self.seed}/{purpose}")
