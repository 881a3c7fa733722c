"""Which of one member's objects are no longer needed, and which of them is deleted next. Pure: no I/O.

The owner of the claim decides *which* objects are garbage, with a function of the name (R14: an acknowledged
release names them). This module decides the order: one object at a time, and again in every session. A member
that was unavailable keeps its copies until it reconnects. Each session begins with the list of its objects,
so nothing has to be remembered.
"""

from collections.abc import Callable, Iterable

Garbage = Callable[[str], bool]
"""Returns whether an object of that name is garbage, which is permanent."""


class Collecting:
    """The garbage of one member, over its sessions. Invariant: `held` are names that the member may hold."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self._postponed: set[str] = set()

    def entered(self, names: Iterable[str]) -> None:
        """Start a session in which the member has these objects. Postponed deletions are tried again."""
        self.held = set(names)
        self._postponed.clear()

    def made(self, name: str) -> None:
        """Add an object that the claim itself may have created there."""
        self.held.add(name)
        self._postponed.discard(name)

    def next(self, garbage: Garbage) -> str | None:
        """Return the lowest name to delete next, or None."""
        return min((name for name in self.held - self._postponed if garbage(name)), default=None)

    def gone(self, name: str) -> None:
        """Record that the object is durably deleted."""
        self.held.discard(name)

    def postpone(self, name: str) -> None:
        """Postpone the deletion to the next session."""
        self._postponed.add(name)
