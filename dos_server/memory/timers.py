"""What is to happen after a while, on trio's clock: one task for all of it.

Rules of this file: when. What is called must not block, and order is by time, then by who asked first.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio


class MemoryTimers:
    """See the module. `run` is the task; what is due while it does not run waits."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._sleep = trio.CancelScope()
        """What `run` waits in: its deadline is when the next is due."""

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it so much later."""
        due = trio.current_time() + seconds
        heapq.heappush(self._heap, (due, next(self._numbers), call))
        if self._heap[0][0] == due:
            self._sleep.deadline = due

    async def run(self) -> None:
        """Until cancelled."""
        heap = self._heap
        while True:
            while heap and heap[0][0] <= trio.current_time():
                heapq.heappop(heap)[2]()
            with trio.CancelScope(deadline=heap[0][0] if heap else math.inf) as self._sleep:
                await trio.sleep_forever()
