"""Which member to query first, when to also query another one, and when to stop. Pure.

Hedging (Dean and Barroso, The Tail at Scale): if an answer takes longer than 95 of 100 did, also query the
next member. The first good answer wins. A budget limits the requests that are sent twice, for when all
members are slow. A *race* is one request that any member can answer; the caller reports how many answers are
*lacking*.

    event                        effect
    Begin                        as many members are queried as answers are lacking
    Answered, none lacking       won: the others are dropped
    Answered or Failed           the next are queried, until as many are in flight as are lacking
    the delay passed             one more is queried if the budget allows it, otherwise after `hedge_rescue_s`
    one took `read_timeout_s`    dropped, and counted as failed
    no member left               lost: no further answers will come
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dos_client.limits import (
    hedge_burst,
    hedge_delay_first_s,
    hedge_delay_max_s,
    hedge_delay_min_s,
    hedge_order_samples,
    hedge_percentile,
    hedge_rescue_s,
    hedge_sample_age_s,
    hedge_samples_max,
    hedge_samples_min,
    hedge_share,
    read_settle_s,
    read_timeout_s,
)
from dos_protocol.limits import digest_block_bytes

_NEAR_FACTOR: Final = 1.5
_NEAR_S: Final = 0.0005
"""Members whose usual time is this close to the best one count as equally fast and share the load."""


class Latencies:
    """Recent answer times. None is older than `hedge_sample_age_s`: a member that was slow is tried again."""

    __slots__ = ("_samples", "_sorted")

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float, now: float) -> None:
        if len(self._samples) == hedge_samples_max:
            self._forget_oldest()
        self._samples.append((now, seconds))
        insort(self._sorted, seconds)

    def quantile(self, share: float, now: float) -> float | None:
        """Return the time that `share` of the answers did not exceed, or None without answers."""
        while self._samples and self._samples[0][0] < now - hedge_sample_age_s:
            self._forget_oldest()
        if not self._samples:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))]

    def usual(self, now: float) -> float | None:
        oldest = now - hedge_sample_age_s
        last = sorted(
            seconds for at, seconds in islice(reversed(self._samples), hedge_order_samples) if at >= oldest
        )
        return last[len(last) // 2] if last else None

    def __len__(self) -> int:
        return len(self._samples)

    def _forget_oldest(self) -> None:
        _, seconds = self._samples.popleft()
        del self._sorted[bisect_left(self._sorted, seconds)]


class Budget:
    """Requests that may be sent twice: over any n requests, at most hedge_burst + n * hedge_share."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens = float(hedge_burst)

    def earn(self) -> None:
        self._tokens = min(float(hedge_burst), self._tokens + hedge_share)

    def take(self) -> bool:
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that can be queried. `owed`: how many answers to abandoned requests it has not sent yet."""

    server_id: bytes
    connected: bool = True
    avoided: bool = False
    owed: int = 0


class Pace:
    """How fast each member answers, by request size, and the budget that all requests share."""

    def __init__(self) -> None:
        self.budget = Budget()
        self._times: dict[tuple[bytes, int], Latencies] = {}

    def note(self, server_id: bytes, size: int, seconds: float, now: float) -> None:
        self._latencies_of(server_id, size).add(seconds, now)

    def keep_only(self, server_ids: Sequence[bytes]) -> None:
        self._times = {key: times for key, times in self._times.items() if key[0] in server_ids}

    def delay_s(self, server_id: bytes, size: int, now: float) -> float:
        """Return the delay without an answer of this member after which another one is queried."""
        times = self._latencies_of(server_id, size)
        slow = times.quantile(hedge_percentile, now)
        if slow is None or len(times) < hedge_samples_min:
            return hedge_delay_first_s
        return min(max(slow, hedge_delay_min_s), hedge_delay_max_s)

    def order(self, candidates: Sequence[Candidate], size: int, now: float, rng: float) -> list[bytes]:
        """Return the order in which to query. Members about as fast as the best share the load by `rng`."""
        usual = {
            one.server_id: self._latencies_of(one.server_id, size).usual(now) or 0.0 for one in candidates
        }
        known = [
            seconds
            for one in candidates
            if (seconds := usual[one.server_id]) and one.connected and not one.avoided
        ]
        near = min(known, default=0.0) * _NEAR_FACTOR + _NEAR_S

        def rank(one: Candidate) -> tuple[bool, bool, bool, float]:
            seconds = usual[one.server_id]
            return (one.avoided, not one.connected, one.owed > 0, 0.0 if seconds <= near else seconds)

        ranked = sorted(candidates, key=rank)
        equals = sum(rank(one) == rank(ranked[0]) for one in ranked)
        turn = int(rng * equals)
        return [one.server_id for one in (*ranked[turn:equals], *ranked[:turn], *ranked[equals:])]

    def _latencies_of(self, server_id: bytes, size: int) -> Latencies:
        key = (server_id, _class_of(size))
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = Latencies()
        return times


def _class_of(size: int) -> int:
    if size == 0:
        return -1
    blocks = max(size - 1, 0) // digest_block_bytes
    return (blocks.bit_length() + 1) // 2


@dataclass(frozen=True, slots=True)
class QueryMember:
    server_id: bytes
    hedge: bool


@dataclass(frozen=True, slots=True)
class DropMember:
    """Stop waiting for this member's answer. It was queried `seconds` ago."""

    server_id: bytes
    seconds: float


