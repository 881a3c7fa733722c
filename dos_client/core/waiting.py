"""When a claim waits for the store, and for what. Pure: no I/O.

This module has the texts for people, and decides when they are reported. A reason contains no value that
changes continuously (seconds, bytes), so that it changes only when the situation does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dos_client.limits import waiting_told_s

_WELL: Final = frozenset({"in sync", "catching up", "joining"})


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A member as the claim sees it. `state`: in plain words. `error`: the cause. `late`: it has not
    acknowledged anything of what it lacks for a long time.
    """

    address: str
    state: str
    error: str = ""
    late: bool = False


def waiting_reason(needed: int, there: int, members: Iterable[MemberSeen]) -> str:
    """Return why nothing is acknowledged: how many members are needed, and the problems of the others."""
    reason = (
        f"{needed} members are needed and {there} hold the claim"
        if there < needed
        else f"{needed} members are needed and too few of {there} acknowledge"
    )
    return "; ".join([reason, *(_trouble(one) for one in members if one.late or one.state not in _WELL)])


def _trouble(member: MemberSeen) -> str:
    if member.state in _WELL:
        return f"{member.address} acknowledges nothing"
    return f"{member.address} is {member.state}" + (f": {member.error}" if member.error else "")


@dataclass(frozen=True, slots=True)
class WaitBegan:
    """A wait has lasted long enough to be reported."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """A reported wait has ended."""

    seconds: float


class WaitTracker:
    """The waits of one claim.

    Invariants: `reason` is '' exactly when it does not wait. `total_s` sums all waits up to the last `look`,
    including those too short to be reported.
    """

    __slots__ = ("_looked", "_told", "reason", "since", "total_s")

    def __init__(self) -> None:
        self.reason = ""
        self.since = 0.0
        self.total_s = 0.0
        self._looked = 0.0
        self._told = False

    def inspect(self, reason: str, now: float) -> WaitBegan | WaitEnded | None:
        """Update with the reason to wait at this moment, '' for none. Returns a change to report; Began and
        Ended alternate.
        """
        before, self.reason = self.reason, reason
        if before:
            self.total_s += now - self._looked
        self._looked = now
        if reason and not before:
            self.since = now
        if reason and not self._told and now - self.since >= waiting_told_s:
            self._told = True
            return WaitBegan(reason)
        if not reason and self._told:
            self._told = False
            return WaitEnded(now - self.since)
        return None

    def seconds(self, now: float) -> float:
        """Return how long it has been waiting, 0 if it is not."""
        return now - self.since if self.reason else 0.0
