"""A region's reports: status, progress and resets as JSON with stable names, dropped rows, spans. Pure.

One progress report for each committed checkpoint, with the names of Spark's `StreamingQuery.lastProgress`
where it has the same field. docs/operating-regions.md explains each name. A counter of an operator with the
suffix `RULE_rows_dropped` counts since the region began; one with `_max` is merged by `max`.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Final

from checkpoint import limits
from checkpoint.core.graph_change import OperatorNote
from checkpoint.core.links.messages import EventTime
from checkpoint.core.region import (
    CheckpointCommitted,
    RecoveryEstimate,
    RegionEvent,
    RegionSpec,
    RegionState,
    RegionStatus,
    ResetReport,
    ScaleDecided,
    UnderWayStatus,
    WorkerStatus,
)
from dos_monitoring import SpanRecord, in_sequence

RECENT_PROGRESS_MAX: Final = 100
_DIGITS: Final = 6


class ProgressMeter:
    """The newest progress reports of one region, with the counters of the last one, to report differences."""

    def __init__(self, region: str, operators: Mapping[str, OperatorNote] | None = None) -> None:
        """operators: `RegionSpec.operators`."""
        self.region = region
        self._kinds = {name: note.kind for name, note in (operators or {}).items()}
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_PROGRESS_MAX)
        self._rows_before: dict[int, tuple[int, int, int]] = {}
        """Worker -> its attempt, rows in, rows out at the last report."""
        self._operators_before: dict[int, dict[str, dict[str, int]]] = {}
        self._incarnation_before = 0
        self._time_before: float | None = None

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest report, None before the first."""
        return self.recent[-1] if self.recent else None

    def report(
        self, event: CheckpointCommitted, status: RegionStatus, *, now: float, timestamp: str
    ) -> dict[str, Any]:
        """Return the report of one checkpoint, and keep it. now: monotonic seconds; timestamp: the wall clock
        as ISO text. A counter that began again is reported with its current value.
        """
        seconds = None if self._time_before is None else now - self._time_before
        rows_in, rows_out = self._rows_since(status)
        report = {
            "name": self.region,
            "timestamp": timestamp,
            "state": status.state.value,
            "incarnation": status.incarnation,
            "checkpoint": event.checkpoint,
            "step": event.step,
            "final": event.final,
            "batch": event.batch,
            "numInputRows": rows_in,
            "numOutputRows": rows_out,
            "inputRowsPerSecond": round(rows_in / seconds, 1) if seconds else None,
            "outputRowsPerSecond": round(rows_out / seconds, 1) if seconds else None,
            "checkpointSeconds": as_json(event.seconds),
            "phaseSeconds": as_json(event.phases_s),
            "lagBytes": sum(worker.lag_bytes for worker in status.workers),
            "resets": len(status.resets),
            "rowsDropped": as_json(status.dropped),
            "eventTimes": event_times_json(status),
            "operators": self._operators_since(status),
            "workers": [
                worker_json(worker) | {"phaseSeconds": as_json(event.worker_phases_s.get(worker.index, {}))}
                for worker in status.workers
            ],
        }
        self._time_before = now
        self.recent.append(report)
        return report

    def _rows_since(self, status: RegionStatus) -> tuple[int, int]:
        rows_in = rows_out = 0
        for worker in status.workers:
            now = (worker.attempt, worker.rows_in, worker.counters.rows_out)
            before = self._rows_before.get(worker.index, (0, 0, 0))
            self._rows_before[worker.index] = now
            same = before[0] == now[0]
            rows_in += _since(now[1], before[1] if same else 0)
            rows_out += _since(now[2], before[2] if same else 0)
        return rows_in, rows_out

    def _operators_since(self, status: RegionStatus) -> list[dict[str, Any]]:
        """Return each operator's counters over all workers: rows and time since the last report."""
        if status.incarnation != self._incarnation_before:
            self._operators_before, self._incarnation_before = {}, status.incarnation
        summed: dict[str, dict[str, int]] = {}
        for worker in status.workers:
            before = self._operators_before.get(worker.index, {})
            for name, counters in worker.counters.operators.items():
                total = summed.setdefault(name, {})
                for counter, value in counters.items():
                    grows = counter in ("rows_in", "rows_out", BUSY)
                    part = _since(value, before.get(name, {}).get(counter, 0)) if grows else value
                    merge_counters(total, {counter: part})
            self._operators_before[worker.index] = worker.counters.operators
        return [
            {"name": name, "kind": self._kinds.get(name, ""), **_camel_case(counters)}
            for name, counters in summed.items()
        ]


