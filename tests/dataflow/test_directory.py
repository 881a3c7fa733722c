"""Directories of operators: their files are those of a run without failures; misuse is named."""

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    FileSink,
    FileSource,
    Graph,
    GraphError,
    InputSource,
    RuntimeContext,
    UserOperator,
)
from dataflow.core.regions import autonomous, consistent
from dataflow.errors import OperatorError, OperatorFailure, SchemaError
from dataflow.state.operator_directory import OperatorDirectory
from dataflow.testing import CRASH, Trial, assert_crash_safe
from journal.files.tree import FileTree
from tests.dataflow.filing import Diary, Filing, diary_of, together
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.test_region_in_one_thread import write_files
from tests.journal.journaled_files import CHANGE, changed, files


def graph_of(operator: UserOperator, schema: str) -> Graph:
    graph = Graph("files")
    rows = graph.source("rows", InputSource("rows", schema))
    rows.apply("own", operator).sink("out", CallSink(print))
    return graph


def filing(operator: UserOperator | None = None) -> Graph:
    return graph_of(operator or Filing(), Filing.needs)


def row_of(change: tuple[Any, ...]) -> dict[str, Any]:
    kind, name, *rest = change
    return {
        "kind": kind,
        "name": name,
        "other": next((one for one in rest if isinstance(one, str)), ""),
        "at": next((one for one in rest if isinstance(one, int)), 0),
        "data": next((one for one in rest if isinstance(one, bytes)), b""),
    }


APPEND = {"kind": "append", "name": "log", "other": "", "at": 0, "data": b"x"}

# --- any changes ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(
        CHANGE.filter(lambda one: one[0] not in ("reopen", "tamper") and "\udcff" not in one), max_size=15
    ),
    data=st.data(),
)
def test_any_changes_exist_after_any_checkpoints_and_crashes(
    changes: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    """Each step is one change or none; a crash takes back what no checkpoint holds, and it is made again."""
    trial, model = Trial(filing()), dict[str, bytes]()
    steps: list[tuple[Any, ...]] = []
    for change in changes:
        if change[0] not in ("remove", "rename") or change[1] in model:
            steps.append(change)
            model = changed(model, change)
    done, then, troubles = 0, [dict[str, bytes]()], 4
    while done < len(steps):
        trial.step(
            {"rows": [row_of(steps[done])]},
            checkpoint=data.draw(st.booleans()),
            snapshot=data.draw(st.booleans()),
        )
        done += 1
        then[done:] = [changed(then[done - 1], steps[done - 1])]
        assert trial.files("own") == then[done]
        if troubles and data.draw(st.booleans()):
            done, troubles = trial.crash(), troubles - 1
            assert trial.files("own") == then[done]
    assert trial.files("own") == model


@pytest.mark.parametrize("workers", [1, 3])
def test_files_are_those_of_a_run_without_failures_in_any_interleaving(workers: int, tmp_path: Path) -> None:
    rng = random.Random(workers)
    rows = [(rng.choice(["ape", "bee", "cow", "die"]), n) for n in range(120)]
    paths = write_files(
        tmp_path,
        ["".join(f"{word} {n}\n" for word, n in rows if (word < "c") is first) for first in (True, False)],
    )
    for trouble in range(6):
        graph = numbered(paths, tmp_path / f"out{trouble}", Diary())
        region = OneThreadRegion(graph, workers, rng.randrange, folder=tmp_path / f"files{trouble}")
        region.run_with_trouble(rng, rounds=trouble, turns=40)
        found = [files(side.paths["own"]) for side in region.sides]
        assert together(found) == diary_of(rows)


def numbered(paths: list[Path], out: Path, operator: UserOperator) -> Graph:
    """Lines "word n", each word in one file only: so its rows come in one order."""
    graph = Graph("numbered")
    lines = graph.source("lines", FileSource([*paths]))
    words = lines.map("words", split, schema="word string, n bigint")
    words.key_by("by_word", "word").apply("own", operator).sink("out", FileSink(out))
    return graph


def split(row: dict[str, Any]) -> tuple[str, int]:
    word, _, n = row["line"].partition(" ")
    return word, int(n)


def test_the_test_kit_compares_files_and_finds_those_written_after_the_directory() -> None:
    schema = "word string, n bigint"
    rows = [{"word": word, "n": n} for n, word in enumerate(["ape", "bee", "ape", "cow", "bee", "ape"])]
    trial = assert_crash_safe(graph_of(Diary(), schema), {"rows": rows})
    assert {*trial.files("own", 0), *trial.files("own", 1)} == set(
        diary_of([("ape", 0), ("bee", 1), ("cow", 3)])
    )

    class Behind(Diary):
        def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            for word in batch.column("word").to_pylist():
                with (self.files.path / "counts").open("ab") as file:
                    file.write(word.encode())
            return batch

    with pytest.raises(
        AssertionError, match="worker 0 of operator 'own' has other files than without: 'counts'"
    ):
        assert_crash_safe(graph_of(Behind(), schema), {"rows": [*rows[:4], CRASH, *rows[4:]]})


def test_a_trial_names_the_operators_keep_files() -> None:
    with pytest.raises(
        SchemaError, match=r"'rows' keeps no files on worker 0 of 1; operators with files: 'own'"
    ):
        Trial(filing()).files("rows")


# --- what is refused --------------------------------------------------------------------------------------


class Misused(UserOperator):
    """Changes a file in the given method."""

    keeps_files = True
    state = "n bigint"

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, ctx: RuntimeContext) -> None:
        self.ctx = ctx
        self.files = ctx.directory()
        self.at("open")

    def at(self, where: str) -> None:
        if where == self.where:
            self.files.append("log", b"x")

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.at("process")
        if self.where == "thread":
            failed: list[BaseException] = []
            threading.excepthook, hook = lambda told: failed.append(told.exc_value), threading.excepthook
            thread = threading.Thread(target=self.files.append, args=("log", b"x"))
            thread.start()
            thread.join()
            threading.excepthook = hook
            raise failed[0]
        return batch

    def drain(self) -> None:
        self.at("drain")

    def checkpoint(self) -> list[int]:
        self.at("checkpoint")
        return [1]

    def reset(self, state: pa.RecordBatch) -> None:
        self.at("reset")

    def close(self) -> None:
        self.at("close")


