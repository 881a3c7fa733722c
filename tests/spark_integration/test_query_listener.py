"""Reports of a region in the shape of a streaming query's: the numbers, in PySpark's own classes."""

import uuid
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from checkpoint.core.graph_change import OperatorNote
from checkpoint.core.links.messages import Counters, EventTime
from checkpoint.core.progress import ProgressMeter
from checkpoint.core.region import CheckpointCommitted, RegionState, RegionStatus, WorkerStatus
from spark_integration.query_listener import QueryListener, query_id

OPERATORS = {
    "orders": OperatorNote(kind="source"),
    "timed": OperatorNote(kind="event_time", inputs=("orders",)),
    "counts": OperatorNote(kind="count", inputs=("by",)),
    "out": OperatorNote(kind="sink", inputs=("counts",)),
    "copy": OperatorNote(kind="sink", inputs=("timed",)),
}
START = {"name": "shop", "timestamp": "2026-01-31T12:00:00.000+00:00", "checkpoint": 4}


class Heard(StreamingQueryListener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.events.append(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.events.append(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.events.append(event)


def report(meter: ProgressMeter, number: int, second: int, *, rows: int, late: int) -> dict[str, Any]:
    """The report of a checkpoint of two workers, `second` seconds after the start, with counters so far."""
    operators = {
        "orders": {"rows_in": 0, "rows_out": rows, "bytes_in": 10 * rows},
        "timed": {"rows_in": rows, "rows_out": rows - late},
        "counts": {"rows_in": rows, "rows_out": rows, "keys": 3, "state_bytes": 40, "busy_us": 1500},
        "out": {"rows_in": rows, "rows_out": 0},
        "copy": {"rows_in": 1, "rows_out": 0},
    }
    times = [{"timed": EventTime(2_500_000, "")}, {"timed": EventTime(1_500_000, "")}]
    workers = tuple(
        WorkerStatus(
            index, "RUNNING", attempt=1, counters=Counters(operators=operators, event_times=times[index])
        )
        for index in range(2)
    )
    dropped = {"late": {"counts": 2 * late}}
    status = RegionStatus(RegionState.RUNNING, "", 1, number, 7, 5, 0, workers, (), dropped=dropped)
    event = CheckpointCommitted(
        number,
        7,
        final=False,
        seconds=0.25,
        phases_s={"sync": 0.125, "commit": 0.05},
        batch=3 if number == 5 else None,
    )
    return meter.report(event, status, now=float(second), timestamp=f"2026-01-31T12:00:{second:02}.500+00:00")


def test_each_event_of_a_region_is_one_that_a_listener_of_sparks_queries_understands() -> None:
    heard = Heard()
    listener, meter = QueryListener(heard), ProgressMeter("shop", OPERATORS)
    listener.onStart(START)
    listener.onProgress(report(meter, 5, 1, rows=30, late=1))
    listener.onProgress(report(meter, 6, 3, rows=50, late=3))
    listener.onIdle({"name": "shop", "timestamp": "2026-01-31T12:00:20.000+00:00", "checkpoint": 6})
    listener.onTerminated({"name": "shop", "exception": "operator 'counts' failed"})
    started, first, second, idle, end = heard.events

    assert (started.name, started.timestamp) == ("shop", "2026-01-31T12:00:00.000Z")
    assert str(started.id) == query_id("shop")
    assert isinstance(started.runId, uuid.UUID)
    assert {event.id for event in (started, first.progress, idle, end)} == {started.id}
    assert {event.runId for event in (started, first.progress, idle, end)} == {started.runId}
    assert idle.timestamp == "2026-01-31T12:00:20.000Z"
    assert end.exception == "operator 'counts' failed"

    assert first.progress.inputRowsPerSecond == 60 / 1.5, "since the start"
    assert first.progress.batchId == 3, "of the query that drives the region"
    progress = second.progress
    assert (progress.batchId, progress.batchDuration) == (6, 250)
    assert progress.durationMs == {"sync": 125, "commit": 50, "triggerExecution": 250}
    assert progress.eventTime == {"watermark": "1970-01-01T00:00:01.500Z"}
    assert (progress.numInputRows, progress.inputRowsPerSecond) == (40, 20.0)
    (source,) = progress.sources
    assert (source.description, source.numInputRows, source.metrics) == ("orders", 40, {"bytesIn": "1000"})
    assert (source.startOffset, source.endOffset) == ('{"checkpoint": 5}', '{"checkpoint": 6}')
    (state,) = progress.stateOperators
    assert (state.operatorName, state.numRowsTotal, state.memoryUsedBytes) == ("counts", 6, 80)
    assert state.numRowsDroppedByWatermark == 4, "since the last report"
    assert (state.numShufflePartitions, state.allUpdatesTimeMs, state.numRowsUpdated) == (2, 0, -1)
    assert (progress.sink.description, progress.sink.numOutputRows) == ("out, copy", 40)
    assert progress.sink.metrics == {"out.numOutputRows": "40", "copy.numOutputRows": "0"}
    assert progress.json, "it can be written as JSON"


def test_the_parts_of_an_application_are_queries_of_their_own() -> None:
    heard = Heard()
    listener = QueryListener(heard)
    for name in ("shop.a", "shop.b"):
        listener.onStart({**START, "name": name})
    listener.onTerminated({"name": "shop.a", "exception": None})
    listener.onTerminated({"name": "never ran", "exception": "no store"})
    first, second, end, never = heard.events
    assert len({first.id, second.id}) == len({first.runId, second.runId}) == 2
    assert (end.id, end.runId) == (first.id, first.runId)
    assert never.exception == "no store"
