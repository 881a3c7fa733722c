"""Whether the circuit thread moves, for other threads. Plain attributes, each written by one assignment."""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class CircuitPulse:
    """Written by the circuit thread, read by the HTTP port of the worker."""

    running: bool = False
    """Whether the incarnation runs steps, or waits for input to do so."""
    began_s: float = 0.0
    """When the current piece of work began, of a monotonic clock; 0 while the thread waits for a message."""

    def begin(self) -> None:
        """Note that the thread begins to work."""
        self.began_s = time.monotonic()

    def end(self) -> None:
        """Note that the thread waits."""
        self.began_s = 0.0

    def busy_for_s(self) -> float:
        """Return how long the thread has worked on its current piece, 0 while it waits."""
        began_s = self.began_s
        return time.monotonic() - began_s if began_s else 0.0
