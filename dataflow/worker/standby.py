"""Processes that stand by: they have imported everything, and wait at their standard input for a worker's
specification.

Rules of this file: when they are started, who takes one, and their end. What a process of a worker is, and
what it is told, is `local.py`'s.

A new worker's process spends most of its time before it can join on imports. One that stands by has them
behind it. It is started when the region runs, or runs again, so that it never takes the processor from
workers that are starting.
"""

import logging
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from checkpoint.coordinator.control import RegionListener

logger = logging.getLogger("dos.dataflow")

Process = subprocess.Popen[bytes]


class Standby(RegionListener):
    """At most `count` processes that stand by. Every method may be called from any thread.

    `begin` starts a process that ends by itself when its standard input ends without a word: so none
    outlives this process, however it ends.
    """

    def __init__(self, begin: Callable[[], Process], count: int) -> None:
        self._begin = begin
        self._count = count
        self._lock = threading.Lock()
        self._waiting: list[Process] = []
        self._over = False

    def take(self) -> Process | None:
        """One that lives, if there is one: it is the caller's now."""
        with self._lock:
            while self._waiting:
                process = self._waiting.pop(0)
                if process.poll() is None:
                    return process
                _let_go(process)
                logger.warning("a process that stood by ended with exit code %s", process.returncode)
        return None

    def fill(self) -> None:
        """Start as many as are missing."""
        with self._lock:
            while not self._over and len(self._waiting) < self._count:
                try:
                    self._waiting.append(self._begin())
                except OSError as error:  # it costs time at the next reset, and nothing else
                    logger.warning("no process stands by: %s", error)
                    return

    def end(self) -> None:
        """Let all of them end, and start no more."""
        with self._lock:
            self._over = True
            processes, self._waiting = self._waiting, []
        for process in processes:
            process.kill()  # perhaps it still imports
            process.wait()
            _let_go(process)

    def onStart(self, start: dict[str, Any]) -> None:  # noqa: N802
        del start
        self.fill()

    def onReset(self, reset: dict[str, Any]) -> None:  # noqa: N802
        del reset
        self.fill()

    def onTerminated(self, end: dict[str, Any]) -> None:  # noqa: N802
        del end
        self.end()


def _let_go(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
