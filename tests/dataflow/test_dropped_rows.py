"""Rows that operators drop are counted in state, and told in the log, in progress and at the end."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from checkpoint.coordinator.shell import DropLog
from checkpoint.core.progress import dropped_rows, end_text, merge_counters
from dataflow import (
    CallSink,
    Count,
    CountWindow,
    Graph,
    InputSource,
    IteratorSource,
    LogSink,
    Stream,
    Tumbling,
)
from dataflow.handle import RegionHandle
from dataflow.local import run_local
from dataflow.testing import Trial

ROWS = "at timestamp, key string"


def at(second: int) -> datetime:
    return datetime(2026, 5, 1, 9, 0, second, tzinfo=UTC)


def row(second: int) -> dict[str, Any]:
    return {"at": at(second), "key": "a"}


def windows(made: Callable[[Stream], Stream], *, takes_late: bool = False) -> Graph:
    graph = Graph("late")
    rows = graph.source("rows", InputSource("rows", ROWS))
    made_stream = made(rows.event_time("timed", "at", lateness=timedelta(0)))
    made_stream.sink("out", CallSink(print))
    if takes_late:
        made_stream.side_output("too_late", "late").sink("late_out", CallSink(print))
    return graph


def counted(timed: Stream) -> Stream:
    return timed.key_by("by_key", "key").aggregate("made", Tumbling("at", timedelta(seconds=10)), n=Count())


def sorted_(timed: Stream) -> Stream:
    return timed.sort("made", "at")


def deduped(timed: Stream) -> Stream:
    return timed.key_by("by_key", "key").dedup("made", Tumbling("at", timedelta(seconds=10)))


def largest(timed: Stream) -> Stream:
    return timed.key_by("by_key", "key").top_k("made", Tumbling("at", timedelta(seconds=10)), 1, by="at")


def of_three(timed: Stream) -> Stream:
    return timed.key_by("by_key", "key").aggregate("made", CountWindow("at", 3), n=Count())


def kept(timed: Stream) -> Stream:
    keyed = timed.key_by("by_key", "key")
    return keyed.map_state("made", lambda row, state: None, time="at", state="n bigint", schema=ROWS)


def paired(timed: Stream) -> Stream:
    return _joined(timed.key_by("by_key", "key"), _others(timed.graph))


def paired_as_right(timed: Stream) -> Stream:
    return _joined(_others(timed.graph), timed.key_by("by_key", "key"))


def _others(graph: Graph) -> Any:
    others = graph.source("others", InputSource("others", ROWS))
    return others.event_time("others_timed", "at", lateness=timedelta(0)).key_by("by_others", "key")


def _joined(left: Any, right: Any) -> Stream:
    made: Stream = left.join("made", right, times=("at", "at"), within=timedelta(seconds=5))
    return made


@pytest.mark.parametrize(
    "made", [counted, sorted_, deduped, largest, of_three, kept, paired, paired_as_right]
)
def test_late_rows_that_nobody_takes_are_counted_as_dropped_also_over_a_crash(
    made: Callable[[Stream], Stream],
) -> None:
    trial = Trial(windows(made))
    trial.step({"rows": [row(25)]})
    trial.step({"rows": [row(1), row(5)]}, checkpoint=True)
    counters = trial.counters()[0]["made"]
    assert counters["late_rows_dropped"] == counters["late_rows"] == 2
    behind_us = 15_000_000 if made is largest else 23_999_999  # top_k: of the end of the window
    assert counters["late_by_us_max"] == behind_us
    trial.crash()
    assert trial.counters()[0]["made"]["late_rows_dropped"] == 2, "those were before the checkpoint"
    trial.step({"rows": [row(2)]})
    assert trial.counters()[0]["made"]["late_rows_dropped"] == 3
    trial.crash()
    assert trial.counters()[0]["made"]["late_rows_dropped"] == 2, "that one comes again"


def test_late_rows_that_are_taken_are_not_dropped() -> None:
    trial = Trial(windows(counted, takes_late=True))
    trial.step({"rows": [row(25)]})
    trial.step({"rows": [row(1)]})
    assert "late_rows_dropped" not in trial.counters()[0]["made"]
    assert trial.counters()[0]["made"]["late_rows"] == 1


def test_what_workers_counted_becomes_one_number_for_each_operator_and_words() -> None:
    workers = [
        {"hourly": {"rows_in": 9, "late_rows_dropped": 1200, "late_by_us_max": 5}},
        {"hourly": {"late_rows_dropped": 34}, "by_item": {"null_rows_dropped": 1}, "fine": {"late_rows": 3}},
    ]
    dropped = dropped_rows(workers)
    assert dropped == {"late": {"hourly": 1234}, "null": {"by_item": 1}}
    assert end_text({}) == "all input is processed"
    assert end_text(dropped) == (
        "all input is read, but 1,234 late rows were dropped by 'hourly' 1,234: give event_time a larger"
        " lateness, or read the side output 'late' of the operator; 1 null row was dropped by 'by_item'"
        " 1: their key or event time is null; to keep them, set on_null='side' and read side output 'null'"
    )
    merged: dict[str, int] = {}
    for worker in ({"late_by_us_max": 5, "rows_in": 1}, {"late_by_us_max": 3, "rows_in": 1}):
        merge_counters(merged, worker)
    assert merged == {"late_by_us_max": 5, "rows_in": 2}


def test_the_log_tells_of_each_drop_once_and_not_more_often_than_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = DropLog("shop")

    def told(count: int, now: float) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "dos.checkpoint"):
            log.inspect([{"hourly": {"late_rows_dropped": count, "late_by_us_max": 90_000_000}}], now)
        return [record.getMessage() for record in caplog.records]

    assert told(0, 0.0) == []
    (first,) = told(5, 2.0)
    assert first.startswith("region shop: 5 late rows were dropped by 'hourly' 5: give event_time a larger")
    assert first.endswith("(5 since the region started, up to 90 s behind the watermark)")
    assert told(7, 3.0) == []
    (second,) = told(8, 13.0)
    assert second.startswith("region shop: 3 late rows were dropped")
    assert "(8 since the region started" in second
    assert told(8, 30.0) == []


def _rows_of_split(split: str, position: int) -> Any:
    for number in range(position, 40):
        if number == 31:
            yield None  # nothing at the moment: the step ends here, and event time moves to 25
        yield number + 1, {"at": at(0 if number > 30 else 25), "key": split}


@pytest.mark.process
def test_a_bounded_region_that_dropped_rows_reports_it_in_its_end_and_its_progress(
    shared_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph("late")
    rows = graph.source("rows", IteratorSource(_rows_of_split, ROWS, splits=("a",)))
    timed = rows.event_time("timed", "at", lateness=timedelta(0))
    timed.sort("made", "at").sink("out", LogSink())
    control = run_local(graph, name=tmp_path.name, store=shared_store, workers=1, standby=0)
    assert isinstance(control, RegionHandle)
    assert control.wait(60)
    status = control.status
    assert control.exception() is None, status.reason
    assert control.lastProgress is not None
    assert status.dropped == control.lastProgress["rowsDropped"] == {"late": {"made": 9}}
    assert status.reason.startswith("all input is read, but 9 late rows were dropped by 'made' 9: give event")
