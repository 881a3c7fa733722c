"""Applications outside of any region read the merged output of replicas, on real servers: each row once, also
after they stop anywhere; what does not fit is named.
"""

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import Result
from typer.testing import CliRunner

from checkpoint import limits as checkpoint_limits
from checkpoint.coordinator.control import RegionControl
from checkpoint.errors import ConsumerTakenError
from checkpoint.maintenance.retention import OutputRows, Retention
from dataflow import Graph, InputSource, LogSink, MergedBatch, MergedOutput, blocking, read_merged
from dataflow.core.event_time import END
from dataflow.errors import NoMarksError, ReplicasDifferError, TokenMismatchError
from dataflow.merging import merge as merge_module
from dataflow.merging.cli import app
from dataflow.merging.merge import StreamStatus
from dos_client import open_store, store
from dos_protocol.errors import CorruptDataError
from tests.dataflow.merged_sites import REGION, SCHEMA, Row, Site, open_sites, rows_of
from tests.dataflow.test_merged_streams import board_graph, keys_of
from tests.dataflow.test_region_processes import WAIT_S as REGION_S
from tests.support.polling import until

pytestmark = pytest.mark.process
WAIT_S = 60.0


def urls(sites: Sequence[Site]) -> dict[str, str]:
    return {site.name: site.server.url for site in sites}


def keys_in(batches: Sequence[MergedBatch]) -> "Counter[tuple[int, str, int]]":
    rows = [row for batch in batches if batch.table is not None for row in batch.table.to_pylist()]
    return Counter((round(1000 * row["at"].timestamp()), row["key"], row["n"]) for row in rows)


def graph_of(
    url: str, function: "Callable[[Any], Any] | None" = None, *, schema: str = SCHEMA, timed: bool = True,
    name: str = "same",
) -> Graph:  # fmt: skip
    """A replica that maps each row."""
    graph = Graph(REGION)
    source = graph.source("sent", InputSource("sent", SCHEMA, entry=url, time="at"))
    rows = source.event_time("timed", "at", marks=True)
    made = rows.map(name, function or (lambda row: row), schema=schema)
    made.sink("out", LogSink(publish="step", time="at") if timed else LogSink(publish="step"))
    return graph


def times(factor: int) -> "Callable[[Any], Any]":
    return lambda row: {"at": row["at"], "key": row["key"], "n": factor * row["n"]}


def read(sites: Sequence[Site], enough: Callable[[MergedOutput], bool], **options: Any) -> list[StreamStatus]:
    """Read until it is enough, and return the status of the streams."""
    places = {**urls(sites), **options.pop("more", {})}

    async def work() -> list[StreamStatus]:
        async with read_merged(places, REGION, "out", SCHEMA, **options) as output:
            with trio.fail_after(WAIT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_drain, output)
                    while not enough(output):  # noqa: ASYNC110 - the status has no event
                        await trio.sleep(0.01)
                    nursery.cancel_scope.cancel()
            return output.status()

    return trio.run(work)


async def _drain(output: MergedOutput) -> None:
    async for _ in output:
        pass


def state_of(output: MergedOutput, site: str) -> StreamStatus:
    return next(one for one in output.status() if one.site == site)


def test_a_reader_that_stops_anywhere_continues_after_its_token(tmp_path: Path) -> None:
    rows = rows_of(900)
    got: list[MergedBatch] = []
    with open_sites(tmp_path, "ab") as (one, two), one.replica(workers=2), two.replica():
        token: bytes | None = None
        one.send(rows[:300], mark_ms=900, batch=17)
        two.send(rows, mark_ms=3000, batch=23, close=True)
        one.send(rows[300:], mark_ms=3000, batch=31, close=True)

        async def life(token: bytes | None) -> bytes | None:
            async with read_merged(urls([one, two]), REGION, "out", SCHEMA, after=token) as output:
                got.append(await anext(output))
                await anext(output, None)  # it was not committed
            return got[-1].token

        while not got or got[-1].mark_us < END:
            token = trio.run(life, token)
        with blocking.read_merged(urls([one, two]), REGION, "out", SCHEMA, after=token) as output:
            assert list(output) == []
    assert keys_in(got) == keys_of(rows)
    assert len(got) > 1


