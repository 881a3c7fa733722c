"""apply: operators that users write, the same whatever happens, and told by name when they are wrong."""

import math
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    Graph,
    InputSource,
    RuntimeContext,
    UserOperator,
)
from dataflow.errors import OperatorError
from dataflow.operators.apply import _changed_rows
from dataflow.testing import Trial
from tests.dataflow.trials import Row, arrangements, multiset, play_with_trouble, row, second, timely
from tests.dataflow.user_operators import Flushes, Seen, graph_of


@settings(max_examples=40)
@given(words=st.lists(st.sampled_from(["a", "b", "c", "xa", "xb"]), max_size=20), data=st.data())
def test_rows_and_side_outputs_are_those_of_a_run_without_trouble(
    words: list[str], data: st.DataObject
) -> None:
    steps = data.draw(arrangements({"rows": [{"word": word} for word in words]}))
    trial = play_with_trouble(graph_of(Seen(), side_outputs=True), steps, data)
    counts = Counter(word for word in words if word[0] != "x")
    expected = [{"word": word, "n": n + 1} for word, count in counts.items() for n in range(count)]
    assert multiset(trial.rows("out")) == multiset(expected)
    crossed = [{"word": word} for word in words if word[0] == "x"]
    assert multiset(trial.rows("crossed_out")) == multiset(crossed)
    assert multiset(trial.rows("batches_out")) == multiset([{"word": word} for word in words])


class Holds(UserOperator):
    """Holds rows until event time has passed them; all kinds of state columns."""

    schema = "key string, at timestamp"
    state = "at timestamp, key string, more array<double>, value double"

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def process(self, batch: pa.RecordBatch) -> None:
        for one in batch.to_pylist():
            self.rows.append({**one, "more": [one["value"]]})

    def on_punctuation(self, ts: datetime) -> list[Any]:
        passed = sorted((one for one in self.rows if one["at"] <= ts), key=lambda one: one["at"])
        self.rows = [one for one in self.rows if one["at"] > ts]
        return [(one["key"], one["at"]) for one in passed]

    def checkpoint(self) -> pa.Table:
        return pa.Table.from_pylist(
            self.rows,
            pa.schema(
                [
                    ("at", pa.timestamp("us", "UTC")),
                    ("key", pa.string()),
                    ("more", pa.list_(pa.float64())),
                    ("value", pa.float64()),
                ]
            ),
        )

    def reset(self, state: pa.RecordBatch) -> None:
        self.rows = state.to_pylist()


def timed(operator: UserOperator, lateness: timedelta) -> Graph:
    graph = Graph("timed")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key string, value double"))
    held = rows.event_time("timed", "at", lateness=lateness).apply("holds", operator)
    held.sort("sorted", "at").sink("out", CallSink(print))
    return graph


def valued(number: int, key: str) -> Row:
    return {"at": second(number), "key": key, "value": 1.0}


@settings(max_examples=40)
@given(
    rows=st.lists(st.builds(valued, st.integers(0, 60), st.sampled_from("ab")), max_size=20),
    data=st.data(),
)
def test_punctuations_come_once_and_what_waits_for_them_is_state(
    rows: list[Row], data: st.DataObject
) -> None:
    steps, lateness = data.draw(timely("rows", rows, "at"))
    trial = play_with_trouble(timed(Holds(), lateness), steps, data, end=True)
    assert multiset(trial.rows("out")) == multiset([{"key": one["key"], "at": one["at"]} for one in rows])


