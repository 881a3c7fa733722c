"""Stand-bys: they have imported everything and wait for a worker's specification on standard input."""

import logging
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from checkpoint.coordinator.control import RegionListener

logger = logging.getLogger("dos.dataflow")

Process = subprocess.Popen[bytes]


class Standby(RegionListener):
    """At most `count` stand-bys. Every method may be called from any thread. A process ends when its standard
    input ends without data, so none outlives this process.
    """

    # They are started when the region runs, again after a reset, or commits a checkpoint: they take no
    # processor time from workers that are starting.
    def __init__(self, begin: Callable[[], Process], count: int) -> None:
        self._begin = begin
        self._count = count
        self._lock = threading.Lock()
        self._waiting: list[Process] = []
        self._over = False

    def take(self) -> Process | None:
        """Return a live stand-by, which then belongs to the caller; None if there is none."""
        with self._lock:
            while self._waiting:
                process = self._waiting.pop(0)
                if process.poll() is None:
                    return process
                _close_input(process)
                logger.warning("a stand-by ended with exit code %s", process.returncode)
        return None

    @property
    def waiting(self) -> int:
        """How many wait. Never blocks."""
        return sum(process.poll() is None for process in [*self._waiting])

    def fill(self) -> None:
        """Start the missing processes."""
        with self._lock:
            while not self._over and len(self._waiting) < self._count:
                try:
                    self._waiting.append(self._begin())
                except OSError as error:  # only makes the next reset slower
                    logger.warning("cannot start a stand-by: %s", error)
                    return

    def end(self) -> None:
        """End all processes, and start no more."""
        with self._lock:
            self._over = True
            processes, self._waiting = self._waiting, []
        for process in processes:
            process.kill()  # closing its input is not enough while it imports
            process.wait()
            _close_input(process)

    def onStart(self, start: dict[str, Any]) -> None:  # noqa: N802
        del start
        self.fill()

    def onReset(self, reset: dict[str, Any]) -> None:  # noqa: N802
        del reset
        self.fill()

    def onProgress(self, progress: dict[str, Any]) -> None:  # noqa: N802
        del progress  # a checkpoint is committed: workers that were added have started
        self.fill()

    def onTerminated(self, end: dict[str, Any]) -> None:  # noqa: N802
        del end
        self.end()


def _close_input(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
