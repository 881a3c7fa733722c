"""Who runs, and by what clock."""

import time
from typing import NamedTuple


class Clock:
    """What a circuit is told of time. The simulator has one of its own."""

    @staticmethod
    def seconds() -> float:
        """For measuring how long things take."""
        return time.perf_counter()

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000


class Identity(NamedTuple):
    """Who runs."""

    region: str
    worker: int
    workers: int
    scratch: str = ""
    """A directory for what need not last; '': the one for temporary files."""
