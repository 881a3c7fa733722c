"""The launcher of a driver, like Spark: starts attempts of workers, cancels them, reports their end.

It has the guarantees of `checkpoint.core.region.Launcher`: one process of a worker at a time, unless one is
started beside another; the end of each start is reported once. It starts nothing for a dead driver, and
reports nothing to it.
"""

from typing import TYPE_CHECKING

from checkpoint.core.coordination.vocabulary import WorkerEnded

if TYPE_CHECKING:
    from tests.sim.regions.driver import Driver
    from tests.sim.regions.worker import Worker


class Launcher:
    """The launcher of one driver."""

    standbys = 0
    """`has_standby` draws it."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._running: dict[tuple[int, int], Worker] = {}
        """(worker, attempt) -> its process."""
        self._waiting: dict[int, list[int]] = {}
        """Worker -> the attempts that start after its earlier ones have ended."""
        self._beside: set[tuple[int, int]] = set()
        """(worker, attempt) that start beside one that runs."""
        self._cancelled: set[tuple[int, int]] = set()
        """Attempts that were canceled before they ran."""

    def start(self, worker: int, attempt: int, *, beside: bool = False) -> None:
        """Start an attempt; unless `beside`, after the earlier attempts of this worker have ended."""
        if beside:
            self._beside.add((worker, attempt))
            self._driver.after(0.05 + 0.3 * self._rng(), lambda: self._start_beside(worker, attempt))
            return
        self._waiting.setdefault(worker, []).append(attempt)
        if not self._runs(worker) and len(self._waiting[worker]) == 1:
            self._later(worker)

    def cancel(self, worker: int, attempt: int) -> None:
        """Kill the process after a while, also if it is paused."""
        process = self._running.get((worker, attempt))
        if process is not None:
            self._driver.after(0.02 + 0.2 * self._rng(), lambda: process.die("cancelled"))
        elif attempt in self._waiting.get(worker, ()) or (worker, attempt) in self._beside:
            self._cancelled.add((worker, attempt))

    def has_standby(self) -> bool:
        """Draw whether a stand-by waits. If not, a worker that is taken over runs on its host."""
        return self._rng() < 0.5

    def host(self, host: int, worker: int, attempt: int) -> None:
        """Let the newest process of a host run another worker as well, until it ends."""
        region = self._driver.region
        hosts = [one for one in region.living_workers() if one.index == host and one.driver is self._driver]
        if hosts:
            region.saw("a worker runs on its host")
            hosts[-1].hosted.append(region.new_worker(self._driver, worker, attempt))

    def ended(self, process: "Worker", error: str | None) -> None:
        """A process has ended; report it to the driver after a delay."""
        driver, worker = self._driver, process.index
        self._running.pop((worker, process.attempt), None)
        event = WorkerEnded(worker, process.attempt, error)
        driver.after(0.01 + 0.2 * self._rng(), lambda: driver.post(event))
        if self._waiting.get(worker) and not self._runs(worker):
            self._later(worker)

    def _runs(self, worker: int) -> bool:
        return any(index == worker for index, _ in (*self._running, *self._beside))

    def _later(self, worker: int) -> None:
        self._driver.after(0.05 + 0.3 * self._rng(), lambda: self._launch(worker))

    def _launch(self, worker: int) -> None:
        self._run(worker, self._waiting[worker].pop(0))
        if self._waiting[worker] and not self._runs(worker):
            self._later(worker)

    def _start_beside(self, worker: int, attempt: int) -> None:
        self._beside.discard((worker, attempt))
        self._run(worker, attempt)

    def _run(self, worker: int, attempt: int) -> None:
        driver = self._driver
        if (worker, attempt) in self._cancelled or driver.end is not None:
            self._cancelled.discard((worker, attempt))
            driver.post(WorkerEnded(worker, attempt, "cancelled before it ran"))
            return
        self._running[worker, attempt] = driver.region.new_worker(driver, worker, attempt)

    def _rng(self) -> float:
        return self._driver.rng.random()
