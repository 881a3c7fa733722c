"""apply: operators that users write, the same whatever happens, and told by name when they are wrong."""

import math
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    RuntimeContext,
    SchemaError,
    UserOperator,
)
from dataflow.errors import OperatorError
from dataflow.operators.own_state import _others
from dataflow.testing import Trial
from tests.dataflow.test_windows import row, second
from tests.dataflow.trials import Row, arrangements, multiset, play_with_trouble, timely


class Seen(UserOperator):
    """Numbers the rows of each word; words that begin with x go aside. Counts its calls, for the tests."""

    needs = "word string"
    schema = "word string, n bigint"
    state = "word string, n bigint"
    side_outputs = {"crossed": "word string", "batches": "word string"}  # noqa: RUF012 - as users write it

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        for word in batch.column("word").to_pylist():
            if word.startswith("x"):
                self.emit("crossed", {"word": word})
                continue
            self.counts[word] += 1
            yield word, self.counts[word]
        self.emit("batches", batch.select(["word"]))

    def checkpoint(self) -> list[tuple[str, int]]:
        return [*self.counts.items()]

    def reset(self, state: pa.RecordBatch) -> None:
        assert not self.counts, "a copy is new when it is reset"
        self.counts.update({one["word"]: one["n"] for one in state.to_pylist()})


def graph_of(operator: UserOperator, schema: str = "word string", *, side_outputs: bool = False) -> Graph:
    graph = Graph("words")
    rows = graph.source("rows", InputSource("rows", schema))
    made = rows.key_by("by_word", "word").apply("own", operator)
    made.sink("out", CallSink(print))
    if side_outputs:
        for port in ("crossed", "batches"):
            made.side_output(port, port).sink(f"{port}_out", CallSink(print))
    return graph


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


