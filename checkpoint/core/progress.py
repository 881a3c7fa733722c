"""A region's reports as JSON values with stable names: status, progress, resets. Pure: no I/O.

There is one progress report for each committed checkpoint, as Spark has one for each micro-batch. Where
Spark's `StreamingQuery.lastProgress` has the same field, the name is Spark's; all names are spelled as there.
docs/operating-regions.md explains each name, and a test compares. `dos region status --json` prints the same
objects.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from checkpoint.core.coordination.recovery_estimate import RecoveryEstimate
from checkpoint.core.dropped import BUSY, merge_counters
from checkpoint.core.links.messages import EventTime
from checkpoint.core.region import (
    AutoScaleStatus,
    RegionSpec,
    RegionStatus,
    ResetReport,
    ScalingStatus,
    UnderWayStatus,
    WorkerStatus,
)
from checkpoint.core.region_events import CheckpointCommitted

RECENT_PROGRESS_MAX: Final = 100
_DIGITS: Final = 6


class ProgressMeter:
    """The newest progress reports of one region, with the counters of the last one, to report differences."""

    def __init__(self, region: str) -> None:
        self.region = region
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
        """Return the report of one checkpoint, and keep it.

        `now` is monotonic seconds, `timestamp` the wall clock as ISO text.

        Workers count since their process began, operators since the incarnation began. A counter that began
        again is reported with its current value. Rows that were read after the checkpoint and are read again
        after a reset count twice.
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
            "numInputRows": rows_in,
            "numOutputRows": rows_out,
            "inputRowsPerSecond": round(rows_in / seconds, 1) if seconds else None,
            "outputRowsPerSecond": round(rows_out / seconds, 1) if seconds else None,
            "checkpointSeconds": round(event.seconds, _DIGITS),
            "phaseSeconds": _rounded(event.phases_s),
            "lagBytes": sum(worker.lag_bytes for worker in status.workers),
            "resets": len(status.resets),
            "rowsDropped": rows_dropped_json(status),
            "operators": self._operators_since(status),
            "workers": [
                worker_json(worker) | {"phaseSeconds": _rounded(event.worker_phases_s.get(worker.index, {}))}
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
        """Return the counters of each operator, summed over the workers.

        Rows and time are differences since the last report; all others (such as keys) are current values.
        """
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
        return [{"name": name, **_camel_case(counters)} for name, counters in summed.items()]


def status_json(status: RegionStatus) -> dict[str, Any]:
    """Return a status as JSON."""
    return {
        "state": status.state.value,
        "reason": status.reason,
        "incarnation": status.incarnation,
        "lastCheckpoint": status.last_checkpoint,
        "lastCheckpointStep": status.last_checkpoint_step,
        "checkpointsCommitted": status.checkpoints_committed,
        "resetAttempts": status.reset_attempts,
        "storeWaiting": status.store_waiting,
        "waitingSeconds": round(status.waiting_s, 3),
        "waitingBytes": status.waiting_bytes,
        "savepoints": dict(status.savepoints),
        "rowsDropped": rows_dropped_json(status),
        "eventTimes": event_times_json(status),
        "scaling": None if status.scaling is None else _scaling_json(status.scaling),
        "autoscale": None if status.autoscale is None else _autoscale_json(status.autoscale),
        "recovery": recovery_json(status.recovery),
        "standbys": status.standbys,
        "underWay": None if status.under_way is None else _under_way_json(status.under_way),
        "operators": operators_json(status),
        "metrics": status.metrics,
        "fellBack": status.fell_back,
        "accessProblem": status.access_problem,
        "workers": [worker_json(worker) for worker in status.workers],
        "resets": [reset_json(reset) for reset in list(status.resets)[-RESETS_LISTED_MAX:]],
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


def _under_way_json(under_way: UnderWayStatus) -> dict[str, Any]:
    return {
        "checkpoint": under_way.checkpoint,
        "seconds": round(under_way.seconds, 3),
        "waitsFor": [{"worker": index, "why": why} for index, why in under_way.waits_for.items()],
    }


def under_way_text(under_way: Mapping[str, Any]) -> str:
    """Return one line about the checkpoint that is under way, of its JSON."""
    waits = under_way["waitsFor"]
    who = "; ".join(f"worker {one['worker']}: {one['why']}" for one in waits)
    what = f"has waited {under_way['seconds']:.1f} s for the vote of {who}" if waits else "is being committed"
    return f"checkpoint {under_way['checkpoint']} {what}"


def _scaling_json(scaling: ScalingStatus) -> dict[str, Any]:
    return {
        "workers": scaling.workers,
        "replaces": scaling.replaces,
        "phase": scaling.phase,
        "seconds": round(scaling.seconds, 3),
        "copiedBytes": scaling.copied_bytes,
        "totalBytes": scaling.total_bytes,
        "pauseSeconds": None if scaling.pause_s is None else round(scaling.pause_s, 3),
    }


def _autoscale_json(autoscale: AutoScaleStatus) -> dict[str, Any]:
    return {
        "minimum": autoscale.minimum,
        "maximum": autoscale.maximum,
        "wanted": autoscale.wanted,
        "reason": autoscale.reason,
        "nextSeconds": round(autoscale.next_s, 3),
        "lastDecision": None if autoscale.decided is None else str(autoscale.decided),
    }


def rows_dropped_json(status: RegionStatus) -> dict[str, dict[str, int]]:
    """Return rule -> operator -> rows dropped since the region began, as JSON."""
    return {rule: dict(operators) for rule, operators in status.dropped.items()}


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


def recovery_json(recovery: RecoveryEstimate | None) -> dict[str, Any] | None:
    """Return the estimate of a recovery as JSON, None if there is none."""
    if recovery is None:
        return None
    return {
        "seconds": round(recovery.seconds, 3),
        "launchSeconds": round(recovery.launch_s, 3),
        "claimSeconds": round(recovery.claim_s, 3),
        "stateSeconds": round(recovery.state_s, 3),
        "stateBytes": recovery.state_bytes,
        "replaySeconds": round(recovery.replay_s, 3),
        "replaySteps": recovery.steps,
        "rounds": recovery.rounds,
    }


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
    return {
        "worker": worker.index,
        "state": worker.state,
        "attempt": worker.attempt,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "hostedBy": worker.hosted_by,
        "metrics": worker.metrics,
        "step": worker.step,
        "rowsIn": worker.rows_in,
        "rowsOut": worker.counters.rows_out,
        "lagBytes": worker.lag_bytes,
        "backlogBytes": worker.counters.backlog_bytes if worker.counters.backlog_bytes >= 0 else None,
        "busySeconds": round(worker.counters.busy_s, 3),
        "operator": worker.operator or None,
        "operatorSeconds": round(worker.operator_s, 1),
        "operatorWaits": worker.waits or None,
        "restoreSeconds": round(worker.restore_seconds, _DIGITS),
        "replayedBytes": worker.replayed_bytes,
        "error": worker.error,
    }


def prometheus_targets(region: str, status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the addresses of figures in a status in JSON, as a file of `file_sd_configs`.

    Processes that serve none, and drivers of a version without figures, are left out.
    """
    roles = [("driver", status.get("metrics"))]
    roles += [(f"w{one['worker']}", one.get("metrics")) for one in status.get("workers", ())]
    return [
        {"targets": [address], "labels": {"job": "dos-region", "dos_region": region, "dos_role": role}}
        for role, address in roles
        if address
    ]


def reset_json(reset: ResetReport) -> dict[str, Any]:
    """Return one reset as JSON."""
    return {
        "worker": reset.worker,
        "reason": reset.reason,
        "seconds": round(reset.seconds, _DIGITS),
        "bytes": reset.bytes,
        "incarnation": reset.incarnation,
        "checkpoint": reset.checkpoint,
        "term": reset.term,
        "phases": _rounded(reset.phases_s),
    }


def reset_line(region: str, reset: ResetReport) -> str:
    """Return one line about a reset for the log. Of a reason with several lines it has the last."""
    who = "reset by hand" if reset.worker < 0 else f"worker {reset.worker} was lost"
    reason = reset.reason.strip().removeprefix(f"{who}: ")  # the coordinator's reason begins with it
    reason = reason.splitlines()[-1] if reason else "unknown reason"
    if reset.term and not reset.reason.startswith(who):
        return f"{region}: {reason}, from checkpoint {reset.checkpoint} on, after {reset.seconds:.1f} s"
    where = f"checkpoint {reset.checkpoint}" if reset.checkpoint else "the beginning"
    went = "it was taken over from" if reset.term else "all workers went back to"
    return f"{region}: {who}: {reason}; {went} {where} in {reset.seconds:.1f} s"


def _since(now: int, before: int) -> int:
    return now - before if now >= before else now


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {phase: round(value, _DIGITS) for phase, value in seconds.items()}


def _camel_case(counters: Mapping[str, int]) -> dict[str, float]:
    """Return the counters with their names in camel case: rows_in as rowsIn. Time is in seconds."""
    parts = {name: name.split("_") for name in counters if name != BUSY}
    found: dict[str, float] = {
        first + "".join(word.capitalize() for word in rest): counters[name]
        for name, (first, *rest) in parts.items()
    }
    return found | ({"busySeconds": round(counters[BUSY] / 1e6, 3)} if BUSY in counters else {})
