"""`QueryListener`: a listener that was written for Spark's streaming queries listens to a region.

A checkpoint is a micro-batch, its phases are the durations, and the counters of operators are the sources,
the state operators and the sink. Of what a region does not measure, a number is -1.
"""

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from checkpoint.coordinator.control import RegionListener

_US: Final = 1e6
UNKNOWN: Final = -1
_COUNTED: Final = ("name", "kind", "rowsIn", "rowsOut", "busySeconds")
"""What of an operator has a place of its own in the reports of Spark; the rest are metrics."""


class QueryListener(RegionListener):
    """Calls a `StreamingQueryListener` with the events of regions, as Spark calls it with those of queries.

        dos.run(spark, graph, store=URL, listeners=[dos.QueryListener(MyListener())])

    docs/operating-regions.md says what is in the reports. A region that is reset has no event: it continues.
    Spark sets the attribute `spark` of a listener; this class does not.
    """

    def __init__(self, listener: StreamingQueryListener) -> None:
        self._listener = listener
        self._reports: dict[str, QueryReports] = {}
        """Region -> its reports: the parts of an application share their listeners."""

    def onStart(self, start: dict[str, Any]) -> None:  # noqa: N802  # as Spark spells such names
        reports = self._reports[start["name"]] = QueryReports(start["name"], str(uuid.uuid4()))
        self._listener.onQueryStarted(QueryStartedEvent.fromJson(reports.started(start)))

    def onProgress(self, progress: dict[str, Any]) -> None:  # noqa: N802
        report = self._reports[progress["name"]].progress(progress)
        self._listener.onQueryProgress(QueryProgressEvent.fromJson({"progress": report}))

    def onIdle(self, idle: dict[str, Any]) -> None:  # noqa: N802
        self._listener.onQueryIdle(QueryIdleEvent.fromJson(self._reports[idle["name"]].idle(idle)))

    def onTerminated(self, end: dict[str, Any]) -> None:  # noqa: N802
        name = end["name"]
        # A region that never ran has no start.
        reports = self._reports.pop(name, None) or QueryReports(name, str(uuid.uuid4()))
        self._listener.onQueryTerminated(QueryTerminatedEvent.fromJson(reports.terminated(end)))


