"""Aggregates with count windows (replication-transparency, algorithm 4)."""

from datetime import timedelta

import pytest

from dataflow import CallSink, Count, CountWindow, Graph, GraphError, InputSource, Max, SchemaError, Sum
from dataflow.testing import Trial
from tests.dataflow.trials import SCHEMA, row


def counting(window: CountWindow, lateness: timedelta = timedelta(0)) -> Graph:
    graph = Graph("counting")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    keyed = rows.key_by("by_key", "key")
    made = keyed.aggregate("made", window, rows=Count(), sum=Sum("x"), last=Max("at"))
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def test_a_late_row_is_not_counted_and_a_window_continues_over_a_crash() -> None:
    trial = Trial(counting(CountWindow("at", 2)))
    trial.step({"rows": [row(1), row(2)]}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [row(0.5), row(3)]}, checkpoint=True, snapshot=True)
    assert trial.rows("late_out") == [row(0.5)]
    assert [one["rows"] for one in trial.rows("out")] == [2]
    trial.crash()
    trial.step({"rows": [row(4, x=5.0)]}, end=True)
    assert [(one["window_number"], one["sum"]) for one in trial.rows("out")] == [(0, 2.0), (1, 6.0)]
    assert trial.counters()[0]["made"]["windows"] == 0


@pytest.mark.parametrize("sizes", [(0, None), (2, 0), (2, 3), (5000, 1)])
def test_windows_that_make_no_sense_are_refused(sizes: tuple[int, int | None]) -> None:
    with pytest.raises(SchemaError):
        CountWindow("at", *sizes)


def test_a_time_column_must_be_there() -> None:
    with pytest.raises(GraphError, match="count_window 'made': time column 'when' does not exist"):
        counting(CountWindow("when", 2)).plan()
