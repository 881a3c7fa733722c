"""Listeners of a region, in the manner of Spark's `StreamingQueryListener`: user code that is told what
happens.

Rules of this file: user code runs on a thread of its own here, never on the coordinator's, one call at a
time and in order. What it raises is logged and changes nothing. A listener that is slow holds up other
listeners of the same region, and nothing else; what is told meanwhile waits, at most `TOLD_MAX` progress
reports of it.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

logger: Final = logging.getLogger("dos.checkpoint")

TOLD_MAX: Final = 1_000
"""Progress reports that wait for slow listeners; more are left out, and the log says so."""


class RegionListener:
    """Override what you want to hear of. Arguments are plain JSON values; docs/operating-regions.md names
    them.

    A listener hears `onStart` before anything else, also when it was added later, and `onTerminated`
    last. A region that ends before it ever ran has no `onStart`.
    """

    def onStart(self, start: dict[str, Any]) -> None:  # noqa: N802  # as Spark spells such names
        """The region runs for the first time under this driver: all workers stand at the last cut."""

    def onProgress(self, progress: dict[str, Any]) -> None:  # noqa: N802
        """A cut was committed; the report is what `lastProgress` gives."""

    def onReset(self, reset: dict[str, Any]) -> None:  # noqa: N802
        """A reset is complete: the region runs again, from its last cut."""

    def onTerminated(self, end: dict[str, Any]) -> None:  # noqa: N802
        """The region has ended: FINISHED, STOPPED, FAILED or FENCED."""


class Listeners:
    """The listeners of one region. `tell` may be called from any thread and never blocks."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._listeners: list[RegionListener] = []
        self._start: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None
        self._queue: queue.SimpleQueue[tuple[list[RegionListener], str, dict[str, Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._left_out = 0

    def add(self, listener: RegionListener) -> None:
        """From now on it is told; what it missed of start and end, at once."""
        with self._lock:
            if self._end is not None:
                self._tell_late(listener, self._end)
                return
            self._listeners.append(listener)
            if self._thread is None:
                self._thread = self._begin(self._run)
            if self._start is not None:
                self._queue.put(([listener], "onStart", self._start))

    def _tell_late(self, listener: RegionListener, end: dict[str, Any]) -> None:
        """The region is over: a thread for this listener alone."""
        start = self._start

        def tell() -> None:
            if start is not None:
                self._call(listener, "onStart", start)
            self._call(listener, "onTerminated", end)

        self._begin(tell)

    def _begin(self, run: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"dos-{self._region}-listeners", daemon=True)
        thread.start()
        return thread

    def remove(self, listener: RegionListener) -> None:
        """It is told nothing that happens from now on. No-op if it was not added."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def started(self, start: dict[str, Any]) -> None:
        """Once: the region runs."""
        with self._lock:
            if self._start is None:
                self._start = start
                self._put("onStart", start)

    def tell(self, method: str, what: dict[str, Any]) -> None:
        """Progress, or a reset."""
        with self._lock:
            if method == "onProgress" and self._queue.qsize() >= TOLD_MAX:
                self._left_out += 1
                return
            if self._left_out:
                logger.warning(
                    "region %s: its listeners are slow, %d progress reports were left out",
                    self._region,
                    self._left_out,
                )
                self._left_out = 0
            self._put(method, what)

    def ended(self, end: dict[str, Any]) -> None:
        """Once: nothing follows."""
        with self._lock:
            if self._end is None:
                self._end = end
                self._put("onTerminated", end)
                self._queue.put(None)

    def wait_ended(self, timeout_s: float) -> None:
        """After `ended`: wait until all listeners have heard it. No-op on their own thread."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _put(self, method: str, what: dict[str, Any]) -> None:
        if self._listeners:
            self._queue.put((list(self._listeners), method, what))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            listeners, method, what = item
            for listener in listeners:
                self._call(listener, method, what)

    def _call(self, listener: RegionListener, method: str, what: dict[str, Any]) -> None:
        try:
            getattr(listener, method)(what)
        except Exception:  # the user's code; its failure must not end our telling
            logger.exception("region %s: %s of a listener failed", self._region, method)


__all__ = ["Listeners", "RegionListener"]
