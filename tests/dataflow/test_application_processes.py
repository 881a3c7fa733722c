"""Applications of several regions, on real servers and real worker processes, which are killed."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checkpoint.core.region import RegionState, ResetReport
from dataflow import (
    CallSink,
    FileSource,
    Graph,
    InputSource,
    LogSink,
    LogSource,
    autonomous,
    collect_output,
    consistent,
)
from dataflow.blocking import close_input, open_producer
from dataflow.handle import Application
from dataflow.local import run_local
from dos_client.blocking import open_store
from tests.dataflow.producer_process import SCHEMA, rows_of
from tests.dataflow.support import true_counts
from tests.dataflow.test_region_processes import SMALL_STEPS, WAIT_S, Watch, unhurried
from tests.support.dos_command import dos
from tests.support.parts import with_long
from tests.support.polling import until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


@contextmanager
def running(graph: Graph, store: str, folder: Path, **options: Any) -> Iterator[tuple[Application, Watch]]:
    watch = Watch()
    options = {"checkpoint_interval": 0.2, "worker_limits": SMALL_STEPS, **options}
    app = run_local(graph, name=folder.name, store=store, logs=folder / "logs", on_event=watch, **options)
    assert isinstance(app, Application)
    try:
        yield app, watch
    finally:
        app.stop()
        if not app.wait(WAIT_S):
            for status in app.status.values():
                for worker in status.workers:
                    os.kill(worker.pid, signal.SIGKILL)


def two_regions(paths: list[Path], folder: Path, publish: str, first: str = "lines") -> Graph:
    """One region splits lines, and another counts the words. A log joins them, written and read by the graph,
    or, for `publish="own-region"`, by an annotation.
    """
    graph = Graph("two")
    lines = graph.source(first, FileSource(paths, repeat=2)).annotate(consistent())
    words = lines.flat_map("words", partial(unhurried, folder / "hurry"), schema="word string", takes="batch")
    if publish == "own-region":
        again = words.filter("again", any_row).annotate(consistent(period=0.1, own_region=True))
    else:
        words.sink("words_out", LogSink(publish=publish))
        again = graph.source("again", LogSource("words_out", "word string")).annotate(consistent(period=0.1))
    again.key_by("by_word", "word").count("counts").sink("shown", LogSink(publish="checkpoint"))
    return graph


def a_text(folder: Path) -> list[Path]:
    path = folder / "text"
    path.write_text("".join(f"word{number % 500} and{number % 7}\n" for number in range(15_000)))
    return [path, path.with_name("more")] if path.with_name("more").exists() else [path]


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("publish", with_long(["checkpoint"], ["step", "own-region"]))
def test_two_regions_are_joined_by_a_log_and_reset_and_scaled_apart(
    store: str, tmp_path: Path, publish: str
) -> None:
    folder = tmp_path / f"app-{publish}"
    folder.mkdir()
    paths = a_text(tmp_path)
    with running(two_regions(paths, folder, publish), store, folder) as (app, watch):
        first, second = (f"{folder.name}.{start}" for start in ("lines", "again"))
        assert list(app.parts) == [first, second]
        watch.checkpoints(4)
        os.kill(app.status[second].workers[0].pid, signal.SIGKILL)
        watch.wait(lambda event: isinstance(event, ResetReport))
        incarnations = {name: status.incarnation for name, status in app.status.items()}
        assert incarnations[first] == 1, "the loss of a worker resets its own region alone"
        assert incarnations[second] > 1
        os.kill(app.status[first].workers[1].pid, signal.SIGKILL)
        watch.wait(lambda event: isinstance(event, ResetReport), 2)
        assert app.status[second].incarnation == incarnations[second]
        assert app.parts[first].scale(3, WAIT_S).workers == 3
        done = dos("region", "scale", store, second, "--workers", 1)
        assert done.returncode == 0, done.stderr
        assert {name: len(status.workers) for name, status in app.status.items()} == {first: 3, second: 1}
        (folder / "hurry").touch()
        assert app.awaitTermination(WAIT_S), app
        assert {status.state for status in app.status.values()} == {RegionState.FINISHED}
        assert {name: report and report["final"] for name, report in app.lastProgress.items()} == {
            first: True,
            second: True,
        }
    renamed = two_regions(paths, folder, publish, first="rows")
    with running(renamed, store, folder) as (app, _):
        assert app.wait(WAIT_S)
        assert list(app.parts) == [first, second], "a part continues the region that has its operators"
        for part in app.parts.values():  # also the one that fits, so that none runs without the other
            assert "'lines' is in the stored state and not in this graph" in str(part.exception())
            assert not part.status.incarnation, "nothing was claimed"
    if publish != "step":  # after steps that were shown to the end, another graph begins with a restore only
        with running(renamed, store, folder, renamed={"lines": "rows"}) as (app, _):
            assert app.awaitTermination(WAIT_S), app
            assert list(app.parts) == [first, second]
    table = collect_output(store, second, "shown")
    assert table is not None
    last = {row["word"]: row["count"] for row in table.to_pylist()}
    assert last == dict(true_counts(paths, 2))
    assert Counter(row["word"] for row in table.to_pylist()).keys() == last.keys()


def note(folder: Path, row: dict[str, Any]) -> None:
    """What an operator outside of any region does, where a test can see it."""
    with (folder / f"seen.{os.getpid()}").open("a") as file:
        file.write(f"{row['producer']} {row['number']}\n")


def any_row(row: dict[str, Any]) -> bool:
    return bool(row)


def seen(folder: Path) -> Counter[str]:
    return Counter(line for path in folder.glob("seen.*") for line in path.read_text().splitlines())


def test_operators_outside_of_any_region_see_a_row_at_most_once_and_reset_nobody(
    store: str, tmp_path: Path
) -> None:
    name = tmp_path.name
    graph = Graph("board")
    numbers = graph.source("taken", InputSource("numbers", SCHEMA)).annotate(consistent())
    numbers.sink("shown", LogSink(publish="step"))
    numbers.filter("noted", any_row).sink("board", CallSink(partial(note, tmp_path)))
    graph.annotate("noted", autonomous)
    with running(graph, store, tmp_path) as (app, watch), open_store(store) as client:
        region, board = f"{name}.taken", f"{name}.noted"
        assert list(app.parts) == [region, board]
        with open_producer(client, name, "numbers", "p", SCHEMA) as producer:
            producer.wait_recorded(producer.send(rows_of("p", 0, 1000)))
            until(lambda: len(seen(tmp_path)) == 1000, "all rows are written", WAIT_S)
            for worker in (0, 1):  # one of them reads the producer
                os.kill(app.status[board].workers[worker].pid, signal.SIGKILL)
                watch.wait(lambda event: isinstance(event, ResetReport), worker + 1)
            assert app.status[region].incarnation == 1, "what is outside resets no region"
            sent = 1000
            while not set(seen(tmp_path)) & {f"p {number}" for number in range(1000, sent)}:
                producer.wait_recorded(producer.send(rows_of("p", sent, 10)))
                sent += 10
        close_input(client, name, "numbers")
        assert app.awaitTermination(WAIT_S), app
        assert app.status[board].checkpoints_committed == 0
        assert app.status[board].state is RegionState.FINISHED
    counted = seen(tmp_path)
    assert set(counted.values()) == {1}, "at most once"
    assert f"p {sent - 1}" in counted, "after a failure it continues with current rows"
    table = collect_output(store, region, "shown")
    assert table is not None
    assert table.num_rows == sent, "the region itself lost nothing"
