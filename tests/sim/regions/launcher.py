"""The launcher of a driver, like Spark: starts attempts of workers, cancels them, reports their end.

It has the guarantees of `checkpoint.core.region.Launcher`: one process of a worker at a time; the end of each
start is reported once. It starts nothing for a dead driver, and reports nothing to it.
"""

from typing import TYPE_CHECKING

from checkpoint.core.coordinator_vocabulary import WorkerEnded

if TYPE_CHECKING:
    from tests.sim.regions.driver import Driver
    from tests.sim.regions.worker import Worker


class Launcher:
    """The launcher of one driver."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._running: dict[int, Worker] = {}
        self._cancelled: set[int] = set()
        """Workers whose attempt was canceled before it ran."""
        self._waiting: dict[int, list[int]] = {}

    def start(self, worker: int, attempt: int) -> None:
        """Start an attempt after the earlier attempts of this worker have ended."""
        self._waiting.setdefault(worker, []).append(attempt)
        if worker not in self._running and len(self._waiting[worker]) == 1:
            self._later(worker)

    def cancel(self, worker: int) -> None:
        """Kill the process after a while, also if it is paused."""
        process = self._running.get(worker)
        if process is not None:
            self._driver.after(0.02 + 0.2 * self._rng(), lambda: process.die("cancelled"))
        elif self._waiting.get(worker):
            self._cancelled.add(worker)

    def ended(self, process: "Worker", error: str | None) -> None:
        """A process has ended; report it to the driver after a delay."""
        driver, worker = self._driver, process.index
        if self._running.get(worker) is process:
            del self._running[worker]
        event = WorkerEnded(worker, process.attempt, error)
        driver.after(0.01 + 0.2 * self._rng(), lambda: driver.post(event))
        if self._waiting.get(worker):
            self._later(worker)

    def _later(self, worker: int) -> None:
        self._driver.after(0.05 + 0.3 * self._rng(), lambda: self._launch(worker))

    def _launch(self, worker: int) -> None:
        driver = self._driver
        attempt = self._waiting[worker].pop(0)
        if worker in self._cancelled or driver.end is not None:
            self._cancelled.discard(worker)
            driver.post(WorkerEnded(worker, attempt, "cancelled before it ran"))
            if self._waiting[worker]:
                self._later(worker)
            return
        self._running[worker] = driver.region.new_worker(driver, worker, attempt)

    def _rng(self) -> float:
        return self._driver.rng.random()
