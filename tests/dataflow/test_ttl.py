"""Time to live: what a function keeps for a key is gone when its time has passed, whatever the order."""

from datetime import timedelta
from typing import Any

import pytest

from dataflow import CallSink, Graph, InputSource, KeyState, Migration, SchemaError
from dataflow.testing import Trial
from tests.dataflow.trials import SCHEMA, row, second

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
