"""What happened in a run: a line an event, and a digest over all of them.

The digest is always made, the lines are kept on request. A line has nothing in it that
another process would tell otherwise: no address of an object, no order of a set, no time of this machine.
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
        """Something was done. Its moment goes into the digest: with random delays everywhere, two runs that
        differ in anything soon differ in time."""

    def note(self, now: float, who: str, what: str) -> None:
        """One event."""
        line = _line(now, who, what)
        self._fold.update(line.encode())
        if self.kept:
            self.lines.append(line)

    def say(self, now: float, who: str, what: str) -> None:
        """Something for the reader alone: it is not in the digest, and costs little where nobody reads."""
        if self.kept:
            self.lines.append(_line(now, who, what))

    @property
    def digest(self) -> str:
        """The digest of everything so far: the events, and the time of each step."""
        whole = self._fold.copy()
        whole.update(self._times.tobytes())
        return whole.hexdigest()


def _line(now: float, who: str, what: str) -> str:
    return f"{now:10.6f} {who:<8} {what}"
