"""Determines where a DataFrame enters a graph and where one leaves it, for `through`; nothing is started."""

from typing import NamedTuple

import pyarrow as pa

from dataflow.errors import nearest
from dataflow.graph.builder import Graph
from dataflow.sinks.log import LogSink
from dataflow.sources.stored import InputSource
from spark_integration.core.column_difference import column_difference
from spark_integration.errors import NoSuchEndError, SchemaMismatchError


class GraphEnds(NamedTuple):
    """`handle`: of the source that receives the rows; `sink` and `columns`: of the output."""

    handle: str
    sink: str
    columns: pa.Schema


def ends_of(graph: Graph, given: pa.Schema, *, into: str | None, output: str | None) -> GraphEnds:
    """Return the ends of a graph for rows with the columns `given`.

    `into`, `output`: the names of the operators; None if there is only one.
    Raises GraphError, NoSuchEndError, SchemaMismatchError.
    """
    plan = graph.plan()
    sources = {name: spec for name, spec in plan.specs.items() if isinstance(spec, InputSource)}
    sinks = {name for name, spec in plan.specs.items() if isinstance(spec, LogSink)}
    entry = sources[_chosen(graph.name, into, list(sources), "InputSource", "into")]
    if not given.equals(entry.schema):
        source_text = f"the InputSource {entry.name!r} of graph {graph.name!r}"
        raise SchemaMismatchError(
            column_difference(given, entry.schema, source_text),
            remedy=f"declare it with the columns of the DataFrame: InputSource({entry.name!r}, df.schema)",
        )
    sink = _chosen(graph.name, output, sorted(sinks), "LogSink", "output")
    nodes, specs = graph.nodes()
    (above,) = next(spec.inputs for spec in specs if spec.name == sink)
    columns = plan.schemas[nodes[above].name]
    assert columns is not None, "an operator with consumers has columns"
    return GraphEnds(entry.name, sink, columns)


def _chosen(graph: str, name: str | None, names: list[str], kind: str, argument: str) -> str:
    known = ", ".join(map(repr, names)) or "none"
    if name is None and len(names) == 1:
        return names[0]
    if name is None:
        raise NoSuchEndError(
            f"graph {graph!r} has {len(names)} operators of kind {kind} ({known}), but exactly one is needed:"
            + (f" select one with {argument}=" if names else f" add one, {kind}(...)")
        )
    if name not in names:
        raise NoSuchEndError(
            f"graph {graph!r} has no {kind} named {name!r}{nearest(name, names)}; it has {known}"
        )
    return name
