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

from checkpoint import OriginMark
from checkpoint.chains.input_log import InputLog, close_input
from checkpoint.coordinator.control import RegionControl
from checkpoint.core.region import RegionSpec
from dataflow import Graph, InputSource, LogSink
from dataflow.merging.merge import ReplicaPlace
from dataflow.producing import parts_of
from dataflow.schema import parse_schema
from dos_client import init_store, open_store
from tests.dataflow.test_region_snapshots import running_in_threads
from tests.support.servers import ServerProcess

SCHEMA = "at timestamp, key string, n bigint"
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


def replica_graph(url: str, *, publish: str = "step", retain: str = "all") -> Graph:
    """The rows that were sent to a site, whose store has the log of the entry point too."""
    graph = Graph(REGION)
    source = graph.source("sent", InputSource("sent", SCHEMA, entry=url, time="at"))
    rows = source.event_time("timed", "at", marks=True).key_by("by_key", "key")
    same = rows.map("same", lambda row: row, schema=SCHEMA)
    same.sink("out", LogSink(publish=publish, time="at", retain=retain))
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
        graph = replica_graph(self.server.url) if graph is None else graph
        spec = RegionSpec(
            name=graph.name,
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
        """Record rows, and then the mark of an entry point, with which all later rows are above `mark_ms`."""
        schema = parse_schema(SCHEMA)

        async def record() -> None:
            async with open_store(self.server.url) as store:
                async with await InputLog.open(store, "shop", "sent", "p") as log:
                    for begin in range(0, len(rows), batch):
                        part = [
                            {**row._asdict(), "at": moment(row.at_ms)} for row in rows[begin : begin + batch]
                        ]
                        columns = [{name: row[name] for name in schema.names} for row in part]
                        await log.append(parts_of(columns, schema), number=log.last + 1)
                    await log.append_mark(OriginMark(1000 * mark_ms, 1, 1, 0))
                    await log.all_synced()
                if close:
                    await close_input(store, "shop", "sent")

        trio.run(record)


@contextmanager
def open_sites(folder: Path, names: str) -> Iterator[list[Site]]:
    """Open a site for each letter."""
    with ExitStack() as stack:
        yield [Site(name, stack.enter_context(ServerProcess(folder / name))) for name in names]
