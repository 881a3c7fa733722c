"""Output logs of regions on real servers and real worker processes, which are killed."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from checkpoint.core.region import RegionState, coordinator_directory
from checkpoint.errors import OutputRewoundError
from dataflow import (
    FileSource,
    Graph,
    GraphError,
    LogSink,
    RateSource,
    SchemaError,
    StepRows,
    collect_output,
)
from dataflow.errors import NoOutputError
from dataflow.outputs import read_output
from dos_client import open_store
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.support import true_counts
from tests.dataflow.test_region_processes import WAIT_S, Watch, finished, hurry, running, unhurried
from tests.support.dos_command import dos
from tests.support.parts import with_long

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


def counted(paths: list[Path], folder: Path, publish: str) -> Graph:
    """A word count that takes its time until `hurry(folder / 'out')`."""
    graph = Graph("counted")
    lines = graph.source("lines", FileSource(paths, repeat=3))
    function = partial(unhurried, (folder / "out.hurry"))
    words = lines.flat_map("words", function, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("shown", LogSink(publish=publish))
    return graph


def inputs(folder: Path) -> list[Path]:
    paths = [folder / f"in{index}.txt" for index in range(3)]
    for path in paths:
        words = (f"word{number % 3000} and{number % 7} another{path.stem}\n" for number in range(10_000))
        path.write_text("".join(words))
    return paths


def steps_of(store: str, region: str, after_step: int = 0, line: int | None = None) -> list[StepRows]:
    async def read() -> list[StepRows]:
        async with open_store(store) as opened:
            steps = read_output(opened, region, "shown", after_step=after_step, line=line)
            return [step async for step in steps]

    return trio.run(read)


def last_shown(store: str, region: str) -> dict[str, int]:
    last: dict[str, int] = {}
    table = collect_output(store, region, "shown")
    assert table is not None
    for row in table.to_pylist():
        assert row["count"] > last.get(row["word"], 0), "shown twice, or out of order"
        last[row["word"]] = row["count"]
    return last


def kill_and_wait(watch: Watch, pid: int, resets: int) -> None:
    os.kill(pid, signal.SIGKILL)
    watch.wait(lambda event: type(event).__name__ == "ResetReport", resets)


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("publish", with_long(["checkpoint"], ["step"]))
def test_output_in_the_store_is_that_of_a_run_without_failures(
    store: str, tmp_path: Path, publish: str
) -> None:
    folder = tmp_path / f"out-{publish}"
    folder.mkdir()
    paths = inputs(folder)
    with running(counted(paths, folder, publish), store, folder) as (control, watch):
        watch.checkpoints(2)
        kill_and_wait(watch, control.status.workers[0].pid, 1)
        early = steps_of(store, folder.name)
        watch.checkpoints(4)
        kill_and_wait(watch, control.status.workers[1].pid, 2)
        hurry(folder / "out")
        assert finished(control), control.status
    assert last_shown(store, folder.name) == dict(true_counts(paths, 3))
    steps = steps_of(store, folder.name)
    assert [one.step for one in steps] == list(range(1, len(steps) + 1))
    assert early, "something was to be seen while it ran"
    assert [(one.step, one.table) for one in steps[: len(early)]] == [(one.step, one.table) for one in early]
    assert steps_of(store, folder.name, after_step=3)[0].step == 4
    read = steps[-1].inputs["lines"]
    assert sum(read.values()) > 0, "outputs say which input they correspond to"


def test_a_reader_of_a_region_that_was_restored_returns_the_present_line_only(
    store: str, tmp_path: Path
) -> None:
    paths = inputs(tmp_path)
    graph = counted(paths, tmp_path, "step")
    with running(graph, store, tmp_path) as (control, watch):
        watch.checkpoints(2)
        number = control.savepoint("good")
        watch.checkpoints(5)
    before = steps_of(store, tmp_path.name)
    restored = dos("region", "restore", store, tmp_path.name, "--to", "savepoint:good", "--stopped")
    assert restored.returncode == 0, restored
    kept = steps_of(store, tmp_path.name)  # no worker has opened its log since
    branch = kept[-1].step
    assert 0 < branch < before[-1].step
    assert [(one.step, one.table) for one in kept] == [(one.step, one.table) for one in before[:branch]]
    assert {one.line for one in before} == {0}
    assert {one.line for one in kept} == {1}
    with pytest.raises(
        OutputRewoundError, match=rf"to checkpoint {number}: its output from step {branch + 1} on was taken"
    ) as taken_back:
        steps_of(store, tmp_path.name, after_step=before[-1].step, line=0)
    assert f"after_step={branch}, line=1" in taken_back.value.remedy
    assert steps_of(store, tmp_path.name, after_step=branch, line=0) == []
    with running(graph, store, tmp_path) as (control, watch):
        hurry(tmp_path / "out")
        assert finished(control), control.status
    assert last_shown(store, tmp_path.name) == dict(true_counts(paths, 3))
    steps = steps_of(store, tmp_path.name, after_step=branch, line=0)
    assert [one.step for one in steps] == list(range(branch + 1, branch + 1 + len(steps)))
    with pytest.raises(OutputRewoundError):
        steps_of(store, tmp_path.name, after_step=branch + 1, line=0)


def a_clock(row: dict[str, str]) -> list[tuple[str, int]]:
    return [(row["line"], time.time_ns())]


def test_other_output_than_was_visible_stops_the_region_and_names_the_step(
    store: str, tmp_path: Path
) -> None:
    paths = inputs(tmp_path)
    graph = Graph("clock")
    slow = partial(unhurried, tmp_path / "out.hurry")
    lines = graph.source("lines", FileSource(paths, repeat=9))
    words = lines.flat_map("words", slow, schema="line string", takes="batch")
    words.flat_map("stamped", a_clock, schema="line string, at bigint").sink("shown", LogSink(publish="step"))
    with running(graph, store, tmp_path, checkpoint_interval=30.0) as (control, _):
        while not (store_has := steps_of_when_there(store, tmp_path.name)):
            control.wait(0.05)
        assert store_has
        os.kill(control.status.workers[0].pid, signal.SIGKILL)
        assert control.wait(60)
        assert control.status.state is RegionState.FAILED
        said = str(control.exception())
    assert "sink 'shown': step 1 was published with digest" in said
    assert 'publish="checkpoint"' in said


def steps_of_when_there(store: str, region: str) -> list[StepRows]:
    try:
        return steps_of(store, region)
    except NoOutputError:
        return []


def test_what_cannot_be_published_by_step_is_refused_before_anything_starts(tmp_path: Path) -> None:
    graph = Graph("g")
    lines = graph.source("lines", FileSource(tmp_path / "a"))
    lines.map("asked", lambda row: row["line"], deterministic=False).sink("shown", LogSink(publish="step"))
    with pytest.raises(GraphError, match="sink 'shown' publishes by step, and 'asked' above it is not"):
        graph.plan()
    lists = Graph("g")
    wide = lists.source("lines", FileSource(tmp_path / "a"))
    wide.map("split", lambda row: row, schema="words array<string>").sink("shown", LogSink(publish="step"))
    with pytest.raises(
        GraphError, match=r"column 'words' is list<.*>, which cannot be compared after a replay"
    ):
        lists.plan()
    with pytest.raises(SchemaError, match="publish must be 'step' or 'checkpoint', not 'never'"):
        LogSink(publish="never")


def test_output_that_nobody_wrote_is_said_to_be_missing(store: str, tmp_path: Path) -> None:
    """A wrong name differs from a region that has shown nothing yet."""
    with pytest.raises(NoOutputError, match=r"region 'nobody' has no output .*no such region"):
        steps_of(store, "nobody")
    name = tmp_path.name
    with open_blocking(store) as client:
        client.claim(coordinator_directory(name), 1, bytes(15) + b"1").close()
    with pytest.raises(NoOutputError, match="has just begun and has shown nothing yet; try again"):
        collect_output(store, name, "out")
    graph = Graph("later")
    graph.source("rows", RateSource(10)).sink("out", LogSink())
    with running(graph, store, tmp_path) as (control, _):
        control.checkpoint(WAIT_S)
        with pytest.raises(NoOutputError, match="its sinks are 'out'"):
            collect_output(store, name, "typo")
