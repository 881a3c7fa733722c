"""Regions that begin as forks of others, on real servers and worker processes, and the deletion of both."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from dataflow import (
    FileSink,
    Graph,
    InputSource,
    LogSink,
    LogSource,
    RateSource,
    Sum,
    blocking,
    collect_output,
)
from dataflow.errors import NoOutputError
from dataflow.limits import WorkerLimits
from dataflow.sinks.sql import SqlSink
from dos_client.blocking import BlockingStore
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.filing import Diary, diary_of, together
from tests.dataflow.support import true_counts
from tests.dataflow.test_directory import numbered
from tests.dataflow.test_directory_processes import of_the_last_checkpoint
from tests.dataflow.test_region_in_one_thread import write_files
from tests.dataflow.test_region_processes import (
    WAIT_S,
    finished,
    hurry,
    kill,
    running,
    slow_word_count,
    texts,
    three_servers,
)
from tests.dataflow.test_rescaled_regions import counts_in
from tests.dataflow.test_sql_sink import SCHEMA, limited, postgres, rows_in
from tests.support.dos_command import dos
from tests.support.polling import until
from tests.support.postgres import PostgresServer

__all__ = ["postgres", "texts", "three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return a folder for the original and one for the fork. Regions of one store have the names of these."""
    both = tmp_path / tmp_path.name, tmp_path / f"{tmp_path.name}-fork"
    for one in both:
        one.mkdir()
    return both


def done(*arguments: object) -> Any:
    """Return the JSON that a command prints."""
    command = dos(*arguments, "--json")
    assert command.returncode == 0, command
    return json.loads(command.stdout)


def test_a_running_region_and_its_fork_go_on_independently(
    shared_store: str, texts: list[Path], tmp_path: Path
) -> None:
    """With another number of workers, and a worker of the fork that is lost."""
    original, fork = folders(tmp_path)
    out, other = original / "out", fork / "out"
    with running(slow_word_count(texts, out), shared_store, original) as (control, watch):
        watch.checkpoints(2)
        savepoint = done("region", "fork", shared_store, original.name, fork.name)["savepoint"]
        assert savepoint in control.status.savepoints
        with running(slow_word_count(texts, out), shared_store, fork) as (refused, _):
            assert refused.wait(WAIT_S)
            assert "SinkOwnedError" in repr(refused.exception())
        with running(slow_word_count(texts, other), shared_store, fork, workers=3) as (forked, seen):
            seen.checkpoints(1)
            kill(forked, 0, wipe=True)
            seen.checkpoints(2)
            until(lambda: savepoint not in control.status.savepoints, "the savepoint is dropped", WAIT_S)
            hurry(other)
            assert finished(forked), forked.status
        hurry(out)
        assert finished(control), control.status
    assert counts_in(out) == counts_in(other) == dict(true_counts(texts, 3))


def test_a_fork_has_the_files_of_its_operators_although_they_cannot_be_divided(
    shared_store: str, tmp_path: Path
) -> None:
    rng = random.Random(7)
    rows = [(rng.choice(["ape", "bee", "cow"]), n) for n in range(6_000)]
    lines = ["".join(f"{word} {n}\n" for word, n in rows if (word < "c") is one) for one in (True, False)]
    paths = write_files(tmp_path, lines)
    original, fork = folders(tmp_path)
    quick = tmp_path / "hurry"
    graphs = [numbered(paths, one / "out", Diary("", str(quick))) for one in (original, fork)]
    small = WorkerLimits(step_bytes_max=1024, batch_bytes_max=1024, snapshot_bytes_min=32 * 1024)
    with running(graphs[0], shared_store, original, worker_limits=small) as (_, watch):
        watch.checkpoints(3)
    done("region", "fork", shared_store, original.name, fork.name, "--stopped")
    with running(graphs[1], shared_store, fork, worker_limits=small) as (forked, watch):
        watch.checkpoints(2)
        kill(forked, 1, wipe=True)
        quick.touch()
        assert finished(forked), forked.status
    assert together(trio.run(of_the_last_checkpoint, shared_store, fork)) == diary_of(rows)


SALES = pa.schema([("item", pa.string()), ("price", pa.int64())])


def sold(name: str, *, sums: bool, out: Path | None = None) -> Graph:
    graph = Graph(name)
    by_item = graph.source("sales", InputSource("sales", SALES)).key_by("by_item", "item")
    by_item.count("counts").sink("shown", LogSink())
    if sums:
        by_item.aggregate("sums", total=Sum("price")).sink("totals", LogSink())
    if out is not None:
        by_item.count("also").sink("out", FileSink(out))
    return graph


def sell(store: BlockingStore, application: str, prices: list[int], *, close: bool = False) -> None:
    with blocking.open_producer(store, application, "sales", "till", SALES) as producer:
        items = [f"item{price % 3}" for price in prices]
        producer.wait_recorded(producer.send(pa.record_batch([items, prices], schema=SALES)))
    if close:
        blocking.close_input(store, application, "sales")


def shown(store: str, region: str, sink: str) -> dict[str, int]:
    try:
        table = collect_output(store, region, sink)
    except NoOutputError:  # it begins
        table = None
    if table is None:
        return {}
    value = table.column_names[-1]
    return {row["item"]: row[value] for row in table.to_pylist()}


