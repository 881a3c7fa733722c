"""Input handles on real servers, with producers and workers that are killed: each row is written once."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import trio

from checkpoint.core.region import RegionState, ResetReport
from dataflow import Graph, InputSource, LogSink, SchemaError, StepRows, blocking, read_output
from dos_client import open_store
from dos_client.blocking import BlockingStore
from dos_client.blocking import open_store as open_blocking
from dos_protocol.errors import FencedError
from tests.dataflow.producer_process import SCHEMA, rows_of
from tests.dataflow.support import made
from tests.dataflow.test_region_processes import WAIT_S, finished, running
from tests.support.polling import until
from tests.support.servers import ServerProcess, three_servers

__all__ = ["three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


def numbers(publish: str = "step") -> Graph:
    graph = Graph("numbers")
    graph.source("taken", InputSource("numbers", SCHEMA)).sink("shown", LogSink(publish=publish))
    return graph


@contextmanager
def producing(store: str, application: str, producer: str, count: int, batch: int) -> Iterator["Process"]:
    process = Process(store, application, producer, count, batch)
    with process.popen:
        try:
            yield process
        finally:
            process.popen.kill()


class Process:
    """A producer of its own."""

    def __init__(self, *arguments: object) -> None:
        module = "tests.dataflow.producer_process"
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def says(self, what: str) -> int:
        """The next line, which begins so."""
        assert self.popen.stdout is not None
        word, number = self.popen.stdout.readline().split()
        assert word == what
        return int(number)

    def kill(self) -> None:
        os.kill(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


def steps_of(store: str, region: str) -> list[StepRows]:
    async def read() -> list[StepRows]:
        async with open_store(store) as opened:
            return [step async for step in read_output(opened, region, "shown")]

    return trio.run(read)


def each_once(store: str, region: str, counts: dict[str, int]) -> None:
    """Every number of every producer is there once, and those of one producer in their order."""
    tables = [step.table for step in steps_of(store, region) if step.table is not None]
    rows = pa.concat_tables(tables)
    found = {}
    for producer in sorted(set(rows["producer"].to_pylist())):
        mine = rows.filter(pa.compute.equal(rows["producer"], producer))["number"].to_pylist()
        assert mine == list(range(len(mine))), producer
        found[producer] = len(mine)
    assert found == counts


def send(store: BlockingStore, application: str, producer: str, begin: int, count: int) -> int:
    """One batch, recorded; its position."""
    with blocking.open_producer(store, application, "numbers", producer, SCHEMA) as writer:
        return writer.wait_recorded(writer.send(rows_of(producer, begin, count)))


# EVIDENCE-OF: P-7
def test_each_row_is_written_once_with_any_process_killed(
    three_servers: list[ServerProcess], tmp_path: Path
) -> None:
    store, name, count, batch = made(three_servers), tmp_path.name, 400_000, 150_000
    with (
        running(numbers(), store, tmp_path) as (control, watch),
        open_blocking(store) as client,
    ):
        with producing(store, name, "p1", count, batch) as first:
            first.says("opened")
            assert first.says("recorded") == batch
            first.kill()  # in the middle of the second batch
        send(client, name, "p2", 0, 10)
        watch.checkpoints(1)
        os.kill(control.status.workers[0].pid, signal.SIGKILL)
        watch.wait(lambda event: isinstance(event, ResetReport))
        three_servers[0].kill()
        with producing(store, name, "p1", count, batch) as again:
            assert again.says("opened") in (batch, 2 * batch), "it continues after what was recorded"
            os.kill(control.status.workers[1].pid, signal.SIGKILL)
            assert again.popen.wait() == 0
        watch.wait(lambda event: isinstance(event, ResetReport), 2)
        send(client, name, "p2", 10, 5)
        three_servers[0].restart()
        send(client, name, "late", 0, 7)
        blocking.close_input(client, name, "numbers")
        assert finished(control), control.status
    each_once(store, name, {"late": 7, "p1": count, "p2": 15})


def test_a_producer_that_was_started_twice_records_nothing_more(shared_store: str, tmp_path: Path) -> None:
    name = tmp_path.name
    with (
        running(numbers(), shared_store, tmp_path) as (control, _),
        open_blocking(shared_store) as client,
        open_blocking(shared_store) as other,
        blocking.open_producer(client, name, "numbers", "p", SCHEMA) as zombie,
    ):
        zombie.wait_recorded(zombie.send(rows_of("p", 0, 3), mark=b"3"))
        with blocking.open_producer(other, name, "numbers", "p", SCHEMA) as newer:
            assert newer.last[:2] == (1, b"3")
            with pytest.raises(FencedError):
                zombie.wait_recorded(zombie.send(rows_of("p", 3, 4)))
            assert newer.send(rows_of("zzz", 0, 9), batch=1) == 1, "recorded before: discarded"
            end = newer.wait_recorded(newer.send(rows_of("p", 3, 2), batch=2))
            with pytest.raises(SchemaError, match="a row has the columns 'nonsense'"):
                newer.send([{"nonsense": 1}])
        blocking.close_input(client, name, "numbers")
        assert finished(control), control.status
    each_once(shared_store, name, {"p": 5})
    steps = steps_of(shared_store, name)
    assert steps[-1].inputs["taken"] == {"p": end}, "outputs say which input they correspond to"


def test_a_driver_started_again_continues_where_the_input_was_read(shared_store: str, tmp_path: Path) -> None:
    name = tmp_path.name
    with open_blocking(shared_store) as client:
        with running(numbers("checkpoint"), shared_store, tmp_path) as (control, watch):
            send(client, name, "p", 0, 30)
            watch.checkpoints(1)
            control.stop()
            assert control.wait(60)
            assert control.status.state is RegionState.STOPPED
        send(client, name, "p", 30, 12)
        blocking.close_input(client, name, "numbers")
        with running(numbers("checkpoint"), shared_store, tmp_path) as (control, _):
            assert finished(control), control.status
    each_once(shared_store, name, {"p": 42})


def test_producers_write_while_the_region_goes_to_other_numbers_of_workers(
    shared_store: str, tmp_path: Path
) -> None:
    name, ends = tmp_path.name, threading.Event()

    def produce(producer: str) -> int:
        sent = 0
        with (
            open_blocking(shared_store) as client,
            blocking.open_producer(client, name, "numbers", producer, SCHEMA) as writer,
        ):
            while not ends.is_set() or not sent:
                writer.wait_recorded(writer.send(rows_of(producer, sent, 20)))
                sent += 20
        return sent

    with (
        running(numbers(), shared_store, tmp_path, workers=2) as (control, watch),
        ThreadPoolExecutor() as pool,
    ):
        producers = {one: pool.submit(produce, one) for one in ("p1", "p2", "p3")}
        try:
            watch.checkpoints(1)
            for workers in (3, 2):
                control.scale(workers, WAIT_S)
                before = control.status.rows_in
                until(lambda before=before: control.status.rows_in > before, "more rows", WAIT_S)
        finally:
            ends.set()
        counts = {one: sent.result(WAIT_S) for one, sent in producers.items()}
        with open_blocking(shared_store) as client:
            blocking.close_input(client, name, "numbers")
        assert finished(control), control.status
        assert len(control.status.workers) == 2
    each_once(shared_store, name, counts)


def test_producers_of_older_and_newer_schemas_are_read_by_one_region(
    shared_store: str, tmp_path: Path
) -> None:
    name = tmp_path.name
    versions = {
        "new": ("more double, number bigint, producer string", {"more": 0.5}),
        "old": ("producer string, number int", {}),
        "turned": ("number smallint, producer string", {}),
    }
    with running(numbers(), shared_store, tmp_path) as (control, _), open_blocking(shared_store) as client:
        for producer, (schema, more) in versions.items():  # the older ones write after the newer one
            rows = [{"producer": producer, "number": number, **more} for number in range(3)]
            with blocking.open_producer(client, name, "numbers", producer, schema) as writer:
                writer.wait_recorded(writer.send(rows))
        blocking.close_input(client, name, "numbers")
        assert finished(control), control.status
    each_once(shared_store, name, dict.fromkeys(versions, 3))


def test_rows_of_other_columns_than_are_read_stop_the_region(shared_store: str, tmp_path: Path) -> None:
    name = tmp_path.name
    with running(numbers(), shared_store, tmp_path) as (control, _), open_blocking(shared_store) as client:
        with blocking.open_producer(client, name, "numbers", "p", "number double") as other:
            other.wait_recorded(other.send([{"number": 1.0}]))
        assert control.wait(60)
        assert control.status.state is RegionState.FAILED
        said = str(control.exception())
    assert "column 'number' is double, expected bigint" in said
