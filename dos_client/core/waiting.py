"""When a claim waits for the store, and for what. Pure: no I/O.

This module has the texts for people, and decides when they are reported. A reason contains no value that
changes continuously (seconds, bytes), so that it changes only when the situation does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dos_client.limits import waiting_report_s

_HEALTHY_STATES: Final = frozenset({"in sync", "catching up", "joining"})


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A member as the claim sees it. `state`: in plain words. `error`: the cause. `late`: it has not
    acknowledged anything of what it lacks for a long time.
    """

    address: str
    state: str
    error: str = ""
    late: bool = False


def waiting_reason(needed: int, available: int, members: Iterable[MemberSeen]) -> str:
    """Return why nothing is acknowledged: how many members are needed, and the problems of the others."""
    reason = (
        f"{needed} members are needed and {available} hold the claim"
        if available < needed
        else f"{needed} members are needed and too few of {available} acknowledge"
    )
    return "; ".join(
        [reason, *(_problem_of(one) for one in members if one.late or one.state not in _HEALTHY_STATES)]
    )


def _problem_of(member: MemberSeen) -> str:
    if member.state in _HEALTHY_STATES:
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

    Invariants: `reason` is '' exactly when it does not wait. `total_s` sums all waits up to the last
    `inspect`, including those too short to be reported.
    """

    __slots__ = ("_inspected_at", "_reported", "reason", "since", "total_s")

    def __init__(self) -> None:
        self.reason = ""
        self.since = 0.0
        self.total_s = 0.0
        self._inspected_at = 0.0
        self._reported = False

    def inspect(self, reason: str, now: float) -> WaitBegan | WaitEnded | None:
        """Update with the reason to wait at this moment, '' for none. Returns a change to report; Began and
        Ended alternate.
        """
        before, self.reason = self.reason, reason
        if before:
            self.total_s += now - self._inspected_at
        self._inspected_at = now
        if reason and not before:
            self.since = now
        if reason and not self._reported and now - self.since >= waiting_report_s:
            self._reported = True
            return WaitBegan(reason)
        if not reason and self._reported:
            self._reported = False
            return WaitEnded(now - self.since)
        return None

    def seconds(self, now: float) -> float:
        """Return how long it has been waiting, 0 if it is not."""
        return now - self.since if self.reason else 0.0
