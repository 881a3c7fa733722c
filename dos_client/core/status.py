"""How claims and members do: the counters of a store, and when a claim waits, for what. Pure: no I/O.

A reason to wait contains no value that changes continuously (seconds, bytes), so that it changes only when
the situation does.
"""

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

    - `state`, in plain words: in sync, catching up, comparing (its copies), entering (a claim was sent to
      it), unavailable, broken (a copy differs or its disk failed), joining.
    - `lag_bytes`: bytes of this client's claims that the member lacks. `lag_s`: an upper bound, in seconds,
      for the age of the oldest of them.
    - `error`: why it is unavailable or broken, otherwise empty.
    """

    address: str
    server_id: bytes
    state: str
    lag_bytes: int
    connected: bool
    error: str
    lag_s: float = 0.0


def waiting_reason(needed: int, available: int, members: Iterable[MemberStatus]) -> str:
    """Return why nothing is acknowledged: how many members are needed, and the problems of the others."""
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
        """Update with the reason to wait, '' for none. Returns a change to report: Began, then Ended."""
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


@dataclass(slots=True)
class StoreCounters:
    """The counters of one `Store`.

    - `sent_bytes`: payload of appends passed to a member's session, by address.
    - `filled_bytes`: those of the sent bytes that were no longer in memory, by (address, source). The source
      is "local" or "member".
    - `reconnects`: sessions with a claim that were opened after one was lost, by address.
    - `questions`: reads and comparisons, each sent to at least one member.
    - `hedges`: requests to a further member only because another was slow.
    - `faulty_copies`: copies found to be damaged or different.
    - `collected_objects`: copies deleted because they are no longer needed.
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
