"""A state of a user's operator whose columns change: checkpoints of older versions are taken over, or
refused.
"""

from typing import Any

import pyarrow as pa
import pytest

from checkpoint.errors import GraphChangeRefusedError
from dataflow import CallSink, Graph, GraphError, InputSource, Migration, OperatorError, UserOperator
from dataflow.testing import Trial

TO_TWO = Migration(1, "word string", lambda old: {"word": old["word"], "seen": 1})
TO_THREE = Migration(2, "word string, seen bigint", lambda old: {"text": f"{old['word']}:{old['seen']}"})


NO_STATE = {"state": None, "checkpoint": UserOperator.checkpoint, "reset": UserOperator.reset}


class Words(UserOperator):
    """Keeps the words that it was given, at most `most` of them, and says what it keeps."""

    needs = "word string"
    schema = "kept array<string>"

    def __init__(self, most: int = 9) -> None:
        self.most = most
        self.rows: list[Any] = []

    def process(self, batch: pa.RecordBatch) -> Any:
        for word in batch.column("word").to_pylist():
            self.rows = [*self.rows, self.row(word)][-self.most :]
        yield (["/".join(map(str, row)) for row in self.rows],)

    def checkpoint(self) -> Any:
        return self.rows

    def reset(self, state: pa.RecordBatch) -> None:
        self.rows = [tuple(row.values()) for row in state.to_pylist()]

    def row(self, word: str) -> tuple[Any, ...]:
        return (word,)


class One(Words):
    state = "word string"


class Two(Words):
    state = "word string, seen bigint"
    state_version = 2
    migrations = (TO_TWO,)

    def row(self, word: str) -> tuple[Any, ...]:
        return (word, 0)


class Three(Words):
    state = "text string"
    state_version = 3
    migrations = (TO_TWO, TO_THREE)


def kept(operator: UserOperator) -> Graph:
    graph = Graph("kept")
    words = graph.source("words", InputSource("words", "word string"))
    words.apply("kept", operator).sink("out", CallSink(print))
    return graph


def give(trial: Trial, word: str, *, checkpoint: bool = True, snapshot: bool = False) -> list[str]:
    trial.step({"words": [{"word": word}]}, checkpoint=checkpoint, snapshot=snapshot)
    rows: list[str] = trial.rows("out")[-1]["kept"]
    return rows


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_state_of_an_older_version_becomes_one_of_today(snapshot: bool) -> None:
    trial = Trial(kept(One()))
    for word in ("a", "b", "c"):
        give(trial, word)
    trial.go_on_with(kept(Two(most=2)))
    assert give(trial, "lost", checkpoint=False) == ["c/1", "lost/0"]
    trial.crash()
    assert give(trial, "d", snapshot=snapshot) == ["c/1", "d/0"]
    trial.crash()
    assert give(trial, "e") == ["d/0", "e/0"], (
        "what is of the older version counts no more, nor its third row"
    )
    trial.crash()
    assert give(trial, "f", checkpoint=False) == ["e/0", "f/0"]
    trial.go_on_with(kept(Three()))
    assert give(trial, "g") == ["d:0", "e:0", "g"]


def test_what_did_not_change_since_a_migration_is_written_all_the_same() -> None:
    trial = Trial(kept(One()))
    for word in ("a", "b"):
        give(trial, word)
    trial.go_on_with(kept(Two()))
    trial.step({}, checkpoint=True)
    trial.crash()
    assert give(trial, "c") == ["a/1", "b/1", "c/0"]
    trial.crash()
    assert give(trial, "d") == ["a/1", "b/1", "c/0", "d/0"]


def test_two_versions_are_passed_at_once() -> None:
    trial = Trial(kept(One()))
    give(trial, "a")
    trial.go_on_with(kept(Three()))
    assert give(trial, "b") == ["a:1", "b"]


def test_without_its_migration_a_checkpoint_is_refused_with_both_states() -> None:
    class Bare(Two):
        migrations = ()

    trial = Trial(kept(One()))
    give(trial, "a")
    with pytest.raises(GraphChangeRefusedError, match="kept"):
        trial.go_on_with(kept(Bare()))
    assert give(trial, "b") == ["a", "b"], "it continues as before"


def test_a_migration_that_fails_is_told_by_operator_and_version() -> None:
    class Wrong(Two):
        migrations = (Migration(1, "word string", lambda old: {"word": old["word"]}),)

    trial = Trial(kept(One()))
    give(trial, "a")
    with pytest.raises(
        OperatorError, match=r"operator 'kept' failed .*the migration from version 1: a state is"
    ):
        trial.go_on_with(kept(Wrong()))


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"state": "word string", "state_version": 3, "migrations": (TO_TWO,)}, "migrations lead from one"),
        ({"state": "word string", "state_version": 0}, "state_version is a number of 1 or more, not 0"),
        ({"state": "thing pickle"}, "never as pickle or objects"),
        ({**NO_STATE, "state_version": 2}, "has a state_version or migrations but declares no state"),
    ],
)
def test_a_history_with_gaps_is_reported_before_anything_runs(declared: dict[str, Any], said: str) -> None:
    operator = type("Own", (One,), declared)
    with pytest.raises(GraphError, match=said):
        kept(operator()).plan()