def test_a_fork_with_another_graph_reads_on_and_each_is_deleted_without_the_other(
    shared_store: str, tmp_path: Path
) -> None:
    original, fork = folders(tmp_path)
    name, new = original.name, fork.name
    with open_blocking(shared_store) as store:
        first = sold("sold", sums=False, out=tmp_path / "out")
        with running(first, shared_store, original) as (control, _):
            sell(store, name, [1, 2, 3, 4])
            sold_before = {"item0": 1, "item1": 2, "item2": 1}
            until(lambda: shown(shared_store, name, "shown") == sold_before, "all is counted", WAIT_S)
            number = control.checkpoint(WAIT_S)
            control.savepoint("good", timeout=WAIT_S)
            sell(store, name, [6])
            control.checkpoint(WAIT_S)
        at = (shared_store, name, new, "--at", "savepoint:good", "--stopped")
        planned = done("region", "fork", *at, "--dry-run")
        assert (planned["checkpoint"], planned["savepoint"], planned["application"]) == (number, None, name)
        made = done("region", "fork", *at)
        again = dos("region", "fork", *at)
        assert f"region '{new}' exists" in again.stderr, again
        listed = done("region", "savepoints", shared_store, name)["savepoints"]
        assert {row["savepoint"]: (row["fork"], row["forkState"]) for row in listed} == {
            "good": (None, None),
            made["savepoint"]: (new, "needed"),
        }
        refused = dos("region", "delete", shared_store, name, "--apply")
        assert f"'{new}' needs region '{name}'" in refused.stderr, refused
        second = sold("sold", sums=True)
        with running(second, shared_store, fork) as (wrong, _):
            assert wrong.wait(WAIT_S)
            assert "operator 'also' is in the stored state and not in this graph" in str(wrong.exception())
        with running(second, shared_store, fork, retain=2, drop_state=("also",)) as (forked, _):
            forked.checkpoint(WAIT_S)
            forked.checkpoint(WAIT_S)
            only = "only what followed the savepoint is shown"
            until(lambda: shown(shared_store, new, "shown") == {"item0": 2}, only, WAIT_S)
        left = done("region", "delete", shared_store, name)
        assert left["dependents"] == [], "the fork has all of its state"
        freed = done("region", "delete", shared_store, name, "--apply")
        assert freed["deleted"] is True
        sell(store, name, [7, 8], close=True)
        with running(second, shared_store, fork) as (forked, _):
            assert finished(forked), forked.status
        assert shown(shared_store, new, "shown") == {"item0": 2, "item1": 3, "item2": 2}
        assert shown(shared_store, new, "totals") == {"item0": 6, "item1": 7, "item2": 8}
        assert done("region", "delete", shared_store, new, "--apply")["deleted"] is True
        for one in (name, new):
            assert done("region", "delete", shared_store, one)["bytes"] == 0


@pytest.mark.long
def test_a_fork_of_a_reader_reads_the_same_region(shared_store: str, tmp_path: Path) -> None:
    """Its positions are in the logs of that region, and mean nothing in another one."""
    original, fork = folders(tmp_path)
    source = tmp_path / f"{tmp_path.name}-sales"
    source.mkdir()

    def counting(region: str) -> Graph:
        graph = Graph("counting")
        read = graph.source("read", LogSource("shown", "item string, price bigint", region=region))
        read.key_by("by_item", "item").count("counts").sink("shown", LogSink())
        return graph

    sales = Graph("sales")
    sales.source("sales", InputSource("sales", SALES)).sink("shown", LogSink())
    with open_blocking(shared_store) as store:
        sell(store, source.name, [1, 2, 3], close=True)
    with running(sales, shared_store, source) as (control, _):
        assert finished(control), control.status
    with running(counting(source.name), shared_store, original) as (control, _):
        assert finished(control), control.status
    made = done("region", "fork", shared_store, original.name, fork.name, "--stopped")
    assert made["logs"] == {"read": source.name}
    with running(counting(original.name), shared_store, fork) as (control, _):
        assert control.wait(WAIT_S)
        assert f"'read' was source LogSource shown of {source.name}, is " in str(control.exception())
    held = dos("region", "delete", shared_store, source.name, "--apply")
    assert "it is registered as a reader of its output" in held.stderr, held


@pytest.mark.long
def test_a_fork_writes_to_a_table_of_its_own_what_follows_its_checkpoint(
    shared_store: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    original, fork = folders(tmp_path)
    rows = 3_000

    def program(table: str) -> Graph:
        graph = Graph("numbers")
        numbers = graph.source("rows", RateSource(1_000, rows=rows))
        numbers.map("numbers", partial(limited, most=rows), schema=SCHEMA).sink(
            "table", SqlSink(postgres.url, table)
        )
        return graph

    with running(program("of_original"), shared_store, original) as (_, watch):
        watch.checkpoints(1)
    before = sorted(row[0] for row in rows_in(postgres.url, "of_original"))
    assert 0 < len(before) < rows
    done("region", "fork", shared_store, original.name, fork.name, "--stopped")
    with running(program("of_original"), shared_store, fork) as (control, _):
        assert control.wait(WAIT_S)
        assert "table 'of_original' belongs to" in str(control.exception())
    for table, folder in (("of_fork", fork), ("of_original", original)):
        with running(program(table), shared_store, folder) as (control, _):
            assert finished(control), control.status
    forked = sorted(row[0] for row in rows_in(postgres.url, "of_fork"))
    for lane in (0, 1):  # of a worker; what its checkpoint covers is of the original, shown by then or not
        first = min(row for row in forked if row % 2 == lane)
        assert [row for row in forked if row % 2 == lane] == [*range(first, rows, 2)]
        assert all(row < first for row in before if row % 2 == lane)
    assert 0 < len(before) <= rows - len(forked)
    assert sorted(row[0] for row in rows_in(postgres.url, "of_original")) == [*range(rows)]
