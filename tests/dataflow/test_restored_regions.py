"""Regions that go back to an older checkpoint, stopped and running, on real servers and worker processes."""

import json
from functools import partial
from pathlib import Path

import pytest

from checkpoint.chains.output_reading import OnRewind
from checkpoint.core.region import ResetReport
from checkpoint.errors import RestoreRefusedError
from dataflow import FileSink, FileSource, Graph, LogSink, LogSource
from dataflow.handle import RegionHandle
from tests.dataflow.support import true_counts
from tests.dataflow.test_output_processes import counted, inputs, last_shown, steps_of
from tests.dataflow.test_region_processes import (
    WAIT_S,
    finished,
    hurry,
    kill,
    running,
    slow_word_count,
    texts,
    three_servers,
    unhurried,
)
from tests.dataflow.test_rescaled_regions import counting, counts_in
from tests.support.dos_command import dos
from tests.support.parts import with_long
from tests.support.polling import until

__all__ = ["texts", "three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


@pytest.mark.parametrize("workers", with_long([(3, 1, 2)], [(2, 4, 2)]))
def test_a_stopped_region_is_restored_to_a_savepoint(
    workers: tuple[int, int, int], shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    """Whatever workers it had meanwhile: what they wrote after the savepoint is not there."""
    graph, first = slow_word_count(texts, tmp_path / "out"), workers[0]
    with running(graph, shared_store, tmp_path, workers=first) as (control, watch):
        watch.checkpoints(2)
        number = control.savepoint("good")
        watch.checkpoints(5)
    with running(graph, shared_store, tmp_path, workers=workers[1]) as (control, watch):
        watch.checkpoints(3)
    restored = dos("region", "restore", shared_store, tmp_path.name, "--to", "savepoint:good", "--stopped")
    assert restored.returncode == 0, restored
    with counting(texts, shared_store, tmp_path, workers=workers[2]) as (control, watch):
        watch.checkpoints(1)
        assert control.status.last_checkpoint > number
        assert control.status.savepoints == {"good": number}


def test_a_program_that_begins_with_a_savepoint_goes_back_once_however_often_it_is_started(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph, name = slow_word_count(texts, tmp_path / "out"), tmp_path.name
    with running(graph, shared_store, tmp_path) as (control, watch):
        watch.checkpoints(2)
        number = control.savepoint("good", timeout=WAIT_S)
        watch.checkpoints(4)
        before = control.status.last_checkpoint
    shown = json.loads(
        dos("region", "restore", shared_store, name, "--to", "savepoint:good", "--dry-run", "--json").stdout
    )
    assert (shown["checkpoint"], shown["staysVisible"], shown["trimmed"]) == (number, {}, [])
    assert shown["last"] >= before
    assert {row["sink"] for row in shown["sinks"]} == {"out"}
    other = Graph("other")
    lines = other.source("lines", FileSource([*texts], repeat=3, errors="replace"))
    lines.flat_map("others", str.split, schema="word string").sink("out", FileSink(tmp_path / "other"))
    elsewhere = tmp_path / "elsewhere" / name
    elsewhere.mkdir(parents=True)
    with running(graph, shared_store, tmp_path, restore="savepoint:good") as (control, watch):
        watch.checkpoints(2)
        incarnation = control.status.incarnation
        for program, options, why in (
            (graph, {"restore": "savepoint:bad"}, "has no savepoint 'bad'; it has good"),
            (other, {"restore": f"checkpoint:{number}"}, "was made by another graph"),
            (other, {}, "was made by another graph"),
        ):
            with running(program, shared_store, elsewhere, **options) as (refused, _):
                assert refused.wait(WAIT_S)
                assert why in str(refused.exception())
        watch.checkpoints(1)
        assert control.status.incarnation == incarnation, "nobody has disturbed it"
    with counting(texts, shared_store, tmp_path, restore="savepoint:good") as (_, watch):
        watch.checkpoints(1)
    listed = json.loads(dos("checkpoint", "show", shared_store, name, "--json").stdout)
    assert listed["line"] == 1, "it went back once"


def test_a_region_that_shows_steps_begins_with_the_workers_that_a_fork_or_a_restore_asks_for(
    shared_store: str, tmp_path: Path
) -> None:
    original, fork = tmp_path / tmp_path.name, tmp_path / f"{tmp_path.name}-fork"
    original.mkdir()
    fork.mkdir()
    paths = inputs(tmp_path)
    with running(counted(paths, original, "step"), shared_store, original, workers=2) as (control, watch):
        watch.checkpoints(2)
        control.savepoint("good", timeout=WAIT_S)
        watch.checkpoints(1)
    last = json.loads(dos("checkpoint", "show", shared_store, original.name, "--json").stdout)
    assert steps_of(shared_store, original.name)[-1].step == last["step"], "no step was shown after it"
    names = original.name, fork.name
    made = dos("region", "fork", shared_store, *names, "--at", "savepoint:good", "--stopped")
    assert made.returncode == 0, made
    for folder, workers, more in ((fork, 3, {}), (original, 1, {"restore": "savepoint:good"})):
        graph = counted(paths, folder, "step")
        with running(graph, shared_store, folder, workers=workers, **more) as (control, watch):
            watch.checkpoints(1)
            assert len(control.status.workers) == workers
            assert control.replace(0, timeout=WAIT_S).replaced == (0,)
            assert control.scale(2, WAIT_S).workers == 2
            hurry(folder / "out")
            assert finished(control), control.status
            assert not control.status.resets
    for folder in (original, fork):
        assert last_shown(shared_store, folder.name).items() <= dict(true_counts(paths, 3)).items()
    assert last_shown(shared_store, original.name) == dict(true_counts(paths, 3))


@pytest.mark.parametrize("publish", with_long(["step"], ["checkpoint"]))
def test_a_running_region_is_restored_and_its_output_is_that_of_the_new_line(
    shared_store: str, tmp_path: Path, publish: str
) -> None:
    folder = tmp_path / f"rewound-{publish}"
    folder.mkdir()
    paths = inputs(folder)
    with running(counted(paths, folder, publish), shared_store, folder) as (control, watch):
        watch.checkpoints(2)
        number = control.savepoint("good", timeout=WAIT_S, why="before the test")
        watch.checkpoints(5)
        before = control.status
        assert control.restore("savepoint:good", WAIT_S) == number
        watch.wait(lambda event: isinstance(event, ResetReport))
        (reset,) = control.status.resets
        assert reset.reason == f"it was restored to checkpoint {number}"
        watch.checkpoints(7)
        assert control.status.last_checkpoint > before.last_checkpoint
        with pytest.raises(RestoreRefusedError, match="has no savepoint 'bad'; it has good"):
            control.restore("savepoint:bad", WAIT_S)
        kill(control, 1, wipe=True)
        watch.wait(lambda event: isinstance(event, ResetReport), 2)
        hurry(folder / "out")
        assert finished(control), control.status
    assert last_shown(shared_store, folder.name) == dict(true_counts(paths, 3))
    steps = steps_of(shared_store, folder.name)
    assert [one.step for one in steps] == list(range(1, len(steps) + 1))


def upstream(paths: list[Path], folder: Path, publish: str) -> Graph:
    graph = Graph("up")
    lines = graph.source("lines", FileSource(paths, repeat=3))
    function = partial(unhurried, folder / "out.hurry")
    words = lines.flat_map("words", function, schema="word string", takes="batch")
    words.sink("words_out", LogSink(publish=publish))
    return graph


def downstream(region: str, folder: Path, on_rewind: OnRewind) -> Graph:
    graph = Graph("down")
    source = LogSource("words_out", "word string", region=region, on_rewind=on_rewind)
    words = graph.source("words", source).key_by("by_word", "word")
    words.count("counts").sink("shown", FileSink(folder / "shown"))
    return graph


def rows_of_operator(control: RegionHandle, operator: str, counter: str) -> int:
    return sum(one.counters.operators.get(operator, {}).get(counter, 0) for one in control.status.workers)


@pytest.mark.parametrize(("publish", "on_rewind"), [("checkpoint", "fail"), ("step", "follow")])
def test_a_region_that_reads_what_is_taken_back_fails_by_name_or_follows(
    shared_store: str, tmp_path: Path, publish: str, on_rewind: OnRewind
) -> None:
    folder = tmp_path / f"read-{publish}-{on_rewind}"
    above, below = folder / f"up-{publish}-{on_rewind}", folder / f"down-{publish}-{on_rewind}"
    above.mkdir(parents=True)
    below.mkdir()
    paths = inputs(above)
    up, down = upstream(paths, above, publish), downstream(above.name, below, on_rewind)
    truth = dict(true_counts(paths, 3))
    with running(up, shared_store, above) as (writing, _):
        with running(down, shared_store, below) as (reading, read):
            read.checkpoints(2)
            reading.savepoint("good", timeout=WAIT_S)
            writing.checkpoint(WAIT_S)  # covers everything that is read in that savepoint
            good = writing.savepoint("good", timeout=WAIT_S)
            rows = rows_of_operator(writing, "words_out", "rows_in")
            until(lambda: rows_of_operator(reading, "words", "rows_out") > rows, "it read more", WAIT_S)
            reading.checkpoint(WAIT_S)
            assert writing.restore("savepoint:good", WAIT_S) == good
            if on_rewind == "fail":
                assert reading.wait(WAIT_S), reading.status
                error = str(reading.exception())
                assert f"was restored to checkpoint {good}: its output from step" in error
            else:
                hurry(above / "out")
                assert finished(writing), writing.status
                assert finished(reading), reading.status
        if on_rewind == "fail":
            done = dos("region", "restore", shared_store, below.name, "--to", "savepoint:good", "--stopped")
            assert done.returncode == 0, done
            hurry(above / "out")
            with running(down, shared_store, below) as (reading, _):
                assert finished(reading), reading.status
    counts = counts_in(below / "shown")
    if on_rewind == "fail":
        assert counts == truth
    else:  # what it made of the rows that were taken back stays
        assert counts.keys() == truth.keys()
        assert all(counts[word] >= count for word, count in truth.items())
        assert counts != truth
