"""Which hosts cannot reach each other, and which worker should run elsewhere. Pure: hosts, workers, times.

Workers report peers that they cannot connect to. A worker that joins from a host that a peer could not
reach is rejected and launched again, until the launcher has placed it on another one. The launcher chooses
hosts freely, so a rejected worker may return on the same host (on Spark its slot is still occupied then, see
docs/decisions/0229). After `placement_tries_max` rejections no other host seems to be available. Then the
placement is accepted and kept for `placement_pause_s`: the hosts may reach each other again before another
host is free.
"""

from collections.abc import Iterable
from math import inf

from checkpoint import limits
from checkpoint.core.coordination.workers import Worker
from dos_protocol.arguments import is_loopback


class Placement:
    """The pairs of hosts of one region that cannot reach each other, as far as its workers reported it."""

    def __init__(self) -> None:
        self._pairs: dict[frozenset[str], float] = {}
        """Pair of hosts -> until when it counts."""
        self._rejections = 0
        self._kept_until = -inf
        self._since = inf

    def report(self, worker: Worker, peer: Worker, now: float) -> float:
        """Note that a worker could not connect to a peer.

        Return for how many seconds some pair could not, without a committed checkpoint.
        """
        self._since = min(self._since, now)
        hosts = frozenset((host_of(worker), host_of(peer)))
        if len(hosts) == 2 and "" not in hosts:
            self._pairs[hosts] = now + limits.unreachable_counts_s
        return now - self._since

    def worker_to_move(self, worker: Worker, peer: Worker, now: float) -> Worker | None:
        """Return which of a pair that cannot connect should run on another host, None if neither.

        It is the one whose host fails to reach more hosts; if both fail equally often, the peer.
        """
        if now < self._kept_until or not self._separated(host_of(worker), host_of(peer), now):
            return None
        return max((peer, worker), key=lambda one: self._failing(host_of(one), now))

    def rejects(self, host: str, others: Iterable[Worker], now: float) -> Worker | None:
        """Return the worker that a new worker on `host` could not connect to; None: it may run there."""
        if now < self._kept_until:
            return None
        blocked = next((one for one in others if self._separated(host, host_of(one), now)), None)
        if blocked is None:
            self._rejections = 0
            return None
        self._rejections += 1
        if self._rejections > limits.placement_tries_max:
            self._rejections, self._kept_until = 0, now + limits.placement_pause_s
            return None
        return blocked

    def forgive(self) -> None:
        """Note that a checkpoint was committed: all workers reached each other."""
        self._since, self._rejections = inf, 0

    def _separated(self, one: str, other: str, now: float) -> bool:
        return self._pairs.get(frozenset((one, other)), -inf) > now

    def _failing(self, host: str, now: float) -> int:
        return sum(1 for pair, until in self._pairs.items() if host in pair and until > now)


def worker_on_loopback(workers: Iterable[Worker]) -> Worker | None:
    """Return a worker whose address for its peers only its own machine reaches, if a peer is on another."""
    joined = [worker for worker in workers if worker.join is not None]
    if len({host_of(worker) for worker in joined}) < 2:
        return None
    return next((one for one in joined if one.join is not None and is_loopback(one.join.exchange_host)), None)


def host_of(worker: Worker) -> str:
    """Return the host of a worker's newest attempt that joined, "" before the first one."""
    return worker.join.host if worker.join is not None else ""
