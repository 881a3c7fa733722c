"""sort (replication-transparency IV-C): one order, whatever the order of arrival."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Graph, GraphError, InputSource
from dataflow.testing import Trial
from tests.dataflow.trials import (
    SCHEMA,
    Row,
    play,
    row,
    second,
    timedelta,
    timely,
)

_rows = st.lists(
    st.builds(row, st.integers(0, 20), st.sampled_from("ab"), st.none() | st.integers(-2, 2).map(float)),
    max_size=16,
)


def sorting(lateness: timedelta) -> Graph:
    graph = Graph("sorting")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    made = rows.sort("sorted", "at")
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


@settings(max_examples=30)
@given(rows=_rows, data=st.data())
def test_the_order_is_one_and_the_same(rows: list[Row], data: st.DataObject) -> None:
    graphs = []
    for _ in range(2):
        steps, lateness = data.draw(timely("rows", data.draw(st.permutations(rows)), "at"))
        graphs.append(play(sorting(lateness), steps, end=True).rows("out"))
    assert graphs[0] == graphs[1]
    assert [one["at"] for one in graphs[0]] == sorted(one["at"] for one in rows)


def test_a_row_after_the_punctuation_is_late_also_after_a_crash() -> None:
    trial = Trial(sorting(timedelta(seconds=2)))
    trial.step({"rows": [row(5), row(9), row(7), row(6)]}, checkpoint=True)
    assert trial.rows("out") == [row(5), row(6)]
    trial.crash()
    trial.step({"rows": [row(6.5), row(7), row(10)]})
    assert trial.rows("late_out") == [row(6.5)]
    assert trial.rows("out")[2:] == [row(7), row(7)]
    assert second(7) == trial.rows("out")[-1]["at"]


def test_columns_without_an_order_are_refused() -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", "at timestamp, tags array<string>"))
    timed = rows.event_time("timed", "at", lateness=timedelta(0))
    timed.sort("sorted", "at").sink("out", CallSink(print))
    with pytest.raises(GraphError, match="sort 'sorted': rows of equal time are ordered by all columns, and"):
        graph.plan()
