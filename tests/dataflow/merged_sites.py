"""Sites for tests of merged streams: each is a server, a store of its own, with replicas of one region in
threads. The same rows are sent to each site, in batches of its own.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import NamedTuple

import trio

from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import RegionSpec
from dataflow import Graph, InputSource, LogSink, blocking
from dataflow.merging.replica_stream import ReplicaPlace
from dos_client import init_store
from dos_client.blocking import open_store
from tests.dataflow.test_region_snapshots import running_in_threads
from tests.support.servers import ServerProcess

SCHEMA = "at timestamp, all_before timestamp, key string, n bigint"
RESULT = "at timestamp, key string, n bigint"
REGION = "numbers"


class Row(NamedTuple):
    """A row: its time in milliseconds, its key and its number."""

    at_ms: int
    key: str
    n: int


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def rows_of(count: int, seed: int = 0, *, step_ms: int = 10) -> list[Row]:
    """Rows in the order of their times, of which some are equal."""
    random = Random(seed)
    return [
        Row(step_ms * (index // 3) + 1, "abc"[random.randrange(3)], random.randrange(2))
        for index in range(count)
    ]


def replica_graph(*, publish: str = "step", retain: str = "all") -> Graph:
    graph = Graph(REGION)
    sent = graph.source("sent", InputSource("sent", SCHEMA)).event_time(
        "timed", "at", punctuation="all_before"
    )
    rows = sent.filter("rows", lambda row: row["key"] != "mark")
    shown = rows.map("shown", lambda row: {"at": row["at"], "key": row["key"], "n": row["n"]}, schema=RESULT)
    shown.key_by("by_key", "key").map("same", lambda row: row, schema=RESULT).sink(
        "out", LogSink(publish=publish, time="at", retain=retain)
    )
    return graph


class Site:
    """A site with its server, and its replica if one is started."""

    def __init__(self, name: str, server: ServerProcess) -> None:
        self.name, self.server, self.sent_ms = name, server, 0
        trio.run(lambda: init_store(server.url))

    @property
    def place(self) -> ReplicaPlace:
        return ReplicaPlace(self.name, self.server.url, REGION, "out")

    @contextmanager
    def replica(self, graph: Graph | None = None, *, workers: int = 1) -> Iterator[RegionControl]:
        """Run the replica."""
        graph = replica_graph() if graph is None else graph
        spec = RegionSpec(
            name=REGION,
            workers=workers,
            store_url=self.server.url,
            job_key=b"k" * 32,
            operators=graph.plan().operators,
            checkpoint_interval_s=0.2,
            retain=2,
        )
        with running_in_threads(graph, spec) as control:
            yield control

    def send(self, rows: Sequence[Row], *, mark_ms: int, batch: int = 50, close: bool = False) -> None:
        """Record rows, and then that all later ones are after `mark_ms`."""
        with (
            open_store(self.server.url) as store,
            blocking.open_producer(store, "shop", "sent", "p", SCHEMA) as producer,
        ):
            for begin in range(0, len(rows), batch):
                part = rows[begin : begin + batch]
                producer.send(
                    [
                        {"at": moment(row.at_ms), "all_before": None, "key": row.key, "n": row.n}
                        for row in part
                    ]
                )
            mark = {"at": moment(mark_ms), "all_before": moment(mark_ms), "key": "mark", "n": 0}
            producer.wait_recorded(producer.send([mark]))
            if close:
                blocking.close_input(store, "shop", "sent")


@contextmanager
def open_sites(folder: Path, names: str) -> Iterator[list[Site]]:
    """Open a site for each letter."""
    with ExitStack() as stack:
        yield [Site(name, stack.enter_context(ServerProcess(folder / name))) for name in names]