def test_threads_read_too_and_what_was_not_acknowledged_stays(tmp_path: Path) -> None:
    rows = rows_of(60)
    with open_sites(tmp_path, "a") as (one,), one.replica():
        one.send(rows, mark_ms=3000, close=True)
        with blocking.read_merged(urls([one]), REGION, "out", SCHEMA, consumer="board") as output:
            batches = list(output)
            assert keys_in(batches) == keys_of(rows)
            assert output.missing() is None
            assert [status.site for status in output.status()] == ["a"]
            output.acknowledge(batches[0].token)
            with pytest.raises(CorruptDataError):
                output.acknowledge(b"")
            assert trio.run(_registered, one) == ["board"]
        with blocking.read_merged(urls([one]), REGION, "out", SCHEMA, after=91_000) as output:
            assert keys_in(list(output)) == keys_of([row for row in rows if row.at_ms > 91])


def test_of_two_readers_with_one_name_the_first_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_limits, "query_publish_s", 0.05)
    monkeypatch.setattr(merge_module, "replica_retry_s", 0.05)
    rows = rows_of(600)

    async def work(one: Site) -> list[str]:
        ended: list[str] = []

        async def reader(name: str, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
            try:
                async with read_merged(urls([one]), REGION, "out", SCHEMA, consumer="board") as output:
                    async for batch in output:
                        output.acknowledge(batch.token)
                        if name not in begun and await _published(one) > published[0]:
                            published[0] = await _published(one)
                            begun.append(name)
                            task_status.started()
            except ConsumerTakenError as error:
                ended.append(f"{name}: {error}")

        begun: list[str] = []
        published = [0]
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send_slowly, one, rows)
                await nursery.start(reader, "first")
                await nursery.start(reader, "second")
                while not ended:  # noqa: ASYNC110 - the end sets no event
                    await trio.sleep(0.01)
                before = await _published(one)
                while await _published(one) <= before:  # noqa: ASYNC110 - nor does the other process
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        return ended

    with open_sites(tmp_path, "a") as (one,), one.replica():
        (reason,) = trio.run(work, one)
    assert reason.startswith("first: 'board' was registered by another process while this query ran")


async def _send_slowly(site: Site, rows: list[Row]) -> None:
    for begin in range(0, len(rows), 3):
        part = rows[begin : begin + 3]
        await trio.to_thread.run_sync(partial(site.send, part, mark_ms=part[-1].at_ms))


async def _published(site: Site) -> int:
    """Return how far the registered reader has acknowledged."""
    async with open_store(site.server.url) as store:
        status = await Retention(store, OutputRows(store, REGION, "out")).status()
    return max((at for query in status.queries for at in query.read.values()), default=0)


async def _registered(site: Site) -> list[str]:
    async with open_store(site.server.url) as store:
        status = await Retention(store, OutputRows(store, REGION, "out")).status()
    return [query.name for query in status.queries]


def test_a_token_of_another_output_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with open_sites(tmp_path, "a") as (one,), one.replica():
        one.send(rows_of(9), mark_ms=3000, close=True)
        with blocking.read_merged(urls([one]), REGION, "out", SCHEMA) as output:
            token = next(output).token
        for other, after, error in (
            ("other", token, TokenMismatchError),
            ("out", token[:-1] + bytes([token[-1] ^ 1]), CorruptDataError),
        ):
            with pytest.raises(error), blocking.read_merged(urls([one]), REGION, other, SCHEMA, after=after):
                pass


