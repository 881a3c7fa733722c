"""Checkpoints that operators request: sources after each file, and operators of the user.

consistent-regions, "Configuring a consistent region": trigger={periodic|operator}.
"""

import os
import random
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from checkpoint import SplitPosition
from checkpoint.core.region import CheckpointCommitted, ResetReport
from dataflow import (
    CallSink,
    FileSink,
    FileSource,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    RuntimeContext,
    UserOperator,
    consistent,
    local,
)
from dataflow.errors import OperatorError
from dataflow.sources.base import DONE_SPLITS, SourceSpec
from tests.dataflow.fork_launcher import ForkLauncher
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import last_counts, split_words, true_counts
from tests.dataflow.test_region_processes import finished, running


def by_file(paths: list[Path]) -> SourceSpec:
    return FileSource([*paths])


def by_directory(paths: list[Path]) -> SourceSpec:
    return FileSource(paths[0].parent / "in*.txt", watch=True, until=paths[0].parent, poll_s=1e-9)


def per_file(source: SourceSpec, out: Path) -> Graph:
    graph = Graph("per_file")
    lines = graph.source("lines", source).annotate(consistent(trigger="operator"))
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


def whole_files(positions: Mapping[str, SplitPosition]) -> int:
    """Return how many files were read. Fails if one was read in part."""
    if DONE_SPLITS in positions:
        assert set(positions) == {DONE_SPLITS}, "a part of a file is in the checkpoint"
        return positions[DONE_SPLITS].position
    assert all(at.position == Path(path).stat().st_size for path, at in positions.items()), positions
    return len(positions)


@pytest.mark.parametrize("source_of", [by_file, by_directory])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_checkpoint_holds_whole_files_in_any_order_and_the_resets(
    workers: int, source_of: Callable[[list[Path]], SourceSpec], tmp_path: Path
) -> None:
    files_in_checkpoints = set()
    for seed in range(8):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths = write(folder, [rng.randrange(1, 40) for _ in range(5)], rng)
        region = OneThreadRegion(per_file(source_of(paths), folder / "out"), workers, rng.randrange)
        region.restore()
        requested = idle = resets = 0
        while not region.exhausted():
            moved = region.turn()
            if rng.random() < 0.01:
                # The coordinator forgets it too. A replay passes the end of a file that no checkpoint
                # contains yet.
                region.checkpoint_requested = False
                region.restore()
                moved, resets = True, resets + 1
            if region.checkpoint_requested and (not moved or rng.random() < 0.3):
                region.checkpoint_requested, moved = False, True
                requested += 1
                region.request_checkpoint(all_workers=True)
            # That all was read may be noticed in doing nothing, by each worker.
            idle = 0 if moved or region.checkpoint_requested else idle + 1
            assert idle <= workers, "it waits for a checkpoint that was not requested"
            if region.checkpoint is not None:
                parts = [part.sources["lines"] for part in region.checkpoint.parts.values()]
                if workers == 1 and not resets:
                    files_in_checkpoints.add(whole_files(parts[0]))
        region.finish()
        assert requested >= 3, "a request for each file"
        assert last_counts(folder / "out") == dict(true_counts(paths))
    assert workers > 1 or files_in_checkpoints >= {1, 2, 3, 4}, "a checkpoint after each file"


@pytest.mark.process
def test_a_region_of_processes_is_checkpoint_after_each_file(
    shared_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "ProcessLauncher", ForkLauncher)
    paths = write(tmp_path, [20_000] * 6, random.Random(1))
    with running(
        per_file(by_file(paths), tmp_path / "out"), shared_store, tmp_path, checkpoint_interval=0.01
    ) as (
        control,
        watch,
    ):
        watch.checkpoints(1)
        os.kill(control.status.workers[0].pid, signal.SIGKILL)
        watch.wait(lambda event: isinstance(event, ResetReport))
        assert finished(control), control.status
        checkpoints = [event for event in watch.events if isinstance(event, CheckpointCommitted)]
    assert 3 <= len(checkpoints) <= 9, "three files a worker, each with a checkpoint; not one each 10 ms"
    assert last_counts(tmp_path / "out") == dict(true_counts(paths))


def run_to_end(region: OneThreadRegion) -> int:
    """Take each checkpoint that is requested; return how many were."""
    requested = 0
    while not region.exhausted():
        moved = region.turn()
        if region.checkpoint_requested:
            region.checkpoint_requested, moved = False, True
            requested += 1
            region.request_checkpoint(all_workers=True)
        assert moved
    region.finish()
    return requested


class EndOfDay(UserOperator):
    """Passes lines on, and requests a checkpoint after each line `END`."""

    needs = "line string"
    requests_checkpoints = True

    def open(self, ctx: RuntimeContext) -> None:
        self._context = ctx

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if "END" in batch.column("line").to_pylist():
            self._context.request_checkpoint()
        return batch


class Undeclared(EndOfDay):
    requests_checkpoints = False


def days(out: Path, operator: UserOperator) -> Graph:
    graph = Graph("days")
    lines = graph.source("lines", InputSource("days", "line string"))
    lines.annotate(consistent(trigger="operator"))
    lines.key_by("by_line", "line").apply("days", operator).sink("out", FileSink(out))
    return graph


def test_an_operator_of_the_user_requests_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("".join(f"{'END' if number % 50 == 49 else number}\n" for number in range(500)))
    graph = Graph("days")
    lines = graph.source("lines", FileSource(path)).annotate(consistent(trigger="operator"))
    lines.key_by("by_line", "line").apply("days", EndOfDay()).sink("out", FileSink(tmp_path / "out"))
    region = OneThreadRegion(graph, 2, random.Random(1).randrange)
    region.restore()
    assert run_to_end(region) >= 3, "the steps are small, and ten of them have an end"


def test_a_request_that_is_not_declared_is_an_error_that_names_the_declaration(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("END\n")
    graph = Graph("days")
    graph.source("lines", FileSource(path)).apply("days", Undeclared()).sink(
        "out", FileSink(tmp_path / "out")
    )
    region = OneThreadRegion(graph, 1, random.Random(1).randrange)
    region.restore()
    with pytest.raises(OperatorError, match="write requests_checkpoints = True in its class"):
        run_to_end(region)


def test_a_region_with_an_operator_that_requests_checkpoints_needs_no_source_that_does(
    tmp_path: Path,
) -> None:
    days(tmp_path / "out", EndOfDay()).explain()
    with pytest.raises(GraphError, match="requests_checkpoints = True"):
        days(tmp_path / "out", Undeclared()).explain()
    outside = Graph("outside")
    outside.source("kept", InputSource("a", "line string")).annotate(consistent()).sink("log", LogSink())
    lines = outside.source("lines", InputSource("days", "line string"))
    lines.apply("days", EndOfDay()).sink("out", CallSink(print))
    with pytest.raises(GraphError, match="'days' requests checkpoints and is outside of any"):
        outside.explain()
