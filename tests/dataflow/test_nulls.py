"""Rows without a key or an event time: what becomes of them is the user's choice, and counted where they go.

That null is a key of its own for every keyed operator, and matches nothing in a join, is shown by
`test_operators_exactly.py`, whose keys may be null.
"""

import logging
from collections import Counter as Multiset
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.coordinator.shell import DropLog
from checkpoint.core.progress import dropped_rows, end_text, merge_counters
from dataflow import (
    CallSink,
    Count,
    CountWindow,
    Graph,
    GraphError,
    InputSource,
    IteratorSource,
    LogSink,
    SchemaError,
    Stream,
    Tumbling,
)
from dataflow.errors import OperatorError
from dataflow.handle import RegionHandle
from dataflow.local import run_local
from dataflow.testing import Trial, assert_crash_safe
from tests.dataflow.trials import Row, Step, arrangements, play_with_trouble

ROWS = "at timestamp, key string, x bigint"
DAY = Tumbling("at", timedelta(days=1))


def at(second: int) -> datetime:
    return datetime(2026, 5, 1, 9, tzinfo=UTC) + timedelta(seconds=second)


def row(second: int | None, key: str | None = "a", x: int = 0) -> Row:
    return {"at": None if second is None else at(second), "key": key, "x": x}


def bag(rows: Sequence[Row]) -> Multiset[tuple[Any, ...]]:
    return Multiset(tuple(one.values()) for one in rows)


def graph_of(on_null_time: Any = "error", on_null_key: Any = "group") -> Graph:
    graph = Graph("nulls")
    rows = graph.source("rows", InputSource("rows", ROWS))
    timed = rows.event_time("timed", "at", lateness=timedelta(days=9), on_null=on_null_time)
    keyed = timed.key_by("by_key", "key", on_null=on_null_key)
    keyed.aggregate("daily", DAY, n=Count()).sink("out", CallSink(print))
    for stream, choice in ((timed, on_null_time), (keyed, on_null_key)):
        if choice == "side":
            name = "timeless" if stream is timed else "keyless"
            stream.side_output(name, "null").sink(f"{name}_out", CallSink(print))
    return graph


_rows = st.lists(
    st.builds(row, st.none() | st.integers(0, 9), st.sampled_from(["a", "", None]), st.integers(0, 3)),
    max_size=12,
)


@settings(max_examples=60)
@given(data=st.data(), rows=_rows, time=st.sampled_from(["drop", "side"]))
@pytest.mark.parametrize("key", ["group", "drop", "side"])
def test_rows_continue_or_are_put_aside_or_counted_whatever_fails(
    data: st.DataObject, rows: list[Row], time: str, key: str
) -> None:
    steps: list[Step] = data.draw(arrangements({"rows": rows}))
    trial = play_with_trouble(graph_of(time, key), steps, data, end=True)
    timeless = [one for one in rows if one["at"] is None]
    keyless = [one for one in rows if one["at"] is not None and one["key"] is None and key != "group"]
    counted = Multiset(one["key"] for one in rows if one not in timeless + keyless)
    assert {one["key"]: one["n"] for one in trial.rows("out")} == counted
    for choice, name, sink, aside in (
        (time, "timed", "timeless_out", timeless),
        (key, "by_key", "keyless_out", keyless),
    ):
        dropped = sum(worker[name].get("null_rows_dropped", 0) for worker in trial.counters())
        assert dropped == (len(aside) if choice == "drop" else 0)
        if choice == "side":
            assert bag(trial.rows(sink)) == bag(aside)


@pytest.mark.parametrize("key", ["group", "drop", "side"])
def test_crashes_change_nothing_whatever_is_chosen(key: str) -> None:
    rows = [row(None), row(1, None), row(2, "b"), row(None, None), row(3, None)]
    trial = assert_crash_safe(graph_of("side", key), {"rows": rows}, splits=2)
    assert len(trial.rows("timeless_out")) == 2


def test_a_side_output_that_nobody_takes_is_dropped_and_counted() -> None:
    graph = Graph("nulls")
    rows = graph.source("rows", InputSource("rows", ROWS))
    rows.key_by("by_key", "key", on_null="side").count("n").sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": [row(1, None), row(1)]}, checkpoint=True)
    assert trial.counters()[0]["by_key"]["null_rows_dropped"] == 1
    trial.crash()
    assert trial.counters()[0]["by_key"]["null_rows_dropped"] == 1, "that was before the checkpoint"


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            graph_of(),
            r"'timed' failed at .*row 1 of those given: time column 'at' is null in 2 of 4 rows.*='drop'",
        ),
        (
            graph_of("drop", "error"),
            r"'by_key' failed at .*: key column 'key' is null in 1 of 2.*'group'",
        ),
    ],
)
def test_an_error_names_operator_column_how_many_rows_and_the_remedy(graph: Graph, message: str) -> None:
    trial = Trial(graph)
    with pytest.raises(OperatorError, match=f"(?s){message}"):
        trial.step({"rows": [row(1), row(None), row(2, None), row(None)]})


