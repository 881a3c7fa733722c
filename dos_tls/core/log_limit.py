"""Limits how often one kind of line is logged: peers that nobody controls must not fill a log."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class LogLimit:
    """At most one line of each kind within `pause_s` seconds. The next line counts those left out."""

    pause_s: float = 10.0
    _logged: dict[str, float] = field(default_factory=dict)
    _left_out: dict[str, int] = field(default_factory=dict)

    def text(self, kind: str, line: str, now: float) -> str | None:
        """Return the line to log now, or None. `now`: seconds of a clock that does not go back."""
        before = self._logged.get(kind)
        if before is not None and now < before + self.pause_s:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        self._logged[kind] = now
        left_out = self._left_out.pop(kind, 0)
        return f"{line} (and {left_out} more like it before)" if left_out else line
