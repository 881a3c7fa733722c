"""Graphs of replicas, as a description names them."""

import dos
from sites.core.site_work import ReplicaContext

SCHEMA = "word string"


def words(context: ReplicaContext) -> dos.Graph:
    """Counts words of the input handle that is named as its source is. The context is as the test expects."""
    (stream,) = context.ports["loads"]
    assert (str(stream.sender), stream.region) == ("loads@purdue", None)
    graph = dos.Graph(context.name)
    read = graph.source("read", dos.InputSource("loads", SCHEMA))
    read.key_by("by_word", "word").count("counted").sink("shown", dos.LogSink(publish="step"))
    return graph


def broken(context: ReplicaContext) -> dos.Graph:
    raise ValueError(f"no graph for {context.replica}")


def no_graph(context: ReplicaContext) -> str:
    return str(context)


def two_regions(context: ReplicaContext) -> dos.Graph:
    graph = dos.Graph(context.name)
    for name in ("one", "other"):
        read = graph.source(name, dos.InputSource(name, SCHEMA)).annotate(dos.consistent())
        read.sink(f"{name}_shown", dos.LogSink())
    return graph


TIMED = "at timestamp, word string"


def passed(context: ReplicaContext) -> dos.Graph:
    """The rows of an input that entry points record, by word."""
    graph = dos.Graph(context.name)
    source = dos.InputSource("loads", TIMED, entry=context.entry_store, application=context.application)
    rows = graph.source("read", source).event_time("timed", "at", marks=True).key_by("by_word", "word")
    rows.map("same", lambda row: row, schema=TIMED).sink(
        "shown", dos.LogSink(publish="step", time="at", retain="unread")
    )
    return graph


def board(context: ReplicaContext) -> dos.Graph:
    """The exit: what the replicas of `joined` give, merged."""
    graph = dos.Graph(context.name)
    source = dos.MergedLogSource("shown", TIMED, **context.merged("joined"), compare="all")
    rows = graph.source("merged", source).event_time("timed", "at", marks=True)
    rows.sink("shown", dos.LogSink(publish="step", time="at"))
    return graph


changed = False
"""Whether this process has another version of the program of `versioned`."""


def versioned(context: ReplicaContext) -> dos.Graph:
    """As `passed`, by a program of which another site may have another version."""
    suffix = "!" if changed else ""
    graph = dos.Graph(context.name)
    source = dos.InputSource("loads", TIMED, entry=context.entry_store, application=context.application)
    rows = graph.source("source", source).event_time("timed", "at", marks=True)
    rows.map("same", lambda row: {**row, "word": row["word"] + suffix}, schema=TIMED).sink(
        "shown", dos.LogSink(publish="step", time="at", retain="unread")
    )
    return graph
