"""Operators of users in regions: in one thread under any interleaving, and in processes that are killed."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dataflow import FileSink, FileSource, Graph
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
