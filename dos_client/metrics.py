"""The client's Prometheus metrics (docs/metrics.md), of all stores of the process, in a registry of their
own.

    from dos_client import metrics
    metrics.serve(9400)                      # http://127.0.0.1:9400/metrics
    REGISTRY.register(metrics.registry)      # or: together with the application's own metrics
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dos_client.core.status import MemberStatus, StoreCounters
from dos_monitoring import HealthServer, refuse_plain_text
from dos_monitoring.health import nothing_wrong

registry: Final = CollectorRegistry()

_STATES: Final = [
    "in sync",
    "catching up",
    "comparing",
    "entering",
    "joining",
    "adding",
    "unavailable",
    "broken",
]
"""Best first. If several stores share a member, the worst state is shown."""

_TOTALS: Final = {
    attribute: Counter(f"dos_client_{name}", text, registry=registry)
    for attribute, name, text in (
        ("appended_bytes", "appended_bytes", "Bytes passed to append"),
        ("acknowledged_bytes", "acknowledged_bytes", "Bytes appended that became durable on a quorum"),
        ("waiting_s", "waiting_seconds", "Time that writers waited for a quorum, summed"),
        ("questions", "questions", "Reads and comparisons, each sent to at least one member"),
        (
            "hedges",
            "hedges",
            "Requests sent only because another member was slow, at most about 5 in 100 questions",
        ),
        ("faulty_copies", "faulty_copies", "Copies found to be damaged, or different from a quorum's"),
        (
            "collected_objects",
            "collected_objects",
            "Copies deleted because only released checkpoints needed them",
        ),
    )
}
"""By attribute of `StoreCounters`."""
_BY_MEMBER: Final = {
    attribute: Counter(f"dos_client_{name}", text, labels, registry=registry)
    for attribute, name, text, labels in (
        (
            "sent_bytes",
            "sent_bytes",
            "Bytes of appends sent to a member; more than were appended: data was sent again",
            ["member"],
        ),
        (
            "filled_bytes",
            "catch_up_bytes",
            "Bytes of appends that were no longer in memory, by source: local or member",
            ["member", "source"],
        ),
        (
            "reconnects",
            "reconnects",
            "Sessions of writers that were reconnected after one was lost",
            ["member"],
        ),
    )
}
waiting_claims: Final = Gauge(
    "dos_client_waiting_claims", "Writers that are waiting for a quorum", registry=registry
)
member_lag_bytes: Final = Gauge(
    "dos_client_member_lag_bytes", "Bytes appended and not durable on a member", ["member"], registry=registry
)
member_lag_seconds: Final = Gauge(
    "dos_client_member_lag_seconds",
    "Upper bound of the age of the oldest of those bytes",
    ["member"],
    registry=registry,
)
member_state: Final = Enum(
    "dos_client_member_state", "State of a member for writers", ["member"], states=_STATES, registry=registry
)

_lock: Final = threading.Lock()
_seen: Final[dict["StoreFigures", tuple[Sequence[MemberStatus], int]]] = {}
_shared_by: Final[list["SharedFigures"]] = []


def serve(
    port: int,
    address: str = "127.0.0.1",
    *,
    hangs: Callable[[], str] = nothing_wrong,
    not_ready: Callable[[], str] | None = None,
) -> HealthServer:
    """Serve GET /metrics, /healthz and /readyz until the result is closed. Port 0 selects a free one: the
    result's `port`.

    hangs, not_ready: return why your program does not move, and why it does not do its work; "" for no
    reason. They are called in threads. By default /readyz fails while writers wait for a quorum. Raises
    OSError, and TlsSettingsError for an address that other machines can reach although the environment
    demands TLS.
    """
    refuse_plain_text(address)
    return HealthServer(registry, address, port, hangs=hangs, not_ready=not_ready or store_problem)


def store_problem() -> str:
    with _lock:
        waiting = sum(waits for _, waits in _seen.values())
        members = {one.address for found, _ in _seen.values() for one in found if one.state == "unavailable"}
    if not waiting:
        return ""
    return f"{waiting} writers wait for a quorum; unavailable: {', '.join(sorted(members)) or 'none'}"


class SharedFigures(Collector):
    def __init__(self) -> None:
        with _lock:
            _shared_by.append(self)

    def collect(self) -> Iterable[Metric]:
        with _lock:
            # Only the server that was opened first has them: sums over all scraped addresses would count them
            # again.
            first = _shared_by[0] is self if _shared_by else False
        return registry.collect() if first else ()

    def close(self) -> None:
        with _lock:
            _shared_by.remove(self)


def text() -> str:
    return generate_latest(registry).decode()


class StoreFigures:
    def __init__(self) -> None:
        self._published = StoreCounters()

    def publish(self, counts: StoreCounters, members: Sequence[MemberStatus], waiting: int) -> None:
        before, self._published = self._published, counts.copy()
        for attribute, total in _TOTALS.items():
            total.inc(getattr(counts, attribute) - getattr(before, attribute))
        for attribute, by_member in _BY_MEMBER.items():
            for key, count in getattr(counts, attribute).items():
                labels = key if isinstance(key, tuple) else (key,)
                by_member.labels(*labels).inc(count - getattr(before, attribute)[key])
        with _lock:
            before_that, _ = _seen.get(self, ((), 0))
            _seen[self] = (members, waiting)
            _set_gauges(before_that)

    def close(self) -> None:
        with _lock:
            members, _ = _seen.pop(self, ((), 0))
            _set_gauges(members)


def _set_gauges(before: Sequence[MemberStatus]) -> None:
    """Set all members' gauges, and remove those that no store has now: a replaced member must not seem to
    lag.
    """
    waiting_claims.set(sum(waiting for _, waiting in _seen.values()))
    by_address: dict[str, list[MemberStatus]] = {}
    for members, _ in _seen.values():
        for one in members:
            by_address.setdefault(one.address, []).append(one)
    for address, statuses in by_address.items():
        member_lag_bytes.labels(address).set(sum(one.lag_bytes for one in statuses))
        member_lag_seconds.labels(address).set(max(one.lag_s for one in statuses))
        member_state.labels(address).state(max((one.state for one in statuses), key=_STATES.index))
    for address in {one.address for one in before} - by_address.keys():
        for gauge in (member_lag_bytes, member_lag_seconds, member_state):
            gauge.remove(address)
