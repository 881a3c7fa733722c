"""Streams with the option `consumer`: registered before they read, listed, kept what they need, and removed.
The store is real, its producer trims in the background; Spark is played by `streaming.Query`.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from checkpoint import limits as checkpoint_limits
from checkpoint.errors import ConsumerRefusedError
from checkpoint.maintenance.retention import InputRows
from dataflow.blocking import BlockingProducer, open_producer
from dos_client.blocking import BlockingStore
from dos_server.testing import Servers, ThreadedServer
from spark_integration.errors import DataLossError, NothingThereError
from tests.dataflow.test_region_trim import dos
from tests.spark_integration.stored_data import write_steps
from tests.spark_integration.streaming import N, Query, n, query
from tests.support import polling

WAIT_S = 20.0
until = partial(polling.until, within_s=WAIT_S)
BATCHES_PER_MICRO_BATCH = {"maxRowsPerTrigger": "2"}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_limits, "input_segment_bytes_max", 1)
    monkeypatch.setattr(checkpoint_limits, "trim_poll_s", 0.2)
    monkeypatch.setattr(checkpoint_limits, "query_publish_s", 0.0)


class Input:
    """An input with one producer, which is open and trims."""

    def __init__(self, store: BlockingStore, url: str, name: str, producer: BlockingProducer) -> None:
        self.url, self.name, self.sent = url, name, 0
        self._store, self._producer = store, producer

    def send(self, batches: int) -> None:
        for _ in range(batches):
            self._producer.wait_recorded(self._producer.send(n(self.sent)))
            self.sent += 1

    def status(self) -> dict[str, Any]:
        done = dos("input", "consumers", self.url, self.name, "numbers", "--json")
        assert done.exit_code == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    @property
    def stored_from(self) -> int:
        """Where the input begins; cheaper than the command."""
        rows = InputRows(self._store.store, self.name, "numbers")
        begin: int = self._store.portal.call(rows.inspect, "p").segments[0].base
        return begin


@pytest.fixture
def numbers(servers: Servers[ThreadedServer], store: BlockingStore, name: str) -> Iterator[Input]:
    with open_producer(store, name, "numbers", "p", N) as producer:
        yield Input(store, servers.url, name, producer)


@contextmanager
def reading(
    servers: Servers[ThreadedServer], numbers: Input, start: dict[str, Any] | None = None, **options: str
) -> Iterator[Query]:
    with query(
        servers, numbers.name, start=start, input="numbers", **BATCHES_PER_MICRO_BATCH, **options
    ) as found:
        yield found


# EVIDENCE-OF: P-6
def test_a_stopped_query_with_the_option_continues_and_one_without_it_stops_with_an_error(
    servers: Servers[ThreadedServer], numbers: Input
) -> None:
    numbers.send(8)
    consumer = {"consumer": "report", "consumerRetainSeconds": "0"}
    with reading(servers, numbers, **consumer) as report, reading(servers, numbers) as other:
        assert other.batch() == [0, 1]
        assert [report.batch(), report.batch()] == [[0, 1], [2, 3]]
    (listed,) = numbers.status()["queries"]
    (position,) = listed["positions"].values()
    assert (listed["name"], 0 < position["needs"] == position["read"]) == ("report", True)

    # It is stopped after its second micro-batch, which is not published: rows 2 and 3 may be replayed.
    until(lambda: 0 < numbers.stored_from <= position["needs"], "the input is trimmed")
    numbers.send(4)
    with reading(servers, numbers, start=report.at, **consumer) as report:
        assert report.batch() == [4, 5]
        assert report.batches() == [[6, 7], [8, 9], [10, 11]]
    until(lambda: numbers.stored_from > position["needs"], "the input is trimmed further")
    with (
        reading(servers, numbers, start=other.at) as behind,
        pytest.raises(DataLossError, match=r"was trimmed|is gone") as lost,
    ):
        behind.batch()
    assert "The option 'consumer' keeps what a query has not read" in str(lost.value)


def test_a_query_registers_before_it_reads_and_is_listed_and_removed_by_name(
    servers: Servers[ThreadedServer], numbers: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers.send(1)
    with reading(servers, numbers, consumer="report"):
        (listed,) = numbers.status()["queries"]
        assert listed["positions"]["p"]["needs"] == 0
        text = dos("input", "consumers", servers.url, numbers.name, "numbers").stdout
        assert "query:report" in text
        assert re.search(r"published \d", text)
        forget = ("input", "forget", servers.url, numbers.name, "numbers", "query:report")
        running = dos(*forget, "--apply")
        assert (running.exit_code, "it seems to run" in running.stderr) == (1, True)
    monkeypatch.setattr(checkpoint_limits, "query_running_s", 0.0)
    dry = json.loads(dos(*forget, "--json").stdout)
    assert (dry["region"], dry["forgotten"]) == ("query:report", False)
    done = dos(*forget, "--apply")
    assert (done.exit_code, "query:report is no longer a consumer" in done.stdout) == (0, True)
    assert numbers.status()["queries"] == []
    assert "query 'report' is not registered" in dos(*forget).stderr


def test_a_second_query_with_the_same_name_makes_the_first_one_stop(
    servers: Servers[ThreadedServer], numbers: Input
) -> None:
    numbers.send(6)
    with (
        reading(servers, numbers, consumer="same") as first,
        reading(servers, numbers, consumer="same") as second,
    ):
        assert [first.batch(), second.batch(), second.batch()] == [[0, 1], [0, 1], [2, 3]]
        with pytest.raises(ConsumerRefusedError, match="'same' was registered by another process"):
            first.batch()
    assert numbers.status()["queries"][0]["positions"]["p"]["needs"] == 0


def test_data_that_does_not_exist_gets_no_register(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    with (
        pytest.raises(NothingThereError),
        query(servers, name, input="nothing", consumer="report"),
    ):
        pass
    assert not [one for one in store.list_directories() if one.startswith(name)]


def test_a_query_registers_for_an_output_too(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {step: n(step) for step in (1, 2, 3)}, pa.schema([("n", pa.int64())]))
    limits = {"maxRowsPerTrigger": "1", "consumer": "table", "consumerRetainSeconds": "0"}
    with query(servers, name, output="out", **limits) as stream:
        assert [stream.batch(), stream.batch()] == [[1], [2]]
    listed = json.loads(dos("output", "consumers", servers.url, name, "out", "--json").stdout)["queries"]
    assert [one["name"] for one in listed] == ["table"]
