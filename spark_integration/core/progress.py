"""What a region reports of its progress, in the shape of Spark's `StreamingQuery.lastProgress`. Pure.

One report for each committed cut: a cut is to a region what a micro-batch is to a streaming query. A report
is plain JSON values, so that it can be printed, logged and compared.
"""

from dataclasses import dataclass
from typing import Any

from checkpoint.core.region import CutCommitted, RegionStatus, WorkerStatus


@dataclass(slots=True)
class ProgressMeter:
    """Turns events into reports. It remembers the report before, for the rates between two."""

    region: str
    rows_before: int = 0
    time_before: float | None = None

    def report(
        self, event: CutCommitted, status: RegionStatus, *, now: float, timestamp: str
    ) -> dict[str, Any]:
        """The report of one cut. `now` is monotonic seconds, `timestamp` the wall clock as ISO text.

        A worker that was lost counts its rows from its restart on: then the sum falls, and what is reported
        is what was counted since.
        """
        rows = status.rows_in - self.rows_before
        if rows < 0:
            rows = status.rows_in
        seconds = None if self.time_before is None else now - self.time_before
        self.rows_before, self.time_before = status.rows_in, now
        return {
            "name": self.region,
            "timestamp": timestamp,
            "state": status.state.value,
            "incarnation": status.incarnation,
            "cut": event.cut,
            "step": event.step,
            "final": event.final,
            "numInputRows": rows,
            "inputRowsPerSecond": round(rows / seconds, 1) if seconds else None,
            "cutSeconds": round(event.seconds, 4),
            "phaseSeconds": {phase: round(value, 4) for phase, value in event.phases_s.items()},
            "resets": len(status.resets),
            "workers": [_worker(worker) for worker in status.workers],
        }


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    return {
        "worker": worker.index,
        "state": worker.state,
        "attempt": worker.attempt,
        "host": worker.host,
        "pid": worker.pid,
        "step": worker.step,
        "rowsIn": worker.rows_in,
        "lagBytes": worker.lag_bytes,
    }