def test_a_null_in_another_time_column_reports_that_on_null_does_not_look_there() -> None:
    graph = Graph("nulls")
    rows = graph.source("rows", InputSource("rows", "at timestamp, other timestamp, key string"))
    timed = rows.event_time("timed", "at", lateness=timedelta(1), on_null="drop")
    made = timed.key_by("by_key", "key").aggregate("made", Tumbling("other", timedelta(1)), n=Count())
    made.sink("out", CallSink(print))
    with pytest.raises(OperatorError, match=r"'made' failed .*'other' is null in 1 of 1.*its own column"):
        Trial(graph).step({"rows": [{"at": at(1), "other": None, "key": "a"}]})


def test_the_promise_of_a_row_without_a_time_holds() -> None:
    graph = Graph("nulls")
    rows = graph.source("rows", InputSource("rows", "at timestamp, all_before timestamp"))
    timed = rows.event_time("timed", "at", punctuation="all_before", on_null="drop")
    timed.sort("sorted", "at").sink("out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": [{"at": at(1), "all_before": None}, {"at": None, "all_before": at(2)}]})
    assert [one["at"] for one in trial.rows("out")] == [at(1)]


NOW: Final = at(0)


def future_graph(**options: Any) -> Graph:
    graph = Graph("future")
    rows = graph.source("rows", InputSource("rows", ROWS))
    timed = rows.event_time("timed", "at", lateness=timedelta(0), **options)
    timed.key_by("by_key", "key").aggregate("daily", DAY, n=Count()).sink("out", CallSink(print))
    if options.get("on_ahead") == "side":
        timed.side_output("future", "ahead").sink("future_out", CallSink(print))
    return graph


def test_a_row_from_the_future_stops_the_region_before_it_makes_others_late() -> None:
    """One row of the year 2126 made every honest row late."""
    trial = Trial(future_graph())
    with pytest.raises(
        OperatorError,
        match=r"'timed' failed .*'at' is 2126-04-07.*more than max_ahead=1 day, 0:00:00 ahead of the clock,"
        r" 2026-05-01T09:00:00.000000 UTC, in 1 of 2 rows.*on_ahead='drop'",
    ):
        trial.step({"rows": [row(1), row(100 * 365 * 86_400)]}, now=NOW)


@pytest.mark.parametrize("choice", ["drop", "side"])
def test_rows_from_the_future_are_dropped_and_counted_or_on_the_side_output(choice: str) -> None:
    trial = Trial(future_graph(on_ahead=choice, max_ahead=timedelta(hours=1)))
    ahead = [row(3601), row(10**9)]
    trial.step({"rows": [row(1), ahead[0]]}, now=NOW, checkpoint=True)
    trial.step({"rows": [ahead[1], row(3600)]}, now=NOW)
    trial.crash()
    trial.step({"rows": [ahead[1], row(3600)]}, now=NOW)
    trial.step({"rows": [row(3601, x=7)]}, now=at(1), end=True)
    assert [one["n"] for one in trial.rows("out")] == [3], "the clock has moved on"
    dropped = trial.counters()[0]["timed"].get("ahead_rows_dropped", 0)
    if choice == "drop":
        assert dropped == 2, "in state: one was dropped before the checkpoint"
    else:
        assert (dropped, trial.rows("future_out")) == (0, ahead)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_max_ahead_is_of_the_promises_of_rows_and_of_any_unit(unit: str) -> None:
    graph = Graph("future")
    columns = pa.schema([("at", pa.timestamp("us", "UTC")), ("before", pa.timestamp(unit, "UTC"))])
    rows = graph.source("rows", InputSource("rows", columns))
    timed = rows.event_time("timed", "at", punctuation="before", on_ahead="drop")
    timed.sort("sorted", "at").sink("out", CallSink(print))
    trial = Trial(graph)
    given = [(at(1), None), (at(10**9), None), (at(2), at(2 * 86_400)), (at(3), at(1))]
    trial.step({"rows": [{"at": time, "before": before} for time, before in given]}, now=NOW)
    assert [one["at"] for one in trial.rows("out")] == [at(1)], "only promises move the watermark"
    assert trial.counters()[0]["timed"]["ahead_rows_dropped"] == 1


def test_max_ahead_may_be_off_and_wrong_choices_are_refused() -> None:
    trial = Trial(future_graph(max_ahead=None))
    trial.step({"rows": [row(10**9), row(1)]}, now=NOW, end=True)
    assert len(trial.rows("out")) == 2
    with pytest.raises(SchemaError, match="on_ahead must be one of 'error', 'drop', 'side', not 'skip'"):
        future_graph(on_ahead="skip")
    with pytest.raises(SchemaError, match="max_ahead must be a timedelta of 0 or more"):
        future_graph(max_ahead=3600)


