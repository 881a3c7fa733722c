"""Regions that go to another number of workers, stopped and running, on real servers and worker processes."""

import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpoint.core.autoscale_policy import AutoScale
from checkpoint.core.region import CheckpointCommitted, RegionEvent, ScaleDecided, ScaleSettled, WorkerJoined
from checkpoint.errors import NotScaledError
from dataflow import (
    CallSink,
    Count,
    DirectorySource,
    FileSink,
    FileSource,
    Graph,
    InputSource,
    JournaledFileSink,
    LogSink,
    LogSource,
    ParquetSink,
    RateSource,
    Tumbling,
    autonomous,
    consistent,
)
from dataflow.local import run_local
from dataflow.sinks.sql import SqlSink
from tests.dataflow.support import rows_of, split_words, true_counts
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
from tests.dataflow.test_sql_sink import rows_in
from tests.support.dos_command import dos
from tests.support.polling import until
from tests.support.postgres import PostgresServer, postgres_server

__all__ = ["texts", "three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


def counts_in(directory: Path) -> dict[str, int]:
    """Word -> its last count, wherever its worker was. Fails if any count is there twice."""
    found: dict[str, list[int]] = {}
    for _, (word, count) in rows_of(directory):
        assert word is not None
        assert count is not None
        found.setdefault(word, []).append(int(count))
    for word, counts in found.items():
        assert len(set(counts)) == len(counts), f"{word!r}: a count is there twice: {sorted(counts)}"
    return {word: max(counts) for word, counts in found.items()}


def test_a_stopped_region_goes_on_with_other_numbers_of_workers(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph = slow_word_count(texts, tmp_path / "out")
    for workers in (2, 3, 1):
        with running(graph, shared_store, tmp_path, workers=workers) as (control, watch):
            watch.cuts(3)
            assert len(control.status.workers) == workers
    hurry(tmp_path / "out")
    with running(graph, shared_store, tmp_path, workers=5) as (control, _):
        assert finished(control), control.status
    assert counts_in(tmp_path / "out") == dict(true_counts(texts, 3))


def test_a_running_region_goes_to_other_numbers_of_workers(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph = slow_word_count(texts, tmp_path / "out")
    with running(graph, shared_store, tmp_path, workers=2) as (control, watch):
        watch.cuts(2)
        for workers in (3, 5, 1):
            settled = control.scale(workers, WAIT_S)
            assert (settled.workers, settled.error) == (workers, "")
            assert len(control.status.workers) == workers
        assert not control.status.resets, "a change is no reset"
    # A program that asks for the same number as before does not undo the change.
    hurry(tmp_path / "out")
    with running(graph, shared_store, tmp_path, workers=2) as (control, _):
        assert finished(control), control.status
        assert len(control.status.workers) == 1
    assert counts_in(tmp_path / "out") == dict(true_counts(texts, 3))


@pytest.mark.parametrize("publish", ["step", "checkpoint"])
def test_output_logs_have_every_step_once_through_changes_and_kills(
    shared_store: str, tmp_path: Path, publish: str
) -> None:
    """Worker 1 leaves and comes back, so its log has steps before and after the others' steps."""
    paths = inputs(tmp_path)
    graph = counted(paths, tmp_path, publish)
    with running(graph, shared_store, tmp_path, workers=2) as (control, watch):
        watch.cuts(2)
        control.scale(1, WAIT_S)
        kill(control, 0, wipe=True)
        control.checkpoint(WAIT_S)
        control.scale(3, WAIT_S)
        kill(control, 1, wipe=False)
        control.checkpoint(WAIT_S)
    with running(graph, shared_store, tmp_path, workers=4) as (control, watch):
        watch.wait(lambda event: isinstance(event, CheckpointCommitted) and len(control.status.workers) == 4)
        hurry(tmp_path / "out")
        assert finished(control), control.status
        assert len(control.status.workers) == 4
    assert last_shown(shared_store, tmp_path.name) == dict(true_counts(paths, 3))
    steps = steps_of(shared_store, tmp_path.name)
    assert [one.step for one in steps] == list(range(1, steps[-1].step + 1))
    assert {len(one.parts) for one in steps} == {1, 2, 3, 4}


def test_a_change_that_fails_leaves_the_workers_that_were_there(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph = slow_word_count(texts, tmp_path / "out")

    def kill_the_new(event: RegionEvent) -> None:
        if isinstance(event, WorkerJoined) and event.worker == 2:
            os.kill(event.pid, signal.SIGKILL)

    with running(graph, shared_store, tmp_path, workers=2) as (control, watch):
        watch.cuts(2)
        watch.also = kill_the_new
        with pytest.raises(NotScaledError, match="keeps 2 workers"):
            control.scale(3, WAIT_S)
        watch.also = lambda _: None
        for wrong, why in ((0, "a region has 1 to 4096 workers, got 0"), (None, "no change of the number")):
            with pytest.raises(NotScaledError, match=why):
                control.scale(wrong, WAIT_S)
        assert control.checkpoint(WAIT_S)
        assert len(control.status.workers) == 2
        assert control.scale(3, WAIT_S).workers == 3
        hurry(tmp_path / "out")
        assert finished(control), control.status
    assert counts_in(tmp_path / "out") == dict(true_counts(texts, 3))


def test_what_has_no_rule_keeps_its_number_of_workers(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph = Graph("kept")
    lines = graph.source("lines", FileSource(texts, errors="replace"))
    words = lines.flat_map(
        "words", partial(unhurried, tmp_path / "hurry"), schema="word string", takes="batch"
    )
    words.key_by("by_word", "word").count("counts").sink("out", JournaledFileSink())
    with running(graph, shared_store, tmp_path, workers=1) as (control, watch):
        watch.cuts(2)
        with pytest.raises(NotScaledError, match="'out' has no rule for it: it keeps files"):
            control.scale(2, WAIT_S)
    with running(graph, shared_store, tmp_path, workers=2) as (control, _):
        assert control.wait(WAIT_S)
        reason = str(control.exception())
        assert "made by 1 worker, the region has 2 workers: 'out' has no rule for it" in reason
    with running(graph, shared_store, tmp_path) as (control, watch):
        watch.cuts(1)
        assert len(control.status.workers) == 1


def test_output_of_workers_that_made_no_checkpoint_is_discarded(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    """Rows of a `FileSink` are visible at once. Three workers show some and fail; then one begins anew."""
    graph = slow_word_count(texts, tmp_path / "out")
    fields = {"max_consecutive_reset_attempts": 0}
    with running(graph, shared_store, tmp_path, workers=3, checkpoint_interval=1000.0, fields=fields) as (
        control,
        _,
    ):
        parts = [tmp_path / "out" / f"part-w000{worker}.tsv" for worker in range(3)]
        for part in parts:
            until(lambda part=part: part.exists() and part.stat().st_size > 0, f"rows in {part}", WAIT_S)
        kill(control, 0, wipe=True)
        assert control.wait(WAIT_S)
        assert control.status.last_checkpoint == 0
    hurry(tmp_path / "out")
    with running(graph, shared_store, tmp_path, workers=1) as (control, _):
        assert finished(control), control.status
    assert [part.stat().st_size for part in parts[1:]] == [0, 0]
    assert counts_in(tmp_path / "out") == dict(true_counts(texts, 3))


def of_ten(row: Any) -> dict[str, Any]:
    return {"at": row["timestamp"], "word": f"w{row['value'] % 10}"}


def test_a_region_reads_the_log_of_one_that_is_scaled_with_every_row_in_time(
    shared_store: str, tmp_path: Path
) -> None:
    """Windows close by the event time of all logs: that of a worker that left holds nothing back, and no row
    of one that joins is late."""
    rows = 12_000
    above = Graph("above")
    words = above.source("rows", RateSource(1_000, rows=rows)).map(
        "words", of_ten, schema="at timestamp, word string"
    )
    words.key_by("divided", "word").sink("shown", LogSink())  # so that each log has rows
    below = Graph("below")
    read = below.source("read", LogSource("shown", "at timestamp, word string", region=f"{tmp_path.name}-a"))
    timed = read.event_time("timed", "at", lateness=timedelta(seconds=3)).key_by("by_word", "word")
    windows = timed.aggregate("windows", Tumbling("at", timedelta(seconds=0.3)), n=Count())
    windows.sink("out", FileSink(tmp_path / "out"))
    up, down = tmp_path / f"{tmp_path.name}-a", tmp_path / f"{tmp_path.name}-b"
    with (
        running(above, shared_store, up, workers=2) as (upper, watch),
        running(below, shared_store, down, workers=2) as (lower, _),
    ):
        watch.cuts(2)
        for workers in (1, 3, 2):
            upper.scale(workers, WAIT_S)
            upper.checkpoint(WAIT_S)
            if workers == 1:  # what was read before closes 3 s of windows, each with ten words
                shown = len(rows_of(tmp_path / "out")) + 3 * 10 * 4
                until(lambda shown=shown: len(rows_of(tmp_path / "out")) > shown, "closed windows", WAIT_S)
        assert finished(upper), upper.status
        assert finished(lower), lower.status
        assert not lower.status.dropped.get("late"), lower.status.dropped
    found = [(row[0], int(str(row[-1]))) for _, row in rows_of(tmp_path / "out")]
    assert sum(n for _, n in found) == rows


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def number_of(row: Any) -> dict[str, int]:
    return {"id": row["value"]}


def test_rows_in_transactions_count_once_through_changes_and_kills(
    shared_store: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    """The heir of a worker that left commits what that worker had prepared, and nothing else of it."""
    rows = 8_000
    graph = Graph("sold")
    numbers = graph.source("rows", RateSource(1_000, rows=rows)).map("numbers", number_of, schema="id bigint")
    numbers.sink("files", ParquetSink(tmp_path / "files"))
    numbers.sink("table", SqlSink(postgres.url, "rescaled"))
    with running(graph, shared_store, tmp_path, workers=3) as (control, watch):
        watch.cuts(2)
        for workers in (1, 3, 2):
            control.scale(workers, WAIT_S)
            kill(control, workers - 1, wipe=False)
            control.checkpoint(WAIT_S)
        assert finished(control), control.status
    read = pq.read_table(tmp_path / "files")
    assert sorted(read.column("id").to_pylist()) == list(range(rows))
    assert sorted(row[0] for row in rows_in(postgres.url, "rescaled", read.schema)) == list(range(rows))


def test_the_command_scales_a_region_from_anywhere(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    graph, name = slow_word_count(texts, tmp_path / "out"), tmp_path.name
    with running(graph, shared_store, tmp_path, workers=2) as (control, watch):
        watch.cuts(2)
        done = dos("region", "scale", shared_store, name, "--workers", 3)
        assert done.returncode == 0, done.stderr
        assert "the region has 3 workers, after" in done.stdout
        assert len(control.status.workers) == 3
        as_json = dos("region", "scale", shared_store, name, "--workers", 1, "--json")
        assert json.loads(as_json.stdout)["result"]["workers"] == 1
        assert len(control.status.workers) == 1
        none = dos("region", "scale", shared_store, name, "--cancel")
        assert none.returncode == 1
        assert "no change of the number of workers is under way" in none.stderr
        for wrong in ((), ("--workers", 2, "--cancel"), ("--workers", 5000)):
            assert dos("region", "scale", shared_store, name, *wrong).returncode == 2
        assert (
            json.loads(dos("region", "status", shared_store, name, "--json").stdout)["status"]["scaling"]
            is None
        )


def slowly(batch: pa.RecordBatch) -> pa.Array:
    """Some 300 lines per second, on any machine."""
    time.sleep(0.003 * batch.num_rows)
    return split_words(batch)


def test_a_region_adds_workers_for_a_load_and_they_leave_after_it(
    shared_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dos.checkpoint")
    folder = tmp_path / "in"
    folder.mkdir()
    graph = Graph("autoscaled")
    lines = graph.source("lines", DirectorySource(folder, until=folder / "END", poll_s=0.2))
    words = lines.flat_map("words", slowly, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", FileSink(tmp_path / "out"))
    policy = AutoScale(1, 3, window=3, cool_down=3, catch_up=2)

    def settled(workers: int, event: RegionEvent) -> bool:
        return isinstance(event, ScaleSettled) and event.workers == workers and not event.error

    with running(graph, shared_store, tmp_path, workers=1, autoscale=policy) as (control, watch):
        for index in range(60):  # long lines, so that a step has few
            (folder / f"f{index}").write_text("".join(f"w{number % 17:<100}\n" for number in range(100)))
        watch.wait(partial(settled, 3))
        shown = dos("region", "status", shared_store, tmp_path.name).stdout
        assert "autoscale 1 to 3 workers: " in shown
        assert "last decision: autoscale from 1 to 3 workers: the load needs 3 workers; load" in shown
        watch.wait(partial(settled, 1))
        assert control.status.autoscale is not None
        assert control.status.autoscale.decided == next(
            event for event in reversed(watch.events) if isinstance(event, ScaleDecided)
        )
        (folder / "END").touch()
        assert finished(control), control.status
    assert counts_in(tmp_path / "out") == {
        f"w{word}": 60 * sum(number % 17 == word for number in range(100)) for word in range(17)
    }
    assert "autoscale from 1 to 3 workers: the load needs 3 workers" in caplog.text


def test_a_region_that_cannot_be_scaled_on_its_own_is_refused_before_it_starts(tmp_path: Path) -> None:
    graph = Graph("kept")
    lines = graph.source("lines", RateSource(10))
    lines.sink("out", JournaledFileSink())
    with pytest.raises(
        ValueError, match="kept: autoscale needs a graph whose number of workers can change: 'out'"
    ):
        run_local(graph, store="dos://nowhere", autoscale=AutoScale(1, 3))
    other = Graph("other")
    other.source("lines", RateSource(10)).sink("out", LogSink())
    with pytest.raises(ValueError, match="other: workers=4 is outside of autoscale, 1 to 3 workers"):
        run_local(other, store="dos://nowhere", workers=4, autoscale=AutoScale(1, 3))
    two = Graph("two")
    outside = two.source("outside", InputSource("rows", "word string")).annotate(autonomous)
    outside.sink("shown", CallSink(print))
    two.source("inside", RateSource(10)).annotate(consistent()).sink("out", LogSink())
    with pytest.raises(
        ValueError, match=r"two\.\S+: autoscale needs checkpoints, and operators outside of any"
    ):
        run_local(two, store="dos://nowhere", autoscale=AutoScale(1, 3))


def test_files_that_changed_before_a_change_of_the_number_of_workers_end_the_region_with_the_reason(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    with running(slow_word_count(texts, tmp_path / "out"), shared_store, tmp_path, workers=2) as (_, watch):
        watch.cuts(2)
    fewer = slow_word_count(texts[:1], tmp_path / "out")
    with running(fewer, shared_store, tmp_path, workers=3) as (control, _):
        assert control.wait(WAIT_S)
        assert "are no longer the first of its list" in str(control.exception())
        assert control.status.incarnation == 2, "no attempt could find anything else"
