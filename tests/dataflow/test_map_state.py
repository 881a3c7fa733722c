"""map_state: functions with state and timers, the same whatever the order."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Graph, GraphError, InputSource
from dataflow.errors import OperatorError, SchemaError
from dataflow.state.key_states import KeyState
from dataflow.testing import Trial
from tests.dataflow.trials import SCHEMA, Row, multiset, play_with_trouble, row, second, timely

GAP = timedelta(seconds=5)
_rows = st.lists(st.builds(row, st.integers(0, 60), st.sampled_from("ab"), st.just(1.0)), max_size=20)


def add_to_session(row: dict[str, Any], state: KeyState) -> None:
    value = state.value or {"since": row["at"], "rows": 0}
    state.value = {**value, "rows": value["rows"] + 1}
    state.timer = row["at"] + GAP


def end_session(key: dict[str, Any], time: Any, state: KeyState) -> Iterator[tuple[Any, ...]]:
    assert state.value is not None
    yield key["key"], state.value["since"], time - GAP, state.value["rows"]
    state.value = None


def sessions(lateness: timedelta = timedelta(0), **functions: Any) -> Graph:
    graph = Graph("sessions")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    made = rows.key_by("by_key", "key").map_state(
        "sessions",
        functions.get("on_row", add_to_session),
        time="at",
        schema="key string, since timestamp, until timestamp, n bigint",
        state="since timestamp, rows bigint",
        on_timer=functions.get("on_timer", end_session),
    )
    made.sink("out", CallSink(print))
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return graph


def expected(rows: list[Row]) -> list[Row]:
    """Rows of a key that are up to GAP apart are one session."""
    by_key: dict[str, list[Any]] = defaultdict(list)
    for one in sorted(rows, key=lambda one: one["at"]):
        sessions = by_key[one["key"]]
        if sessions and one["at"] <= sessions[-1][-1] + GAP:
            sessions[-1].append(one["at"])
        else:
            sessions.append([one["at"]])
    return [
        {"key": key, "since": times[0], "until": times[-1], "n": len(times)}
        for key, sessions in by_key.items()
        for times in sessions
    ]


def test_a_timer_comes_after_the_rows_of_its_time_and_before_later_ones() -> None:
    trial = Trial(sessions())
    trial.step({"rows": [row(0), row(5), row(10.5), row(30, "b")]}, checkpoint=True)
    assert [(one["since"], one["until"], one["n"]) for one in trial.rows("out")] == [
        (second(0), second(5), 2),
        (second(10.5), second(10.5), 1),
    ]
    trial.crash()
    trial.step({"rows": [row(3)]})
    assert trial.rows("late_out") == [row(3)]
    trial.step({}, end=True)
    assert [one["key"] for one in trial.rows("out")] == ["a", "a", "b"]


def set_again(key: dict[str, Any], time: Any, state: KeyState) -> Iterator[tuple[Any, ...]]:
    yield key["key"], time, time, 0
    state.timer = time + timedelta(seconds=10)


def test_a_timer_may_set_the_next_one_and_at_the_end_comes_once() -> None:
    trial = Trial(sessions(on_timer=set_again))
    trial.step({"rows": [row(0)]})
    trial.step({"rows": [row(27, "b")]}, checkpoint=True)
    assert [one["since"] for one in trial.rows("out")] == [second(5), second(15), second(25)]
    trial.crash()
    trial.step({}, end=True)
    assert [(one["key"], one["since"]) for one in trial.rows("out")[3:]] == [
        ("b", second(32)),
        ("a", second(35)),
    ]


def tell_and_keep(key: dict[str, Any], time: Any, state: KeyState) -> Iterator[tuple[Any, ...]]:
    assert state.value is not None
    yield key["key"], time, time, state.value["rows"]


def test_a_timer_that_went_off_is_not_set_any_more_after_a_restore_when_its_key_keeps_its_state() -> None:
    trial = Trial(sessions(on_timer=tell_and_keep))
    trial.step({"rows": [row(0), row(1, "b")]}, checkpoint=True)
    trial.step({"rows": [row(27, "b")]}, checkpoint=True)  # no row of "a": its timer alone has changed
    assert [one["key"] for one in trial.rows("out")] == ["a", "b"]
    trial.crash()
    trial.step({}, end=True)
    assert [one["key"] for one in trial.rows("out")] == ["a", "b", "b"]


def add_and_tell(row: dict[str, Any], state: KeyState, emit: Any) -> None:
    if state.value is None:
        emit("begun", (row["key"], row["at"]))
    add_to_session(row, state)


def end_and_tell(key: dict[str, Any], time: Any, state: KeyState, emit: Any) -> Iterator[tuple[Any, ...]]:
    assert state.value is not None
    emit("sizes", state.value["rows"])
    return end_session(key, time, state)


def told(lateness: timedelta = timedelta(0), **sides: str) -> Graph:
    graph = Graph("sessions")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    made = rows.key_by("by_key", "key").map_state(
        "sessions",
        add_and_tell,
        time="at",
        schema="key string, since timestamp, until timestamp, n bigint",
        state="since timestamp, rows bigint",
        on_timer=end_and_tell,
        side_outputs=sides,
    )
    made.sink("out", CallSink(print))
    for port in (*sides, "late"):
        made.side_output(port, port).sink(f"{port}_out", CallSink(print))
    return graph


@settings(max_examples=20)
@given(rows=_rows, data=st.data())
def test_side_outputs_of_both_functions_are_the_same_with_any_failures(
    rows: list[Row], data: st.DataObject
) -> None:
    steps, lateness = data.draw(timely("rows", rows, "at"))
    graph = told(lateness, begun="key string, at timestamp", sizes="n bigint")
    trial = play_with_trouble(graph, steps, data, end=True)
    found = expected(rows)
    assert multiset(trial.rows("out")) == multiset(found)
    begun = [{"key": one["key"], "at": one["since"]} for one in found]
    assert multiset(trial.rows("begun_out")) == multiset(begun)
    assert multiset(trial.rows("sizes_out")) == multiset([{"n": one["n"]} for one in found])
    assert trial.rows("late_out") == []


def test_a_side_output_of_ones_own_is_not_called_late() -> None:
    with pytest.raises(SchemaError, match="'late' of map_state is reserved for late rows; use another name"):
        told(late="key string")


def wrong_state(row: dict[str, Any], state: KeyState) -> None:
    state.value = {"since": row["at"], "rows": "many"}


def wrong_names(row: dict[str, Any], state: KeyState) -> None:
    state.value = {"rows": 1}


def wrong_timer(row: dict[str, Any], state: KeyState) -> None:
    state.timer = "soon"


def no_rows(row: dict[str, Any], state: KeyState) -> list[Any]:
    return [row["nothing"]]


@pytest.mark.parametrize(
    ("on_row", "words"),
    [
        (wrong_state, "it was given str 'many'; in the call for key 'a' at 2024-05-01"),
        (wrong_names, "a state is a dict of since, rows, or None, not dict {'rows': 1}"),
        (wrong_timer, "one without a zone is in UTC; it was given str 'soon'"),
        (no_rows, "KeyError: 'nothing'"),
    ],
)
def test_a_function_that_does_wrong_is_told_by_name(on_row: Any, words: str) -> None:
    trial = Trial(sessions(on_row=on_row))
    with pytest.raises(OperatorError) as caught:
        trial.step({"rows": [row(1), row(2)]})
    assert "'sessions' failed at the end of step 1" in str(caught.value)
    assert words in str(caught.value)


def test_a_state_with_columns_of_the_key_is_refused() -> None:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=GAP)
    keyed = rows.key_by("by_key", "key")
    keyed.map_state("s", add_to_session, time="at", schema="n bigint", state="key string").sink(
        "out", CallSink(print)
    )
    with pytest.raises(GraphError, match="map_state 's': column names of a state must differ"):
        graph.plan()
