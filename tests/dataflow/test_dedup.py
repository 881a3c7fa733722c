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


def test_windows_that_slide_are_refused() -> None:
    graph = Graph("g")
    keyed = graph.source("rows", InputSource("rows", SCHEMA)).key_by("by_key", "key")
    with pytest.raises(SchemaError, match=r"dedup takes Tumbling\(\.\.\.\), not Sliding"):
        keyed.dedup("once", Sliding("at", SIZE, SIZE))  # type: ignore[arg-type]