def test_replicas_with_other_columns_are_named_and_the_others_are_read(tmp_path: Path) -> None:
    rows = rows_of(60)
    other = "at timestamp, key string, n double"
    with (
        open_sites(tmp_path, "ab") as (one, two),
        one.replica(graph_of(one.server.url, times(1), schema=other)),
        two.replica(),
    ):
        one.send(rows, mark_ms=3000, close=True)
        two.send(rows, mark_ms=3000, close=True)
        status = read([one, two], lambda output: state_of(output, "a").state == "detached")
        reason = status[0].reason
        assert "at a has columns" in reason
        assert "n double" in reason
        assert "n bigint" in reason
        assert status[1].state != "detached"
        with (
            pytest.raises(ReplicasDifferError, match="at a has columns"),
            blocking.read_merged(urls([one]), REGION, "out", SCHEMA) as output,
        ):
            next(output)


def test_a_sink_without_time_is_named(tmp_path: Path) -> None:
    with open_sites(tmp_path, "a") as (one,), one.replica(graph_of(one.server.url, timed=False)):
        one.send(rows_of(60), mark_ms=3000, close=True)
        with (
            pytest.raises(NoMarksError, match="at a does not say"),
            blocking.read_merged(urls([one]), REGION, "out", SCHEMA) as output,
        ):
            list(output)


def test_an_unknown_region_and_a_url_that_nobody_serves_have_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "open_timeout_s", 0.2)
    with open_sites(tmp_path, "ab") as (one, gone):
        gone.server.kill()
        status = read([one, gone], lambda output: all(one.reason for one in output.status()))
    assert (status[0].state, status[1].state) == ("joining", "connecting")
    assert f"region {REGION!r} has written nothing there yet" in status[0].reason
    assert gone.server.url.removeprefix("dos://") in status[1].reason


def test_replicas_that_give_other_rows_end_a_region_with_the_row(tmp_path: Path) -> None:
    rows = [Row(10 * number + 1, "a", 1) for number in range(300)]
    with (
        open_sites(tmp_path, "abc") as (one, two, third),
        one.replica(graph_of(one.server.url, times(2))),
        two.replica(graph_of(two.server.url, times(3))),
        third.replica(board_graph([one, two], compare="all")) as board,
    ):
        for site in (one, two):  # rows that are passed before a stream joins are not compared
            site.send([], mark_ms=0)
        until(lambda: marks_at(board) == {"a.mark_us": 0, "b.mark_us": 0}, "both are read", WAIT_S)
        for site in (one, two):
            site.send(rows, mark_ms=4000)
        assert board.wait(REGION_S)
        failure = str(board.exception())
        assert re.search("in the second 1970-01-01T00:00:0[0-2] of event time", failure)
        assert "'n': 2}" in failure or "'n': 3}" in failure
        more = [Row(at_ms, "a", 1) for at_ms in range(5001, 7000, 100)]
        for site in (one, two):
            site.send(more, mark_ms=8000)
        with third.replica(board_graph([one, two])) as again:  # compares one second in 16
            assert again.wait(REGION_S), "once a difference was found, all rows are compared"
            assert re.search("in the second 1970-01-01T00:00:0[56] of event time", str(again.exception()))


def marks_at(board: RegionControl) -> dict[str, int]:
    """How far each stream of the merged source is."""
    counted = [one.counters.operators.get("merged", {}) for one in board.status().workers]
    return {name: value for one in counted for name, value in one.items() if name.endswith(".mark_us")}


def test_the_minority_of_three_replicas_is_detached(tmp_path: Path) -> None:
    rows = [Row(10 * number + 1, "a", 1) for number in range(300)]
    with (
        open_sites(tmp_path, "abc") as (one, two, third),
        one.replica(graph_of(one.server.url)),
        two.replica(graph_of(two.server.url, times(3))),
        third.replica(graph_of(third.server.url)),
    ):
        for site in (one, two, third):  # rows that are passed before a stream joins are not compared
            site.send([], mark_ms=0)
        joined = threading.Event()

        def is_detached(output: MergedOutput) -> bool:
            """A stream that cannot be read for a moment is detached too, and joins again."""
            status = output.status()
            if all(one.mark == 0 for one in status):
                joined.set()
            states = [one.state for one in status]
            return states == ["reading", "detached", "reading"] and "of event time" in status[1].reason

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(read, [one, two, third], is_detached, compare="all", on_difference="detach")
            assert joined.wait(WAIT_S)
            for site in (one, two, third):
                site.send(rows, mark_ms=4000)
            found.result()


