"""The figures of a region for Prometheus (docs/metrics.md), read from the status when they are scraped."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from checkpoint.core.progress import slowest_event_times
from checkpoint.core.region import (
    CheckpointCommitted,
    FellBack,
    RegionEvent,
    RegionState,
    RegionStatus,
    ResetReport,
    RestoreSettled,
    ScaleSettled,
    WorkerLost,
)

_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the histogram of checkpoints."""
_WATERMARK: Final = "The watermark, in Unix time; `dos region status` names the split that holds it"


class RegionFigures(Collector):
    """The figures of one region. `observe` is called on the coordinator's thread, `collect` on any."""

    def __init__(self, region: str) -> None:
        self.status: Callable[[], RegionStatus] | None = None
        """Returns the status; None until the region has one."""
        self._of = (region,)
        self._buckets = [0] * (len(_SECONDS) + 1)
        self._checkpoint_s = self._reset_s = 0.0
        self._phases_s = Counter[str]()
        self._counts = Counter[str]()
        self._committed_at_s = 0.0

    def observe(self, event: RegionEvent, unix_time_s: float) -> None:
        """Count an event. unix_time_s: now."""
        if isinstance(event, CheckpointCommitted):
            place = next((at for at, bound in enumerate(_SECONDS) if event.seconds <= bound), len(_SECONDS))
            self._buckets[place] += 1
            self._checkpoint_s += event.seconds
            self._phases_s.update(event.phases_s)  # adds them
            self._committed_at_s = unix_time_s
        elif isinstance(event, ResetReport):
            self._counts["taken_over" if event.term else "resets"] += 1
            self._reset_s += event.seconds
        elif isinstance(event, WorkerLost):
            self._counts["lost_workers"] += 1
        elif isinstance(event, RestoreSettled) and not event.error:
            self._counts["restores"] += 1
        elif isinstance(event, FellBack):
            self._counts["fallbacks"] += 1
        elif isinstance(event, ScaleSettled) and not event.error:
            self._counts["scalings"] += 1

    def collect(self) -> Iterable[Metric]:
        for name, text in (
            ("resets", "Resets of all workers to a checkpoint"),
            ("taken_over", "Workers that were taken over while the others continued"),
            ("lost_workers", "Workers that were lost"),
            ("restores", "Restores of an older checkpoint"),
            ("fallbacks", "Falls back to an older checkpoint because the last one was damaged"),
            ("scalings", "Changes of the number of workers"),
        ):
            yield self._counter(name, text, self._counts[name])
        yield self._counter(
            "reset_seconds", "Time of resets and take-overs, from loss to start", self._reset_s
        )
        yield self._checkpoints()
        phases = CounterMetricFamily(
            "dos_region_checkpoint_phase_seconds",
            "Time of each phase of checkpoints, in the slowest worker",
            labels=("region", "phase"),
        )
        for phase, seconds in sorted(self._phases_s.items()):
            phases.add_metric((*self._of, phase), seconds)
        yield phases
        if self.status is not None:
            yield from self._of_status(self.status())

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"dos_region_{name}", text, labels=("region",))
        family.add_metric(self._of, value)
        return family

    def _checkpoints(self) -> Metric:
        so_far, found = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self._buckets, strict=True):
            so_far += count
            found.append((bound, so_far))
        text = "Time of each checkpoint, from the request to the acknowledgement of a quorum"
        family = HistogramMetricFamily("dos_region_checkpoint_seconds", text, labels=("region",))
        family.add_metric(self._of, found, self._checkpoint_s)
        return family

    def _of_status(self, status: RegionStatus) -> Iterable[Metric]:
        recovery = status.recovery
        values: list[tuple[str, str, float]] = [
            ("incarnation", "The incarnation; it rises with every reset", status.incarnation),
            ("last_checkpoint", "The number of the last committed checkpoint", status.last_checkpoint),
            (
                "last_checkpoint_timestamp_seconds",
                "When this driver last committed a checkpoint, in Unix time; 0 before the first",
                self._committed_at_s,
            ),
            (
                "steps_since_checkpoint",
                "Steps that ended after the last checkpoint; 0 for long means that there is no input",
                max(status.step - status.last_checkpoint_step, 0),
            ),
            ("reset_attempts", "Resets in a row without a checkpoint", status.reset_attempts),
            (
                "waiting_seconds",
                "How long the region has waited for the store; 0 if it does not wait",
                status.waiting_s,
            ),
            (
                "lag_bytes",
                "Bytes of the workers that are not durable",
                sum(worker.lag_bytes for worker in status.workers),
            ),
            ("standbys", "Processes that wait to become a worker", status.standbys),
        ]
        if status.query is not None and status.query.last_batch is not None:
            text = "The number of the last batch of the query that drives the region"
            values.append(("last_batch", text, status.query.last_batch))
        if recovery is not None:
            values += [
                ("recovery_seconds", "About how long a recovery would take now", recovery.seconds),
                (
                    "state_bytes",
                    "State that one worker reads in a recovery, at most",
                    recovery.state_bytes,
                ),
            ]
        for name, text, value in values:
            yield self._gauge(name, text, [((), value)])
        states = [((one.value,), float(one is status.state)) for one in RegionState]
        yield self._gauge("state", "1 for the state of the region", states, "state")
        joined = Counter(worker.state for worker in status.workers)
        of_workers = [((state,), float(count)) for state, count in sorted(joined.items())]
        yield self._gauge("workers", "Workers by state", of_workers, "state")
        times = [
            ((name,), here.watermark_us / 1e6)
            for name, (_, here) in slowest_event_times(status).items()
            if here.watermark_us is not None
        ]
        yield self._gauge("event_time_seconds", _WATERMARK, times, "operator")
        yield self._gauge(
            "rows_dropped", "Rows dropped since the region began", _dropped(status), "rule", "operator"
        )

    def _gauge(
        self, name: str, text: str, values: Iterable[tuple[tuple[str, ...], float]], *labels: str
    ) -> Metric:
        family = GaugeMetricFamily(f"dos_region_{name}", text, labels=("region", *labels))
        for of, value in values:
            family.add_metric((*self._of, *of), value)
        return family


def _dropped(status: RegionStatus) -> list[tuple[tuple[str, ...], float]]:
    found: list[tuple[tuple[str, ...], Any]] = [
        ((rule, operator), rows)
        for rule, operators in status.dropped.items()
        for operator, rows in operators.items()
    ]
    return found
