"""The handle of an application of several parts: what the handle of one region is, for all of them.

Rules of this file: it asks the parts and joins what they say; it decides nothing for them. A part that fails
ends by itself: the others go on, until they have read what it had put out.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from checkpoint import RegionStatus
from checkpoint.coordinator.listeners import RegionListener


class Application:
    """Several parts that run at once. Every method may be called from any thread.

    `parts`: by name, to ask or tell one of them alone. A listener hears of all; each report has the name of
    its part.
    """

    def __init__(
        self, name: str, parts: Mapping[str, Any], *, without_cuts: frozenset[str] = frozenset()
    ) -> None:
        self.name = name
        self.parts = dict(parts)
        self._without_cuts = without_cuts

    def __repr__(self) -> str:
        states = ", ".join(f"{name}: {status.state.value}" for name, status in self.status.items())
        return f"<Application {self.name}: {states}>"

    @property
    def status(self) -> dict[str, RegionStatus]:
        """A snapshot of each part."""
        return {name: _status(part) for name, part in self.parts.items()}

    @property
    def isActive(self) -> bool:  # noqa: N802  # Spark's name
        """Whether any part has not ended yet."""
        return any(not status.state.is_end for status in self.status.values())

    @property
    def lastProgress(self) -> dict[str, dict[str, Any] | None]:  # noqa: N802  # Spark's name
        """The report of each part's last committed cut."""
        return {name: part.lastProgress for name, part in self.parts.items()}

    @property
    def recentProgress(self) -> dict[str, list[dict[str, Any]]]:  # noqa: N802  # Spark's name
        """The reports of each part's last cuts, oldest first."""
        return {name: part.recentProgress for name, part in self.parts.items()}

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802  # Spark's name
        """Wait until every part has ended, at most `timeout` seconds. Returns whether they have.

        Raises what `exception()` gives as soon as a part is FAILED or FENCED; the others run on then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            failure = self.exception()
            if failure is not None:
                raise failure
            running = self._running()
            if not running:
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            running[0].wait(_POLL_S if left is None else min(left, _POLL_S))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until every part has ended, well or not; False at the time-out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for part in self.parts.values():
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not part.wait(left):
                return False
        return True

    def exception(self) -> Exception | None:
        """Why the first part that FAILED, or is FENCED, did so; None if none is."""
        return next((error for part in self.parts.values() if (error := part.exception())), None)

    def stop(self) -> None:
        """Stop every part, those first that others read: each takes a last cut. A later `run` goes on from
        there.
        """
        for part in self.parts.values():
            part.stop()

    def checkpoint(self, timeout: float | None = None) -> dict[str, int]:
        """Commit a cut in every consistent region that has not ended; their numbers. Raises
        RegionFailedError when one had none in `timeout` s.
        """
        return {
            name: part.checkpoint(timeout)
            for name, part in self.parts.items()
            if name not in self._without_cuts and not _status(part).state.is_end
        }

    def addListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Tell this listener what happens in every part, from now on."""
        for part in self.parts.values():
            part.addListener(listener)

    def removeListener(self, listener: RegionListener) -> None:  # noqa: N802  # Spark's name
        """Tell it no more."""
        for part in self.parts.values():
            part.removeListener(listener)

    def _running(self) -> list[Any]:
        return [part for part in self.parts.values() if not _status(part).state.is_end]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)


_POLL_S = 0.2


def _status(part: Any) -> RegionStatus:
    """A control's is a method, a handle's an attribute."""
    found = part.status
    status: RegionStatus = found() if callable(found) else found
    return status