@pytest.mark.parametrize("policy", ["stop", "detach"])
def test_replicas_of_different_graphs_are_named_with_their_operators(tmp_path: Path, policy: str) -> None:
    with (
        open_sites(tmp_path, "ab") as (one, two),
        one.replica(graph_of(one.server.url)),
        two.replica(graph_of(two.server.url, name="other")),
    ):
        for site in (one, two):
            site.send(rows_of(60), mark_ms=3000)
        places = urls([one, two])
        with (
            pytest.raises(ReplicasDifferError, match="run different graphs") as found,
            blocking.read_merged(places, REGION, "out", SCHEMA, on_difference=policy) as output,
        ):
            list(output)
    assert "'other' is not in the graph at a" in str(found.value)


def dos(*arguments: str) -> Result:
    """In this process."""
    return CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, ["merged", *arguments])


def test_the_command_prints_each_row_once_and_continues_after_its_file(tmp_path: Path) -> None:
    rows, file = rows_of(120), tmp_path / "token"
    with open_sites(tmp_path, "ab") as (one, two), one.replica(), two.replica():
        one.send(rows[:60], mark_ms=100)
        options = ["--region", REGION, "--sink", "out", "--schema", SCHEMA]
        places = [f"{site}={url}" for site, url in urls([one, two]).items()]
        first = dos(*places, *options, "--after-file", str(file), "--limit", "30")
        assert first.exit_code == 0, first.output
        two.send(rows, mark_ms=3000, close=True)
        one.send(rows[60:], mark_ms=3000, close=True)
        second = dos(*places, *options, "--after-file", str(file), "--json")
        assert second.exit_code == 0, second.output
        third = dos(*places, *options, "--after-file", str(file))
        status = dos(*places, *options, "--status", "--json")
        five = dos(*places, *options, "--limit", "5")
        other = dos(*places, *options[:-1], "at timestamp, key string", "--after-file", str(file))
    lines = [line.split("\t") for line in first.stdout.splitlines()]
    lines += [[row["at"], row["key"], str(row["n"])] for row in map(json.loads, second.stdout.splitlines())]
    assert len(lines) == 120
    assert Counter((key, n) for _, key, n in lines) == Counter((row.key, str(row.n)) for row in rows)
    assert third.stdout == ""
    streams = json.loads(status.stdout)["streams"]
    assert [(stream["site"], stream["whole"], stream["markUs"]) for stream in streams] == [
        ("a", True, END),
        ("b", True, END),
    ]
    assert sum(stream["first"] for stream in streams) == 120
    assert len(five.stdout.splitlines()) == 5
    assert (other.exit_code, "of another region, sink, schema" in other.stderr) == (2, True)


def test_the_command_refuses_a_site_without_a_url() -> None:
    refused = dos("osu", "--region", REGION, "--sink", "out", "--schema", SCHEMA)
    assert refused.exit_code == 2
    assert "SITE=URL" in refused.stderr
    assert dos("a=dos://h", "a=dos://h", "--region", "r", "--sink", "s", "--schema", SCHEMA).exit_code == 2


def test_commands_of_outputs_are_completed() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "dos_cli"],
        capture_output=True,
        text=True,
        env={"_DOS_COMPLETE": "complete_bash", "COMP_WORDS": "dos output m", "COMP_CWORD": "2"},
    )
    assert shown.stdout.split() == ["merged"]
