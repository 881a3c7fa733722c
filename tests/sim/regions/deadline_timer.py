"""A timer for the deadline of a core."""

from collections.abc import Callable

from tests.sim.engine.environment import Process


class DeadlineTimer:
    """Calls `on_due` with the deadline that was armed last, when it is reached."""

    def __init__(self, process: Process, on_due: Callable[[float], None]) -> None:
        self._process = process
        self._on_due = on_due
        self._armed: float | None = None

    def arm(self, due: float | None) -> None:
        """Set the deadline, in the time of the process; None: keep the previous one."""
        if due is not None and due != self._armed:
            self._armed = due
            self._process.after(max(due - self._process.now, 0.0), self._reached, due)

    def _reached(self, due: float) -> None:
        if self._armed == due:
            self._armed = None
            self._on_due(due)
