"""Calls after a delay, on trio's clock, by one task.

Calls are ordered by time, then by when they were requested. They must not block.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio


class MemoryTimers:
    """The pending calls. `run` is the task that makes them; without it they wait."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._sleep = trio.CancelScope()
        """The scope in which `run` waits; its deadline is the time of the next call."""

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call after so many seconds."""
        due = trio.current_time() + seconds
        heapq.heappush(self._heap, (due, next(self._numbers), call))
        if self._heap[0][0] == due:
            self._sleep.deadline = due

    async def run(self) -> None:
        """Make calls until cancelled."""
        heap = self._heap
        while True:
            while heap and heap[0][0] <= trio.current_time():
                heapq.heappop(heap)[2]()
            with trio.CancelScope(deadline=heap[0][0] if heap else math.inf) as self._sleep:
                await trio.sleep_forever()
