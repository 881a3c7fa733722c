"""The query of several sites, figure 1 of Hwang et al.: readings of load and of latency, joined by server and
round. The readings of load come from two handles, which a `union` merges.

Each region runs at several sites, and reads all replicas of the regions before it. Rows enter through entry
points. `whole_query` is the same query as one region, which is what all replicas together must give.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from dataflow import Graph, InputSource, LogSink, MergedLogSource, Stream

READINGS, JOINED = "readings", "joined"
"""The regions. The handles belong to the first one, so entry points serve its name as the application."""
BOARD, WHOLE = "board", "whole"
LOADS, LATENCIES = "loads", "latencies"
"""The inputs of the join."""
HANDLES = {LOADS: ("inner", "outer"), LATENCIES: ("latencies",)}
"""Input of the join -> the input handles that are united for it."""
READING: Final = "server string, round bigint, sent_us bigint, value double"
"""What a producer sends; entry points add the time."""
ROWS: Final = f"at timestamp, {READING}"
PAIRS: Final = f"{ROWS}, at_right timestamp, sent_us_right bigint, value_right double"  # the join's columns
TIMES: Final = ("at", "at_right")
WITHIN = timedelta(minutes=1)
Stores = Mapping[str, str]
"""Site -> URL of its store."""


def readings(entry: str, _: Stores) -> Graph:
    """Both unions: the rows of all producers of one or two handles."""
    graph = Graph(READINGS)
    for name in HANDLES:
        _entered(graph, name, entry).sink(f"{name}_out", LogSink(publish="step", time="at"))
    return graph


def _entered(graph: Graph, name: str, entry: str) -> Stream:
    first, *others = (
        graph.source(handle, InputSource(handle, ROWS, entry=entry)).event_time(
            f"{handle}_timed", "at", marks=True
        )
        for handle in HANDLES[name]
    )
    return first.union(f"{name}_united", *others) if others else first


def joined(_: str, sites: Stores) -> Graph:
    """Pairs of readings, from the replicas of both unions."""
    graph = Graph(JOINED)
    both = []
    for name in HANDLES:
        source = graph.source(name, MergedLogSource(f"{name}_out", ROWS, region=READINGS, sites=sites))
        both.append(source.event_time(f"{name}_timed", "at", marks=True))
    _join(*both).sink("out", LogSink(publish="step", time=TIMES))
    return graph


def _join(loads: Stream, latencies: Stream) -> Stream:
    by = ("server", "round")
    left, right = loads.key_by("loads_by", *by), latencies.key_by("latencies_by", *by)
    return left.join("pairs", right, times=("at", "at"), within=WITHIN)


def board(_: str, sites: Stores) -> Graph:
    """The exit: each pair once."""
    graph = Graph(BOARD)
    source = MergedLogSource("out", PAIRS, region=JOINED, sites=sites, time=TIMES, compare="all")
    graph.source("merged", source).sink("out", LogSink(publish="step"))
    return graph


def whole_query(entry: str, _: Stores) -> Graph:
    """The query without replicas."""
    graph = Graph(WHOLE)
    _join(*(_entered(graph, name, entry) for name in HANDLES)).sink("out", LogSink(publish="step"))
    return graph


GRAPHS: Final[dict[str, Callable[[str, Stores], Graph]]] = {
    READINGS: readings,
    JOINED: joined,
    BOARD: board,
    WHOLE: whole_query,
}
"""Name -> the function that returns the graph, from the entry store and the stores of the sites that it
reads.
"""
