"""What the state machines of a region have in common: named timers, and tables of transitions. Pure."""

from collections.abc import Iterable
from typing import TypeVar


class Timers:
    """Due times by name. Setting a timer replaces its due time."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def set(self, name: str, due: float) -> None:
        self._due[name] = due

    def clear(self, *names: str) -> None:
        """Remove these timers; all timers if none is named."""
        for name in names or tuple(self._due):
            self._due.pop(name, None)

    def running(self, name: str) -> bool:
        return name in self._due

    def next(self) -> float | None:
        """Return the earliest due time, None if no timer runs."""
        return min(self._due.values(), default=None)

    def expired(self, now: float) -> list[str]:
        """Remove the timers that are due and return their names, earliest first."""
        names = sorted((due, name) for name, due in self._due.items() if due <= now)
        for _, name in names:
            del self._due[name]
        return [name for _, name in names]

    def shift(self, seconds: float, names: Iterable[str]) -> None:
        """Delay these timers, if they run, by time that does not count."""
        for name in names:
            if name in self._due:
                self._due[name] += seconds


S = TypeVar("S")


E = TypeVar("E")


def follow(table: dict[S, dict[E, S]], state: S, event: E) -> S:
    """Return the next state. Raises AssertionError for an event that the row does not have: a bug."""
    row = table[state]
    if event not in row:
        raise AssertionError(f"event {event} is not valid in state {state}")
    return row[event]
