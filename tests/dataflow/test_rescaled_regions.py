"""Regions that go to another number of workers, stopped and running, on real servers and worker processes."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio

from checkpoint.core.region import CheckpointCommitted, RegionEvent, WorkerJoined
from checkpoint.errors import NotScaledError, StateNotRecordedError
from dataflow import (
    Count,
    FileSink,
    FileSource,
    Graph,
    InputSource,
    JournaledFileSink,
    LogSink,
    LogSource,
    ParquetSink,
    Tumbling,
    blocking,
)
from dataflow.handle import RegionHandle
from dataflow.sinks.sql import SqlSink
from dataflow.worker.layout_change import CopiedState
from dos_client.blocking import BlockingStore, open_store
from tests.dataflow.support import rows_of, true_counts
from tests.dataflow.test_output_processes import counted, inputs, last_shown, steps_of
from tests.dataflow.test_region_processes import (
    SMALL_STEPS,
    WAIT_S,
    Watch,
    finished,
    hurry,
    hurry_of,
    kill,
    running,
    slow_word_count,
    texts,
    three_servers,
    unhurried,
)
from tests.dataflow.test_region_tools import state_of
from tests.dataflow.test_sql_sink import rows_in
from tests.support.dos_command import dos
from tests.support.parts import with_long
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


@contextmanager
def counting(
    texts: list[Path], store: str, folder: Path, **options: Any
) -> Iterator[tuple[RegionHandle, Watch]]:
    """Meet a word count in the middle of its work. At the end it finishes, and its counts must be right."""
    out = folder / "out"
    with running(slow_word_count(texts, out), store, folder, **options) as (control, watch):
        yield control, watch
        hurry(out)
        assert finished(control), control.status
    assert counts_in(out) == dict(true_counts(texts, 3))


def test_a_running_region_goes_to_other_numbers_of_workers(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    """By its handle, and by the command from anywhere."""
    graph, name = slow_word_count(texts, tmp_path / "out"), tmp_path.name
    with running(graph, shared_store, tmp_path, workers=2) as (control, watch):
        watch.checkpoints(2)
        for workers in (3, 5):
            settled = control.scale(workers, WAIT_S)
            assert (settled.workers, settled.error) == (workers, "")
            assert len(control.status.workers) == workers
        done = dos("region", "scale", shared_store, name, "--workers", 3)
        assert "the region has 3 workers, after" in done.stdout, done.stderr
        as_json = dos("region", "scale", shared_store, name, "--workers", 1, "--json")
        assert json.loads(as_json.stdout)["result"]["workers"] == 1
        assert len(control.status.workers) == 1
        none = dos("region", "scale", shared_store, name, "--cancel")
        assert (none.returncode, "no change of the number of workers is under way" in none.stderr) == (
            1,
            True,
        )
        for wrong in ((), ("--workers", 2, "--cancel"), ("--workers", 5000)):
            assert dos("region", "scale", shared_store, name, *wrong).returncode == 2
        status = dos("region", "status", shared_store, name, "--json")
        assert json.loads(status.stdout)["status"]["scaling"] is None
        assert not control.status.resets, "a change is no reset"
    # A program that asks for the same number as before does not undo the change.
    hurry(tmp_path / "out")
    with running(graph, shared_store, tmp_path, workers=2) as (control, _):
        assert finished(control), control.status
        assert len(control.status.workers) == 1
    assert counts_in(tmp_path / "out") == dict(true_counts(texts, 3))


@pytest.mark.parametrize("publish", with_long(["step"], ["checkpoint"]))
def test_output_logs_have_every_step_once_through_changes_and_kills(
    shared_store: str, tmp_path: Path, publish: str
) -> None:
    """Worker 1 leaves and comes back, so its log has steps before and after the others' steps."""
    paths = inputs(tmp_path)
    graph = counted(paths, tmp_path, publish)
    with running(graph, shared_store, tmp_path, workers=2) as (control, watch):
        watch.checkpoints(2)
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
    shared_store: str, texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new worker is killed when it has created its journals, so its directory has a claim."""
    copy, may_copy = CopiedState.copy, tmp_path / "copy"

    async def later(*args: Any) -> int:
        await trio.to_thread.run_sync(partial(until, may_copy.exists, "may copy", WAIT_S))
        return await copy(*args)

    def kill_the_new(event: RegionEvent) -> None:
        if isinstance(event, WorkerJoined) and event.worker == 2:
            with open_store(shared_store) as store:
                there = partial(store.inspect, f"{tmp_path.name}.w0002")
                until(lambda: any(there().answers.values()), "the journals are there", WAIT_S)
            os.kill(event.pid, signal.SIGKILL)

    monkeypatch.setattr(CopiedState, "copy", later)
    with counting(texts, shared_store, tmp_path, workers=2) as (control, watch):
        watch.checkpoints(2)
        watch.also = kill_the_new
        with pytest.raises(NotScaledError, match="keeps 2 workers"):
            control.scale(3, WAIT_S)
        watch.also = lambda _: None
        may_copy.touch()
        for wrong, why in ((0, "a region has 1 to 4096 workers, got 0"), (None, "no change of the number")):
            with pytest.raises(NotScaledError, match=why):
                control.scale(wrong, WAIT_S)
        assert control.checkpoint(WAIT_S)
        assert len(control.status.workers) == 2
        assert control.scale(3, WAIT_S).workers == 3


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
        watch.checkpoints(2)
        with pytest.raises(NotScaledError, match="'out' has no rule for it: it keeps files"):
            control.scale(2, WAIT_S)
    with running(graph, shared_store, tmp_path, workers=2) as (control, _):
        assert control.wait(WAIT_S)
        reason = str(control.exception())
        assert "made by 1 worker, the region has 2 workers: 'out' has no rule for it" in reason
    with running(graph, shared_store, tmp_path) as (control, watch):
        watch.checkpoints(1)
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


TIMED = "at timestamp, word string"


@contextmanager
def sending(client: BlockingStore, region: str) -> Iterator[Callable[[], int]]:
    """Send 50 rows about ten times a second, each with ten words in turn and 2 ms of event time after the one
    before. The function that is yielded ends it, and returns how many were sent.
    """
    over = threading.Event()

    def send() -> int:
        begin, count = datetime(2026, 1, 1, tzinfo=UTC), 0
        with blocking.open_producer(client, region, "rows", "p", TIMED) as producer:
            while not over.wait(0.1):
                rows = [
                    {"at": begin + timedelta(milliseconds=2 * number), "word": f"w{number % 10}"}
                    for number in range(count, count + 50)
                ]
                producer.wait_recorded(producer.send(rows))
                count += len(rows)
        return count

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)

        def end() -> int:
            over.set()
            return sent.result()

        try:
            yield end
        finally:
            over.set()


def test_a_region_reads_the_log_of_one_that_is_scaled_with_every_row_in_time(
    shared_store: str, tmp_path: Path
) -> None:
    """Windows close by the event time of all logs: that of a worker that left holds nothing back, and no row
    of one that joins is late. Rows come until all changes are made, however long these take."""
    above = Graph("above")
    words = above.source("rows", InputSource("rows", TIMED))
    words.key_by("divided", "word").sink("shown", LogSink())  # so that each log has rows
    below = Graph("below")
    read = below.source("read", LogSource("shown", TIMED, region=f"{tmp_path.name}-a"))
    timed = read.event_time("timed", "at", lateness=timedelta(seconds=3)).key_by("by_word", "word")
    windows = timed.aggregate("windows", Tumbling("at", timedelta(seconds=0.3)), n=Count())
    windows.sink("out", FileSink(tmp_path / "out"))
    up, down = tmp_path / f"{tmp_path.name}-a", tmp_path / f"{tmp_path.name}-b"
    with (
        running(above, shared_store, up, workers=2) as (upper, watch),
        running(below, shared_store, down, workers=2) as (lower, _),
        open_store(shared_store) as client,
        sending(client, up.name) as end,
    ):
        watch.checkpoints(2)
        for workers in (1, 3, 2):
            upper.scale(workers, WAIT_S)
            upper.checkpoint(WAIT_S)
            if workers == 1:  # what was read before closes 3 s of windows, each with ten words
                shown = len(rows_of(tmp_path / "out")) + 3 * 10 * 4
                until(lambda shown=shown: len(rows_of(tmp_path / "out")) > shown, "closed windows", WAIT_S)
        rows = end()
        blocking.close_input(client, up.name, "rows")
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
    return {"id": int(row["word"])}


def test_rows_in_transactions_count_once_through_changes_and_kills(
    shared_store: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    """The heir of a worker that left commits what that worker had prepared, and nothing else of it."""
    rows, out = 4_000, tmp_path / "out"
    paths = [tmp_path / f"numbers-{part}" for part in range(8)]
    for part, path in enumerate(paths):  # long lines, so that there is input left after any restart
        path.write_text("".join(f"{number:<2500}\n" for number in range(part, rows, len(paths))))
    graph = Graph("sold")
    words = graph.source("lines", FileSource(paths)).flat_map(
        "words", partial(unhurried, hurry_of(out)), schema="word string", takes="batch"
    )
    numbers = words.map("numbers", number_of, schema="id bigint")
    numbers.sink("files", ParquetSink(tmp_path / "files"))
    numbers.sink("table", SqlSink(postgres.url, "rescaled"))
    with running(graph, shared_store, tmp_path, workers=3) as (control, watch):
        watch.checkpoints(2)
        for workers in (1, 3, 2):
            control.scale(workers, WAIT_S)
            kill(control, workers - 1, wipe=False)
            control.checkpoint(WAIT_S)
        hurry(out)
        assert finished(control), control.status
    read = pq.read_table(tmp_path / "files")
    assert sorted(read.column("id").to_pylist()) == list(range(rows))
    assert sorted(row[0] for row in rows_in(postgres.url, "rescaled", read.schema)) == list(range(rows))


def test_a_savepoint_keeps_the_state_of_workers_that_left_and_come_back(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    """Also if it is made while no driver runs: that records the last checkpoint again."""
    graph, name = slow_word_count(texts, tmp_path / "out"), tmp_path.name
    few = {"retain": 2, "worker_limits": replace(SMALL_STEPS, snapshot_bytes_min=16 * 1024)}
    with running(graph, shared_store, tmp_path, workers=3, **few) as (control, watch):
        watch.checkpoints(2)
        three = control.savepoint("three", timeout=WAIT_S)
        counted = state_of(shared_store, name, "counts", checkpoint=str(three))
        control.scale(1, WAIT_S)
    diff = dos("checkpoint", "diff", shared_store, name, three)
    assert "different: layout, number of workers" in diff.stdout, diff.stderr
    assert f"not counted: worker 0: its keys were on other workers in checkpoint {three}" in diff.stdout
    with pytest.raises(StateNotRecordedError, match="its keys were on other workers"):
        state_of(shared_store, name, "counts", since=str(three))
    done = dos("region", "savepoint", shared_store, name, "one", "--stopped")
    assert done.returncode == 0, done.stderr
    with running(graph, shared_store, tmp_path, workers=2, **few) as (control, watch):
        watch.checkpoints(3)
        assert control.scale(3, WAIT_S).workers == 3
        for _ in range(3):  # releases all but the savepoints
            last = control.checkpoint(WAIT_S)
        assert set(control.status.savepoints) == {"one", "three"}
        assert state_of(shared_store, name, "counts", checkpoint=str(three)) == counted
        one = control.drop_savepoint("one", timeout=WAIT_S)
        workers = json.loads(dos("checkpoint", "show", shared_store, name, one, "--json").stdout)["workers"]
        assert len(workers) == 1
        hurry(tmp_path / "out")
        assert finished(control), control.status
    assert control.status.last_checkpoint > last
    assert state_of(shared_store, name, "counts") == counts_in(tmp_path / "out") == true_counts(texts, 3)


def test_files_that_changed_before_a_change_of_the_number_of_workers_end_the_region_with_the_reason(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    with running(slow_word_count(texts, tmp_path / "out"), shared_store, tmp_path, workers=2) as (_, watch):
        watch.checkpoints(2)
    fewer = slow_word_count(texts[:1], tmp_path / "out")
    with running(fewer, shared_store, tmp_path, workers=3) as (control, _):
        assert control.wait(WAIT_S)
        assert "are no longer the first of its list" in str(control.exception())
        assert control.status.incarnation == 2, "no attempt could find anything else"
