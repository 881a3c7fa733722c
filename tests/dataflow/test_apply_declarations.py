"""What a user's operator declares: errors name the operator and the column."""

import threading
from typing import Any

import pyarrow as pa
import pytest

from dataflow import (
    CallSink,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    SchemaError,
    UserOperator,
)
from dataflow.errors import OperatorError
from dataflow.testing import Trial
from tests.dataflow.user_operators import Flushes, Seen, graph_of


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
        ({"checkpoint": lambda self: [object()]}, "checkpoint: column 'n' is bigint, .* given object"),
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
