"""map_state: functions with state and timers, the same whatever the order."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Graph, GraphError, InputSource, Migration
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


# --- time to live -------------------------------------------------------------------------------------------


TTL = timedelta(seconds=5)
RESULT = "key string, at timestamp, n bigint"


def number(row: dict[str, Any], state: KeyState) -> list[Any]:
    """Each row with the number that it has in the life of its key's state."""
    state.value = {"n": (state.value["n"] if state.value else 0) + 1}
    return [(row["key"], row["at"], state.value["n"])]


def numbered(lateness: timedelta = timedelta(0), on_row: Any = number, **options: Any) -> Graph:
    graph = Graph("numbered")
    rows = graph.source("rows", InputSource("rows", SCHEMA)).event_time("timed", "at", lateness=lateness)
    options = {"ttl": TTL, "state": "n bigint", **options}
    made = rows.key_by("by_key", "key").map_state("numbered", on_row, time="at", schema=RESULT, **options)
    made.sink("out", CallSink(print))
    return graph


def keys(trial: Trial) -> int:
    return trial.counters()[0]["numbered"]["keys"]


@pytest.mark.parametrize("snapshot", [False, True])
def test_what_has_expired_is_neither_in_memory_nor_in_the_next_checkpoint(snapshot: bool) -> None:
    trial = Trial(numbered())
    trial.step({"rows": [row(0), row(1, "b")]}, checkpoint=True)
    trial.step({"rows": [row(3, "b"), row(5)]}, checkpoint=True)  # all rows before second 5 are through
    assert keys(trial) == 1
    trial.step({"rows": [row(7)]})  # the next row may be of second 7, and "b" is there before second 8
    assert keys(trial) == 2
    trial.step({"rows": [row(8, "c")]}, checkpoint=True, snapshot=snapshot)
    assert keys(trial) == 1
    trial.crash()
    assert keys(trial) == 1
    trial.step({}, end=True)
    assert [(one["key"], one["n"]) for one in trial.rows("out")] == [
        ("a", 1), ("b", 1), ("b", 2), ("a", 1), ("a", 2), ("c", 1)
    ]  # fmt: skip


def with_timer(row: dict[str, Any], state: KeyState) -> list[Any]:
    state.timer = row["at"] + 2 * TTL
    return number(row, state)


def test_a_timer_for_later_still_comes_and_finds_nothing() -> None:
    found: list[Any] = []
    graph = numbered(on_row=with_timer, on_timer=lambda key, time, state: found.append((time, state.value)))
    trial = Trial(graph)
    trial.step({"rows": [row(0), row(7, "b")]}, checkpoint=True)
    assert keys(trial) == 1, "for the timer, not for the value"
    trial.crash()
    trial.step({"rows": [row(30, "b")]})
    assert found == [(second(10), None), (second(17), None)]
    trial.step({}, end=True)
    assert keys(trial) == 0


def test_a_time_to_live_may_come_change_and_go_without_loss_of_state() -> None:
    trial = Trial(numbered(ttl=None))
    trial.step(
        {"rows": [row(0), row(1, "b"), row(2, "c")]}, checkpoint=True
    )  # "a" and "b" are counted up to here
    trial.go_on_with(numbered())
    trial.step({"rows": [row(4), row(5, "d")]}, checkpoint=True)
    trial.crash()
    trial.step({"rows": [row(9, "b"), row(9.5, "d")]}, checkpoint=True)
    trial.go_on_with(numbered(ttl=TTL * 10))
    trial.step({"rows": [row(50), row(51, "d")]}, checkpoint=True)
    trial.go_on_with(numbered(ttl=None))
    trial.step({"rows": [row(200), row(201, "d")]})
    trial.step({}, end=True)
    told = " ".join(f"{one['key']}{one['n']}" for one in trial.rows("out"))
    assert told == "a1 b1 c1 a2 d1 b1 d2 a1 d3 a2 d4"


def test_a_time_to_live_may_come_with_a_new_version_of_the_state() -> None:
    def tenth(row: dict[str, Any], state: KeyState) -> list[Any]:
        state.value = {"tenths": (state.value["tenths"] if state.value else 0) + 10}
        return [(row["key"], row["at"], state.value["tenths"])]

    trial = Trial(numbered(ttl=None))
    trial.step({"rows": [row(0), row(1, "b")]}, checkpoint=True)
    migration = Migration(1, "n bigint", lambda old: {"tenths": old["n"] * 10})
    options = {"on_row": tenth, "state": "tenths bigint", "state_version": 2, "migrations": [migration]}
    trial.go_on_with(numbered(**options))
    trial.step({"rows": [row(2), row(30)]})
    trial.step({}, end=True)
    assert [one["n"] for one in trial.rows("out")] == [1, 10, 20, 10]


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), 5])
def test_a_time_to_live_is_a_time_above_0(ttl: Any) -> None:
    with pytest.raises(SchemaError, match="ttl must be a timedelta"):
        numbered(ttl=ttl)
