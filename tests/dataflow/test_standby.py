"""Processes that stand by: who takes them, when they are there, and that none is left over."""

import os
import queue
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from checkpoint.core.region import ResetReport, WorkerJoined
from dataflow import FileSink, FileSource, Graph, local
from dataflow.local import START, ProcessLauncher, Standby, dumps, modules_in
from dataflow.worker.spec import WorkerSpec
from tests.dataflow.support import last_counts, true_counts
from tests.dataflow.test_region_processes import finished, hurry, kill, running, slow_word_count, texts
from tests.support.polling import until

__all__ = ["texts"]
END_S = 30.0


def begin() -> "subprocess.Popen[bytes]":
    """A process that ends when its standard input does, as the process of an idle worker does."""
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def test_one_exists_after_the_start_and_after_each_reset_and_none_after_the_end() -> None:
    standby = Standby(begin, 1, after_reset_s=0.0)
    assert standby.take() is None, "a region that is starting has the processor for itself"
    standby.onStart({})
    first = standby.take()
    assert first is not None
    assert standby.take() is None, "each is taken once"
    standby.onReset({})
    standby.onReset({})
    until(lambda: standby.waiting == 1, "a stand-by waits", END_S)
    second = standby._waiting[0]
    assert len(standby._waiting) == 1, "there are never more than asked for"
    standby.onTerminated({})
    standby.onReset({})
    assert standby.take() is None
    assert second.returncode == -signal.SIGKILL, "the end waits for it, and leaves no zombie"
    assert first.poll() is None, "what was taken is the taker's"
    first.communicate()


def test_after_a_reset_the_workers_have_the_processor_until_a_checkpoint_is_committed() -> None:
    standby = Standby(begin, 1, after_reset_s=1_000.0)
    standby.onReset({})
    assert standby.take() is None
    standby.onProgress({})
    assert standby.waiting == 1
    standby.onTerminated({})
    assert standby._later is not None
    standby._later.join()  # it waits for nothing any more


def test_one_that_died_meanwhile_is_passed_over() -> None:
    standby = Standby(begin, 2)
    standby.fill()
    dead, alive = standby._waiting
    dead.kill()
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert standby.take() is alive
    alive.communicate()


def test_one_that_still_imports_does_not_wait_and_is_taken_last(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    imports = "import sys; open(sys.argv[1]).read(); sys.stdin.buffer.readline(); sys.stdin.read()"

    def begin_importing() -> "subprocess.Popen[bytes]":
        path = gate if not standby._waiting else os.devnull
        process = subprocess.Popen([sys.executable, "-c", imports, path], stdin=subprocess.PIPE)
        assert process.stdin is not None
        os.write(process.stdin.fileno(), b"\n")
        return process

    standby = Standby(begin_importing, 2)
    standby.fill()
    importing, ready = standby._waiting
    until(lambda: standby.waiting == 1, "one of them is ready", END_S)
    assert standby.take() is ready
    assert (standby.waiting, standby.take()) == (0, importing)
    gate.write_text("")
    ready.communicate()
    importing.communicate()


def test_what_cannot_be_started_costs_time_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def never() -> "subprocess.Popen[bytes]":
        raise OSError("no memory")

    standby = Standby(never, 1)
    standby.fill()
    assert standby.take() is None
    assert "cannot start a stand-by: no memory" in caplog.text


def test_a_process_that_nobody_needed_ends_with_its_parents_end_of_the_pipe() -> None:
    process = subprocess.Popen([sys.executable, "-c", START], stdin=subprocess.PIPE)
    process.communicate(timeout=END_S)
    assert process.returncode == 0


def test_a_standby_imports_what_the_specification_of_a_worker_names(tmp_path: Path) -> None:
    graph = Graph("files")
    graph.source("lines", FileSource(tmp_path, watch=True)).sink("out", FileSink(tmp_path / "out"))
    names = modules_in(dumps(cast("WorkerSpec", graph)))
    assert {"dataflow.sources.file_source", "dataflow.sinks.files"} <= {*names}
    assert "__main__" not in names
    (tmp_path / "of_a_user.py").write_text(
        "import gc; print('imported', gc.isenabled(), gc.get_freeze_count() > 10_000, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", START, "of_nobody", "of_a_user"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    output, errors = process.communicate(timeout=END_S)
    assert output == b"imported True True\n", "garbage is collected, and what lives as long as it is no part"
    assert b"a stand-by cannot import of_nobody: No module named 'of_nobody'" in errors
    assert process.returncode == 0, "what it has no use for yet is no reason to end"


def test_the_reason_of_a_loss_quotes_the_log_of_its_own_run(tmp_path: Path) -> None:
    """The directory has the logs of an earlier run, whose workers may write on."""
    (tmp_path / "w0000.1.log").write_text("ValueError: of the run before\n")
    ends: queue.Queue[tuple[int, str | None]] = queue.Queue()
    no_spec: Any = "no specification"
    launcher = ProcessLauncher(
        lambda _worker, _attempt: no_spec, lambda _, attempt, error: ends.put((attempt, error)), logs=tmp_path
    )
    launcher.start(0, 1)
    attempt, error = ends.get(timeout=END_S)
    assert attempt == 1
    assert error is not None
    assert re.search(r"ended with exit code 1: Traceback (.|\n)*AttributeError", error)
    assert "of the run before" not in error
    assert "AttributeError" in (tmp_path / "w0000.1.run2.log").read_text()
    launcher.close(END_S)


# EVIDENCE-OF: P-10
def test_a_killed_worker_is_replaced_by_the_process_that_stood_by(
    shared_store: str, texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, no forks: what they print goes to the log of the attempt that they become."""
    made: list[ProcessLauncher] = []

    class Kept(ProcessLauncher):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(local, "ProcessLauncher", Kept)
    with running(slow_word_count(texts, tmp_path / "out"), shared_store, tmp_path) as (control, watch):
        watch.checkpoints(2)
        (waiting,) = made[0].standby._waiting
        kill(control, 0, wipe=False)
        watch.wait(lambda event: isinstance(event, ResetReport))
        joined = [event for event in watch.events if isinstance(event, WorkerJoined) and event.attempt == 2]
        assert [(event.worker, event.pid) for event in joined] == [(0, waiting.pid)]
        (report,) = [event for event in watch.events if isinstance(event, ResetReport)]
        assert list(report.phases_s) == ["manifest", "gather", "claim", "open", "load", "start"]
        assert sum(report.phases_s.values()) == pytest.approx(report.seconds)
        hurry(tmp_path / "out")
        assert finished(control), control.status
    assert last_counts(tmp_path / "out") == dict(true_counts(texts, 3))
    assert "reason" in (tmp_path / "logs" / "w0000.2.log").read_text(), "its summary is in its own log"
    assert control.awaitTermination(END_S)
    left = [one for one in psutil.Process().children() if "dataflow.local" in " ".join(one.cmdline())]
    assert left == []
