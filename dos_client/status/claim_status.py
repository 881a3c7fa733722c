"""How claims and members stand, for people: the handle, the log, the metrics.

Rules of this file: it observes. What counts is decided elsewhere, and nothing here waits for a member or
holds one up; a look now and then is all it costs.
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
    """A claim at one moment. `waiting`: what it waits for at the store and why, '' when it does not;
    `waiting_s`: since when. `lag_bytes` are appended and not yet synced on a quorum, the oldest of them for
    at most `lag_s`. `members`: each one as this claim sees it."""

    directory: str
    epoch: int
    state: ClaimState
    waiting: str
    waiting_s: float
    lag_bytes: int
    lag_s: float
    members: tuple[MemberStatus, ...]


class ClaimWaits:
    """What one claim waits for, and since when; the log hears when it begins and when it ends."""

    def __init__(self, claim: "Claim") -> None:
        self._claim = claim
        self._waiting = WaitTracker()
        self._begun = trio.current_time()
        self._counted_s = 0.0

    def status(self) -> ClaimStatus:
        """As of now."""
        self.look()
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

    def look(self) -> None:
        """Find out whether it waits, tell the log what is news, and count."""
        claim = self._claim
        match self._waiting.look(self._reason(), trio.current_time()):
            case WaitBegan(reason):
                log.warning("%s waits for the store: %s", claim.directory, reason)
            case WaitEnded(seconds):
                end = "goes on" if claim.ended is None else "is over"
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
    """A member as one claim sees it."""
    targets = list(link.claim.targets.values())
    connected = link.connection is not None
    lag = sum(target.lag(link.server_id) for target in targets)
    state = in_words(link.copies.states()) if connected else "away"
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
    """A member as all claims of this client see it, and the idle session with it."""
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
            state = "away"
        elif member.state != "in":
            state = member.state
        elif state == "away":
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
    """The task of a store that looks at its claims now and then, and publishes what it sees."""
    figures = metrics.StoreFigures()
    try:
        while True:
            await trio.sleep(observe_step_s)
            look(store, figures)
    finally:
        look(store, figures)
        figures.close()


def look(store: "Store", figures: metrics.StoreFigures) -> None:
    """Look at every claim, and publish."""
    for claim in store.claims():
        claim.standing.look()
    store.counts.wrong_copies = store.damage.found
    figures.publish(store.counts, store.members(), sum(claim.waiting for claim in store.claims()))
