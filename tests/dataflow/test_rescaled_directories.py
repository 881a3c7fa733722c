"""Another number of workers makes the directories of its operators by a function of the user."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from checkpoint.core.links.messages import CopyAhead
from checkpoint.core.records.layout import rebalanced
from dataflow import CallSink, Graph, GraphError, InputSource, RuntimeContext, UserOperator
from dataflow.errors import OperatorError
from dataflow.testing import Trial
from dataflow.worker.directories import FormerFiles
from dataflow.worker.layout_change import LayoutChange, create_journals
from journal import restore
from journal.core.chain import below
from tests.checkpoint.manifest_samples import numbered_checkpoint
from tests.dataflow.filing import Diary, MovingDiary, diary_of, together
from tests.dataflow.test_rescaling import CHANGES
from tests.dataflow.test_worker_directories import CHAIN, PLAN, UIDS, standing
from tests.journal.journaled_files import files
from tests.journal.memory_store import DIRECTORY, MemoryStore

ROWS = [(letter * 3, n) for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz")]


def diaries(operator: UserOperator, *, keyed: bool = True) -> Graph:
    graph = Graph("diaries")
    rows = graph.source("rows", InputSource("rows", "word string, n bigint"))
    stream = rows.key_by("by_word", "word") if keyed else rows
    stream.apply("own", operator).sink("out", CallSink(print))
    return graph


def take(trial: Trial, rows: list[tuple[str, int]], *, snapshot: bool = False) -> None:
    trial.step({"rows": [{"word": word, "n": n} for word, n in rows]}, checkpoint=True, snapshot=snapshot)


def files_of(trial: Trial, workers: int) -> list[dict[str, bytes]]:
    return [trial.files("own", worker) for worker in range(workers)]


def started(operator: UserOperator, workers: int = 2, *, keyed: bool = True) -> Trial:
    trial = Trial(diaries(operator, keyed=keyed), workers=workers)
    take(trial, ROWS)
    return trial


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_files_are_where_the_rows_of_their_keys_are(old: int, new: int) -> None:
    trial = started(MovingDiary(), old)
    rows = list(ROWS)
    for workers, snapshot in ((new, False), (old, True), (new, False)):
        trial.step({"rows": [{"word": "lost", "n": 1}]})  # after the checkpoint, so it is in no file
        trial.rescale(workers)
        assert together(files_of(trial, workers)) == diary_of(rows)
        trial.crash()
        take(trial, ROWS, snapshot=snapshot)
        rows += ROWS
        trial.crash()
        assert together(files_of(trial, workers)) == diary_of(rows), "rows find the files of their keys"


STEP = st.tuples(st.lists(st.sampled_from(ROWS), max_size=8), st.booleans(), st.booleans())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(STEP, st.integers(1, 4), st.just("crash")), max_size=12))
def test_after_any_history_files_are_those_of_a_run_without_failures(story: list[Any]) -> None:
    trial, workers, rows = started(MovingDiary()), 2, list(ROWS)
    kept = list(rows)
    for what in story:
        if isinstance(what, tuple):
            given_rows, checkpoint, snapshot = what
            batch = [{"word": word, "n": n} for word, n in given_rows]
            trial.step({"rows": batch}, checkpoint=checkpoint, snapshot=checkpoint and snapshot)
            rows += given_rows
            kept = list(rows) if checkpoint else kept
            continue
        if what == "crash":
            trial.crash()
        else:
            workers = what
            trial.rescale(workers)
        rows = list(kept)
    assert together(files_of(trial, workers)) == diary_of(rows)


def test_every_copy_gets_the_files_of_all_former_copies_and_may_change_some_in_open() -> None:
    class Everything(MovingDiary):
        def redistribute_directory(
            self, sources: Mapping[int, Path], target: Path, ctx: RuntimeContext
        ) -> None:
            super().redistribute_directory(sources, target, ctx)
            words = sorted(page.name for source in sources.values() for page in source.glob("words/*"))
            (target / "made").write_text(f"{ctx.worker} of {ctx.workers} from {list(sources)}, {len(words)}")

        def open(self, ctx: RuntimeContext) -> None:
            super().open(ctx)
            if (self.files.path / "made").exists():
                self.files.append("made", b" words, opened")

    trial = started(Everything())
    trial.rescale(3)
    seen = [len(trial.files("own", worker)) for worker in range(3)]
    for worker in range(3):
        left = 26 - seen[worker] + 2  # what it moved before it counted
        made = f"{worker} of 3 from [0, 1], {left} words, opened".encode()
        assert trial.files("own", worker)["made"] == made


def test_a_function_that_fails_leaves_the_workers_and_their_files() -> None:
    trial = started(MovingDiary(fails=__file__))
    text = "'own' failed at another number of workers: redistribute_directory: ValueError: no room for"
    with pytest.raises(OperatorError, match=text):
        trial.rescale(3)
    assert len(trial.counters()) == 2
    take(trial, ROWS)
    trial.crash()
    assert together(files_of(trial, 2)) == diary_of(ROWS * 2)


def test_files_without_a_rule_are_refused_before_anything_happens() -> None:
    trial = started(Diary())
    with pytest.raises(OperatorError, match="Diary keeps files and does not say how") as refused:
        trial.rescale(3)
    assert "define redistribute_directory in its class" in str(refused.value)
    assert together(files_of(trial, 2)) == diary_of(ROWS)


def test_a_rule_for_files_of_an_operator_that_keeps_none_is_refused() -> None:
    class Without(MovingDiary):
        keeps_files = False

    with pytest.raises(GraphError, match=r"Without has redistribute_directory\(\) and keeps no files"):
        diaries(Without()).plan()


def test_what_no_directory_can_have_is_refused_by_name() -> None:
    class Linking(Diary):
        def redistribute_directory(
            self, sources: Mapping[int, Path], target: Path, ctx: RuntimeContext
        ) -> None:
            (target / "counts").symlink_to(sources[0] / "counts")

    with pytest.raises(OperatorError, match=r"what cannot be in a directory of an operator.*counts.*regular"):
        started(Linking()).rescale(3)


class Asking(Diary):
    """Asks for the key that it was made with."""

    def __init__(self, *key: object) -> None:
        super().__init__()
        self.key = key

    def redistribute_directory(self, sources: Mapping[int, Path], target: Path, ctx: RuntimeContext) -> None:
        ctx.owns(*self.key)


@pytest.mark.parametrize(
    ("key", "keyed", "text"),
    [
        (("ape",), False, "'own': its stream has no key; put a key_by before it"),
        (("ape", 1), True, r"\('ape', 1\) is no key of the stream \(word string\)"),
        ((1,), True, r"\(1,\) is no key of the stream \(word string\)"),
    ],
)
def test_a_question_for_no_key_is_refused(key: tuple[object, ...], keyed: bool, text: str) -> None:
    with pytest.raises(OperatorError, match=text):
        started(Asking(*key), keyed=keyed).rescale(3)


# --- the chains of a worker --------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_directory_of_another_layout_begins_with_the_files_of_all_former_workers(
    tmp_path: Path,
) -> None:
    """The checkpoint before is untouched: a change that is not committed is given up."""
    store = MemoryStore()
    async with standing(store, 1, tmp_path / "a") as worker:
        worker.files.append("log", b"of the checkpoint")
        before = await worker.vote(1)
        worker.files.append("log", b" and after it")
        worker.files.method_over()
        await wait_all_tasks_blocked()
    former = FormerFiles(store, "app", {0: before.positions}, UIDS, divides=True)
    held = {"0/log": b"of the checkpoint"}
    for incarnation in (2, 3):  # the second one because the first change was not committed
        async with standing(store, incarnation, tmp_path / "b", before, former=former) as worker:
            assert files(worker.files.path) == held
            worker.files.append("1/log", b"in open")
            after = await worker.vote(2)
            assert not [*worker.files.path.parent.glob(".own.former/*")], "the copies are deleted"
        for at, found in ((before, {"log": b"of the checkpoint"}), (after, held | {"1/log": b"in open"})):
            into = tmp_path / f"{incarnation}.{at.positions['own'].size}"
            await restore(into, store, DIRECTORY, CHAIN, at=at.positions["own"])
            assert files(into) == found
    async with standing(store, 4, tmp_path / "c", after) as worker:
        worker.claim.collect(below(after.floors))  # the former checkpoint is released
        assert files(worker.files.path) == held | {"1/log": b"in open"}
        await worker.vote(3)


@pytest.mark.trio
async def test_a_worker_that_joins_creates_the_journals_of_its_directories_ahead() -> None:
    store, checkpoint = MemoryStore(), numbered_checkpoint()
    layout = rebalanced(checkpoint.layout, range(3))
    order = CopyAhead(
        job="app", incarnation=3, epoch=3, checkpoint=5, worker=2, restore=checkpoint, layout=layout
    )
    change = LayoutChange.of(order, PLAN)
    assert change is not None
    await create_journals(store.claim(3, directory="app.w0002"), order, change, PLAN, generation=1)
    assert {name.partition(".")[0] for name in store.servers[0].objects["app.w0002"]} == {
        "state",
        "steps",
        CHAIN,
    }
