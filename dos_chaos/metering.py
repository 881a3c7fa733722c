"""The meter of a run: it spreads the writers' bytes over the time, keeps them in the budget, and measures.

The space is measured twice a second. A member that is down takes its bytes later, so the budget counts what
all members will have in the end, not only what the disks have now.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from dos_chaos.core.measures import Measures
from dos_protocol.limits import KIB, MIB

MEASURE_EVERY_S: Final = 0.5
OVERHEAD_MIN: Final = 1.15
"""Bytes on one disk for each byte of payload: record headers, extent headers, half-filled blocks."""
BURST_BYTES: Final = 64 * KIB
HELD_BACK_BYTES: Final = 4 * MIB
"""Kept for the records after the last fault, and for the take-overs of the checks."""


class BudgetMeter:
    """Implements `workload.Meter` for all writers of a run.

    Disks hold at most `limit_bytes`. `used`: measures what they hold now. It returns 0 if that cannot be
    seen; then the sum of what was appended decides. Nothing may be appended before `begin`.
    `stopped_by_budget`: the budget was used up before the end.
    """

    def __init__(
        self,
        measures: Measures,
        *,
        limit_bytes: int,
        copies: int,
        seconds: float,
        used: Callable[[], Awaitable[int]],
    ) -> None:
        self.used_bytes = 0
        self.used_bytes_max = 0
        self.payload_bytes = 0
        self.stopped_by_budget = False
        self.begun = trio.current_time()
        self._measures = measures
        self._limit = limit_bytes
        self._copies = copies
        self._seconds = seconds
        self._used = used
        self._held_back = HELD_BACK_BYTES
        self._rate = 0.0
        self._tokens = 0.0
        self._filled = self.begun
        self._overhead = OVERHEAD_MIN

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return trio.current_time() - self.begun

    def begin(self) -> None:
        """Start the clock of the run, and the appends."""
        self.begun = self._filled = trio.current_time()
        self._tokens = float(BURST_BYTES)

    async def run(self) -> None:
        """Measure the space, and set the rate, until cancelled."""
        while True:
            await self.measure()
            await trio.sleep(MEASURE_EVERY_S)

    async def measure(self) -> None:
        """Measure the space once, and set the rate at which the rest of the budget is spent."""
        seen = await self._used()
        expected = int(self.payload_bytes * self._copies * self._overhead)
        self.used_bytes = seen or expected
        self.used_bytes_max = max(self.used_bytes_max, self.used_bytes)
        if self.payload_bytes > MIB:
            self._overhead = max(self._overhead, seen / (self.payload_bytes * self._copies))
        left = self._limit - self._held_back - max(seen, expected)
        self.stopped_by_budget |= left <= 0 and self.now < self._seconds
        left_s = max(2.0, self._seconds - self.now)
        self._rate = max(0.0, left / (self._copies * self._overhead * left_s))
        self._fill()

    def release_rest(self) -> None:
        """Allow a few records again after the faults, from what was held back."""
        self._held_back //= 2
        self._rate, self._tokens = float(BURST_BYTES), float(BURST_BYTES)
        self._filled = trio.current_time()

    def ready(self) -> bool:
        self._fill()
        return self._tokens > 0

    async def wait_ready(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.ready():  # noqa: ASYNC110 - time makes it ready
            await trio.sleep(min(MEASURE_EVERY_S, max(0.002, -self._tokens / max(self._rate, 1.0))))

    def appended(self, payload_bytes: int) -> None:
        self.payload_bytes += payload_bytes
        self._tokens -= payload_bytes

    def acknowledged(self, directory: str, sent_s: list[float]) -> None:
        self._measures.add(directory, self.now, [sent - self.begun for sent in sent_s])

    def _fill(self) -> None:
        now = trio.current_time()
        self._tokens = min(BURST_BYTES, self._tokens + self._rate * (now - self._filled))
        self._filled = now
