"""The duration of each phase of a piece of work. Pure: the caller passes the times."""


class PhaseTimer:
    """Consecutive phases. Their durations sum up to the time from `begin` to the last `end`."""

    def __init__(self, begin: float) -> None:
        self._last = begin
        self.phases_s: dict[str, float] = {}

    def end(self, phase: str, now: float) -> None:
        """Add the time since the previous end to this phase."""
        self.phases_s[phase] = self.phases_s.get(phase, 0.0) + now - self._last
        self._last = now
