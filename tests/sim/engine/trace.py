"""The trace of a run: a line for each event, and a digest of all lines.

The digest is always computed, the lines are kept on request. A line contains nothing that differs in another
process: no address of an object, no order of a set, no time of this machine.
"""

from array import array
from collections.abc import Callable

import xxhash


class Trace:
    """The trace of one run. `lines` is empty unless `kept`."""

    def __init__(self, *, keep: bool = False) -> None:
        self.lines: list[str] = []
        self.kept = keep
        self._fold = xxhash.xxh3_64()
        self._times = array("d")
        self.step: Callable[[float], None] = self._times.append
        """Called with the time of each step, which is part of the digest: with random delays everywhere, two
        runs that differ in anything soon differ in time."""

    def note(self, now: float, who: str, what: str) -> None:
        """Add one event."""
        line = _line(now, who, what)
        self._fold.update(line.encode())
        if self.kept:
            self.lines.append(line)

    def say(self, now: float, who: str, what: str) -> None:
        """Add a line that is not in the digest, if lines are kept."""
        if self.kept:
            self.lines.append(_line(now, who, what))

    @property
    def digest(self) -> str:
        """Return the digest of the events and the times of steps so far."""
        whole = self._fold.copy()
        whole.update(self._times.tobytes())
        return whole.hexdigest()


def _line(now: float, who: str, what: str) -> str:
    return f"{now:10.6f} {who:<8} {what}"
