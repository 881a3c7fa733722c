"""Listeners of a region, like Spark's `StreamingQueryListener`: user code that is notified of events.

User code runs on a separate thread here, never on the coordinator's, one call at a time and in order. Its
exceptions are logged and have no other effect. A slow listener delays only the other listeners of the same
region; meanwhile at most `REPORTS_QUEUED_MAX` progress reports are queued.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from checkpoint.core.progress import reset_json
from checkpoint.core.region import (
    CheckpointCommitted,
    RegionEvent,
    RegionState,
    RegionStatus,
    ResetReport,
    StateChanged,
)
from checkpoint.runtime import this_driver, timestamp

logger: Final = logging.getLogger("dos.checkpoint")

REPORTS_QUEUED_MAX: Final = 1_000
"""The maximum number of progress reports queued for slow listeners. Further ones are dropped and logged."""


class RegionListener:
    """Base class of listeners: override the methods you need. Arguments are plain JSON values, listed in
    docs/operating-regions.md.

    `onStart` is called before anything else, also for a listener that is added later; `onTerminated` is
    called last. A region that ends before it ever ran has no `onStart`.
    """

    def onStart(self, start: dict[str, Any]) -> None:  # noqa: N802  # as Spark spells such names
        """Called when the region runs for the first time under this driver: all workers are at the last
        checkpoint.
        """

    def onProgress(self, progress: dict[str, Any]) -> None:  # noqa: N802
        """Called after a commit of a checkpoint; the report equals `lastProgress`."""

    def onReset(self, reset: dict[str, Any]) -> None:  # noqa: N802
        """Called after a reset: the region runs again, from its last checkpoint."""

    def onTerminated(self, end: dict[str, Any]) -> None:  # noqa: N802
        """Called when the region has ended: FINISHED, STOPPED, FAILED or FENCED."""


class Listeners:
    """The listeners of one region. `notify` may be called from any thread and never blocks."""

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
        self._dropped = 0

    def add(self, listener: RegionListener) -> None:
        """Add a listener. It receives all later events, and immediately the start and end if they have
        already happened.
        """
        with self._lock:
            if self._end is not None:
                self._notify_late(listener, self._end)
                return
            self._listeners.append(listener)
            if self._thread is None:
                self._thread = self._begin(self._run)
            if self._start is not None:
                self._queue.put(([listener], "onStart", self._start))

    def _notify_late(self, listener: RegionListener, end: dict[str, Any]) -> None:
        """Notify a listener that was added after the region's end, on a thread for this listener alone."""
        start = self._start

        def report() -> None:
            if start is not None:
                self._call(listener, "onStart", start)
            self._call(listener, "onTerminated", end)

        self._begin(report)

    def _begin(self, run: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"dos-{self._region}-listeners", daemon=True)
        thread.start()
        return thread

    def remove(self, listener: RegionListener) -> None:
        """Stop notifying a listener of new events. No effect if it was not added."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def observe(self, event: RegionEvent, status: RegionStatus, progress: dict[str, Any] | None) -> None:
        """Queue the report of an event, if it has one. progress: the report of the last checkpoint."""
        if isinstance(event, StateChanged) and event.state is RegionState.RUNNING:
            last_checkpoint = {"checkpoint": status.last_checkpoint, "step": status.last_checkpoint_step}
            self.started({**self.stamp(status), **last_checkpoint, "driver": this_driver()})
        elif isinstance(event, CheckpointCommitted) and progress is not None:
            self.notify("onProgress", progress)
        elif isinstance(event, ResetReport):
            self.notify("onReset", {**self.stamp(status), **reset_json(event)})

    def stamp(self, status: RegionStatus) -> dict[str, Any]:
        """Return what all reports have in common."""
        return {"name": self._region, "timestamp": timestamp(), "incarnation": status.incarnation}

    def started(self, start: dict[str, Any]) -> None:
        """Queue the start of the region. Only the first call has an effect."""
        with self._lock:
            if self._start is None:
                self._start = start
                self._put("onStart", start)

    def notify(self, method: str, what: dict[str, Any]) -> None:
        """Queue a progress report or a reset."""
        with self._lock:
            if method == "onProgress" and self._queue.qsize() >= REPORTS_QUEUED_MAX:
                self._dropped += 1
                return
            if self._dropped:
                logger.warning(
                    "region %s: its listeners are slow, %d progress reports were dropped",
                    self._region,
                    self._dropped,
                )
                self._dropped = 0
            self._put(method, what)

    def region_ended(self, status: RegionStatus, failure: Exception | None) -> None:
        """Queue the report of the end, as `ended`."""
        self.ended(
            {
                **self.stamp(status),
                "state": status.state.value,
                "reason": status.reason,
                "lastCheckpoint": status.last_checkpoint,
                "exception": None if failure is None else str(failure),
            }
        )

    def ended(self, end: dict[str, Any]) -> None:
        """Queue the end of the region. Only the first call has an effect; nothing follows."""
        with self._lock:
            if self._end is None:
                self._end = end
                self._put("onTerminated", end)
                self._queue.put(None)

    def wait_ended(self, timeout_s: float) -> None:
        """Wait after `ended` until all listeners were notified. No effect on their own thread."""
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
        except Exception:  # an exception in user code must not end the notifications
            logger.exception("region %s: %s of a listener failed", self._region, method)


__all__ = ["Listeners", "RegionListener"]
