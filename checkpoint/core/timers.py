"""Named timers of a state machine. Pure: times are numbers that the owner brings."""

from collections.abc import Iterable


class Timers:
    """At most one due time a name. Setting replaces."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def set(self, name: str, due: float) -> None:
        self._due[name] = due

    def clear(self, *names: str) -> None:
        """Forget these timers; all of them when none is named."""
        for name in names or tuple(self._due):
            self._due.pop(name, None)

    def running(self, name: str) -> bool:
        return name in self._due

    def next(self) -> float | None:
        """The earliest due time."""
        return min(self._due.values(), default=None)

    def expired(self, now: float) -> list[str]:
        """The names that are due, earliest first; they are cleared."""
        names = sorted((due, name) for name, due in self._due.items() if due <= now)
        for _, name in names:
            del self._due[name]
        return [name for _, name in names]

    def shift(self, seconds: float, names: Iterable[str]) -> None:
        """Time that does not count: these timers get it back."""
        for name in names:
            if name in self._due:
                self._due[name] += seconds
