"""A region on a real Spark session goes to other numbers of workers, with workers killed in between, and to
another graph.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from dataflow import FileSink, Graph, RateSource
from spark_integration.errors import NotEnoughSlotsError
from tests.dataflow.test_rescaled_regions import counts_in
from tests.spark_integration.test_region import PATIENCE_S, Start, checkpoints, start, store, wait_until
from tests.support.parts import with_long

__all__ = ["start", "store"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]  # a busy machine is slow, not wrong

ROWS = 30_000


def word_of(row: Any) -> dict[str, str]:
    return {"word": f"word{row['value'] % 97}"}


@pytest.mark.parametrize("seed", with_long([0], [1]))
def test_two_three_five_and_one_workers_give_the_output_of_an_undisturbed_run(
    start: Start, store: str, tmp_path: Path, seed: int
) -> None:
    graph = Graph("rated")
    words = graph.source("rows", RateSource(1_000, rows=ROWS)).map("words", word_of, schema="word string")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(tmp_path / "out"))
    region = start(graph, workers=2, store=store, name=f"scaled{seed}", checkpoint_interval=0.2)
    rng = random.Random(seed)
    done = 0
    for workers in (3, 5, 1):
        wait_until(checkpoints(region, done + 1), region)
        assert region.scale(workers, PATIENCE_S).workers == workers
        resets = len(region.status.resets)
        os.kill(rng.choice(region.status.workers).pid, signal.SIGKILL)
        wait_until(lambda resets=resets: len(region.status.resets) > resets, region)
        done = region.status.checkpoints_committed
    assert region.awaitTermination(PATIENCE_S)
    assert counts_in(tmp_path / "out") == {f"word{n}": len(range(n, ROWS, 97)) for n in range(97)}


def counted(names: str, out: Path) -> Graph:
    graph = Graph("rated")
    words = graph.source("rows", RateSource(1_000, rows=ROWS)).map(names, word_of, schema="word string")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(out))
    return graph


def test_another_graph_continues_under_the_handle_and_in_the_store_of_its_process(
    start: Start, tmp_path: Path
) -> None:
    region = start(counted("words", tmp_path / "out"), workers=2, name="upgraded", checkpoint_interval=0.2)
    wait_until(checkpoints(region, 1), region)
    with pytest.raises(NotEnoughSlotsError):
        region.replace(graph=counted("texts", tmp_path / "out"), workers=20)
    before = {worker.pid for worker in region.status.workers}
    assert region.replace(graph=counted("texts", tmp_path / "out"), timeout=PATIENCE_S).replaced == (0, 1)
    assert not before & {worker.pid for worker in region.status.workers}
    region.checkpoint(PATIENCE_S)
    os.kill(region.status.workers[0].pid, signal.SIGKILL)
    assert region.awaitTermination(PATIENCE_S)
    assert counts_in(tmp_path / "out") == {f"word{n}": len(range(n, ROWS, 97)) for n in range(97)}
