"""The status of claims and members, for the handle, the log and the metrics.

This module only observes. It decides nothing, and never waits for a member or delays one.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from dos_client import metrics
from dos_client.core.claim import ClaimState
from dos_client.core.replica import in_words, worst_words
from dos_client.core.waiting import MemberSeen, WaitBegan, WaitEnded, WaitTracker, waiting_reason
from dos_client.limits import observe_step_s, waiting_after_s
from dos_client.sessions.members import MemberStatus

if TYPE_CHECKING:
    from dos_client.live_store import Store
    from dos_client.writing.claim import Claim
    from dos_client.writing.link import MemberLink
    from dos_protocol.store_record import Member

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

    def __init__(self, claim: "Claim") -> None:
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


def member_in_claim(link: "MemberLink") -> MemberStatus:
    """Return the status of a member as one claim sees it."""
    targets = list(link.claim.targets.values())
    connected = link.connection is not None
    lag = sum(target.lag(link.server_id) for target in targets)
    state = in_words(link.copies.states()) if connected else "unavailable"
    if connected and state != "broken" and link.member.state != "in":
        state = link.member.state
    return MemberStatus(
        link.member.address,
        link.server_id,
        "catching up" if state == "in sync" and lag else state,
        lag,
        connected,
        link.copies.trouble() or link.error,
        max((target.lag_s(link.server_id) for target in targets), default=0.0),
    )


def member_in_store(store: "Store", member: "Member") -> MemberStatus:
    """Return the status of a member from all claims of this client and the idle session."""
    watch = store.watch(member)
    seen = [
        member_in_claim(link)
        for claim in store.claims()
        for link in claim.links()
        if link.server_id == member.server_id
    ]
    connected = watch.connection is not None
    wrong = store.damage.of_member(member.server_id)
    state = "broken" if connected and wrong is not None else worst_words(one.state for one in seen)
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
        next((one.error for one in seen if one.error), "") or watch.error or (str(wrong) if wrong else ""),
        max((one.lag_s for one in seen), default=0.0),
    )


async def observe(store: "Store") -> None:
    """Observe the store's claims at intervals and publish the metrics. Runs as a task."""
    figures = metrics.StoreFigures()
    try:
        while True:
            await trio.sleep(observe_step_s)
            publish_figures(store, figures)
    finally:
        publish_figures(store, figures)
        figures.close()


def publish_figures(store: "Store", figures: metrics.StoreFigures) -> None:
    """Observe every claim and publish the metrics."""
    for claim in store.claims():
        claim.waits.inspect()
    store.counts.faulty_copies = store.damage.found
    figures.publish(store.counts, store.members(), sum(claim.waiting for claim in store.claims()))