Effect = QueryMember | DropMember


class Race:
    """One request to the members. Call `begin`, report each event until `over`; call `time_is_up` at
    `deadline`. Each member is queried at most once. When it is over, none is in flight; `won`: the answers
    received are enough; otherwise no member is left that could answer.
    """

    def __init__(self, order: Sequence[bytes], delay_s: float, budget: Budget, *, lacking: int = 1) -> None:
        self.over = self.won = False
        self._remaining = deque(order)
        self._in_flight: dict[bytes, float] = {}
        self._delay_s = delay_s
        self._budget = budget
        self._lacking = lacking
        self._last_query_at = 0.0
        self._settles_at: float | None = None

    def begin(self, now: float) -> list[Effect]:
        self._budget.earn()
        return self._query_more(now)

    def answered(self, server_id: bytes, now: float, *, lacking: int, settled: bool = False) -> list[Effect]:
        """Report an answer, and how many are still lacking. `settled`: sufficient, unless another is better
        soon.
        """
        if self.over or self._in_flight.pop(server_id, None) is None:
            return []
        self._lacking = lacking
        if settled and self._settles_at is None:
            self._settles_at = now + read_settle_s
        return self._end(now, won=True) if not lacking else self._query_more(now)

    def failed(self, server_id: bytes, now: float) -> list[Effect]:
        if self.over or self._in_flight.pop(server_id, None) is None:
            return []
        return self._query_more(now)

    @property
    def deadline(self) -> float:
        """When to call `time_is_up` next, if nothing else happens before."""
        first = min(self._in_flight.values(), default=self._last_query_at)
        times = [first + read_timeout_s]
        if self._remaining:
            times.append(self._last_query_at + self._delay_s)
        if self._settles_at is not None:
            times.append(self._settles_at)
        return min(times)

    def time_is_up(self, now: float) -> list[Effect]:
        if self.over:
            return []
        if self._settles_at is not None and now >= self._settles_at:
            return self._end(now)
        effects: list[Effect] = []
        for server_id, queried_at in list(self._in_flight.items()):
            if now >= queried_at + read_timeout_s:
                del self._in_flight[server_id]
                effects.append(DropMember(server_id, now - queried_at))
        if self._remaining and now >= self._last_query_at + self._delay_s and self._may_hedge():
            effects.append(self._query_next(now, hedge=True))
        return effects + self._query_more(now)

    def _may_hedge(self) -> bool:
        if self._delay_s >= hedge_rescue_s or self._budget.take():
            return True
        self._delay_s = hedge_rescue_s
        return False

    def _query_more(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._remaining and len(self._in_flight) < self._lacking:
            effects.append(self._query_next(now, hedge=False))
        if not self._in_flight:
            effects += self._end(now)
        return effects

    def _query_next(self, now: float, *, hedge: bool) -> QueryMember:
        server_id = self._remaining.popleft()
        self._in_flight[server_id] = self._last_query_at = now
        return QueryMember(server_id, hedge)

    def _end(self, now: float, *, won: bool = False) -> list[Effect]:
        self.over, self.won = True, won
        dropped = [
            DropMember(server_id, now - queried_at) for server_id, queried_at in self._in_flight.items()
        ]
        self._in_flight.clear()
        return [*dropped]
