"""Who may answer, and who may take over. Pure: times are passed.

A gateway answers from memory only for `lease_s` after it *sent* an append that was acknowledged: then nobody
had claimed the directory when it was sent (R3). A gateway that takes over answers nothing for `lease_wait_s`
after its claim was granted. So no two gateways answer from memory at once, if their clocks run equally fast
within 10%.

A standby watches the chain grow in the store, not the other gateway: two gateways that cannot reach each
other would take the tree from each other for ever.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dos_gateway.limits import claim_patience_s, lease_s, silent_s, take_overs_s


class Lease:
    """The right to answer from memory. It is renewed by every append that is acknowledged."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int, float]] = deque()
        self.until = float("-inf")

    def sent(self, end: int, now: float) -> None:
        """Note an append up to a logical offset, before it is sent."""
        self._sent.append((end, now))

    def acknowledged(self, synced: int) -> None:
        while self._sent and self._sent[0][0] <= synced:
            # From the sending on: the acknowledgement proves nothing about the time after it.
            self.until = self._sent.popleft()[1] + lease_s

    def holds(self, now: float) -> bool:
        return now < self.until


class CopyReach(NamedTuple):
    """How far a member's copy of the chain reaches: the newest segment, and the synced bytes in it."""

    epoch: int
    base: int
    synced: int


NO_REACH = CopyReach(0, 0, 0)


def acknowledged_at_most(copies: Sequence[CopyReach], members: int, ack_quorum: int) -> CopyReach | None:
    """Return up to where the chain can be acknowledged, None if the answers do not bound it.

    The members that did not answer may hold anything. The longest copy alone would not do: a gateway that
    reaches one member of three makes that one grow, and no append of it is ever acknowledged.
    """
    needed = ack_quorum - (members - len(copies))
    if needed <= 0:
        return None
    return sorted(copies, reverse=True)[needed - 1]


class TreeWatch:
    """What a standby has seen of a chain.

    Table: seen -> the silence counts from
        first answer                    now
        it grew                         now
        too few members answer          now
        a newer claim                   now + claim_patience_s, until the chain grows: it is being read

    What a first answer shows may have come since a request came. It counts as growth for that one: executed
    here, a DELETE could remove a file that was committed meanwhile.
    """

    def __init__(self) -> None:
        self._reached: CopyReach | None = None
        self._epoch: int | None = None
        self._since = float("-inf")
        self._take_overs: deque[float] = deque()
        self.grew_at = float("-inf")
        """When growth was last seen, or may have come: a request from before is not executed here."""
        self.wrote_at = float("-inf")
        """When another gateway was last seen to write: it serves the tree. A first answer shows none."""

    def begin(self, served: int = 0) -> None:
        """Count the silence anew: what was seen before this gateway served says nothing. served: the epoch of
        its own claim.
        """
        self._reached, self._since = None, float("-inf")
        if served:
            self._epoch = max(self.epoch, served)

    @property
    def epoch(self) -> int:
        """The highest epoch that was seen."""
        return self._epoch or 0

    def observe(self, reached: CopyReach | None, epoch: int, now: float) -> None:
        """reached: as of `acknowledged_at_most`. epoch: the highest that a member has granted."""
        if self._since == float("-inf"):
            self._since = now
        if self._epoch is None:
            self._epoch = epoch
        elif epoch > self._epoch:
            # Also the one that ended the serving of this gateway: two that are slow would take turns.
            self._epoch, self._since = epoch, now + claim_patience_s
            self._take_overs.append(now)
        if reached is None:
            self._since = max(self._since, now)
        elif self._reached is None:
            self._reached = reached
            if reached != NO_REACH:
                self.grew_at = now
        elif reached > self._reached:
            self._reached, self._since = reached, now
            self.grew_at = self.wrote_at = now

    def is_silent(self, now: float, jitter: float = 1.0) -> bool:
        """Return whether to take over. jitter: from 1 on, so that of two standbys one is first."""
        while self._take_overs and self._take_overs[0] < now - take_overs_s:
            self._take_overs.popleft()
        if self.epoch == 0 and self._reached in (None, NO_REACH):
            return True  # nobody has ever claimed it
        return now - self._since > silent_s * jitter * float(2 ** len(self._take_overs))
