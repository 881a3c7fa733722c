"""Regions on real servers and real worker processes, which are killed, and whose inputs change."""

import os
import shutil
import signal
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from checkpoint.core.region import CheckpointCommitted, RegionEvent, RegionSpec, RegionState, ResetReport
from dataflow import FileSink, FileSource, Graph, GraphError
from dataflow.handle import RegionHandle
from dataflow.limits import WorkerLimits
from dataflow.local import run_local
from tests.dataflow.support import last_counts, made, split_words, true_counts
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]
pytestmark = pytest.mark.process

SMALL_STEPS = WorkerLimits(step_bytes_max=32 * 1024, batch_bytes_max=16 * 1024)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def texts() -> list[Path]:
    """Half a MB of Python: some modules at the top of the standard library."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    sizes = accumulate(path.stat().st_size for path in paths)
    return [path for path, size in zip(paths, sizes, strict=True) if size < 500_000]


class Watch:
    """Remembers what a region says, and waits for it."""

    def __init__(self) -> None:
        self.events: list[RegionEvent] = []
        self.also: Callable[[RegionEvent], None] = lambda _: None
        """Called with each event, as soon as it comes."""
        self._changed = threading.Condition()

    def __call__(self, event: RegionEvent) -> None:
        self.also(event)
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, wanted: Callable[[RegionEvent], bool], count: int = 1) -> None:
        """Until so many events were as wanted."""
        with self._changed:
            assert self._changed.wait_for(lambda: sum(map(wanted, self.events)) >= count, WAIT_S), self.events

    def checkpoints(self, count: int) -> None:
        self.wait(lambda event: isinstance(event, CheckpointCommitted), count)


@contextmanager
def running(
    graph: Graph, store: str, folder: Path, *, fields: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[RegionHandle, Watch]]:
    """Run a graph on local processes. fields: of its RegionSpec, which `run_local` has no parameters for."""
    watch = Watch()
    options = {"checkpoint_interval": 0.2, "worker_limits": SMALL_STEPS, **options}
    with mock.patch("dataflow.handle.RegionSpec", lambda **given: RegionSpec(**{**given, **(fields or {})})):
        control = run_local(
            graph,
            name=folder.name,
            store=store,
            scratch=folder / "scratch",
            logs=folder / "logs",
            on_event=watch,
            **options,
        )
    assert isinstance(control, RegionHandle)
    try:
        yield control, watch
    finally:
        control.stop()
        if not control.wait(WAIT_S):
            for worker in control.status.workers:
                os.kill(worker.pid, signal.SIGKILL)


def finished(control: RegionHandle) -> bool:
    assert control.wait(WAIT_S), control.status
    return control.status.state is RegionState.FINISHED


@pytest.fixture
def store(three_servers: list[ServerProcess]) -> str:
    """A store of the test's own, whose servers it may kill."""
    return made(three_servers)


def unhurried(hurry: Path, batch: pa.RecordBatch) -> pa.Array:
    """A function that is slow with each batch, until the test ends that."""
    if not hurry.exists():
        time.sleep(0.15)
    return split_words(batch)


def slow_word_count(paths: list[Path], out: Path, *, repeat: int = 3, truncate: bool = True) -> Graph:
    """Under SMALL_STEPS some 0.1 MB a second and worker, on any machine, until `hurry(out)`."""
    graph = Graph("wordcount")
    lines = graph.source("lines", FileSource([*paths], repeat=repeat, errors="replace"))
    function = partial(unhurried, hurry_of(out))
    words = lines.flat_map("words", function, schema="word string", takes="batch")
    sink = FileSink(out, truncate_on_reset=truncate)
    words.key_by("by_word", "word").count("counts").sink("out", sink)
    return graph


def hurry(out: Path) -> None:
    """The test has met the region in the middle of its work: what is left may be done at full speed."""
    hurry_of(out).touch()


def hurry_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.hurry")


