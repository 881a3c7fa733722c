"""Streams of updates: operators that would be wrong on them refuse before anything runs."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from dataflow import (
    CallSink,
    Count,
    CountWindow,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    LogSource,
    Max,
    Stream,
    Sum,
    Tumbling,
    consistent,
)
from dataflow.core.plan import ON_UPDATES, OnUpdates, OperatorKind

SIZE = timedelta(seconds=10)
SCHEMA = "at timestamp, key string, x bigint"


def rows(graph: Graph) -> Stream:
    source = graph.source("rows", InputSource("rows", SCHEMA))
    return source.event_time("timed", "at", lateness=timedelta(0))


def running(graph: Graph) -> Stream:
    return rows(graph).key_by("by_key", "key").aggregate("running", at=Max("at"), x=Max("x"))


REFUSING: dict[OperatorKind, Callable[[Stream], Stream]] = {
    OperatorKind.COUNT: lambda stream: stream.key_by("k", "key").count("refuses"),
    OperatorKind.AGGREGATE: lambda stream: stream.key_by("k", "key").aggregate("refuses", sum=Sum("x")),
    OperatorKind.WINDOW: lambda stream: stream.key_by("k", "key").aggregate(
        "refuses", Tumbling("at", SIZE), n=Count()
    ),
    OperatorKind.COUNT_WINDOW: lambda stream: stream.key_by("k", "key").aggregate(
        "refuses", CountWindow("at", 2), n=Count()
    ),
    OperatorKind.SORT: lambda stream: stream.sort("refuses", "at"),
    OperatorKind.JOIN: lambda stream: stream.key_by("k", "key").join(
        "refuses", stream.key_by("l", "key"), times=("at", "at"), within=SIZE
    ),
    OperatorKind.TOP_K: lambda stream: stream.key_by("k", "key").top_k(
        "refuses", Tumbling("at", SIZE), 1, by="x"
    ),
    OperatorKind.MAP_STATE: lambda stream: stream.key_by("k", "key").map_state(
        "refuses", lambda row, state: None, time="at", state="n bigint", schema="n bigint"
    ),
    OperatorKind.DEDUP: lambda stream: stream.key_by("k", "key").dedup("refuses"),
    OperatorKind.WINDOW_DEDUP: lambda stream: stream.key_by("k", "key").dedup(
        "refuses", Tumbling("at", SIZE)
    ),
}


def test_every_kind_that_refuses_is_tried() -> None:
    assert {kind for kind, rule in ON_UPDATES.items() if rule is OnUpdates.REFUSES} == set(REFUSING)


@pytest.mark.parametrize("kind", REFUSING)
@pytest.mark.parametrize("between", [False, True], ids=["at once", "behind functions"])
def test_an_operator_that_would_be_wrong_on_updates_names_itself_and_who_makes_them(
    kind: OperatorKind, between: bool
) -> None:
    graph = Graph("g")
    stream = running(graph)
    if between:
        stream = stream.filter("some", lambda row: True).map("same", lambda row: row)
        stream = stream.union("both", stream)
    REFUSING[kind](stream).sink("out", CallSink(print))
    with pytest.raises(
        GraphError, match=f"{kind.value} 'refuses' takes .* aggregate 'running' above it emits updates"
    ) as raised:
        graph.plan()
    assert "give 'running' a window" in str(raised.value), "the remedy"


@pytest.mark.parametrize("kind", REFUSING)
def test_the_same_operators_take_rows(kind: OperatorKind) -> None:
    graph = Graph("g")
    REFUSING[kind](rows(graph)).sink("out", CallSink(print))
    updates = graph.plan().updates
    assert updates == ({"refuses"} if kind in (OperatorKind.COUNT, OperatorKind.AGGREGATE) else set())


def test_sinks_and_control_tables_take_updates() -> None:
    graph = Graph("g")
    stream = running(graph)
    stream.sink("out", CallSink(print))
    newest = graph.broadcast_table("newest", stream, "key")
    seen = graph.stream("timed").map("seen", lambda row, table: row, broadcast=newest)
    seen.key_by("k", "key").count("counts").sink("seen_out", CallSink(print))
    plan = graph.plan()
    assert {"running", "counts", "newest.rows"} == plan.updates


def test_a_log_of_updates_that_another_region_reads_carries_updates() -> None:
    graph = Graph("g")
    stream = running(graph)
    graph.annotate("rows", consistent())
    stream.sink("log", LogSink())
    read = graph.source("read", LogSource("log", "key string, at timestamp, x bigint"))
    graph.annotate("read", consistent())
    read.key_by("k", "key").aggregate("again", sum=Sum("x")).sink("out", CallSink(print))
    with pytest.raises(GraphError, match=r"aggregate 'again' takes .* aggregate 'running' above"):
        graph.plan()
