"""Cuts that a start operator asks for: after each file.

consistent-regions, "Configuring a consistent region": trigger={periodic|operator}.
"""

import os
import random
import signal
from pathlib import Path

import pytest

from checkpoint.core.region import CutCommitted, ResetReport
from dataflow import FileSink, FileSource, Graph, consistent, local
from dataflow.sources.base import DONE_SPLITS
from tests.dataflow.fork_launcher import ForkLauncher
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import last_counts, split_words, true_counts
from tests.dataflow.test_region_processes import finished, running


def per_file(paths: list[Path], out: Path) -> Graph:
    graph = Graph("per_file")
    lines = graph.source("lines", FileSource([*paths])).annotate(consistent(trigger="operator"))
    words = lines.flat_map("words", split_words, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(out))
    return graph


def write(folder: Path, sizes: list[int], rng: random.Random) -> list[Path]:
    paths = []
    for index, size in enumerate(sizes):
        path = folder / f"in{index}.txt"
        path.write_text("".join(f"{rng.choice('abcdef')} {rng.choice('xyz')}\n" for _ in range(size)))
        paths.append(path)
    return paths


@pytest.mark.parametrize("workers", [1, 2])
def test_a_checkpoint_holds_whole_files_in_any_order_and_the_resets(workers: int, tmp_path: Path) -> None:
    for seed in range(15):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths = write(folder, [rng.randrange(1, 40) for _ in range(5)], rng)
        region = OneThreadRegion(per_file(paths, folder / "out"), workers, rng.randrange)
        region.restore()
        files_in_cuts = set()
        turns = 0
        while not region.exhausted():
            turns += 1
            moved = region.turn()
            if rng.random() < 0.01:
                # The coordinator forgets it too; a replay comes to the same position.
                region.cut_requested = False
                region.restore()
                moved = True
            if region.cut_requested and (not moved or rng.random() < 0.3):
                region.cut_requested, moved = False, True
                region.request_cut(all_workers=True)
            assert moved or region.cut_requested, "it waits for a cut that nobody asked for"
            if region.cut is not None:
                parts = [part.sources["lines"] for part in region.cut.parts.values()]
                files_in_cuts.add(sum(part[DONE_SPLITS].position for part in parts))
                if workers == 1:
                    assert set(parts[0]) == {DONE_SPLITS}, "a part of a file is in the cut"
        region.finish()
        assert workers > 1 or files_in_cuts >= {1, 2, 3}, "a cut after each file"
        assert last_counts(folder / "out") == dict(true_counts(paths))


@pytest.mark.process
def test_a_region_of_processes_is_cut_after_each_file(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "ProcessLauncher", ForkLauncher)
    paths = write(tmp_path, [20_000] * 6, random.Random(1))
    with running(per_file(paths, tmp_path / "out"), shared_store, tmp_path, checkpoint_interval=0.01) as (
        control,
        watch,
    ):
        watch.cuts(1)
        os.kill(control.status.workers[0].pid, signal.SIGKILL)
        watch.wait(lambda event: isinstance(event, ResetReport))
        assert finished(control), control.status
        cuts = [event for event in watch.events if isinstance(event, CutCommitted)]
    assert 3 <= len(cuts) <= 9, "three files a worker, each with a cut; not one each 10 ms"
    assert last_counts(tmp_path / "out") == dict(true_counts(paths))
