"""The query of several sites: readings of load and of latency, joined by server and round.

Each region runs at several sites, and reads all replicas of the regions before it. Rows enter through entry
points. `whole_query` is the same query as one region, which is what all replicas together must give.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from dataflow import Graph, InputSource, LogSink, MergedLogSource, Stream

LOADS, LATENCIES, JOINED = "loads", "latencies", "joined"
READING: Final = "server string, round bigint, sent_us bigint, value double"
"""What a producer sends; entry points add the time."""
ROWS: Final = f"at timestamp, {READING}"
PAIRS: Final = (
    f"{ROWS}, at_right timestamp, sent_us_right bigint, value_right double"  # the join's columns
)
TIMES: Final = ("at", "at_right")
WITHIN = timedelta(minutes=1)
Stores = Mapping[str, str]
"""Site -> URL of its store."""


def readings(handle: str, entry: str, _: Stores) -> Graph:
    """The rows of all producers of a handle."""
    graph = Graph(handle)
    rows = _union(_entered(graph, handle, entry))
    rows.sink("out", LogSink(publish="step", time="at"))
    return graph


def _entered(graph: Graph, handle: str, entry: str) -> Stream:
    source = graph.source(handle, InputSource(handle, ROWS, entry=entry))
    return source.event_time(f"{handle}_timed", "at", marks=True)


def _union(rows: Stream) -> Stream:
    return rows


def joined(_: str, __: str, sites: Stores) -> Graph:
    """Pairs of readings, from the replicas of both regions."""
    graph = Graph(JOINED)
    both = []
    for region in (LOADS, LATENCIES):
        source = graph.source(region, MergedLogSource("out", ROWS, region=region, sites=sites))
        both.append(source.event_time(f"{region}_timed", "at", marks=True))
    _join(*both).sink("out", LogSink(publish="step", time=TIMES))
    return graph


def _join(loads: Stream, latencies: Stream) -> Stream:
    by = ("server", "round")
    left, right = loads.key_by("loads_by", *by), latencies.key_by("latencies_by", *by)
    return left.join("pairs", right, times=("at", "at"), within=WITHIN)


def board(_: str, __: str, sites: Stores) -> Graph:
    """The exit: each pair once."""
    graph = Graph("board")
    source = MergedLogSource("out", PAIRS, region=JOINED, sites=sites, time=TIMES, compare="all")
    graph.source("merged", source).sink("out", LogSink(publish="step"))
    return graph


def whole_query(_: str, entry: str, __: Stores) -> Graph:
    """The query without replicas."""
    graph = Graph("whole")
    loads, latencies = (_union(_entered(graph, handle, entry)) for handle in (LOADS, LATENCIES))
    _join(loads, latencies).sink("out", LogSink(publish="step"))
    return graph


GRAPHS: Final[dict[str, Callable[[str, str, Stores], Graph]]] = {
    LOADS: readings,
    LATENCIES: readings,
    JOINED: joined,
    "board": board,
    "alone": board,
    "whole": whole_query,
}
"""Region -> the function that returns its graph, from its name, the entry store and the stores of the sites
that it reads.
"""
