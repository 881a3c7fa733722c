"""The models of the times of gateways: the lease, and the watch of a standby. Time passes in ticks; the
lease, the watch and what may be acknowledged are the product's own (`dos_gateway/core/roles.py`).

    lease    the gateway that serves appends at any time, each append is acknowledged at any later time if it
             was sent before the other gateway's claim was granted (R3); that may be granted at any time. The
             machine of the first one is suspended at any time, and its clock is 10% slow. Demanded: when the
             second one opens, the first one has no lease.
    watch    the gateway that serves appends in every tick in which its last append was acknowledged, and for
             each request of a client that the standby has sent on. From any time on it reaches one member
             only, or is dead. One member lags as long as it likes, and one may not answer the standby.
             Demanded: the standby takes over in time if the other gateway serves no more, and not otherwise.

`gateways.py` builds on the first: a lease lasts, and nobody else opens. Messages take no time here; what is
late is what is done later.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from dos_gateway.core.roles import CopyReach, Lease, TreeWatch, acknowledged_at_most
from dos_gateway.limits import lease_s, lease_wait_s, silent_s
from tests.models.explore import Step

TICK_S: Final = 0.25
"""Every limit in question is above one tick; its sums are exact."""
SLOW: Final = 1.1
"""How much slower the clock of the first gateway is."""
LEASE_TICKS: Final = 14
WATCH_TICKS: Final = 14
TAKEN_OVER_TICKS: Final = int(silent_s / TICK_S) + 3
"""The standby claims within so many ticks after the other gateway served last."""
ACTIVE, CUT_OFF, DEAD = range(3)


class LeaseRules(NamedTuple):
    """The rules of leases. Each can be switched off."""

    from_the_sending: bool = True
    """A lease lasts from the sending of an append on; without it, from its acknowledgement on."""
    opens_after_the_wait: bool = True
    """The gateway that takes over opens `lease_wait_s` after its claim; without it, `lease_s` after it, as if
    clocks ran equally fast."""
    suspension_counts: bool = True
    """Its clock counts while its machine is suspended."""


class LeaseState(NamedTuple):
    """sent: when appends were sent, by the first gateway's clock. lost: ticks that this did not count.
    claimed: when the second one claimed, -1 before.
    """

    now: int = 0
    lost: int = 0
    suspended: bool = False
    sent: tuple[float, ...] = ()
    until: float = float("-inf")
    claimed: int = -1
    opened: bool = False


class Leases:
    """The model of the lease: an `explore.Model`."""

    def __init__(self, rules: LeaseRules) -> None:
        self.rules = rules

    def start(self) -> LeaseState:
        return LeaseState()

    def canonical(self, state: LeaseState) -> LeaseState:
        return state

    def clock(self, state: LeaseState) -> float:
        return (state.now - state.lost) * TICK_S / SLOW

    def loss(self, state: LeaseState) -> str:
        lease = Lease()
        lease.until = state.until
        if state.opened and not state.suspended and lease.holds(self.clock(state)):
            return "two gateways answer from memory"
        return ""

    def steps(self, state: LeaseState) -> Iterator[tuple[Step, LeaseState]]:
        if state.now < LEASE_TICKS:
            lost = state.lost + (state.suspended and not self.rules.suspension_counts)
            yield ("time passes",), state._replace(now=state.now + 1, lost=lost)
        yield (
            ("wakes up" if state.suspended else "is suspended",),
            state._replace(suspended=not state.suspended),
        )
        if not state.suspended and state.claimed < 0 and len(state.sent) < 2:
            yield ("sends",), state._replace(sent=(*state.sent, self.clock(state)))
        if not state.suspended and state.sent:
            lease = Lease()
            lease.until = state.until
            lease.sent(1, state.sent[0] if self.rules.from_the_sending else self.clock(state))
            lease.acknowledged(1)
            yield ("is acknowledged",), state._replace(sent=state.sent[1:], until=lease.until)
        if state.claimed < 0:
            yield ("claims",), state._replace(claimed=state.now)
        wait_s = lease_wait_s if self.rules.opens_after_the_wait else lease_s
        if state.claimed >= 0 and not state.opened and (state.now - state.claimed) * TICK_S >= wait_s:
            yield ("opens",), state._replace(opened=True)

    def describe(self, step: Step) -> str:
        others = {"claims": "the claim of the other gateway is granted", "opens": "the other gateway opens"}
        return others.get(step[0]) or (step[0] if step[0] == "time passes" else f"the gateway {step[0]}")


class WatchRules(NamedTuple):
    """The rules of standbys. Each can be switched off."""

    growth_is_of_a_quorum: bool = True
    """The chain has grown if a quorum may hold more; without it, if one member does."""
    missing_may_hold: bool = True
    """A member that does not answer may hold anything; without it, it holds nothing."""


class WatchState(NamedTuple):
    """sizes: of the members. appended: by the gateway. missing: the member that does not answer the standby,
    -1: none. seen: what the standby saw when that changed, with the tick.
    """

    now: int = 0
    sizes: tuple[int, int, int] = (0, 0, 0)
    appended: int = 0
    stage: int = ACTIVE
    since: int = -1
    missing: int = -1
    seen: tuple[tuple[CopyReach | None, int], ...] = ()
    claimed: bool = False


@cache
def _is_silent(seen: tuple[tuple[CopyReach | None, int], ...], now: int) -> bool:
    watch = TreeWatch()
    watch.begin()
    for reached, at in seen:
        watch.observe(reached, 1, at * TICK_S)
    return watch.is_silent(now * TICK_S)


class Watches:
    """The model of a standby: an `explore.Model`."""

    def __init__(self, rules: WatchRules) -> None:
        self.rules = rules

    def start(self) -> WatchState:
        return self._looked(WatchState())

    def canonical(self, state: WatchState) -> WatchState:
        return state

    def loss(self, state: WatchState) -> str:
        if state.claimed and state.stage == ACTIVE:
            return "the standby takes the tree from a gateway that serves it"
        if state.stage != ACTIVE and not state.claimed and state.now - state.since > TAKEN_OVER_TICKS:
            return "nobody serves the tree, and the standby waits"
        return ""

    def steps(self, state: WatchState) -> Iterator[tuple[Step, WatchState]]:
        if state.claimed:
            return
        if state.now == 0 and state.missing < 0 and state.stage == ACTIVE:
            for member in range(3):
                yield ("does not answer", member), self._looked(state._replace(missing=member, seen=()))
        if state.stage == ACTIVE:
            # A standby that misses a member as well cannot tell: that is two faults at once.
            if state.missing < 0:
                yield ("is cut off",), state._replace(stage=CUT_OFF, since=state.now)
            yield ("dies",), state._replace(stage=DEAD, since=state.now)
        if state.now < WATCH_TICKS:
            for lags in (False, True):
                yield ("time passes", lags), self._tick(state, lags=lags)

    def _tick(self, state: WatchState, *, lags: bool) -> WatchState:
        """Members 0 and 1 are up to date, 2 may lag. A gateway that is cut off reaches 0, and has clients."""
        appended, sizes = state.appended, state.sizes
        if state.stage == ACTIVE:
            appended += 1
            sizes = (appended, appended, sizes[2] if lags else appended)
        elif state.stage == CUT_OFF:
            appended += 1
            sizes = (appended, *sizes[1:])
        return self._looked(state._replace(now=state.now + 1, appended=appended, sizes=sizes))

    def _looked(self, state: WatchState) -> WatchState:
        copies = [CopyReach(1, 0, size) for member, size in enumerate(state.sizes) if member != state.missing]
        if not self.rules.growth_is_of_a_quorum:
            reached: CopyReach | None = max(copies)
        elif not self.rules.missing_may_hold:
            reached = sorted(copies, reverse=True)[1]
        else:
            reached = acknowledged_at_most(copies, 3, 2)
        last = state.seen[-1][0] if state.seen else None
        seen = state.seen if state.seen and reached == last else (*state.seen, (reached, state.now))
        return state._replace(seen=seen, claimed=_is_silent(seen, state.now))

    def describe(self, step: Step) -> str:
        what, *values = step
        if what == "does not answer":
            return f"member {values[0]} does not answer the standby"
        if what == "time passes":
            return f"time passes, and member 2 {'lags' if values[0] else 'is up to date'}"
        return f"the gateway {what}"