def kill(control: RegionHandle, worker: int, *, wipe: bool) -> None:
    status = control.status.workers[worker]
    os.kill(status.pid, signal.SIGKILL)
    if wipe:
        shutil.rmtree(status.scratch)


def kill_both_in_turn(control: RegionHandle, watch: Watch) -> None:
    """Two workers die, each after two checkpoints more; the first one's scratch is lost with it."""
    watch.checkpoints(2)
    kill(control, 0, wipe=True)
    watch.wait(lambda event: isinstance(event, ResetReport))
    watch.checkpoints(4)
    kill(control, 1, wipe=False)
    watch.wait(lambda event: isinstance(event, ResetReport), 2)


# EVIDENCE-OF: P-6, P-7, P-10
@pytest.mark.usefixtures("forks")
def test_killed_workers_leave_no_trace_in_the_output(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph = slow_word_count(texts, tmp_path / "out")
    with running(graph, shared_store, tmp_path) as (control, watch):
        kill_both_in_turn(control, watch)
        hurry(tmp_path / "out")
        assert finished(control), control.status
        assert control.status.incarnation == 3, "one reset a kill"
    assert last_counts(tmp_path / "out") == dict(true_counts(texts, 3))
    with running(graph, shared_store, tmp_path) as (control, _):
        assert finished(control), "there is nothing left to do"
    assert last_counts(tmp_path / "out") == dict(true_counts(texts, 3))


@pytest.mark.usefixtures("forks")
def test_without_truncation_a_killed_worker_shows_in_the_output(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    """The check of the test above does notice."""
    graph = slow_word_count(texts, tmp_path / "out", truncate=False)
    with running(graph, shared_store, tmp_path, checkpoint_interval=600.0) as (control, _):
        assert control.checkpoint(WAIT_S), "the only checkpoint: what is written from now on is behind it"
        before = control.status.step
        while control.status.step < before + 3:
            control.wait(0.01)
        kill(control, 0, wipe=True)
        hurry(tmp_path / "out")
        assert finished(control), control.status
    with pytest.raises(AssertionError, match="after"):
        last_counts(tmp_path / "out")


# EVIDENCE-OF: P-5
# EVIDENCE-OF: P-10
@pytest.mark.usefixtures("forks")
def test_one_server_may_be_gone_and_without_two_the_region_waits_and_continues_automatically(
    store: str, three_servers: list[ServerProcess], texts: list[Path], tmp_path: Path
) -> None:
    graph = slow_word_count(texts, tmp_path / "out")
    with running(graph, store, tmp_path) as (control, watch):
        watch.checkpoints(2)
        three_servers[1].kill()
        kill(control, 0, wipe=True)
        watch.wait(lambda event: isinstance(event, ResetReport))
        watch.checkpoints(4)
        three_servers[0].kill()
        watch.wait(lambda event: getattr(event, "state", None) is RegionState.WAITING_FOR_STORE)
        gone = [server.location for server in three_servers[:2]]
        watch.wait(lambda event: all(f"{one} is unavailable" in getattr(event, "reason", "") for one in gone))
        pids = [worker.pid for worker in control.status.workers]
        for server in three_servers[:2]:
            server.restart()
        hurry(tmp_path / "out")
        assert finished(control), control.status
        assert control.status.incarnation == 2, "waiting for the store resets nothing"
        assert [worker.pid for worker in control.status.workers] == pids, "and kills nobody"
    assert last_counts(tmp_path / "out") == dict(true_counts(texts, 3))


def fail_at(word: str, row: dict[str, Any]) -> list[str]:
    if word in row["line"]:
        raise LookupError(f"no {word} wanted")
    return [row["line"]]


@pytest.mark.usefixtures("forks")
def test_a_user_function_that_raises_stops_the_region_and_names_the_place(
    shared_store: str, tmp_path: Path
) -> None:
    path = tmp_path / "input.txt"
    path.write_text("fine\n" * 1000 + "bad luck\n" + "fine\n" * 10)
    graph = Graph("g")
    lines = graph.source("lines", FileSource(path))
    bad = lines.flat_map("picky", partial(fail_at, "bad"), schema="line string")
    bad.sink("out", FileSink(tmp_path / "out"))
    with running(graph, shared_store, tmp_path) as (control, _):
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.FAILED
        error = control.exception()
    said = str(error) + getattr(error, "traceback_text", "")
    assert "'picky'" in said
    assert f"source 'lines', file '{path}', byte 5000" in said
    assert "LookupError: no bad wanted" in said
    assert "in fail_at" in said
    assert str(error).count("'picky'") == str(error).count("byte 5000") == 1, "each is said once"
    printed = "".join(traceback.format_exception(error))
    assert "in the worker:\n  Traceback" in printed or "in the worker:\nTraceback" in printed
    assert "in fail_at" in printed


class Hostile(BaseException):
    """Its text has no encoding, and is larger than a message between processes may be."""

    def __str__(self) -> str:
        return "\ud800" + 9_000_000 * "bad "


def be_hostile(row: dict[str, Any]) -> None:
    del row
    raise Hostile


@pytest.mark.usefixtures("forks")
def test_any_exception_of_user_code_stops_the_region_at_once(shared_store: str, tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("fine\n")
    graph = Graph("g")
    lines = graph.source("lines", FileSource(tmp_path / "input.txt"))
    lines.map("hostile", be_hostile, schema="line string").sink("out", FileSink(tmp_path / "out"))
    with running(graph, shared_store, tmp_path) as (control, watch):
        assert control.wait(WAIT_S)
        assert "operator 'hostile' failed in worker 0 at source 'lines'" in str(control.exception())
        assert r"Hostile: \ud800bad bad" in str(control.exception())
        assert len(str(control.exception())) < 200_000
        assert not [event for event in watch.events if isinstance(event, ResetReport)]


def test_a_graph_that_breaks_a_rule_starts_nothing(shared_store: str, tmp_path: Path) -> None:
    graph = Graph("g")
    graph.source("lines", FileSource(tmp_path / "a"))
    with pytest.raises(GraphError, match="is not used"):
        run_local(graph, name="words", store=shared_store, logs=tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


@pytest.mark.usefixtures("forks")
def test_a_stopped_region_continues_where_it_was_unless_its_input_is_not_what_it_read(
    shared_store: str, tmp_path: Path
) -> None:
    """One stop; then the input shrinks, changes, and at last has only grown."""
    path, out = tmp_path / "input.txt", tmp_path / "out"
    lines = [f"word{number % 5000} and{number % 7} another\n" for number in range(40_000)]
    path.write_text("".join(lines))
    content = path.read_bytes()

    def again() -> Graph:
        return slow_word_count([path], out, repeat=1)

    with running(again(), shared_store, tmp_path) as (control, watch):
        watch.checkpoints(2)
        control.stop()
        assert control.wait(WAIT_S)
        assert control.status.state is RegionState.STOPPED, control.status
    before = {part: part.read_bytes() for part in out.glob("part-*")}
    assert last_counts(out) != dict(true_counts([path])), "it was stopped too late for this test"

    for damaged in (content[:100], content.replace(b"word", b"Word")):
        path.write_bytes(damaged)
        with running(again(), shared_store, tmp_path) as (control, _):
            assert control.wait(WAIT_S)
            assert control.status.state is RegionState.FAILED
            said = str(control.exception())
        assert str(path) in said
        assert "expected" in said
        assert "found" in said
        for part, text in before.items():
            assert text.startswith(part.read_bytes()), "cut back at most, never written to"

    path.write_bytes(content + b"brand new words at the end")
    hurry(out)
    with running(again(), shared_store, tmp_path) as (control, _):
        assert finished(control), control.status
    assert last_counts(out) == dict(true_counts([path]))
