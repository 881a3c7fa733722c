"""Where a DataFrame enters a graph, and where one comes out: for `through`.

Rules of this file: which operator is meant, and whether its columns fit. Nothing is started.
"""

from typing import NamedTuple

import pyarrow as pa

from dataflow.errors import nearest
from dataflow.graph.builder import Graph
from dataflow.sinks.log import LogSink
from dataflow.sources.inputs import InputSource
from spark_integration.core.column_difference import column_difference
from spark_integration.errors import NoSuchEndError, SchemaMismatchError


class GraphEnds(NamedTuple):
    """handle: of the source that the rows go to; sink: whose output comes out, with these columns."""

    handle: str
    sink: str
    columns: pa.Schema


def ends_of(graph: Graph, given: pa.Schema, *, into: str | None, output: str | None) -> GraphEnds:
    """The ends of a graph that rows with the columns `given` go through. into, output: the operators' names;
    None where there is but one.

    Raises GraphError, NoSuchEndError, SchemaMismatchError.
    """
    plan = graph.plan()
    sources = {name: spec for name, spec in plan.specs.items() if isinstance(spec, InputSource)}
    sinks = {name for name, spec in plan.specs.items() if isinstance(spec, LogSink)}
    entry = sources[_chosen(graph.name, into, list(sources), "InputSource", "into")]
    if not given.equals(entry.schema):
        where = f"the InputSource {entry.name!r} of graph {graph.name!r}"
        raise SchemaMismatchError(
            column_difference(given, entry.schema, where),
            remedy=f"give it the columns of the DataFrame: InputSource({entry.name!r}, df.schema)",
        )
    sink = _chosen(graph.name, output, sorted(sinks), "LogSink", "output")
    nodes, specs = graph.nodes()
    (above,) = next(spec.inputs for spec in specs if spec.name == sink)
    columns = plan.schemas[nodes[above].name]
    assert columns is not None, "what has consumers has columns"
    return GraphEnds(entry.name, sink, columns)


def _chosen(graph: str, name: str | None, there: list[str], kind: str, argument: str) -> str:
    known = ", ".join(map(repr, there)) or "none"
    if name is None and len(there) == 1:
        return there[0]
    if name is None:
        raise NoSuchEndError(
            f"graph {graph!r} has {len(there)} operators that are a {kind} ({known}), and one is needed:"
            + (f" say which with {argument}=" if there else f" add one, {kind}(...)")
        )
    if name not in there:
        raise NoSuchEndError(
            f"graph {graph!r} has no {kind} named {name!r}{nearest(name, there)}; it has {known}"
        )
    return name