def test_an_operator_is_notified_in_the_order_of_the_paper() -> None:
    calls: list[str] = []

    class Tells(UserOperator):
        state = "n bigint"

        def __init__(self, name: str) -> None:
            self.name = name

        def __deepcopy__(self, memo: Any) -> "Tells":
            return Tells(self.name)

        def open(self, place: RuntimeContext) -> None:
            assert (place.operator, place.workers) == (self.name, 1)
            calls.append(f"open {self.name}")

        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            calls.append(f"process {self.name}")
            return batch

        def on_punctuation(self, ts: datetime) -> None:
            calls.append(f"punctuation {self.name} {(ts - second(0)).total_seconds():.6f}")

        def drain(self) -> None:
            calls.append(f"drain {self.name}")

        def checkpoint(self) -> list[int]:
            calls.append(f"checkpoint {self.name}")
            return [7]

        def reset(self, state: pa.RecordBatch) -> None:
            calls.append(f"reset {self.name} {state.to_pylist()}")

        def close(self) -> None:
            calls.append(f"close {self.name}")

    graph = Graph("told")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key string, x double"))
    one = rows.event_time("timed", "at", lateness=timedelta(0)).apply("upper", Tells("upper"))
    one.apply("lower", Tells("lower")).sink("out", CallSink(print))
    trial = Trial(graph)
    assert calls == ["open upper", "open lower"]
    trial.crash()  # before the first checkpoint: there is nothing to reset to
    assert calls[2:] == ["close upper", "close lower", "open upper", "open lower"]
    calls.clear()
    trial.step({"rows": [row(5)]}, checkpoint=True)
    assert calls == [
        "process upper",
        "process lower",
        "punctuation upper 4.999999",
        "drain upper",
        "punctuation lower 4.999999",
        "drain lower",
        "checkpoint upper",
        "checkpoint lower",
    ]
    calls.clear()
    trial.crash()
    assert calls == [
        "close upper",
        "close lower",
        "open upper",
        "reset upper [{'n': 7}]",
        "open lower",
        "reset lower [{'n': 7}]",
    ]
    calls.clear()
    trial.step({"rows": [row(5)]})  # event time does not move: nothing is said again
    assert calls == ["process upper", "process lower"]


def test_what_drain_gives_is_before_the_checkpoint_and_a_state_without_rows_is_one() -> None:
    trial = Trial(graph_of(Flushes()))
    trial.step({"rows": [{"word": "a"}]})
    assert trial.rows("out") == []
    trial.step({}, checkpoint=True)
    assert trial.rows("out") == [{"word": "a"}]
    trial.crash()  # to a state of no rows: not to that of a new copy, which has one
    trial.step({"rows": [{"word": "b"}, {"word": "c"}]})
    assert trial.rows("out") == [{"word": "a"}]
    trial.step({}, checkpoint=True, snapshot=True)
    assert trial.crash() == 4
    assert [one["word"] for one in trial.rows("out")] == ["a", "b", "c"]


def test_rows_of_a_drain_need_the_declaration() -> None:
    class Wrong(Flushes):
        deterministic = True

    trial = Trial(graph_of(Wrong()))
    with pytest.raises(OperatorError, match="'own' failed at the end of step 1: drain returned 1 rows"):
        trial.step({"rows": [{"word": "a"}]}, checkpoint=True)


def test_a_checkpoint_writes_what_changed() -> None:
    from dataflow.operators.apply import OwnState
    from dataflow.state.migration import StateHistory

    schema = pa.schema([("a", pa.float64()), ("b", pa.list_(pa.int64()))])
    rows: list[tuple[Any, Any]] = []
    state = OwnState(
        StateHistory(schema),
        lambda _: pa.RecordBatch.from_pylist([dict(zip("ab", r, strict=True)) for r in rows], schema),
        lambda states, _: states[0],
    )
    changes = [
        ([(1.0, [1]), (0.0, None), (None, [])], [-1, 0, 1, 2]),
        ([(1.0, [1]), (-0.0, None), (None, [2])], [1, 2]),
        ([(1.0, [1])], [1, 2]),
        ([(float("nan"), [1]), (2.0, None)], [0, 1]),
        ([(float("nan"), [1]), (2.0, None)], []),
        ([], [0, 1]),
    ]
    blocks = []
    for made, changed in changes:
        rows[:] = made
        block = state.checkpoint()
        blocks.append(block)
        assert sorted(block.column("_row").to_pylist()) == changed
        again = OwnState(
            StateHistory(schema),
            lambda _: pa.RecordBatch.from_pylist([], schema),
            lambda states, _: states[0],
        )
        for one in blocks:
            again.restore(one)
        found = again.take_restored()
        assert found is not None
        assert repr(found.to_pylist()) == repr([dict(zip("ab", r, strict=True)) for r in made])


def test_a_row_of_state_has_changed_where_any_column_has_also_behind_lists() -> None:
    schema = pa.schema([("more", pa.list_(pa.int64())), ("value", pa.float64()), ("n", pa.int64())])

    def batch(*rows: tuple[list[int], float | None, int | None]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(zip(schema.names, one, strict=True)) for one in rows], schema)

    before = batch(([1], 1.0, 1), ([1], 0.0, None), ([1], math.nan, 1), ([1], 1.0, 1), ([1], None, 1))
    after = batch(([1], 2.0, 1), ([1], -0.0, None), ([1], math.nan, 1), ([2], 1.0, 1), ([1], None, 2))
    assert _changed_rows(before, after) == [0, 1, 3, 4]
