"""Operators of users in regions: in one thread under any interleaving, and in processes that are killed."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dataflow import FileSink, FileSource, Graph, UserOperator
from dataflow.limits import WorkerLimits
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import rows_of
from tests.dataflow.test_apply import Seen
from tests.dataflow.test_region_in_one_thread import write_files
from tests.dataflow.test_region_processes import finished, kill, running


def word_of(row: dict[str, Any]) -> str:
    word: str = row["line"]
    return word


def numbered(paths: list[Path], folder: Path) -> Graph:
    graph = Graph("numbered")
    lines = graph.source("lines", FileSource([*paths]))
    words_of = lines.map("words", word_of, schema="word string")
    made = words_of.key_by("by_word", "word").apply("own", Seen())
    made.sink("out", FileSink(folder / "out"))
    made.side("crossed", "crossed").sink("crossed_out", FileSink(folder / "crossed"))
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
    region.restore()
    for _ in range(8):
        for _ in range(rng.randrange(40)):
            region.turn()
        region.ask_cut() if rng.random() < 0.5 else region.restore()
    region.finish()
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
@pytest.mark.parametrize("workers", [1, 3])
def test_with_several_inputs_too(workers: int, tmp_path: Path) -> None:
    rng = random.Random(workers)
    words = {name: [rng.choice("abc") for _ in range(60)] for name in ("left", "right")}
    graph = Graph("both")
    keyed = {}
    for name, path in zip(
        words, write_files(tmp_path, ["\n".join(one) for one in words.values()]), strict=True
    ):
        lines = graph.source(f"{name}_lines", FileSource([path]))
        made = lines.map(f"{name}_words", word_of, schema="word string")
        keyed[name] = made.key_by(f"{name}_by_word", "word")
    graph.apply("both", Both(), **keyed).sink("out", FileSink(tmp_path / "out"))
    region = OneThreadRegion(graph, workers, rng.randrange)
    region.restore()
    for _ in range(6):
        for _ in range(rng.randrange(40)):
            region.turn()
        region.ask_cut() if rng.random() < 0.5 else region.restore()
    region.finish()
    rows = [row for _, row in rows_of(tmp_path / "out")]
    counts = {name: Counter(given) for name, given in words.items()}
    expected = [(word, name, n + 1) for name in words for word in "abc" for n in range(counts[name][word])]
    assert Counter((word, name, int(str(n))) for word, name, n, _ in rows) == Counter(expected)
    for word in "abc":
        numbers = sorted(int(str(row[3])) for row in rows if row[0] == word)
        assert numbers == list(range(1, counts["left"][word] + counts["right"][word] + 1))


# EVIDENCE-OF: P-7
@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_an_operator_survives_a_worker_that_is_killed(shared_store: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    words = [rng.choice(["a", "b", "c", "xd"]) for _ in range(30_000)]
    paths = write_files(tmp_path, ["".join(f"{word}\n" for word in words[begin::2]) for begin in (0, 1)])
    small = WorkerLimits(step_bytes_max=1024, batch_bytes_max=1024)
    with running(numbered(paths, tmp_path), shared_store, tmp_path, worker_limits=small) as (control, watch):
        watch.cuts(2)
        kill(control, 0, wipe=True)
        assert finished(control), control.status()
        assert control.status().incarnation == 2
    check_numbered(words, tmp_path)
