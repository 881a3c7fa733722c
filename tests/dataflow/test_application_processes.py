"""Applications of several regions, on real servers and real worker processes, which are killed."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checkpoint.core.region import RegionState, ResetReport
from dataflow import FileSource, Graph, LogSink, LogSource, collect_output, consistent, local
from dataflow.application import Application
from dataflow.local import run_local
from tests.dataflow.fork_launcher import ForkLauncher
from tests.dataflow.support import true_counts
from tests.dataflow.test_region_processes import SMALL_STEPS, WAIT_S, Watch, made, unhurried
from tests.support.servers import ServerProcess

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that start at once."""
    monkeypatch.setattr(local, "ProcessLauncher", ForkLauncher)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:
        yield made([stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(3)])


@contextmanager
def running(graph: Graph, store: str, folder: Path, **options: Any) -> Iterator[tuple[Application, Watch]]:
    watch = Watch()
    options = {"checkpoint_interval_s": 0.2, "worker_limits": SMALL_STEPS, **options}
    app = run_local(graph, name=folder.name, store=store, logs=folder / "logs", observer=watch, **options)
    assert isinstance(app, Application)
    try:
        yield app, watch
    finally:
        app.stop()
        if not app.wait(WAIT_S):
            for status in app.status.values():
                for worker in status.workers:
                    os.kill(worker.pid, signal.SIGKILL)


def two_regions(paths: list[Path], folder: Path, publish: str) -> Graph:
    """Words are counted in one region, and the counts counted in another, joined by a log."""
    graph = Graph("two")
    lines = graph.source("lines", FileSource(paths, repeat=2)).annotate(consistent())
    words = lines.flat_map("words", partial(unhurried, folder / "hurry"), schema="word string", takes="batch")
    words.sink("words_out", LogSink(publish=publish))
    again = graph.source("again", LogSource("words_out", "word string")).annotate(consistent(period=0.1))
    again.key_by("by_word", "word").count("counts").sink("shown", LogSink(publish="cut"))
    return graph


def a_text(folder: Path) -> list[Path]:
    path = folder / "text"
    path.write_text("".join(f"word{number % 500} and{number % 7}\n" for number in range(60_000)))
    return [path, path.with_name("more")] if path.with_name("more").exists() else [path]


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("publish", ["step", "cut"])
def test_two_regions_are_joined_by_a_log_and_reset_apart(store: str, tmp_path: Path, publish: str) -> None:
    folder = tmp_path / f"app-{publish}"
    folder.mkdir()
    paths = a_text(tmp_path)
    with running(two_regions(paths, folder, publish), store, folder) as (app, watch):
        first, second = (f"{folder.name}.{start}" for start in ("lines", "again"))
        assert list(app.parts) == [first, second]
        watch.cuts(4)
        os.kill(app.status[second].workers[0].pid, signal.SIGKILL)
        watch.wait(lambda event: isinstance(event, ResetReport))
        incarnations = {name: status.incarnation for name, status in app.status.items()}
        assert incarnations[first] == 1, "the loss of a worker resets its own region alone"
        assert incarnations[second] > 1
        os.kill(app.status[first].workers[1].pid, signal.SIGKILL)
        watch.wait(lambda event: isinstance(event, ResetReport), 2)
        assert app.status[second].incarnation == incarnations[second]
        (folder / "hurry").touch()
        assert app.awaitTermination(WAIT_S), app
        assert {status.state for status in app.status.values()} == {RegionState.FINISHED}
        assert {name: report and report["final"] for name, report in app.lastProgress.items()} == {
            first: True,
            second: True,
        }
    table = collect_output(store, second, "shown")
    assert table is not None
    last = {row["word"]: row["count"] for row in table.to_pylist()}
    assert last == dict(true_counts(paths, 2))
    assert Counter(row["word"] for row in table.to_pylist()).keys() == last.keys()
