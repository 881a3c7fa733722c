"""A lost worker is taken over while the others continue, on real servers and worker processes."""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from checkpoint import limits
from checkpoint.core.region import CheckpointCommitted, RegionEvent, ResetReport
from dataflow import Count, FileSink, FileSource, Graph, RateSource, Tumbling
from dataflow.handle import RegionHandle
from dataflow.limits import WorkerLimits
from tests.dataflow.support import rows_of, true_counts
from tests.dataflow.test_region_processes import (
    WAIT_S,
    Watch,
    finished,
    hurry,
    hurry_of,
    kill,
    running,
    texts,
    three_servers,
    unhurried,
)
from tests.dataflow.test_rescaled_regions import counting, counts_in
from tests.support.parts import with_long
from tests.support.polling import until

__all__ = ["texts", "three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

KIB = 1024


def of_ten(row: Any) -> dict[str, Any]:
    return {"at": row["timestamp"], "word": f"w{row['value'] % 10}"}


def taken_over(control: RegionHandle, watch: Watch, worker: int) -> ResetReport:
    """Wait until a worker was taken over. Return the report."""

    def is_of(event: RegionEvent) -> bool:
        return isinstance(event, ResetReport) and event.worker == worker

    watch.wait(is_of)
    report = next(event for event in watch.events if is_of(event))
    assert isinstance(report, ResetReport)
    assert report.term > report.incarnation, "the others were not reset"
    assert control.status.incarnation == report.incarnation
    return report


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing, as on a machine that stands still. At the end it is killed."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # the coordinator has ended it
            os.kill(pid, signal.SIGKILL)


def test_a_killed_worker_is_taken_over_and_the_others_keep_their_state(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    with counting(texts, shared_store, tmp_path, workers=3, recovery="local") as (control, watch):
        watch.checkpoints(2)
        before = control.status
        kill(control, 1, wipe=True)
        taken_over(control, watch, worker=1)
        until(lambda: control.status.workers[1].hosted_by is None, "it has a process of its own", WAIT_S)
        after = control.status
        assert after.incarnation == before.incarnation, "nobody else was reset"
        assert [one.pid for one in after.workers if one.index != 1] == [
            one.pid for one in before.workers if one.index != 1
        ]
        control.checkpoint(WAIT_S)
        kill(control, 0, wipe=False)
        taken_over(control, watch, worker=0)
        resets = [event for event in watch.events if isinstance(event, ResetReport)]
        lost = [reset for reset in resets if "was lost" in reset.reason]
        assert [(reset.worker, reset.term > reset.incarnation) for reset in lost] == [(1, True), (0, True)]


@pytest.mark.parametrize("workers", with_long([3], [2]))
def test_a_worker_that_stands_still_is_reported_by_the_ring_and_taken_over(
    shared_store: str, texts: list[Path], tmp_path: Path, workers: int
) -> None:
    """Long before the coordinator alone would count it as lost: the reason is the report, not the silence."""
    with counting(texts, shared_store, tmp_path, workers=workers, recovery="local") as (control, watch):
        watch.checkpoints(2)
        with stopped(control.status.workers[1].pid):
            report = taken_over(control, watch, worker=1)
        prefix, _, silence = report.reason.partition(", and it sent nothing for ")
        assert prefix.startswith("worker 1 was lost: worker 0 reports that it did not answer for "), report
        assert limits.suspected_silent_s <= float(silence.removesuffix(" s")) < limits.suspect_after_s


def test_a_graph_that_is_not_deterministic_is_reset_as_a_whole_and_the_reset_names_the_operator(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    graph = Graph("wordcount")
    lines = graph.source("lines", FileSource([*texts], errors="replace"))
    words = lines.flat_map(
        "words",
        partial(unhurried, hurry_of(out)),
        schema="word string",
        takes="batch",
        deterministic=False,
    )
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(out))
    with running(graph, shared_store, tmp_path, workers=2, recovery="local") as (control, watch):
        watch.checkpoints(2)
        before = control.status.incarnation
        kill(control, 1, wipe=False)
        watch.wait(lambda event: isinstance(event, ResetReport))
        hurry(out)
        assert finished(control), control.status
        reset = control.status.resets[-1]
        assert (reset.worker, reset.term, reset.incarnation) == (1, 0, before + limits.terms_per_incarnation)
        assert reset.reason.endswith(
            "; all workers are reset: operator 'words' may return other rows when it runs again"
        )
    assert counts_in(out) == dict(true_counts(texts))


def lines_slowly(hurry: Path, batch: pa.RecordBatch) -> pa.Array:
    """A function that returns lines as they are, at some 1 MB a second, until the test ends that."""
    if not hurry.exists():
        time.sleep(0.05)
    return batch.column("line")


def has_retained_steps_on_disk(control: RegionHandle, worker: int) -> bool:
    pid = control.status.workers[worker].pid
    return pid > 0 and "dos-retained-" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def test_workers_that_retain_too_much_request_checkpoints_and_a_lost_one_is_taken_over(
    shared_store: str, tmp_path: Path
) -> None:
    """No other checkpoint is due for ten minutes. The new process gets steps that are on the disk, too."""
    path, out = tmp_path / "input.txt", tmp_path / "out"
    words = [f"{number % 5_000:x<100}" for number in range(40_000)]
    path.write_text("".join(f"{word}\n" for word in words))
    graph = Graph("lines")
    lines = graph.source("lines", FileSource(path, repeat=4))
    slow = lines.flat_map("slow", partial(lines_slowly, hurry_of(out)), schema="word string", takes="batch")
    slow.key_by("by_word", "word").count("counts").sink("out", FileSink(out))
    few = WorkerLimits(step_bytes_max=128 * KIB, batch_bytes_max=64 * KIB, retained_bytes_max=600 * KIB)
    options = {"recovery": "local", "checkpoint_interval": 600.0, "worker_limits": few}
    with running(graph, shared_store, tmp_path, workers=2, **options) as (control, watch):
        until(lambda: has_retained_steps_on_disk(control, 0), "retained steps are on the disk", WAIT_S)
        kill(control, 1, wipe=True)
        taken_over(control, watch, worker=1)
        hurry(out)
        watch.checkpoints(3)
        assert finished(control), control.status
    last = [event for event in watch.events if isinstance(event, CheckpointCommitted)][-1]
    assert last.final
    assert last.checkpoint >= 3, "others were requested before the final one"
    assert counts_in(out) == {word: 4 * count for word, count in Counter(words).items()}


def test_a_worker_of_a_graph_with_two_exchanges_is_taken_over(shared_store: str, tmp_path: Path) -> None:
    """The second count is that of the windows of the first one. Event time flows over both exchanges."""
    out, again, rows = tmp_path / "out", tmp_path / "again", 6_000
    graph = Graph("two-exchanges")
    words = graph.source("rows", RateSource(1_000, rows=rows)).map(
        "words", of_ten, schema="at timestamp, word string"
    )
    timed = words.event_time("timed", "at", lateness=timedelta(seconds=3)).key_by("by_word", "word")
    windows = timed.aggregate("windows", Tumbling("at", timedelta(seconds=0.1)), n=Count())
    windows.sink("out", FileSink(out))
    windows.key_by("by_n", "n").count("sizes").sink("again", FileSink(again))
    with running(graph, shared_store, tmp_path, workers=3, recovery="local") as (control, watch):
        watch.checkpoints(2)
        kill(control, 2, wipe=True)
        taken_over(control, watch, worker=2)
        assert finished(control), control.status
        assert not control.status.dropped.get("late"), control.status.dropped
    sizes = Counter(str(row[-1]) for _, row in rows_of(out))
    assert sum(int(size) * count for size, count in sizes.items()) == rows
    assert counts_in(again) == dict(sizes)
