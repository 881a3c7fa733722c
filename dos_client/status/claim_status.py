"""The status of claims and members, for the handle, the log and the metrics.

This module only observes. It decides nothing, and never waits for a member or delays one.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from dos_client.core.claim import ClaimState
from dos_client.core.replica import worst_state_text, worst_text
from dos_client.core.waiting import MemberSeen, WaitBegan, WaitEnded, WaitTracker, waiting_reason
from dos_client.limits import waiting_after_s
from dos_client.sessions.members import MemberStatus, Watch

if TYPE_CHECKING:
    from dos_client.writing.views import ClaimView, LinkView

log: Final = logging.getLogger("dos.client")


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """The status of a claim at one moment.

    `waiting`: what it waits for at the store and why, '' if it does not wait. `waiting_s`: for how long.
    `lag_bytes`: bytes appended and not yet synced on a quorum; the oldest is at most `lag_s` old. `members`:
    the status of each member in this claim.
    """

    directory: str
    epoch: int
    state: ClaimState
    waiting: str
    waiting_s: float
    lag_bytes: int
    lag_s: float
    members: tuple[MemberStatus, ...]


class ClaimWaits:
    """Whether one claim waits, why, and since when. Logs the beginning and the end of a wait."""

    def __init__(self, claim: "ClaimView") -> None:
        self._claim = claim
        self._waiting = WaitTracker()
        self._begun = trio.current_time()
        self._counted_s = 0.0

    def status(self) -> ClaimStatus:
        """Return the current status."""
        self.inspect()
        claim, now = self._claim, trio.current_time()
        targets = list(claim.targets.values())
        return ClaimStatus(
            claim.directory,
            claim.epoch,
            claim.state,
            self._waiting.reason,
            self._waiting.seconds(now),
            sum(target.unsynced for target in targets),
            max((target.times.age(target.synced, now) for target in targets if target.unsynced), default=0.0),
            tuple(member_in_claim(link) for link in claim.links()),
        )

    def inspect(self) -> None:
        """Check whether the claim waits, log a change, and update the counters."""
        claim = self._claim
        match self._waiting.inspect(self._reason(), trio.current_time()):
            case WaitBegan(reason):
                log.warning("%s is waiting for the store: %s", claim.directory, reason)
            case WaitEnded(seconds):
                end = "continues" if claim.ended is None else "ended"
                log.warning("%s %s after waiting %.1f s for the store", claim.directory, end, seconds)
        claim.store.counts.waiting_s += self._waiting.total_s - self._counted_s
        self._counted_s = self._waiting.total_s
        for target in claim.targets.values():
            target.count(claim.store.counts)

    def _reason(self) -> str:
        claim = self._claim
        if claim.refused is not None:
            return f"members refuse its token: {claim.refused.args[0]}"
        if claim.ended is not None:
            return ""
        slow = claim.state is ClaimState.CLAIMING and trio.current_time() - self._begun > waiting_after_s
        if not slow and not claim.waiting:
            return ""
        statuses = [member_in_claim(link) for link in claim.links()]
        return waiting_reason(
            claim.needed,
            sum(one.connected for one in statuses),
            [MemberSeen(one.address, one.state, one.error, one.lag_s > waiting_after_s) for one in statuses],
        )


def member_in_claim(link: "LinkView") -> MemberStatus:
    """Return the status of a member as one claim sees it."""
    targets = list(link.claim.targets.values())
    connected = link.connection is not None
    lag_bytes = sum(target.lag(link.server_id) for target in targets)
    state = worst_state_text(link.copies.states()) if connected else "unavailable"
    if connected and state != "broken" and link.member.state != "in":
        state = link.member.state
    return MemberStatus(
        link.member.address,
        link.server_id,
        "catching up" if state == "in sync" and lag_bytes else state,
        lag_bytes,
        connected,
        link.copies.problem() or link.error,
        max((target.lag_s(link.server_id) for target in targets), default=0.0),
    )


def of_member(claims: "Iterable[ClaimView]", server_id: bytes) -> list[MemberStatus]:
    """Return the status of a member as each claim sees it."""
    return [member_in_claim(link) for claim in claims if (link := claim.link(server_id)) is not None]


def member_in_store(watch: Watch, seen: Sequence[MemberStatus], fault: str) -> MemberStatus:
    """Return the status of a member. `seen`: the member as each claim of this client sees it. `fault`: what
    is wrong with a copy that it holds, or ''.
    """
    member, connected = watch.member, watch.connection is not None
    state = "broken" if connected and fault else worst_text(one.state for one in seen)
    if state != "broken":
        if not connected:
            state = "unavailable"
        elif member.state != "in":
            state = member.state
        elif state == "unavailable":
            state = "entering"
    return MemberStatus(
        member.address,
        member.server_id,
        state,
        sum(one.lag_bytes for one in seen),
        connected,
        next((one.error for one in seen if one.error), "") or watch.error or fault,
        max((one.lag_s for one in seen), default=0.0),
    )
