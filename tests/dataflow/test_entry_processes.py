"""Entry points as processes on real servers, with two regions at two stores that read what they record."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from typer.testing import CliRunner

from dataflow import Count, EntryPoints, Graph, InputSource, LogSink, Tumbling, blocking
from dataflow.input_cli import app
from dataflow.outputs import read_output
from dos_client import open_store
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.support import made
from tests.dataflow.test_region_processes import WAIT_S, finished, running
from tests.support.polling import until
from tests.support.servers import ServerProcess, hold_port, three_servers

__all__ = ["three_servers"]
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]
SCHEMA = "kind string, number bigint"


def graph(entry: str) -> Graph:
    made = Graph("loads")
    loads = made.source("loads", InputSource("loads", f"at timestamp, {SCHEMA}", entry=entry))
    loads.sink("shown", LogSink(publish="step"))
    timed = loads.event_time("timed", "at", marks=True)
    counts = timed.key_by("by_kind", "kind").aggregate(
        "counts", Tumbling("at", timedelta(milliseconds=100)), n=Count()
    )
    counts.sink("counted", LogSink(publish="step"))
    return made


@contextmanager
def serving(store: str, name: str, site: str, port: int, peers: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "dos_cli", "input", "serve", store, name, "loads", "--json"]
    options = ["--site", site, "--listen", f"127.0.0.1:{port}", "--peers", peers, "--marks-every", "0.1"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def rows_in(store: str, region: str, sink: str) -> list[dict[str, Any]]:
    async def read() -> list[pa.Table]:
        async with open_store(store) as opened:
            return [step.table async for step in read_output(opened, region, sink) if step.table is not None]

    return [row for table in trio.run(read) for row in table.to_pylist()]


def dos(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(app, arguments)


# EVIDENCE-OF: P-1
def test_an_entry_point_killed_while_a_producer_sends_loses_and_doubles_nothing(
    three_servers: list[ServerProcess], shared_store: str, tmp_path: Path
) -> None:
    entry, name, count = made(three_servers), tmp_path.name, 120
    with ExitStack() as stack:
        ports = [stack.enter_context(hold_port(0)).getsockname()[1] for _ in range(3)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        sites = [
            stack.enter_context(
                serving(
                    entry, name, f"s{at}", port, ",".join(one for one in addresses if one != addresses[at])
                )
            )
            for at, port in enumerate(ports)
        ]
        first, watch = stack.enter_context(running(graph(entry), shared_store, tmp_path, workers=2))
        second, _ = stack.enter_context(running(graph(entry), entry, tmp_path / "other" / name, workers=1))
        said = [json.loads(site.stdout.readline()) for site in sites if site.stdout is not None]
        assert [one["address"] for one in said] == addresses
        points = EntryPoints(",".join(addresses))
        silent = stack.enter_context(blocking.open_producer(points, name, "loads", "silent", SCHEMA))
        with blocking.open_producer(points, name, "loads", "p1", SCHEMA) as producer:
            for number in range(count):
                producer.send([{"kind": str(number % 3), "number": number}])
                if number == 40:
                    producer.wait_recorded(20)
                    os.kill(sites[0].pid, signal.SIGKILL)
                if number == 80:
                    producer.wait_recorded(60)
                    watch.checkpoints(1)
                    os.kill(first.status.workers[0].pid, signal.SIGKILL)
            producer.wait_recorded()
        until(lambda: counted(shared_store, name) == count, "windows closed by marks alone", WAIT_S)
        silent.wait_recorded(silent.send([{"kind": "last", "number": count}]))
        seen = dos("entries", ",".join(addresses), name, "loads", "--json")
        assert seen.exit_code == 1, "one of them was killed"
        shown = dos("entries", ",".join(addresses[1:]), name, "loads")
        assert (shown.exit_code, shown.stdout.count("clock good: ")) == (0, 2), shown.output
        assert "silent" in shown.stdout
        status = {one["address"]: one for one in json.loads(seen.stdout)}
        assert "cannot be reached" in status[addresses[0]]["error"]
        assert [status[one]["clockGood"] for one in addresses[1:]] == [True, True]
        bounds = [error["boundUs"] for error in status[addresses[1]]["clockErrors"].values()]
        assert all(bound < 250_000 for bound in bounds)
        consumers = json.loads(dos("consumers", entry, name, "loads", "--json").stdout)["consumers"]
        assert len({one["region"] for one in consumers}) == 2, "two stores have a region of this name"
        with open_blocking(entry) as client:
            blocking.close_input(client, name, "loads")
        assert finished(first), first.status
        assert finished(second), second.status
        assert [site.wait(WAIT_S) for site in sites] == [-signal.SIGKILL, 1, 1], (
            "a closed input is not served"
        )
    same_everywhere(shared_store, entry, name, count)


def counted(store: str, region: str) -> int:
    return sum(row["n"] for row in rows_in(store, region, "counted"))


def same_everywhere(one: str, other: str, region: str, count: int) -> None:
    rows, others = rows_in(one, region, "shown"), rows_in(other, region, "shown")
    assert [row["number"] for row in rows if row["kind"] != "last"] == list(range(count))
    key = ("at", "kind", "number")
    assert Counter(tuple(row[at] for at in key) for row in rows) == Counter(
        tuple(row[at] for at in key) for row in others
    )
    windows, same = rows_in(one, region, "counted"), rows_in(other, region, "counted")
    assert sorted(map(str, windows)) == sorted(map(str, same)), "windows closed with the same rows"
    assert sum(row["n"] for row in windows) == count + 1, "no row was late"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--peers", "e2:1"), "need --site"),
        (("--site", "a", "--peers", "nowhere"), "--peers: an entry point takes HOST:PORT"),
        (("--site", "a", "--marks-every", "7"), "--marks-every must be from 0.01 to 1 s, got 7"),
        (("--site", "a", "--lateness", "-1"), "--lateness must be 0 or more seconds, got -1"),
    ],
)
def test_options_without_a_valid_value_are_refused(options: tuple[str, ...], said: str) -> None:
    refused = dos("serve", "dos://h", "shop", "loads", *options)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr
