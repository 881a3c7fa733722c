"""Rows without a key or an event time: what becomes of them is the user's choice, and counted where they go.

That null is a key of its own for every keyed operator, and matches nothing in a join, is shown by
`test_operators_exactly.py`, whose keys may be null.
"""

from collections import Counter as Multiset
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    Count,
    Graph,
    GraphError,
    InputSource,
    IteratorSource,
    LogSink,
    SchemaError,
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
