"""The faults of a run as they happened: for the lines on the screen, for the figures and for the report."""

from collections.abc import Callable, Sequence

from dos_chaos.core.measures import FaultWindow, Measures


class FaultLog:
    """One fault at a time. `clock`: seconds since the start of the run. `say`: receives a line for each."""

    def __init__(self, measures: Measures, clock: Callable[[], float], say: Callable[[str], None]) -> None:
        self.windows: list[FaultWindow] = []
        self.clock = clock
        self._measures = measures
        self._say = say
        self._open: tuple[str, tuple[str, ...], float] | None = None

    def begin(self, kind: str, servers: Sequence[str]) -> None:
        self._open = kind, tuple(servers), self.clock()
        self._measures.fault_begins(self.clock())
        self._say(f"{kind} {' '.join(servers)}")

    def end(self, *, quorum_left: bool, note: str = "") -> None:
        """End the fault that is in progress; without one, do nothing."""
        if self._open is None:
            return
        kind, servers, start_s = self._open
        self._open = None
        self._measures.fault_ends(self.clock())
        self.windows.append(FaultWindow(kind, servers, start_s, self.clock(), quorum_left, note))
        self._say(f"end of {kind} {' '.join(servers)}{f': {note}' if note else ''}")
