"""top_k: the largest rows of each key and window, whatever the order."""

from datetime import timedelta

import pytest

from dataflow import CallSink, Graph, GraphError, InputSource, Max, SchemaError, Sliding, Tumbling
from dataflow.operators import sorting
from dataflow.testing import Trial
from tests.dataflow.trials import SCHEMA, row

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
