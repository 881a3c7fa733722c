"""join with a time window (replication-transparency, algorithm 2): all pairs, once, whatever the order."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Graph, GraphError, InputSource, SchemaError
from dataflow.testing import Trial
from tests.dataflow.test_windows import row, second
from tests.dataflow.trials import Row, Step, multiset, play, play_with_trouble, reordered, timely

WITHIN = timedelta(seconds=5)


def pay(number: float, key: str = "a", n: int = 1) -> Row:
    return {"who": key, "at": second(number), "n": n}


_lefts = st.lists(st.builds(row, st.integers(0, 20), st.sampled_from("ab"), st.just(1.0)), max_size=10)
_rights = st.lists(st.builds(pay, st.integers(0, 20), st.sampled_from("ab"), st.integers(0, 2)), max_size=10)


def joining(left: timedelta, right: timedelta) -> Graph:
    graph = Graph("joining")
    lefts = graph.source("left", InputSource("left", "at timestamp, key string, x double"))
    rights = graph.source("right", InputSource("right", "who string, at timestamp, n bigint"))
    keyed = lefts.event_time("left_timed", "at", lateness=left).key_by("by_key", "key")
    other = rights.event_time("right_timed", "at", lateness=right).key_by("by_who", "who")
    made = keyed.join("pairs", other, times=("at", "at"), within=WITHIN)
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_left", CallSink(print))
    made.side_output("late_right", "late_right").sink("late_right_out", CallSink(print))
    return graph


def expected(lefts: list[Row], rights: list[Row]) -> list[Row]:
    return [
        {**one, "at_right": other["at"], "n": other["n"]}
        for one in lefts
        for other in rights
        if one["key"] == other["who"] and abs(one["at"] - other["at"]) < WITHIN
    ]


def together(lefts: list[Step], rights: list[Step]) -> list[Step]:
    """Steps of both sources."""
    count = max(len(lefts), len(rights))
    return [{**dict(*lefts[at : at + 1]), **dict(*rights[at : at + 1])} for at in range(count)]


@settings(max_examples=30)
@given(lefts=_lefts, rights=_rights, data=st.data())
def test_every_pair_comes_once_with_any_failures(
    lefts: list[Row], rights: list[Row], data: st.DataObject
) -> None:
    left_steps, left = data.draw(timely("left", lefts, "at"))
    right_steps, right = data.draw(timely("right", rights, "at"))
    trial = play_with_trouble(joining(left, right), together(left_steps, right_steps), data, end=True)
    assert multiset(trial.rows("out")) == multiset(expected(lefts, rights))
    assert trial.rows("late_left") == trial.rows("late_right_out") == []
    assert sum(counters["pairs"]["rows"] for counters in trial.counters()) == 0


@settings(max_examples=30)
@given(lefts=_lefts, rights=_rights, data=st.data())
def test_a_step_gives_the_same_pairs_in_whatever_order_its_rows_come(
    lefts: list[Row], rights: list[Row], data: st.DataObject
) -> None:
    steps = together(data.draw(timely("left", lefts, "at"))[0], data.draw(timely("right", rights, "at"))[0])
    graph = joining(timedelta(0), timedelta(0))
    # On one worker: what is late depends on who reads what.
    once, again = play(graph, steps), play(graph, data.draw(reordered(steps)))
    for sink in ("out", "late_left", "late_right_out"):
        assert multiset(once.rows(sink)) == multiset(again.rows(sink))


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
