"""What of one member's objects nobody needs any more, and which of them is taken away next. Pure.

Rules of this file: names. *Which* objects nobody needs is said by the owner of the claim, by a function of
the name (R14: an acknowledged release names them); *that* they go, one after the other and again after every
session, is here. A member that was away keeps its copies until it is met again: what it held when it took
the claim is told anew in every session, so nothing need be remembered.
"""

from collections.abc import Callable, Iterable

Garbage = Callable[[str], bool]
"""Whether nobody needs an object of that name any more, for ever."""


class Collecting:
    """One member in one session after the other. Invariant: `held` are names that the member may hold."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self._put_off: set[str] = set()

    def entered(self, names: Iterable[str]) -> None:
        """A session has begun; these are there. What was put off is tried again."""
        self.held = set(names)
        self._put_off.clear()

    def made(self, name: str) -> None:
        """The claim itself may have brought this there."""
        self.held.add(name)
        self._put_off.discard(name)

    def next(self, garbage: Garbage) -> str | None:
        """The next to go, the lowest name first; None: nothing now."""
        return min((name for name in self.held - self._put_off if garbage(name)), default=None)

    def gone(self, name: str) -> None:
        """It is not there, durably."""
        self.held.discard(name)

    def put_off(self, name: str) -> None:
        """It cannot go in this session."""
        self._put_off.add(name)
