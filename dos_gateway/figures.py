"""What a gateway counts, as metrics for Prometheus. docs/metrics.md describes them."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from prometheus_client import Counter as LabeledCounter
from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dos_monitoring import SilentLoopError

_SECONDS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The upper bounds of the histogram of requests."""


class TreeFigures(NamedTuple):
    """The tree that a gateway serves, at one moment. room_bytes: None without `--max-bytes`."""

    epoch: int = 0
    files: int = 0
    live_bytes: int = 0
    chain_bytes: int = 0
    unsynced_bytes: int = 0
    copied_bytes: int = 0
    max_bytes: int = 0
    room_bytes: int | None = None


class GatewayFigures(Collector):
    """The figures of one gateway. It counts on the gateway's loop; `collect` is called in any thread."""

    def __init__(self, tree: str) -> None:
        self.tree: Callable[[], TreeFigures | None] | None = None
        """Returns the tree, None while another gateway serves it. May raise SilentLoopError."""
        self.open_connections = self.held_requests = self.uploads = 0
        self.counts = Counter[str]()
        self._of = (tree,)
        self._known: dict[tuple[str, str], tuple[LabeledCounter, Histogram]] = {}
        self._requests = LabeledCounter(
            "dos_gateway_requests",
            "Requests by operation and outcome",
            ["tree", "op", "outcome"],
            registry=None,
        )
        self._seconds = Histogram(
            "dos_gateway_request_seconds",
            "Time until a request is answered, also that of a body that is received",
            ["tree", "op"],
            buckets=_SECONDS,
            registry=None,
        )

    def count(self, op: str, outcome: str, seconds: float) -> None:
        """Count a request that has ended."""
        if (known := self._known.get((op, outcome))) is None:  # `labels` takes longer than the counting
            counter, times = (
                self._requests.labels(*self._of, op, outcome),
                self._seconds.labels(*self._of, op),
            )
            known = self._known[op, outcome] = counter, times
        known[0].inc()
        known[1].observe(seconds)

    def collect(self) -> Iterable[Metric]:
        yield from self._requests.collect()
        yield from self._seconds.collect()
        for name, text in (
            ("take_overs", "Times that this gateway began to serve the tree"),
            ("lost_claims", "Times that it ended because another gateway, or a command, claimed the tree"),
            ("stalls", "Times that the process stood still for a second and ended its connections"),
        ):
            yield self._counter(name, text, self.counts[name])
        for name, text, value in (
            ("open_connections", "Connections of clients", self.open_connections),
            (
                "held_requests",
                "Requests that wait until it is known which gateway serves",
                self.held_requests,
            ),
            ("uploads", "Bodies that are being received", self.uploads),
        ):
            yield self._gauge(name, text, value)
        try:
            now = self.tree() if self.tree is not None else None
        except SilentLoopError:
            return  # /healthz reports it
        copied = self.counts["copied_bytes"] + (0 if now is None else now.copied_bytes)
        yield self._counter("copied_bytes", "Bytes of bodies copied forward to give back space", copied)
        yield self._gauge(
            "serves", "1 while it serves the tree, 0 while it is a standby", int(now is not None)
        )
        if now is not None:
            yield from self._of_tree(now)

    def _of_tree(self, now: TreeFigures) -> Iterable[Metric]:
        for name, text in (
            ("epoch", "Epoch of its claim"),
            ("files", "Files in the tree"),
            ("live_bytes", "Bytes of these files"),
            ("chain_bytes", "Bytes of the chain that are not given back"),
            ("unsynced_bytes", "Bytes appended and not yet on a quorum of disks"),
            ("max_bytes", "Its --max-bytes; 0 without"),
        ):
            yield self._gauge(name, text, getattr(now, name))
        if now.room_bytes is not None:
            text = "Bytes that files may still have before new ones are refused; only with --max-bytes"
            yield self._gauge("room_bytes", text, now.room_bytes)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"dos_gateway_{name}", text, labels=["tree"])
        family.add_metric(self._of, value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"dos_gateway_{name}", text, labels=["tree"])
        family.add_metric(self._of, value)
        return family
