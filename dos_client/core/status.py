"""How claims and members do: the counters of a store, and when a claim waits, for what. Pure: no I/O."""

from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

from dos_client.limits import waiting_after_s, waiting_report_s

_HEALTHY_STATES: Final = frozenset({"in sync", "catching up", "joining"})


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member as this client sees it.

    `state`, in plain words: in sync, catching up, comparing (its copies), entering (a claim was sent to it),
    unavailable, broken (a copy differs or its disk failed), joining. `lag_bytes`: of this client's claims;
    the oldest is at most `lag_s` seconds old. `error`: why it is unavailable or broken.
    """

    address: str
    server_id: bytes
    state: str
    lag_bytes: int
    connected: bool
    error: str
    lag_s: float = 0.0


def waiting_reason(needed: int, available: int, members: Iterable[MemberStatus]) -> str:
    reason = (
        f"{needed} members are needed and {available} hold the claim"
        if available < needed
        else f"{needed} members are needed and too few of {available} acknowledge"
    )
    return "; ".join([reason, *map(_problem_of, filter(_has_problem, members))])


def _has_problem(member: MemberStatus) -> bool:
    return member.lag_s > waiting_after_s or member.state not in _HEALTHY_STATES


def _problem_of(member: MemberStatus) -> str:
    if member.state in _HEALTHY_STATES:
        return f"{member.address} acknowledges nothing"
    return f"{member.address} is {member.state}" + (f": {member.error}" if member.error else "")


@dataclass(frozen=True, slots=True)
class WaitBegan:
    reason: str


@dataclass(frozen=True, slots=True)
class WaitEnded:
    seconds: float


class WaitTracker:
    """The waits of one claim. `reason` is '' exactly when it does not wait. `total_s` sums all waits up to
    the last `inspect`.
    """

    __slots__ = ("_inspected_at", "_reported", "reason", "since", "total_s")

    def __init__(self) -> None:
        self.reason = ""
        self.since = 0.0
        self.total_s = 0.0
        self._inspected_at = 0.0
        self._reported = False

    def inspect(self, reason: str, now: float) -> WaitBegan | WaitEnded | None:
        """Update with the reason to wait, '' for none. Returns a change to report: Began, then Ended."""
        before, self.reason = self.reason, reason
        if before:
            self.total_s += now - self._inspected_at
        self._inspected_at = now
        # A reason has no value that changes continuously (seconds, bytes): it would look like a new one each
        # time.
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
        return now - self.since if self.reason else 0.0


@dataclass(slots=True)
class StoreCounters:
    """The counters of one `Store`. `filled_bytes`: sent bytes that were no longer in memory, by (address,
    "local" or "member").
    """

    appended_bytes: int = 0
    acknowledged_bytes: int = 0
    waiting_s: float = 0.0
    questions: int = 0
    hedges: int = 0
    faulty_copies: int = 0
    collected_objects: int = 0
    sent_bytes: Counter[str] = field(default_factory=Counter)
    filled_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reconnects: Counter[str] = field(default_factory=Counter)

    def copy(self) -> "StoreCounters":
        return deepcopy(self)
