"""top_k: the largest rows of each key and window, whatever the order."""

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Graph, GraphError, InputSource, Max, SchemaError, Sliding, Tumbling
from dataflow.operators import sorting
from dataflow.testing import Trial
from tests.dataflow.trials import (
    SCHEMA,
    Row,
    play,
    row,
    second,
    timely,
)

SIZE = timedelta(seconds=10)


def best(k: int, lateness: timedelta = timedelta(0), by: str = "x") -> Graph:
    graph = Graph("best")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    made = rows.key_by("by_key", "key").top_k("best", Tumbling("at", SIZE), k, by=by)
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def test_nan_is_the_largest_number_as_it_is_for_max_and_zeros_are_ordered_by_sign() -> None:
    values = [5.0, float("nan"), None, -0.0, float("inf"), 0.0, float("-inf")]
    order = ["nan", "inf", "5.0", "-0.0", "0.0", "-inf", "None"]
    for given_ in (values, values[::-1]):
        rows = [row(0, x=value) for value in given_]
        trial = Trial(best(len(values)))
        trial.step({"rows": rows}, end=True)
        assert [repr(one["x"]) for one in trial.rows("out")] == order
        graph = Graph("most")
        timed = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=SIZE)
        most = timed.key_by("by_key", "key").aggregate("most", Tumbling("at", SIZE), most=Max("x"))
        most.sink("out", CallSink(print))
        trial = Trial(graph)
        trial.step({"rows": rows}, end=True)
        assert [repr(one["most"]) for one in trial.rows("out")] == order[:1]


def test_they_come_largest_first_and_what_cannot_be_among_them_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sorting, "_prune_rows_min", 5)
    trial = Trial(best(2))
    for number in range(9):
        trial.step({"rows": [row(number, x=float(7 * number % 10))]}, checkpoint=True)
        assert trial.counters()[0]["best"]["rows"] <= 5
        trial.crash()
    trial.step({"rows": [row(10)]})
    assert [one["x"] for one in trial.rows("out")] == [9.0, 8.0]
    trial.step({"rows": [row(9, x=99.0)]})
    assert trial.rows("late_out") == [row(9, x=99.0)]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(SchemaError, match="an integer of 1 or more, not 0"):
        best(0)
    with pytest.raises(SchemaError, match=r"an integer of 1 or more, not 1\.5"):
        best(1.5)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="top_k 'best': column 'y' of top_k does not exist; the col"):
        best(1, by="y").plan()
    keyed = Graph("g").source("rows", InputSource("rows", SCHEMA)).key_by("by_key", "key")
    with pytest.raises(SchemaError, match="top_k needs a Tumbling"):
        keyed.top_k("best", Sliding("at", SIZE, SIZE), 1, by="x")  # type: ignore[arg-type]


# --- sort (replication-transparency IV-C): one order, whatever the order of arrival -------------------------


_rows = st.lists(
    st.builds(row, st.integers(0, 20), st.sampled_from("ab"), st.none() | st.integers(-2, 2).map(float)),
    max_size=16,
)


def by_time(lateness: timedelta) -> Graph:
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
        graphs.append(play(by_time(lateness), steps, end=True).rows("out"))
    assert graphs[0] == graphs[1]
    assert [one["at"] for one in graphs[0]] == sorted(one["at"] for one in rows)


def test_a_row_after_the_punctuation_is_late_also_after_a_crash() -> None:
    trial = Trial(by_time(timedelta(seconds=2)))
    trial.step({"rows": [row(5), row(9), row(7), row(6)]}, checkpoint=True)
    assert trial.rows("out") == [row(5), row(6)]
    trial.crash()
    trial.step({"rows": [row(6.5), row(7), row(10)]})
    assert trial.rows("late_out") == [row(6.5)]
    assert trial.rows("out")[2:] == [row(7), row(7)]
    assert second(7) == trial.rows("out")[-1]["at"]


def test_columns_whose_values_cannot_be_compared_are_refused() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("spans", pa.list_(pa.month_day_nano_interval()))])
    graph = Graph("g")
    timed = graph.source("rows", InputSource("rows", schema)).event_time("timed", "at", lateness=SIZE)
    timed.sort("sorted", "at").sink("out", CallSink(print))
    with pytest.raises(GraphError, match="sort 'sorted': rows of equal time are ordered by all columns, and"):
        graph.plan()


def test_top_k_by_a_column_without_an_order_is_refused() -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key string, tags array<string>"))
    keyed = rows.event_time("timed", "at", lateness=SIZE).key_by("by_key", "key")
    keyed.top_k("best", Tumbling("at", SIZE), 1, by="tags").sink("out", CallSink(print))
    with pytest.raises(GraphError, match="'tags', and values of type array<string> have no order"):
        graph.plan()
