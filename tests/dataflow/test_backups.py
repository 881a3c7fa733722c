"""A region is copied to a bucket while it runs, its store is lost, and it continues from the bucket alone."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

from checkpoint import limits as checkpoint_limits
from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import RegionSpec
from dataflow import FileSink, Graph, InputSource, LogSink, blocking, collect_output
from dataflow.graph.builder import check_places, parts_of
from dos_client.blocking import open_store as open_blocking
from dos_server.testing import threaded_store
from tests.dataflow.producer_process import SCHEMA, rows_of
from tests.dataflow.test_region_processes import WAIT_S
from tests.dataflow.test_region_snapshots import running_in_threads
from tests.dataflow.test_region_trim import dos
from tests.support import polling
from tests.support.s3 import BUCKET, serving

pytestmark = pytest.mark.process
ROWS = 500
TARGET = f"s3://{BUCKET}/dos"
until = partial(polling.until, within_s=WAIT_S)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_limits, "input_segment_bytes_max", 20_000)
    monkeypatch.setattr(checkpoint_limits, "output_segment_bytes_max", 20_000)
    monkeypatch.setattr(checkpoint_limits, "trim_poll_s", 0.1)


@pytest.fixture(scope="module", autouse=True)
def bucket() -> Iterator[Any]:
    with serving():
        client = boto3.session.Session().client("s3")
        client.create_bucket(Bucket=BUCKET)
        yield client


def graph_of(folder: Path) -> Graph:
    graph = Graph("orders")
    taken = graph.source("taken", InputSource("numbers", SCHEMA))
    taken.sink("shown", LogSink())
    taken.key_by("by_producer", "producer").count("counts").sink("counted", FileSink(folder))
    return graph


@contextmanager
def region(url: str, folder: Path, name: str = "orders") -> Iterator[RegionControl]:
    """A region of two workers, which are threads. It reads the input `numbers` of the application `shop`."""
    graph = graph_of(folder)
    (part,) = parts_of(graph, name)
    spec = RegionSpec(
        name=name,
        workers=2,
        store_url=url,
        job_key=b"k" * 32,
        checkpoint_interval_s=0.1,
        retain=2,
        **graph.plan().stored(),
    )
    with running_in_threads(graph, spec, check=partial(check_places, part)) as control:
        yield control


def done(*arguments: Any) -> dict[str, Any]:
    """The JSON of a command that must succeed."""
    answer = dos(*arguments, "--json")
    assert answer.exit_code == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def numbers(url: str) -> list[int]:
    table = collect_output(url, "orders", "shown")
    return [] if table is None else table["number"].to_pylist()


def count_in(folder: Path) -> int:
    """The last count that the file sink has."""
    lines = [line.split("\t") for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    return max((int(count) for _, count in lines), default=0)


def lines_of(folder: Path) -> list[str]:
    return sorted(line for path in folder.glob("part-*") for line in path.read_text().splitlines())


class Producer:
    """Sends batches of an unbroken series, from where the store has it."""

    def __init__(self, producer: blocking.BlockingProducer) -> None:
        self.producer = producer
        self.sent = int(producer.last.mark or b"0")

    def send(self, batches: int) -> None:
        for _ in range(batches):
            rows = rows_of("p", self.sent, ROWS)
            self.sent += ROWS
            self.producer.wait_recorded(self.producer.send(rows, mark=b"%d" % self.sent))


@contextmanager
def producing(url: str) -> Iterator[Producer]:
    with (
        open_blocking(url) as store,
        blocking.open_producer(store, "shop", "numbers", "p", SCHEMA) as producer,
    ):
        yield Producer(producer)


# EVIDENCE-OF: P-6
def test_a_region_continues_from_the_bucket_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with threaded_store(1) as servers:
        url = servers.url
        with producing(url) as producer:
            producer.send(20)
            with region(url, out) as control:
                until(lambda: count_in(out) == producer.sent, "all is counted")
                control.checkpoint(WAIT_S)
                control.checkpoint(WAIT_S)
                first = done("region", "backup", url, "orders", TARGET)
                assert first["copied_bytes"] == first["bytes"] > 0
                assert control.status().savepoints == {}, "its savepoint is dropped"
                producer.send(4)
                until(lambda: count_in(out) == producer.sent, "all is counted")
                control.checkpoint(WAIT_S)
                second = done("region", "backup", url, "orders", TARGET)
                assert second["copied_bytes"] < first["copied_bytes"] / 2, "only what changed"
                in_backup = producer.sent
                producer.send(4)
                until(lambda: count_in(out) == producer.sent, "all is counted")
    listed = done("region", "backups", TARGET)["backups"]
    assert [row["backup"] for row in listed] == [first["number"], second["number"]]
    with threaded_store(1) as servers:
        url = servers.url
        assert done("region", "restore-backup", TARGET, url, "--dry-run")["backup"] == second["number"]
        restored = done("region", "restore-backup", TARGET, url, "--old-is-gone")
        assert restored["checkpoint"] == second["checkpoint"] + 1
        with producing(url) as producer:
            assert producer.sent == in_backup, "the producer continues after its last batch in the backup"
            producer.send(10)
            with region(url, out) as control:
                until(lambda: count_in(out) == producer.sent, "all is counted")
                control.checkpoint(WAIT_S)
                assert numbers(url) == list(range(producer.sent)), "as without an interruption"
                assert lines_of(out)[-1] == max(lines_of(out)), "and the file, which is cut back"
                status = done("checkpoint", "show", url, "orders")
                assert status["line"] == 1
        again = dos("region", "restore-backup", TARGET, url, "orders", "--backup", second["number"])
        assert again.exit_code == 1
        assert "is not empty" in again.stderr