def query_id(region: str) -> str:
    """Return the id of a region as that of a query: it is the same in each run."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"dos:{region}"))


class QueryReports:
    """The reports of one run of one region. Its `run_id` is that of the run."""

    def __init__(self, region: str, run_id: str) -> None:
        self._ids = {"id": query_id(region), "runId": run_id}
        self._region = region
        self._reported_at: datetime | None = None
        self._checkpoint: int | None = None
        self._late: dict[str, int] = {}
        """Operator -> late rows that it dropped, at the last report."""

    def started(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """Return `QueryStartedEvent` for the argument of `RegionListener.onStart`."""
        self._reported_at, self._checkpoint = _time(start["timestamp"]), start["checkpoint"]
        at = _spark_time(_time(start["timestamp"]))
        return {**self._ids, "name": self._region, "timestamp": at, "jobTags": []}

    def idle(self, idle: Mapping[str, Any]) -> dict[str, Any]:
        """Return `QueryIdleEvent` for the argument of `RegionListener.onIdle`."""
        self._reported_at = _time(idle["timestamp"])
        return {**self._ids, "timestamp": _spark_time(self._reported_at)}

    def terminated(self, end: Mapping[str, Any]) -> dict[str, Any]:
        """Return `QueryTerminatedEvent` for the argument of `RegionListener.onTerminated`."""
        return {**self._ids, "exception": end["exception"], "errorClassOnException": None}

    def progress(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Return `StreamingQueryProgress` for the argument of `RegionListener.onProgress`."""
        at, before, operators = _time(report["timestamp"]), self._reported_at, report["operators"]
        seconds = (at - before).total_seconds() if before is not None else 0.0
        first, self._checkpoint = self._checkpoint, report["checkpoint"]
        self._reported_at = at
        offsets = {"startOffset": {"checkpoint": first}, "endOffset": {"checkpoint": report["checkpoint"]}}
        sources = [
            _source(one, seconds) | offsets | {"latestOffset": None} for one in _of_kind(operators, "source")
        ]
        rows = sum(one["numInputRows"] for one in sources)
        duration_ms = _ms(report["checkpointSeconds"])
        return {
            **self._ids,
            "name": self._region,
            "timestamp": _spark_time(at),
            "batchId": report["checkpoint"] if report["batch"] is None else report["batch"],
            "batchDuration": duration_ms,
            "durationMs": {
                **{phase: _ms(one) for phase, one in report["phaseSeconds"].items()},
                "triggerExecution": duration_ms,
            },
            "eventTime": _watermark(report["eventTimes"]),
            "numInputRows": rows,
            "inputRowsPerSecond": _rate(rows, seconds),
            "processedRowsPerSecond": _rate(rows, seconds),
            "stateOperators": self._state_operators(report),
            "sources": sources,
            "sink": _sink(_of_kind(operators, "sink")),
            "observedMetrics": {},
        }

    def _state_operators(self, report: Mapping[str, Any]) -> list[dict[str, Any]]:
        late, before = report["rowsDropped"].get("late", {}), self._late
        self._late = dict(late)
        workers = len(report["workers"])
        return [
            {
                "operatorName": one["name"],
                "numRowsTotal": one.get("keys", UNKNOWN),
                "numRowsUpdated": UNKNOWN,
                "numRowsRemoved": UNKNOWN,
                "allUpdatesTimeMs": _ms(one.get("busySeconds", 0.0)),
                "allRemovalsTimeMs": UNKNOWN,
                "commitTimeMs": UNKNOWN,
                "memoryUsedBytes": one.get("stateBytes", UNKNOWN),
                "numRowsDroppedByWatermark": max(late.get(one["name"], 0) - before.get(one["name"], 0), 0),
                "numShufflePartitions": workers,
                "numStateStoreInstances": workers,
                "customMetrics": {
                    name: value
                    for name, value in one.items()
                    if name not in (*_COUNTED, "keys", "stateBytes") and isinstance(value, int)
                },
            }
            for one in report["operators"]
            if "keys" in one or "stateBytes" in one
        ]


def _of_kind(operators: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [one for one in operators if one["kind"] == kind]


def _source(operator: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    rows = operator.get("rowsOut", 0)
    return {
        "description": operator["name"],
        "numInputRows": rows,
        "inputRowsPerSecond": _rate(rows, seconds),
        "processedRowsPerSecond": _rate(rows, seconds),
        "metrics": _metrics("", operator),
    }


def _sink(sinks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one sink for all: Spark's queries have one."""
    metrics: dict[str, str] = {}
    for one in sinks:
        prefix = f"{one['name']}." if len(sinks) > 1 else ""
        metrics |= _metrics(prefix, one)
        if prefix:
            metrics[f"{prefix}numOutputRows"] = str(one.get("rowsIn", 0))
    return {
        "description": ", ".join(one["name"] for one in sinks),
        "numOutputRows": sum(one.get("rowsIn", 0) for one in sinks),
        "metrics": metrics,
    }


def _metrics(prefix: str, operator: Mapping[str, Any]) -> dict[str, str]:
    return {f"{prefix}{name}": str(value) for name, value in operator.items() if name not in _COUNTED}


def _watermark(event_times: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the least watermark, as Spark's policy for several is by default."""
    known = [one["watermarkMicroseconds"] for one in event_times]
    if not known or None in known:
        return {}
    try:
        return {"watermark": _spark_time(datetime.fromtimestamp(min(known) / _US, UTC))}
    except (OverflowError, ValueError, OSError):  # beyond the years that Python can write
        return {}


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _spark_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
