"""Operators of users in regions: in one thread under any interleaving, and in processes that are killed."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dataflow import FileSink, FileSource, Graph, LogSink, Stream, UserOperator, limits
from dataflow.limits import WorkerLimits
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_in_one_thread import rows_shown, write_files
from tests.dataflow.test_region_processes import finished, kill, running
from tests.dataflow.user_operators import Seen


def word_of(row: dict[str, Any]) -> str:
    word: str = row["line"]
    return word


def numbered(paths: list[Path], folder: Path) -> Graph:
    graph = Graph("numbered")
    lines = graph.source("lines", FileSource([*paths]))
    words_of = lines.map("words", word_of, schema="word string")
    made = words_of.key_by("by_word", "word").apply("own", Seen())
    made.sink("out", FileSink(folder / "out"))
    made.side_output("crossed", "crossed").sink("crossed_out", FileSink(folder / "crossed"))
    return graph


def check_numbered(words: list[str], folder: Path) -> None:
    found = Counter((word, int(str(n))) for _, (word, n) in rows_of(folder / "out"))
    counts = Counter(words)
    assert found == Counter((word, n + 1) for word in "abc" for n in range(counts[word]))
    assert len(rows_of(folder / "crossed")) == counts["xd"]


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("workers", [1, 3])
def test_a_region_that_is_reset_again_and_again_shows_each_row_once(workers: int, tmp_path: Path) -> None:
    rng = random.Random(workers)
    words = [rng.choice(["a", "b", "c", "xd"]) for _ in range(120)]
    paths = write_files(tmp_path, ["".join(f"{word}\n" for word in words[begin::2]) for begin in (0, 1)])
    region = OneThreadRegion(numbered(paths, tmp_path), workers, rng.randrange)
    region.run_with_trouble(rng, rounds=8, turns=40)
    check_numbered(words, tmp_path)


class Both(UserOperator):
    """Numbers the rows of each word and input, and says which of the word it is."""

    needs = {"left": "word string", "right": "word string"}  # noqa: RUF012 - as users write it
    schema = "word string, input string, n bigint, all bigint"
    state = "word string, input string, n bigint"

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def process_of(self, name: str, batch: pa.RecordBatch) -> Iterator[Any]:
        for word in batch.column("word").to_pylist():
            self.counts[word, name] += 1
            yield word, name, self.counts[word, name], self.counts[word, "left"] + self.counts[word, "right"]

    def checkpoint(self) -> list[Any]:
        return [(*of, n) for of, n in self.counts.items()]

    def reset(self, state: pa.RecordBatch) -> None:
        self.counts.update({(one["word"], one["input"]): one["n"] for one in state.to_pylist()})


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("by_key", [False, True])
def test_of_several_inputs_a_replay_shows_every_step_as_it_was(
    by_key: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are read from all sources in turns, some bytes at a time, and replayed source by source."""
    monkeypatch.setattr(limits, "batch_bytes_min", 2)
    for seed in range(3 if by_key else 6):
        rng = random.Random(seed)
        words = {name: [rng.choice("abc") for _ in range(200)] for name in ("left", "right")}
        graph = Graph("both")
        inputs: dict[str, Stream] = {}
        for name, path in zip(words, write_files(tmp_path, map("\n".join, words.values())), strict=True):
            lines = graph.source(f"{name}_lines", FileSource([path]))
            inputs[name] = lines.map(f"{name}_words", word_of, schema="word string")
            if by_key:
                inputs[name] = inputs[name].key_by(f"{name}_by_word", "word")
        graph.apply("both", Both(), **inputs).sink("shown", LogSink(publish="step"))
        small = WorkerLimits(step_bytes_max=64, batch_bytes_max=8)
        region = OneThreadRegion(graph, 2 if by_key else 1, rng.randrange, small)
        # raises OutputDiffersError if a replay had another order
        region.run_with_trouble(rng, rounds=8, turns=40)
        rows = [row for side in region.sides for row in rows_shown(side.shown)]
        for word in "abc":
            counts = [words[name].count(word) for name in words]
            of_word = [row for row in rows if row["word"] == word]
            assert sorted(row["all"] for row in of_word) == list(range(1, sum(counts) + 1))
            for name, count in zip(words, counts, strict=True):
                assert [row["n"] for row in of_word if row["input"] == name] == list(range(1, count + 1))


# EVIDENCE-OF: P-7
@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_an_operator_survives_a_worker_that_is_killed(shared_store: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    words = [rng.choice(["a", "b", "c", "xd"]) for _ in range(30_000)]
    paths = write_files(tmp_path, ["".join(f"{word}\n" for word in words[begin::2]) for begin in (0, 1)])
    small = WorkerLimits(step_bytes_max=1024, batch_bytes_max=1024)
    graph = numbered(paths, tmp_path)
    by_word = graph.stream("by_word")
    graph.apply("both", Both(), left=by_word, right=by_word).sink("both_out", FileSink(tmp_path / "both"))
    with running(graph, shared_store, tmp_path, worker_limits=small) as (control, watch):
        watch.checkpoints(2)
        kill(control, 0, wipe=True)
        assert finished(control), control.status
        assert control.status.incarnation == 2
    check_numbered(words, tmp_path)
    both = Counter((word, int(str(number))) for _, (word, _, _, number) in rows_of(tmp_path / "both"))
    counts = Counter(words)
    assert both == Counter((word, n + 1) for word in counts for n in range(2 * counts[word]))
