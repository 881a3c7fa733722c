"""dedup: each row that came several times once, whatever the order."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Graph, InputSource, SchemaError, Sliding, Tumbling
from dataflow.testing import Trial
from tests.dataflow.trials import SCHEMA, Row, arrangements, multiset, play_with_trouble, row, timely

SIZE = timedelta(seconds=10)
_rows = st.lists(
    st.builds(row, st.integers(0, 40), st.sampled_from("abc"), st.sampled_from([1.0, 2.0])), max_size=16
)


def once(window: Tumbling | None, lateness: timedelta = timedelta(0)) -> Graph:
    graph = Graph("once")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    made = rows.key_by("by_all", "key", "at").dedup("once", window)
    made.sink("out", CallSink(print))
    if window is not None:
        made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def equal_ones(rows: list[Row]) -> list[Row]:
    """Rows of one key that are equal."""
    return [{**one, "x": float(len(one["key"]))} for one in rows]


@settings(max_examples=30)
@given(rows=_rows, data=st.data())
def test_each_key_gives_one_row_with_any_failures(rows: list[Row], data: st.DataObject) -> None:
    rows = equal_ones(rows)
    trial = play_with_trouble(once(None), data.draw(arrangements({"rows": rows})), data)
    assert multiset(trial.rows("out")) == multiset(list({(r["key"], r["at"]): r for r in rows}.values()))


@settings(max_examples=30)
@given(rows=_rows, data=st.data())
def test_with_a_window_too_and_it_leaves_no_state(rows: list[Row], data: st.DataObject) -> None:
    rows = equal_ones(rows)
    steps, lateness = data.draw(timely("rows", rows, "at"))
    trial = play_with_trouble(once(Tumbling("at", SIZE), lateness), steps, data, end=True)
    assert multiset(trial.rows("out")) == multiset(list({(r["key"], r["at"]): r for r in rows}.values()))
    assert trial.rows("late_out") == []
    assert [counters["once"]["keys"] for counters in trial.counters()] == [0] * len(trial.counters())


def test_a_key_comes_again_in_another_window_and_not_after_its_own() -> None:
    graph = Graph("once")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=timedelta(0))
    made = rows.key_by("by_key", "key").dedup("once", Tumbling("at", SIZE))
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    trial = Trial(graph)
    trial.step({"rows": [row(1), row(2), row(3, "b")]}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [row(4), row(11), row(12)]})
    trial.step({"rows": [row(5, "c"), row(13)]}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [row(14), row(6, "d")]})
    assert trial.rows("out") == [row(1), row(3, "b"), row(11)]
    assert trial.rows("late_out") == [row(5, "c"), row(6, "d")]


def within(key: str = "key", lateness: timedelta = timedelta(0)) -> Graph:
    graph = Graph("once")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    window = Tumbling("at", timedelta(milliseconds=1))
    made = rows.key_by("by_key", key).dedup("once", window, within=timedelta(seconds=20))
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def test_a_key_comes_again_once_it_is_forgotten_by_the_time_of_its_first_row() -> None:
    trial = Trial(within())
    trial.step({"rows": [row(1), row(2), row(3, "b")]}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [row(4), row(3, "b"), row(20)]})  # a row in between does not prolong it
    trial.step({"rows": [row(20.9995), row(15, "c")]}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [row(21), row(21.001)]})  # it still counts: the watermark is that before
    trial.step({"rows": [row(22), row(22, "b")]})
    trial.step({"rows": [row(24, "b")]})
    trial.step({"rows": [row(25, "b")]})
    assert trial.rows("out") == [row(1), row(3, "b"), row(22), row(25, "b")]
    assert trial.rows("late_out") == [row(15, "c")]
    assert trial.counters()[0]["once"]["keys"] == 2
    trial.step({}, end=True)
    assert trial.counters()[0]["once"]["keys"] == 0


@settings(max_examples=30)
@given(rows=_rows, data=st.data())
def test_each_key_gives_one_row_within_a_time_and_leaves_no_state(
    rows: list[Row], data: st.DataObject
) -> None:
    rows = equal_ones([{**one, "at": row(index % 20)["at"]} for index, one in enumerate(rows)])
    steps, lateness = data.draw(timely("rows", rows, "at"))
    trial = play_with_trouble(within(lateness=lateness), steps, data, end=True)
    assert sorted(one["key"] for one in trial.rows("out")) == sorted({one["key"] for one in rows})
    assert trial.rows("late_out") == []
    assert [counters["once"]["keys"] for counters in trial.counters()] == [0] * len(trial.counters())


def test_a_time_needs_a_window() -> None:
    keyed = Graph("g").source("rows", InputSource("rows", SCHEMA)).key_by("by_key", "key")
    with pytest.raises(SchemaError, match=r"within= needs a window"):
        keyed.dedup("once", within=SIZE)


def test_windows_that_slide_are_refused() -> None:
    graph = Graph("g")
    keyed = graph.source("rows", InputSource("rows", SCHEMA)).key_by("by_key", "key")
    with pytest.raises(SchemaError, match=r"dedup takes Tumbling\(\.\.\.\), not Sliding"):
        keyed.dedup("once", Sliding("at", SIZE, SIZE))  # type: ignore[arg-type]
