"""join with a time window (replication-transparency, algorithm 2): all pairs, once, whatever the order."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import CallSink, Graph, GraphError, InputSource, SchemaError
from dataflow.testing import Trial
from tests.dataflow.trials import Row, arrangements, multiset, play_with_trouble, row, second

WITHIN = timedelta(seconds=5)


def pay(number: float, key: str = "a", n: int = 1) -> Row:
    return {"who": key, "at": second(number), "n": n}


def joining(
    left: timedelta, right: timedelta, *, one_watermark: bool = False, within: timedelta = WITHIN
) -> Graph:
    graph = Graph("joining")
    lefts = graph.source("left", InputSource("left", "at timestamp, key string, x double"))
    rights = graph.source("right", InputSource("right", "who string, at timestamp, n bigint"))
    keyed = lefts.event_time("left_timed", "at", lateness=left).key_by("by_key", "key")
    other = rights.event_time("right_timed", "at", lateness=right).key_by("by_who", "who")
    made = keyed.join("pairs", other, times=("at", "at"), within=within, one_watermark=one_watermark)
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_left", CallSink(print))
    made.side_output("late_right", "late_right").sink("late_right_out", CallSink(print))
    return graph


def test_a_row_waits_for_the_other_stream_and_no_longer() -> None:
    trial = Trial(joining(timedelta(0), timedelta(0)))
    trial.step({"left": [row(1), row(3)]}, checkpoint=True)
    trial.crash()
    trial.step({"right": [pay(5.5)]}, checkpoint=True)
    assert [one["at"] for one in trial.rows("out")] == [second(1), second(3)]
    trial.step({"right": [pay(6)]})
    assert [one["at"] for one in trial.rows("out")[2:]] == [second(3)], "1 is 5 seconds away from 6"
    assert trial.counters()[0]["pairs"]["rows"] == 3, "1 is gone"
    trial.step({"left": [row(2)], "right": [pay(5)]})
    assert trial.rows("late_left") == [row(2)]
    assert trial.rows("late_right_out") == [pay(5)]


def test_with_one_watermark_the_slower_stream_says_which_rows_are_late() -> None:
    trial = Trial(joining(timedelta(0), timedelta(0), one_watermark=True), workers=2)
    trial.step({"left": [row(60)], "right": [pay(10.0005)]}, checkpoint=True)
    trial.crash()
    # 11 is far behind the left stream itself. 10 is at the watermark, which has whole milliseconds.
    trial.step({"left": [row(11), row(10), row(10.0001)], "right": [pay(12), pay(10)]})
    assert sorted(one["at"] for one in trial.rows("out")) == [second(10.0001)] * 2 + [second(11)] * 2
    assert trial.rows("late_left") == [row(10)]
    assert trial.rows("late_right_out") == [pay(10)]
    for rows, waiting in (({"right": [pay(66)]}, "60 and 66"), ({"left": [row(70)]}, "66 and 70")):
        trial.step(rows)
        assert sum(one["pairs"]["rows"] for one in trial.counters()) == 2, f"{waiting} wait"


def test_pairs_of_a_step_come_in_the_order_of_arrival_those_of_new_left_rows_first() -> None:
    trial = Trial(joining(timedelta(9), timedelta(9)))
    trial.step({"left": [row(2, x=1.0), row(1, x=2.0)], "right": [pay(3, n=1)]}, checkpoint=True)
    trial.step({"left": [row(1, x=3.0), row(2, "b")], "right": [pay(1, n=2), pay(1, "b", 3)]})
    trial.crash()
    trial.step({"left": [row(1, x=3.0), row(2, "b")], "right": [pay(1, n=2), pay(1, "b", 3)]})
    found = [(one["key"], one["x"], one["n"]) for one in trial.rows("out")]
    first, second = [("a", 1.0, 1), ("a", 2.0, 1)], [("a", 3.0, 1), ("a", 3.0, 2), ("b", 1.0, 3)]
    assert found == [*first, *second, ("a", 1.0, 2), ("a", 2.0, 2)]


def test_rows_of_any_two_times_are_joined_if_they_may_be_any_time_apart() -> None:
    trial = Trial(joining(timedelta(0), timedelta(0), within=timedelta.max))
    trial.step({"left": [{"at": datetime.min.replace(tzinfo=UTC), "key": "a", "x": 1.0}]}, checkpoint=True)
    trial.crash()
    trial.step({"right": [pay(0)]})
    assert [one["n"] for one in trial.rows("out")] == [1]


@pytest.mark.parametrize(
    ("right", "suffix", "words"),
    [
        ("who bigint, at timestamp", "_r", "columns of the same types, not (string) and (bigint); cast one"),
        ("who string, at timestamp, at_r int", "_r", "columns 'at_r' appear twice; use another suffix="),
    ],
)
def test_streams_that_do_not_fit_each_other_are_refused(right: str, suffix: str, words: str) -> None:
    graph = Graph("g")
    lefts = graph.source("left", InputSource("left", "at timestamp, key string"))
    rights = graph.source("right", InputSource("right", right))
    keyed = lefts.event_time("lt", "at", lateness=timedelta(0)).key_by("by_key", "key")
    other = rights.event_time("rt", "at", lateness=timedelta(0)).key_by("by_who", "who")
    made = keyed.join("pairs", other, times=("at", "at"), within=WITHIN, suffix=suffix)
    made.sink("out", CallSink(print))
    with pytest.raises(GraphError) as caught:
        graph.plan()
    assert "join 'pairs': " in str(caught.value)
    assert words in str(caught.value)


def test_rows_are_joined_that_are_some_time_apart() -> None:
    graph = Graph("g")
    lefts = graph.source("left", InputSource("left", "at timestamp, key string")).key_by("a", "key")
    rights = graph.source("right", InputSource("right", "at timestamp, key string")).key_by("b", "key")
    with pytest.raises(SchemaError, match="within must be above 0"):
        lefts.join("pairs", rights, times=("at", "at"), within=timedelta(0))


# --- union (replication-transparency IV-D): every row of every input, once, whatever  -----------------------


_rows = st.lists(
    st.builds(lambda at, item: {"at": at, "item": item}, st.integers(0, 3), st.text("ab", max_size=2)),
    max_size=12,
)


def both() -> Graph:
    graph = Graph("both")
    first = graph.source("first", InputSource("first", "at bigint, item string"))
    second = graph.source("second", InputSource("second", "at bigint, item string"))
    first.union("both", second).sink("out", CallSink(print))
    return graph


@given(first=_rows, second=_rows, data=st.data())
def test_a_union_gives_every_row_once_in_any_order(
    first: list[dict], second: list[dict], data: st.DataObject
) -> None:
    steps = data.draw(arrangements({"first": first, "second": second}))
    trial = play_with_trouble(both(), steps, data)
    assert multiset(trial.rows("out")) == multiset(first + second)


def test_within_a_step_the_inputs_come_in_the_order_of_their_names_in_the_graph() -> None:
    trial = Trial(both())
    trial.step({"second": [{"at": 1, "item": "b"}], "first": [{"at": 1, "item": "a"}]})
    trial.step({"second": [{"at": 2, "item": "b"}]})
    assert [row["item"] for row in trial.rows("out")] == ["a", "b", "b"]