@settings(max_examples=40)
@given(
    rows=st.lists(st.builds(row, st.integers(0, 60), st.sampled_from("ab"), st.just(1.0)), max_size=20),
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
    rows = graph.source("rows", InputSource("rows", "at timestamp, key string, value double"))
    one = rows.event_time("timed", "at", lateness=timedelta(0)).apply("upper", Tells("upper"))
    one.apply("lower", Tells("lower")).sink("out", CallSink(print))
    trial = Trial(graph)
    assert calls == ["open upper", "open lower"]
    trial.crash()  # before the first cut: there is nothing to reset to
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


class Flushes(UserOperator):
    """Gives what it has gathered when a cut comes, or three rows are there."""

    deterministic = False
    state = "word string"

    def __init__(self) -> None:
        self.waiting: list[str] = ["never"]

    def process(self, batch: pa.RecordBatch) -> list[str]:
        self.waiting += batch.column("word").to_pylist()
        return self.flush() if len(self.waiting) >= 3 else []

    def drain(self) -> list[str]:
        return self.flush()

    def flush(self) -> list[str]:
        made, self.waiting = [word for word in self.waiting if word != "never"], []
        return made

    def checkpoint(self) -> list[str]:
        return self.waiting

    def reset(self, state: pa.RecordBatch) -> None:
        self.waiting = state.column("word").to_pylist()


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
    from dataflow.operators.own_state import OwnState
    from dataflow.state.migration import StateHistory

    schema = pa.schema([("a", pa.float64()), ("b", pa.list_(pa.int64()))])
    rows: list[tuple[Any, Any]] = []
    state = OwnState(
        StateHistory(schema),
        lambda _: pa.RecordBatch.from_pylist([dict(zip("ab", r, strict=True)) for r in rows], schema),
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
        again = OwnState(StateHistory(schema), lambda _: pa.RecordBatch.from_pylist([], schema))
        for one in blocks:
            again.restore(one)
        found = again.take_restored()
        assert found is not None
        assert repr(found.to_pylist()) == repr([dict(zip("ab", r, strict=True)) for r in made])


# --- errors name the operator and the column ----------------------------------------------------------------


class Plain(UserOperator):
    def process(self, batch: pa.RecordBatch) -> Any:
        return batch


def _of(**declared: Any) -> UserOperator:
    made: UserOperator = type("Own", (Plain,), declared)()
    return made


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (
            _of(needs="wort string"),
            r"it needs column 'wort' \(did you mean 'word'\?\), but its input has word",
        ),
        (_of(needs="word bigint"), "it needs column 'word' as bigint, but its input has it as string"),
        (_of(schema="n number"), "schema: schema 'n number': 'number' is no type"),
        (_of(state="n bigint"), r"Own declares a state but has no checkpoint\(\)"),
        (_of(checkpoint=lambda self: []), r"Own has checkpoint\(\) but declares no state"),
        (
            _of(state="_row bigint", checkpoint=lambda self: [], reset=lambda self, state: None),
            "state: column names of a state must differ",
        ),
        (_of(side_outputs={"bad": "_hash string"}), "side output 'bad': column '_hash' is reserved"),
        (_of(lock=threading.Lock(), __deepcopy__=lambda self, memo: 1 // 0), r"make such things in open\(\)"),
        (UserOperator(), r"UserOperator has no process\(self, batch\); define it"),
        (
            _of(on_punctuation=lambda self, ts: None),
            " needs event time, and gets none",
        ),
    ],
)
def test_declarations_that_do_not_fit_are_reported_before_anything_runs(
    operator: UserOperator, words: str
) -> None:
    with pytest.raises(GraphError, match=f"apply 'own':?.*{words}"):
        graph_of(operator).plan()


def test_a_class_is_no_operator() -> None:
    with pytest.raises(SchemaError, match=r"not the class Plain; write stream\.apply"):
        graph_of(Plain)  # type: ignore[arg-type]


def test_an_unknown_side_output_is_told_with_the_nearest() -> None:
    graph = Graph("g")
    made = graph.source("rows", InputSource("rows", "word string")).apply("own", Seen())
    made.sink("out", CallSink(print))
    made.side_output("other", "crosed").sink("other_out", CallSink(print))
    with pytest.raises(GraphError, match=r"no side output 'crosed' \(did you mean 'crossed'\?\); it has"):
        graph.plan()


def test_what_is_not_deterministic_may_not_be_published_by_step() -> None:
    graph = Graph("g")
    made = graph.source("rows", InputSource("rows", "word string")).apply("own", Flushes())
    made.sink("out", LogSink(publish="step"))
    with pytest.raises(GraphError, match="'own' above it is not deterministic"):
        graph.plan()


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"process": lambda self, batch: [{"n": 1}]}, "process: a row has the columns 'n'"),
        ({"process": lambda self, batch: {"word": "a"}}, "process: .*wrap it in a list"),
        ({"process": lambda self, batch: batch.to_pandas()}, "process: it returned a DataFrame"),
        ({"process": lambda self, batch: [1 // 0]}, "process: ZeroDivisionError"),
        (
            {"process": lambda self, batch: self.emit("bda", "a")},
            r"no side output 'bda' \(did you mean 'bad'\?\)",
        ),
        (
            {"process": lambda self, batch: self.emit("bad", {"w": "a"})},
            "process: side output 'bad': a row has the columns 'w'; the schema says 'word'",
        ),
        ({"checkpoint": lambda self: [("a", 2)]}, "checkpoint: a row has 2 values"),
        ({"checkpoint": lambda self: [object()]}, "checkpoint: column 'n' is int64, but a value is object"),
        (
            {"checkpoint": lambda self: self.emit("bad", "a")},
            "emit may be called only in process, on_punctuation",
        ),
    ],
)
def test_what_a_method_gives_is_held_to_what_was_declared(methods: dict[str, Any], words: str) -> None:
    declared = {
        "state": "n bigint",
        "side_outputs": {"bad": "word string"},
        "checkpoint": lambda self: [],
        "reset": lambda self, state: None,
    }
    trial = Trial(graph_of(_of(**{**declared, **methods})))
    with pytest.raises(OperatorError, match=f"operator 'own' failed at .*{words}"):
        trial.step({"rows": [{"word": "a"}]}, checkpoint=True)


def test_an_open_that_fails_is_told_by_name() -> None:
    with pytest.raises(OperatorError, match="operator 'own' failed at its start: open: KeyError"):
        Trial(graph_of(_of(open=lambda self, place: {}["x"])))


def test_a_row_of_state_has_changed_where_any_column_has_also_behind_lists() -> None:
    schema = pa.schema([("more", pa.list_(pa.int64())), ("value", pa.float64()), ("n", pa.int64())])

    def batch(*rows: tuple[list[int], float | None, int | None]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(zip(schema.names, one, strict=True)) for one in rows], schema)

    before = batch(([1], 1.0, 1), ([1], 0.0, None), ([1], math.nan, 1), ([1], 1.0, 1), ([1], None, 1))
    after = batch(([1], 2.0, 1), ([1], -0.0, None), ([1], math.nan, 1), ([2], 1.0, 1), ([1], None, 2))
    assert _others(before, after) == [0, 1, 3, 4]
