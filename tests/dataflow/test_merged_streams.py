"""Replicas at several sites, on real servers: what they give is merged into each row once."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from dataflow import Graph, LogSink, MergedLogSource, collect_output
from dataflow.core.event_time import END
from dataflow.merging.merge import Merge, MergeOrder, ReplicaStream
from dataflow.schema import parse_schema
from dos_client import open_store
from tests.dataflow.merged_sites import REGION, SCHEMA, Row, Site, open_sites, rows_of
from tests.dataflow.test_region_processes import WAIT_S as REGION_S

pytestmark = pytest.mark.process
WAIT_S = 60.0
Key = tuple[int, str, int]


def keys_of(rows: Sequence[Row]) -> "Counter[Key]":
    return Counter((row.at_ms, row.key, row.n) for row in rows)


def merged(
    sites: Sequence[Site], enough: Callable[[Merge], bool], *, compare: int = 0
) -> tuple["Counter[Key]", Merge]:
    """Read until it is enough; return the rows."""
    found: Counter[Key] = Counter()

    async def read() -> Merge:
        merge = Merge(MergeOrder(tuple(site.place for site in sites), parse_schema(SCHEMA), ("at",), compare))
        async with trio.open_nursery() as nursery:
            for site in sites:
                connect = partial(open_store, site.server.url)
                nursery.start_soon(ReplicaStream(site.place, merge, connect).run)
            with trio.fail_after(WAIT_S):
                while not enough(merge):
                    rows, _ = await merge.next()
                    for row in [] if rows is None else rows.to_pylist():
                        found[round(1000 * row["at"].timestamp()), row["key"], row["n"]] += 1
            nursery.cancel_scope.cancel()
        return merge

    return found, trio.run(read)


def test_two_replicas_give_each_row_once(tmp_path: Path) -> None:
    rows = rows_of(600)
    with open_sites(tmp_path, "ab") as (one, two), one.replica(workers=2), two.replica():
        one.send(rows[:300], mark_ms=900)
        two.send(rows, mark_ms=2100, batch=77, close=True)
        one.send(rows[300:], mark_ms=2100, close=True)
        found, merge = merged([one, two], lambda merge: merge.mark == END, compare=1)
    assert found == keys_of(rows)
    assert {one.state for one in merge.observe()} <= {"reading"}


def test_a_site_without_a_store_delays_nothing(tmp_path: Path) -> None:
    rows = rows_of(100)
    with open_sites(tmp_path, "abc") as (one, two, gone), one.replica():
        gone.server.kill()
        one.send(rows, mark_ms=1000, close=True)
        found, merge = merged([one, two, gone], lambda merge: merge.mark == END)
    assert found == keys_of(rows)
    status = {one.site: one for one in merge.observe()}
    assert status["b"].state == "joining"
    assert "has written nothing there yet" in status["b"].reason
    assert status["c"].state == "connecting"
    assert (status["a"].first, status["a"].whole) == (100, True)


def board_graph(sites: Sequence[Site], **options: Any) -> Graph:
    """A region that merges what the replicas give."""
    graph = Graph("board")
    urls = {site.name: site.server.url for site in sites}
    source = MergedLogSource("out", SCHEMA, region=REGION, sites=urls, **options)
    rows = graph.source("merged", source).event_time("timed", "at", marks=True)
    rows.sink("shown", LogSink(publish="step", time="at"))
    return graph


def shown_at(site: Site) -> "Counter[Key]":
    table = collect_output(site.server.url, "board", "shown")
    found: Counter[Key] = Counter()
    for row in [] if table is None else table.to_pylist():
        found[round(1000 * row["at"].timestamp()), row["key"], row["n"]] += 1
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_a_region_reads_replicas_as_one_source(tmp_path: Path, workers: int) -> None:
    rows = rows_of(400)
    with (
        open_sites(tmp_path, "abc") as (one, two, third),
        one.replica(),
        two.replica(workers=2),
        third.replica(board_graph([one, two], compare="all"), workers=workers) as board,
    ):
        one.send(rows[:150], mark_ms=400)
        two.send(rows, mark_ms=1400, close=True)
        one.send(rows[150:], mark_ms=1400, close=True)
        assert board.wait(REGION_S)
        assert board.exception() is None
        assert shown_at(third) == keys_of(rows)