def test_what_is_no_choice_is_refused_and_so_is_a_side_output_that_was_not_chosen() -> None:
    rows = Graph("nulls").source("rows", InputSource("rows", ROWS))
    with pytest.raises(
        SchemaError, match="on_null must be one of 'group', 'error', 'drop', 'side', not 'skip'"
    ):
        rows.key_by("by_key", "key", on_null="skip")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="on_null must be one of 'error', 'drop', 'side', not 'group'"):
        rows.event_time("timed", "at", lateness=timedelta(0), on_null="group")  # type: ignore[arg-type]
    keyed = rows.key_by("by_key", "key")
    keyed.count("n").sink("out", CallSink(print))
    keyed.side_output("aside", "null").sink("aside_out", CallSink(print))
    with pytest.raises(GraphError, match="key_by 'by_key' has no side output 'null'; it has none"):
        rows.graph.plan()


def test_the_choice_may_change_between_two_runs() -> None:
    """What was counted stays, and keys that are null stay in the state."""
    trial = Trial(graph_of("drop", "group"))
    trial.step({"rows": [row(1, None), row(None)]}, checkpoint=True)
    trial.go_on_with(graph_of("error", "drop"))
    trial.step({"rows": [row(1, None), row(1)]}, checkpoint=True)
    trial.go_on_with(graph_of("drop", "group"))
    trial.step({"rows": [row(None)]}, end=True)
    assert {one["key"]: one["n"] for one in trial.rows("out")} == {None: 1, "a": 1}
    assert trial.counters()[0]["timed"]["null_rows_dropped"] == 2


def _split(split: str, position: int) -> Iterator[tuple[int, Row]]:
    for number in range(position, 3000):
        second = None if number % 10 == 3 else number
        yield number + 1, row(second, None if number % 3 == 0 else f"{split}{number % 5}", number)


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_region_counts_rows_without_a_time_and_groups_those_without_a_key(
    shared_store: str, tmp_path: Path
) -> None:
    graph = Graph("nulls")
    rows = graph.source("rows", IteratorSource(_split, ROWS, splits=("a", "b", "c")))
    timed = rows.event_time("timed", "at", lateness=timedelta(0), on_null="drop")
    keyed = timed.key_by("by_key", "key").aggregate("daily", DAY, n=Count())
    keyed.sink("out", LogSink())
    control = run_local(graph, name=tmp_path.name, store=shared_store, workers=2, standby=0)
    assert isinstance(control, RegionHandle)
    assert control.wait(120)
    status = control.status
    assert control.exception() is None, status.reason
    assert status.dropped == {"null": {"timed": 900}}
    assert status.reason.startswith(
        "all input is read, but 900 null rows were dropped by 'timed' 900: their key"
    )


# --- rows that operators drop are counted in state, and told in the log, in progress  -----------------------


LATE_ROWS = "at timestamp, key string"


def minute(second: int) -> datetime:
    return datetime(2026, 5, 1, 9, 0, second, tzinfo=UTC)


def dated(second: int) -> dict[str, Any]:
    return {"at": minute(second), "key": "a"}


def windows(made: Callable[[Stream], Stream], *, takes_late: bool = False) -> Graph:
    graph = Graph("late")
    rows = graph.source("rows", InputSource("rows", LATE_ROWS))
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
    return keyed.map_state("made", lambda row, state: None, time="at", state="n bigint", schema=LATE_ROWS)


def paired(timed: Stream) -> Stream:
    return _joined(timed.key_by("by_key", "key"), _others(timed.graph))


def paired_as_right(timed: Stream) -> Stream:
    return _joined(_others(timed.graph), timed.key_by("by_key", "key"))


def _others(graph: Graph) -> Any:
    others = graph.source("others", InputSource("others", LATE_ROWS))
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
    trial.step({"rows": [dated(25)]})
    trial.step({"rows": [dated(1), dated(5)]}, checkpoint=True)
    counters = trial.counters()[0]["made"]
    assert counters["late_rows_dropped"] == counters["late_rows"] == 2
    behind_us = 15_000_000 if made is largest else 23_999_999  # top_k: of the end of the window
    assert counters["late_by_us_max"] == behind_us
    trial.crash()
    assert trial.counters()[0]["made"]["late_rows_dropped"] == 2, "those were before the checkpoint"
    trial.step({"rows": [dated(2)]})
    assert trial.counters()[0]["made"]["late_rows_dropped"] == 3
    trial.crash()
    assert trial.counters()[0]["made"]["late_rows_dropped"] == 2, "that one comes again"


def test_late_rows_that_are_taken_are_not_dropped() -> None:
    trial = Trial(windows(counted, takes_late=True))
    trial.step({"rows": [dated(25)]})
    trial.step({"rows": [dated(1)]})
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
        yield number + 1, {"at": minute(0 if number > 30 else 25), "key": split}


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_bounded_region_that_dropped_rows_reports_it_in_its_end_and_its_progress(
    shared_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph("late")
    rows = graph.source("rows", IteratorSource(_rows_of_split, LATE_ROWS, splits=("a",)))
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
