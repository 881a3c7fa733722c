"""What a server counts, as metrics for Prometheus. docs/metrics.md describes them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode
from dos_server.core import vocabulary as v
from dos_server.core.server_core import CoreGauges

_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""The upper bounds of the histogram of syncs."""
FRESH_S: Final = 5.0
"""The event loop publishes several times a second: it hangs if the last time is longer ago than this."""
Perform = Mapping[type[Any], Callable[[Any], Any]]


class SyncTimes:
    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total_s = 0.0

    @contextmanager
    def timing(self) -> Iterator[None]:
        begun_s = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - begun_s)

    def add(self, seconds: float) -> None:
        place = next((at for at, bound in enumerate(_SECONDS) if seconds <= bound), len(_SECONDS))
        self.counts[place] += 1
        self.total_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        found, so_far = list[tuple[str, float]](), 0
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


class ServerFigures(Collector):
    def __init__(self, version: str) -> None:
        self._version = version
        self.syncs = SyncTimes()
        self._refusals = Counter[str]()
        self._written_bytes = self._writes = self._read_bytes = self._acknowledgements = 0
        self._connections = 0
        self._gauges: CoreGauges | None = None
        self._at_s = 0.0

    # --- from the event loop --------------------------------------------------------------------------------

    def count(self, perform: Perform) -> dict[type[Any], Callable[[Any], Any]]:
        send, send_acks, write = perform[v.Send], perform[v.SendAcks], perform[v.WriteMany]

        def counted_send(effect: v.Send) -> Any:
            message = effect.message
            if type(message) is m.DurabilityAck:
                self._acknowledgements += 1
            elif type(message) is m.Data:
                self._read_bytes += len(message.payload) + sum(map(len, effect.rest))
            elif type(message) is m.Error:
                self._refusals[ErrorCode(message.code).name] += 1
            return send(effect)

        def counted_acks(effect: v.SendAcks) -> Any:
            self._acknowledgements += len(effect.acks)
            return send_acks(effect)

        def counted_writes(effect: v.WriteMany) -> Any:
            self._writes += len(effect.writes)
            self._written_bytes += sum(len(data) for one in effect.writes for data in one.buffers)
            return write(effect)

        return {**perform, v.Send: counted_send, v.SendAcks: counted_acks, v.WriteMany: counted_writes}

    def publish(self, gauges: CoreGauges, connections: int) -> None:
        self._gauges, self._connections, self._at_s = gauges, connections, time.monotonic()

    # --- from other threads ---------------------------------------------------------------------------------

    def hangs(self) -> str:
        """Return why the server is not alive; "" if it is."""
        if self._gauges is None:
            return "it does not serve yet"
        silent_s = time.monotonic() - self._at_s
        return "" if silent_s <= FRESH_S else f"its event loop has not answered for {silent_s:.0f} s"

    def not_ready(self) -> str:
        """Return why clients should not use the server; "" if they can."""
        if reason := self.hangs():
            return reason
        assert self._gauges is not None, "it does not hang"
        if self._gauges.rolled_back:
            return "its disk went back in time: replace it with `dos store replace`"
        if self._gauges.refuses_appends:
            return "its disk is full: appends are refused"
        return ""

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily("dos_server", "The version of the server", {"version": self._version})
        for name, text, value in (
            ("connections", "Connections that were accepted", self._connections),
            ("writes", "Writes of appended bytes to objects", self._writes),
            ("written_bytes", "Bytes of appends and their headers that were written", self._written_bytes),
            ("read_bytes", "Bytes that GET returned", self._read_bytes),
            ("acknowledgements", "Sizes that were reported to be on stable storage", self._acknowledgements),
        ):
            yield CounterMetricFamily(f"dos_server_{name}", text, value)
        refusals = CounterMetricFamily("dos_server_refusals", "Refused requests by code", labels=["code"])
        for code, count in sorted(self._refusals.items()):
            refusals.add_metric([code], count)
        yield refusals
        yield HistogramMetricFamily(
            "dos_server_sync_seconds",
            "Time of each sync of an object or of the group log",
            buckets=self.syncs.buckets(),
            sum_value=self.syncs.total_s,
        )
        if self._gauges is not None:
            yield from _gauges(self._gauges)


def _gauges(now: CoreGauges) -> Iterable[Metric]:
    for name, text in (
        ("open_connections", "Connections"),
        ("sessions", "Connections that have greeted"),
        ("directories", "Directories on the disk"),
        ("loaded_objects", "Objects in memory"),
        ("damaged_directories", "Directories known to hold a damaged object; the others are served"),
        ("unsynced_bytes", "Appended bytes that are not on stable storage"),
        ("room_bytes", "Bytes that can be appended before the reserve of the disk"),
        ("refuses_appends", "1 while the disk is full"),
        ("rolled_back", "1 if the disk is known to have gone back in time"),
        ("store_generation", "Generation of the store record; 0 without one"),
    ):
        yield GaugeMetricFamily(f"dos_server_{name}", text, getattr(now, name))
    labels = ["prefix", "what"]
    limits = GaugeMetricFamily(
        "dos_server_quota_limit",
        "Limits of the quotas: bytes, objects, directories, connections, or requests (the burst)",
        labels=labels,
    )
    used = GaugeMetricFamily("dos_server_quota_used", "What is used of them", labels=labels)
    refused = CounterMetricFamily(
        "dos_server_quota_refusals",
        "Requests that a quota has refused; of requests, how often the burst was used up; 0 when it changes",
        labels=labels,
    )
    for one in now.quotas:
        limits.add_metric([one.prefix, one.what], one.limit)
        used.add_metric([one.prefix, one.what], one.used)
        refused.add_metric([one.prefix, one.what], one.refusals)
    yield from (limits, used, refused)


def registry_of(figures: ServerFigures) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(figures)
    return registry