class IdleMeter:
    """Whether a region has nothing to do, for reports at most every `idle_report_s`."""

    def __init__(self) -> None:
        self._since = 0.0
        """When it had something to do last, or was reported to have nothing."""

    def is_due(self, status: RegionStatus, now: float) -> bool:
        """Return whether it is to be reported. Call it with each status, at least once a second."""
        runs = status.state is RegionState.RUNNING
        if not runs or status.under_way is not None or status.step > status.last_checkpoint_step:
            self._since = now
        if now - self._since < limits.idle_report_s:
            return False
        self._since = now
        return True


@cache
def json_name(name: str) -> str:
    """Return the name of a field or a counter in JSON: in camel case, with the unit written out."""
    first, *rest = re.sub("_s$", "_seconds", re.sub("_us$", "_microseconds", name)).split("_")
    return first + "".join(word.capitalize() for word in rest)


def as_json(found: Any) -> Any:
    """Return a status, or what is in one, as JSON. Of a field, the metadata "json" is the name if it is not
    `json_name`, and None if it is not reported. Numbers are rounded.
    """
    if isinstance(found, float):
        return round(found, _DIGITS)
    if isinstance(found, Mapping):
        return {name: as_json(value) for name, value in found.items()}
    if isinstance(found, tuple):
        return [as_json(value) for value in found]
    if (shown := _SHOWN.get(type(found))) is not None:
        return shown(found)
    return _fields_json(found) if is_dataclass(found) else found


def _fields_json(found: Any) -> dict[str, Any]:
    names = {one.name: one.metadata.get("json", "") for one in fields(found)}
    return {
        name or json_name(field): as_json(getattr(found, field))
        for field, name in names.items()
        if name is not None
    }


def status_json(status: RegionStatus) -> dict[str, Any]:
    """Return a status as JSON."""
    recent = tuple(status.resets)[-RESETS_LISTED_MAX:]
    return _fields_json(replace(status, resets=recent)) | {
        "eventTimes": event_times_json(status),
        "operators": operators_json(status),
    }


