"""Which stand-by jobs of a region run, and which have become workers. Pure: the launcher performs it.

A stand-by is a Spark job of one task that waits to become a worker. Rules:

- Stand-bys are submitted one after the other, and only while the region runs: while workers start, they would
  take slots and processor time from them.
- When a worker is submitted as a job of its own, stand-bys that do not wait yet are canceled: their jobs may
  be ahead of the worker's in Spark's queue for slots.
- A stand-by that ended while it waited is replaced after a delay, which doubles each time, up to a maximum,
  until one has become a worker. It is no loss of a worker. The same delay follows a shortage of slots.
- Spark ignores a cancel until it knows the job, so cancels are repeated until the job has ended.
- The end of the job of a stand-by that has become a worker is the end of that attempt.
- When the region ends, the links of waiting stand-bys end, and so do these. What is left is canceled after
  `END_S`.

| state of a stand-by | what follows                                                                         |
|---------------------|--------------------------------------------------------------------------------------|
| live                | assigned (`assigned`), canceled (`cancel`, `worker_submitted`, `tick`), or its end   |
| canceled, assigned  | its end (`ended`)                                                                    |
"""

from collections.abc import Collection
from math import inf
from typing import Final

AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
"""The delay after a stand-by ended while it waited, or there was no slot for it."""
END_S: Final = 0.5


class StandbyJobs:
    """The stand-bys of one region, by number. `now` is in seconds of a monotonic clock.

    `live`: those that wait, or will wait. `canceled`: those whose jobs have not ended yet.
    """

    def __init__(self, count: int) -> None:
        self.live: set[int] = set()
        self.canceled: set[int] = set()
        self._assigned: dict[int, tuple[int, int]] = {}
        """Number -> the worker and the attempt that it has become."""
        self._count = count
        self._last = 0
        self._not_before = -inf
        self._delay_s = AGAIN_S
        self._is_short = False
        self._over_at = inf

    @property
    def is_idle(self) -> bool:
        """Whether no stand-by runs. One that has become a worker is not counted here."""
        return not self.live and not self.canceled

    def number_of(self, worker: int, attempt: int) -> int | None:
        """Return the stand-by that has become this attempt, None if the attempt has a job of its own."""
        return next((one for one, became in self._assigned.items() if became == (worker, attempt)), None)

    def is_due(self, now: float) -> bool:
        """Return whether another stand-by is to be submitted, if the region runs and there is a slot."""
        return len(self.live) < self._count and self._not_before <= now < self._over_at

    def submit(self) -> int:
        """Note that another stand-by is submitted. Return its number."""
        self._last += 1
        self.live.add(self._last)
        self._is_short = False
        return self._last

    def no_slot(self, now: float) -> bool:
        """Note that there is no slot for another one. Return whether to report it: once in a row."""
        self._wait(now)
        reported, self._is_short = self._is_short, True
        return not reported

    def assigned(self, number: int, worker: int, attempt: int) -> None:
        """Note that a live stand-by has become an attempt of a worker."""
        self.live.remove(number)
        self._assigned[number] = (worker, attempt)
        self._delay_s = AGAIN_S

    def worker_submitted(self, waiting: Collection[int]) -> list[int]:
        """Return which stand-bys to cancel, because a worker is submitted as a job of its own.

        waiting: those that have a slot and are ready.
        """
        return self.cancel(self.live.difference(waiting))

    def cancel(self, numbers: Collection[int]) -> list[int]:
        """Note that stand-bys are canceled. Return the live ones among `numbers`: cancel their jobs."""
        chosen = sorted(self.live.intersection(numbers))
        self.live.difference_update(chosen)
        self.canceled.update(chosen)
        return chosen

    def ended(self, number: int, now: float) -> tuple[int, int] | None:
        """Note the end of a job. Return the attempt (worker, attempt) that has ended with it, None if none
        has.
        """
        if number in self.live:
            self.live.remove(number)
            self._wait(now)
        self.canceled.discard(number)
        return self._assigned.pop(number, None)

    def tick(self, now: float, *, over: bool) -> list[int]:
        """Return the stand-bys to cancel, again or because the region is over. Call it every half second."""
        if over:
            self._over_at = min(self._over_at, now)
        if now >= self._over_at + END_S:
            self.cancel(self.live)
        return sorted(self.canceled)

    def _wait(self, now: float) -> None:
        self._not_before = now + self._delay_s
        self._delay_s = min(2 * self._delay_s, AGAIN_MAX_S)
