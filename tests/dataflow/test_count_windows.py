"""Aggregates with count windows (replication-transparency, algorithm 4)."""

from collections import defaultdict
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Count, CountWindow, Graph, GraphError, InputSource, Max, SchemaError, Sum
from dataflow.testing import Trial
from tests.dataflow.test_windows import SCHEMA, row
from tests.dataflow.trials import Row, multiset, play_with_trouble, timely

_rows = st.lists(
    st.builds(row, st.integers(0, 30), st.sampled_from("ab"), st.integers(-3, 3).map(float)), max_size=20
)
_windows = st.sampled_from([(1, 1), (3, 3), (3, 1), (4, 3), (5, 2)])


def counting(window: CountWindow, lateness: timedelta = timedelta(0)) -> Graph:
    graph = Graph("counting")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    keyed = rows.key_by("by_key", "key")
    made = keyed.aggregate("made", window, rows=Count(), sum=Sum("x"), last=Max("at"))
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def expected(rows: list[Row], size: int, slide: int) -> list[Row]:
    by_key: dict[str, list[Row]] = defaultdict(list)
    for one in sorted(rows, key=lambda one: (one["at"], one["key"], one["x"])):
        by_key[one["key"]].append(one)
    made = []
    for key, part in by_key.items():
        for number, begin in enumerate(range(0, len(part) - size + 1, slide)):
            window = part[begin : begin + size]
            made.append(
                {
                    "key": key,
                    "window_number": number,
                    "rows": size,
                    "sum": sum(one["x"] for one in window),
                    "last": window[-1]["at"],
                }
            )
    return made


@settings(max_examples=40)
@given(rows=_rows, window=_windows, data=st.data())
def test_every_full_window_is_given_once_and_holds_its_rows_with_any_failures(
    rows: list[Row], window: tuple[int, int], data: st.DataObject
) -> None:
    steps, lateness = data.draw(timely("rows", rows, "at"))
    graph = counting(CountWindow("at", *window), lateness)
    trial = play_with_trouble(graph, steps, data, end=True)
    found = [{**one, "sum": one["sum"] + 0.0} for one in trial.rows("out")]
    wanted = [{**one, "sum": one["sum"] + 0.0} for one in expected(rows, *window)]
    assert multiset(found) == multiset(wanted)
    assert trial.rows("late_out") == []


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