@pytest.mark.parametrize("where", ["open", "process", "drain", "reset"])
def test_files_are_changed_where_a_checkpoint_follows(where: str) -> None:
    trial = Trial(filing(Misused(where)))
    trial.step({"rows": [APPEND]}, checkpoint=True)
    trial.crash()
    assert trial.files("own") == {"log": b"xx" if where == "open" else b"x"}


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (
            "checkpoint",
            r"checkpoint: DosError: 'log' cannot be changed in checkpoint\(\); files may be",
        ),
        (
            "thread",
            "process: DosError: 'log' cannot be changed on another thread than the operator's own",
        ),
    ],
)
def test_files_are_not_changed_elsewhere(where: str, text: str) -> None:
    trial = Trial(filing(Misused(where)))
    with pytest.raises(OperatorError, match=text):
        trial.step({"rows": [APPEND]}, checkpoint=True)


def test_closing_changes_no_files_and_reports_it() -> None:
    trial = Trial(filing(Misused("close")))
    with pytest.raises(Exception, match="cannot be changed outside of the operator's methods"):
        trial.crash()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "../out"}, "process: UnsafePathError: .*part '..'"),
        ({"name": "/etc/passwd"}, "process: UnsafePathError: .*absolute"),
        ({"kind": "remove", "name": "nothing"}, "process: FileNotFoundError: nothing is not in"),
        ({"kind": "write_at", "at": -1}, "process: LocalProtocolError: an offset must be 0 or more, got -1"),
        ({"data": bytes(16 * 1024 * 1024 + 1)}, "process: LocalProtocolError: one write has at most"),
    ],
)
def test_what_cannot_be_is_refused_with_the_operator_and_nothing_is_changed(
    change: dict[str, Any], text: str
) -> None:
    trial = Trial(filing())
    trial.step({"rows": [APPEND]}, checkpoint=True)
    with pytest.raises(OperatorError, match=rf"operator 'own' failed at .*{text}"):
        trial.step({"rows": [{**APPEND, **change}]})
    assert trial.files("own") == {"log": b"x"}


def test_a_directory_is_asked_for_by_who_declares_it_and_on_a_worker() -> None:
    class Undeclared(Filing):
        keeps_files = False

    with pytest.raises(OperatorError, match=r"open: DosError: Undeclared keeps no files.*keeps_files = True"):
        Trial(filing(Undeclared()))
    with pytest.raises(OperatorFailure, match=r"'own': directory\(\) is available only on a worker"):
        RuntimeContext("own", 0, 1, pa.schema([])).directory()


