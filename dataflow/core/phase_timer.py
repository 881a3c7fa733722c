"""Where the time of a piece of work went. Pure: times are numbers that the owner brings."""


class PhaseTimer:
    """Phases one after the other; their sum is the time from the beginning to the last `end`."""

    def __init__(self, begin: float) -> None:
        self._last = begin
        self.phases_s: dict[str, float] = {}

    def end(self, phase: str, now: float) -> None:
        """What lies between the end before and now was this phase."""
        self.phases_s[phase] = self.phases_s.get(phase, 0.0) + now - self._last
        self._last = now
