"""The handle of a running region: what a `StreamingQuery` is to a streaming query, with its names.

The region itself is run by `checkpoint`'s coordinator; its workers are Spark jobs. The handle joins the two:
it keeps the last reports, and when the region has ended it cancels what is left of its jobs and stops what
was started for it.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from checkpoint.coordinator.control import RegionControl, RegionListener
from checkpoint.core.region import RegionEvent, RegionStatus, StateChanged
from spark_integration.launcher import SparkLauncher
from spark_integration.limits import JOBS_END_TIMEOUT_S, STOP_TIMEOUT_S, WATCH_S

log = logging.getLogger("dos.spark_integration")


class RegionEvents:
    """Events from the coordinator's thread, which must not block, on their way to the handle's."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[RegionEvent] = queue.SimpleQueue()
        self.failure: Exception | None = None
        """Why this driver gave the region up, where the region itself does not know."""

    def __call__(self, event: RegionEvent) -> None:
        self.queue.put(event)


class RegionHandle:
    """A region that was started by `run`. Every method may be called from any thread."""

    def __init__(
        self,
        name: str,
        control: RegionControl,
        launcher: SparkLauncher,
        events: RegionEvents,
        *,
        on_event: Callable[[RegionEvent], None] | None,
        at_end: Callable[[], None],
    ) -> None:
        self.name = name
        self._control = control
        self._launcher = launcher
        self._events = events
        self._on_event = on_event
        self._at_end = at_end
        self._cleaned = threading.Event()
        threading.Thread(target=self._watch, name=f"dos-{name}-watch", daemon=True).start()

    def __repr__(self) -> str:
        return f"<RegionHandle {self.name}: {self.status.state.value}>"

    @property
    def status(self) -> RegionStatus:
        """A snapshot: state and its reason, incarnation, last cut, workers, resets."""
        return self._control.status()

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's name
        """Whether the region has not ended yet."""
        return not self.status.state.is_end

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """The report of the last committed cut, None before the first."""
        return self._control.lastProgress

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802  # Spark's name
        """The reports of the last cuts, oldest first."""
        return self._control.recentProgress

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802  # Spark's name
        """Wait for the region's end, at most `timeout` seconds. Returns whether it has ended.

        Raises what `exception()` gives when it ended in FAILED or FENCED. A time-out leaves it running.
        """
        if not self._cleaned.wait(timeout):
            return False
        failure = self.exception()
        if failure is not None:
            raise failure
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """As `awaitTermination`, and raises nothing."""
        return self._cleaned.wait(timeout)

    def exception(self) -> Exception | None:
        """Why the region FAILED or is FENCED; None while it runs and after a good end."""
        return self._events.failure or self._control.exception()

    def stop(self) -> None:
        """Take a last cut, end the workers, wait until they have ended. A later `run` goes on from there.

        When that takes longer than a minute the jobs are cancelled: the region then goes on from the last cut
        that was committed.
        """
        self._control.stop()
        if not self._control.wait(STOP_TIMEOUT_S):
            log.warning("%s: not stopped after %.0f s; cancelling its jobs", self.name, STOP_TIMEOUT_S)
            self._launcher.close(JOBS_END_TIMEOUT_S)
        self._cleaned.wait(STOP_TIMEOUT_S)

    def checkpoint(self, timeout: float | None = None) -> int:
        """Commit a cut now and return its number. Raises RegionFailedError when none was had in `timeout`
        s.
        """
        return self._control.checkpoint(timeout)

    def reset(self) -> None:
        """Go back to the last committed cut, as after the loss of a worker. Spends no reset attempt."""
        self._control.reset()

    def pause(self, timeout: float | None = None) -> int:
        """Take no input until `resume`, once all that was taken is in a cut, whose number is returned.
        Workers keep their slots. Raises RegionFailedError when that took longer than `timeout` seconds.
        """
        return self._control.pause(timeout)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._control.resume()

    def savepoint(self, name: str, checkpoint: int = 0, timeout: float | None = None) -> int:
        """Create a savepoint: keep a checkpoint (0: the last) restorable under a name until
        `drop_savepoint`, also for later drivers. Returns the number of the checkpoint once a committed
        checkpoint records the savepoint.

        Raises LocalProtocolError with the reason if the savepoint cannot be created, because the checkpoint
        is released or the name is taken; RegionFailedError if that took longer than `timeout` seconds or the
        region ended.
        """
        return self._control.savepoint(name, checkpoint, timeout)

    def drop_savepoint(self, name: str, timeout: float | None = None) -> int:
        """Drop a savepoint; return the number of its checkpoint. Deletes what only that checkpoint needed.
        Raises as `savepoint`.
        """
        return self._control.drop_savepoint(name, timeout)

    def addListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Tell this listener, on a thread of its own, what happens from now on."""
        self._control.addListener(listener)

    def removeListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Tell it no more."""
        self._control.removeListener(listener)

    def _watch(self) -> None:
        ended = False
        while not ended:
            try:
                event = self._events.queue.get(timeout=WATCH_S)
            except queue.Empty:  # an end that the coordinator's own bug brought is told by no event
                ended = self._control.wait(0)
                continue
            self._tell(event)
            ended = isinstance(event, StateChanged) and event.state.is_end
        self._control.wait(JOBS_END_TIMEOUT_S)  # the end is told before its error is at hand
        if not self._launcher.wait_idle(JOBS_END_TIMEOUT_S):
            log.warning("%s: has ended, but not all its jobs; cancelling them", self.name)
        self._launcher.close(JOBS_END_TIMEOUT_S)
        self._at_end()
        self._cleaned.set()

    def _tell(self, event: RegionEvent) -> None:
        log.debug("%s: %s", self.name, event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # the user's observer; its failure must not end our watching
            log.exception("%s: the observer raised on %s", self.name, event)