def driver_report(
    spec: RegionSpec, status: RegionStatus, last_progress: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what a driver answers to a request for its status."""
    return {
        "name": spec.name,
        **status_json(status),
        "checkpointIntervalSeconds": spec.checkpoint_interval_s,
        "lastProgress": last_progress,
    }


def operators_json(status: RegionStatus) -> list[dict[str, Any]]:
    """Return the counters of each operator, summed over the workers, since this incarnation began."""
    summed: dict[str, dict[str, int]] = {}
    for worker in status.workers:
        for name, counters in worker.counters.operators.items():
            merge_counters(summed.setdefault(name, {}), counters)
    return [{"name": name, **_camel_case(counters)} for name, counters in summed.items()]


def under_way_text(under_way: Mapping[str, Any]) -> str:
    """Return one line about the checkpoint that is under way, of its JSON."""
    waits = under_way["waitsFor"]
    who = "; ".join(f"worker {one['worker']}: {one['why']}" for one in waits)
    what = f"has waited {under_way['seconds']:.1f} s for the vote of {who}" if waits else "is being committed"
    return f"checkpoint {under_way['checkpoint']} {what}"


def slowest_event_times(status: RegionStatus) -> dict[str, tuple[int, EventTime]]:
    """Return `event_time` operator -> the worker whose event time is the least, and that event time."""
    found: dict[str, tuple[int, EventTime]] = {}
    for worker in status.workers:
        for name, here in worker.counters.event_times.items():
            before = found[name][1].watermark_us if name in found else math.inf
            if name not in found or (
                before is not None and (here.watermark_us is None or here.watermark_us < before)
            ):
                found[name] = worker.index, here
    return found


def event_times_json(status: RegionStatus) -> list[dict[str, Any]]:
    """Return how far event time is, and what holds it there, as JSON."""
    return [
        {
            "name": name,
            "watermarkMicroseconds": here.watermark_us,
            "worker": worker,
            "heldBy": here.held_by,
        }
        for name, (worker, here) in slowest_event_times(status).items()
    ]


RESETS_LISTED_MAX: Final = 10


def recovery_text(found: Mapping[str, Any]) -> str:
    """Return one line about an estimate in JSON."""
    return (
        f"recovery: about {found['seconds']:.1f} s (launch {found['launchSeconds']:.1f},"
        f" claim {found['claimSeconds']:.1f}, state {found['stateSeconds']:.1f} for"
        f" {found['stateBytes'] / 1e6:.0f} MB, replay {found['replaySeconds']:.1f} for"
        f" {found['replaySteps']} steps)"
    )


def worker_json(worker: WorkerStatus) -> dict[str, Any]:
    """Return the status of one worker as JSON."""
    counters = worker.counters
    return _fields_json(worker) | {
        "step": counters.step,
        "rowsIn": counters.rows_in,
        "rowsOut": counters.rows_out,
        "lagBytes": counters.lag_bytes,
        "backlogBytes": counters.backlog_bytes if counters.backlog_bytes >= 0 else None,
        "busySeconds": as_json(counters.busy_s),
        "operator": worker.operator or None,
        "operatorWaits": worker.waits or None,
    }


def _under_way_json(under_way: UnderWayStatus) -> dict[str, Any]:
    waits_for = [{"worker": index, "why": why} for index, why in under_way.waits_for.items()]
    return _fields_json(under_way) | {"waitsFor": waits_for}


_SHOWN: Final[dict[type, Callable[[Any], Any]]] = {
    RecoveryEstimate: lambda recovery: _fields_json(recovery) | {"seconds": as_json(recovery.seconds)},
    RegionState: lambda state: state.value,
    ScaleDecided: str,
    UnderWayStatus: _under_way_json,
    WorkerStatus: worker_json,
}
"""What is in JSON in another way than by its fields."""


def prometheus_targets(region: str, status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the addresses of figures in a status in JSON, as a file of `file_sd_configs`."""
    roles = [("driver", status.get("metrics"))]
    roles += [(f"w{one['worker']}", one.get("metrics")) for one in status.get("workers", ())]
    return [
        {"targets": [address], "labels": {"job": "dos-region", "dos_region": region, "dos_role": role}}
        for role, address in roles
        if address
    ]


def _since(now: int, before: int) -> int:
    return now - before if now >= before else now


def _camel_case(counters: Mapping[str, int]) -> dict[str, float]:
    """Return the counters with their names in camel case: rows_in as rowsIn. Time is in seconds."""
    found: dict[str, float] = {json_name(name): value for name, value in counters.items() if name != BUSY}
    return found | ({"busySeconds": round(counters[BUSY] / 1e6, 3)} if BUSY in counters else {})


DROPPED_SUFFIX: Final = "_rows_dropped"
MAX_SUFFIX: Final = "_max"
LATE_BY: Final = "late_by_us_max"
BUSY: Final = "busy_us"
"""The time of an operator's calls."""

REMEDIES: Final = {
    "ahead": "their event time is too far ahead of the clock; to keep them, set a larger max_ahead, or"
    " on_ahead='side' and read side output 'ahead'",
    "late": "give event_time a larger lateness, or read the side output 'late' of the operator",
    "null": "their key or event time is null; to keep them, set on_null='side' and read side output 'null'",
}
"""Rule -> how to avoid that rows are dropped by it."""
_US: Final = 1e6


def merge_counters(into: dict[str, int], other: Mapping[str, int]) -> None:
    """Add the counters of another worker or output of the same operator to `into`."""
    for name, value in other.items():
        before = into.get(name, 0)
        into[name] = max(before, value) if name.endswith(MAX_SUFFIX) else before + value


def dropped_rows(workers: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return rule -> operator -> rows dropped since the region began. workers: the counters of each."""
    found: dict[str, dict[str, int]] = {}
    for operators in workers:
        for operator, counters in operators.items():
            for name, value in counters.items():
                if value and name.endswith(DROPPED_SUFFIX):
                    by_operator = found.setdefault(name.removesuffix(DROPPED_SUFFIX), {})
                    by_operator[operator] = by_operator.get(operator, 0) + value
    return found


def dropped_text(dropped: Mapping[str, Mapping[str, int]]) -> str:
    """Return in words how many rows which operators dropped, and the remedy; empty if none was dropped."""
    texts = []
    for rule, operators in sorted(dropped.items()):
        listed = ", ".join(f"{name!r} {count:,}" for name, count in sorted(operators.items()))
        rows = sum(operators.values())
        what = f"{rows:,} {rule} row{'s were' if rows != 1 else ' was'} dropped by {listed}"
        texts.append(f"{what}: {REMEDIES[rule]}" if rule in REMEDIES else what)
    return "; ".join(texts)


def end_text(dropped: Mapping[str, Mapping[str, int]]) -> str:
    """Return the reason of a region that ended because its input did."""
    lost = dropped_text(dropped)
    return f"all input is read, but {lost}" if lost else "all input is processed"


def late_by_text(counters: Mapping[str, int]) -> str:
    """Return how far behind the watermark late rows were; empty if none was late."""
    behind_us = counters.get(LATE_BY, 0)
    return f", up to {behind_us / _US:g} s behind the watermark" if behind_us else ""


__all__ = [
    "BUSY",
    "DROPPED_SUFFIX",
    "dropped_rows",
    "dropped_text",
    "end_text",
    "late_by_text",
    "merge_counters",
]


def span_of(region: str, event: RegionEvent) -> SpanRecord | None:
    """Return the trace of a checkpoint or a recovery that has just ended; None for any other event."""
    if isinstance(event, CheckpointCommitted):
        return _checkpoint(region, event)
    if isinstance(event, ResetReport):
        return _recovery(region, event)
    return None


def _checkpoint(region: str, event: CheckpointCommitted) -> SpanRecord:
    workers = tuple(
        _vote(worker, event.votes_s.get(worker, event.seconds), phases_s)
        for worker, phases_s in event.worker_phases_s.items()
    )
    voted_s = max((one.end_s for one in workers), default=0.0)
    return SpanRecord(
        "dos.checkpoint",
        0.0,
        event.seconds,
        {
            "dos.region": region,
            "dos.checkpoint": event.checkpoint,
            "dos.step": event.step,
            "dos.final": event.final,
        },
        (*workers, SpanRecord("dos.checkpoint.commit", voted_s, event.seconds)),
    )


def _vote(worker: int, voted_s: float, phases_s: dict[str, float]) -> SpanRecord:
    begin_s = max(voted_s - sum(phases_s.values()), 0.0)
    phases = in_sequence("dos.checkpoint", phases_s, begin_s=begin_s, end_s=voted_s)
    return SpanRecord("dos.checkpoint.vote", 0.0, voted_s, {"dos.worker": worker}, phases)


def _recovery(region: str, event: ResetReport) -> SpanRecord:
    return SpanRecord(
        "dos.take_over" if event.term else "dos.recovery",
        0.0,
        event.seconds,
        {
            "dos.region": region,
            "dos.worker": event.worker,
            "dos.reason": event.reason,
            "dos.incarnation": event.incarnation,
            "dos.checkpoint": event.checkpoint,
            "dos.replayed_bytes": event.bytes,
        },
        in_sequence("dos.recovery", event.phases_s, begin_s=0.0, end_s=event.seconds),
    )