def test_who_keeps_files_is_in_a_region_and_has_a_name_for_its_chain() -> None:
    graph = Graph("files")
    rows = graph.source("rows", InputSource("rows", Filing.needs)).annotate(consistent())
    rows.apply("own", Filing()).annotate(autonomous).sink("out", CallSink(print))
    with pytest.raises(
        GraphError, match="operator 'own' keeps files and is outside of any consistent region"
    ):
        graph.plan()
    graph = Graph("files")
    graph.source("rows", InputSource("rows", Filing.needs)).apply("n" * 89, Filing()).sink(
        "out", CallSink(print)
    )
    with pytest.raises(GraphError, match="its name has 89 characters, more than 88"):
        graph.plan()


def test_files_are_part_of_what_a_checkpoint_must_fit() -> None:
    class Without(Filing):
        keeps_files = False

        def open(self, ctx: RuntimeContext) -> None:
            """It keeps none any more."""

    trial = Trial(filing())
    trial.step({"rows": [APPEND]}, checkpoint=True)
    with pytest.raises(Exception, match="operator 'own' was apply keeps files, is apply"):
        trial.go_on_with(filing(Without()))
    assert trial.files("own") == {"log": b"x"}


def test_a_disk_that_fails_takes_the_region_back_also_where_the_operator_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class GoesOn(Filing):
        def change(self, row: dict[str, Any]) -> None:
            try:
                super().change(row)
            except OperatorFailure:
                assert row["name"] == "full"

    def fails(tree: FileTree, op: Any, apply: Any = FileTree.apply) -> None:
        if op.path == "full":
            raise OSError(28, "No space left on device")
        apply(tree, op)

    monkeypatch.setattr(FileTree, "apply", fails)
    full = {**APPEND, "name": "full"}
    trial = Trial(filing())
    with pytest.raises(OperatorError, match=r"cannot apply a recorded change to full.*No space left") as told:
        trial.step({"rows": [full]})
    assert told.value.wants_reset
    trial = Trial(filing(GoesOn()))
    with pytest.raises(
        OperatorError, match="failed at a checkpoint: cannot apply a recorded change to full"
    ) as told:
        trial.step({"rows": [full]}, checkpoint=True)
    assert told.value.wants_reset


def test_a_file_that_was_changed_by_other_means_takes_the_region_back_when_it_is_met() -> None:
    class Behind(Filing):
        def change(self, row: dict[str, Any]) -> None:
            if row["other"] == "behind":
                (self.files.path / "log").write_bytes(b"tampered with")
            super().change(row)

    trial = Trial(filing(Behind()))
    trial.step({"rows": [APPEND]}, checkpoint=True)
    with pytest.raises(OperatorError, match="log has 13 bytes and 1 in its journal: it was changed") as told:
        trial.step({"rows": [{**APPEND, "other": "behind"}]})
    assert told.value.wants_reset
    trial.crash()
    trial.step({"rows": [APPEND]})
    assert trial.files("own") == {"log": b"xx"}


@pytest.mark.parametrize("seed", range(3))
def test_with_delivery_at_most_once_a_row_is_in_files_once_or_not_at_all(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rows = [(rng.choice(["ape", "bee"]), n) for n in range(60)]
    paths = write_files(tmp_path, ["".join(f"{word} {n}\n" for word, n in rows)])
    graph = Graph("once")
    lines = graph.source("lines", FileSource(paths)).annotate(consistent(delivery="at-most-once"))
    words = lines.map("words", split, schema="word string, n bigint")
    words.key_by("by_word", "word").apply("own", Diary()).sink("out", CallSink(lambda row: None))
    region = OneThreadRegion(graph, 2, rng.randrange, folder=tmp_path / "files")
    region.run_with_trouble(rng, rounds=6, turns=40, checkpoints=0.4)
    found = [
        line for side in region.sides for line in files(side.paths["own"]).items() if line[0] != "counts"
    ]
    numbers = [int(n) for _, data in found for n in data.split()]
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= {n for _, n in rows}


def test_a_handle_of_an_earlier_incarnation_changes_nothing() -> None:
    kept: list[OperatorDirectory] = []

    class Keeps(Filing):
        def __deepcopy__(self, memo: Any) -> "Keeps":
            return Keeps()

        def open(self, ctx: RuntimeContext) -> None:
            super().open(ctx)
            kept.append(self.files)

    trial = Trial(filing(Keeps()))
    trial.step({"rows": [APPEND]}, checkpoint=True)
    trial.crash()
    with pytest.raises(Exception, match="outside of the operator's methods"):
        kept[0].append("log", b"y")
    assert kept[0].path != kept[1].path
    assert trial.files("own") == {"log": b"x"}
