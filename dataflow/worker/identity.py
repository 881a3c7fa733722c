"""The identity of a worker, and its clock."""

import time
from typing import NamedTuple


class Clock:
    """The clock that a circuit uses. The simulator replaces it."""

    @staticmethod
    def seconds() -> float:
        """Return seconds of a monotonic clock, to measure durations."""
        return time.perf_counter()

    @staticmethod
    def wall_ms() -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000


class Identity(NamedTuple):
    """Region and worker of a process."""

    region: str
    worker: int
    scratch: str = ""
    """A directory for data that need not survive; '': the directory for temporary files."""
