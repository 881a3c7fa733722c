"""Derive the columns of every operator of a graph from those of its sources.

It maps descriptions to schemas; nothing runs. All operators that do not fit are reported together.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dataflow.core.plan import KIND_RULES, NodeSpec, in_order
from dataflow.errors import GraphError, SchemaError, nearest
from dataflow.operators.base import OperatorSpec
from dataflow.operators.side_output import SideOutputSpec


def find_schemas(
    graph: str, nodes: Sequence[NodeSpec], specs: Sequence[OperatorSpec]
) -> dict[str, pa.Schema | None]:
    """Return operator -> columns of its output, None for a sink. Raises GraphError with all problems."""
    schemas: dict[str, pa.Schema | None] = {}
    problems: list[str] = []
    for index in in_order(nodes):
        node, spec = nodes[index], specs[index]
        inputs = [schemas.get(nodes[source].name) for source in node.inputs]
        schemas[node.name] = None
        if None in inputs:
            continue  # the problem of its input is already reported
        try:
            if isinstance(spec, SideOutputSpec):
                inputs = [_side_output_schema(spec, nodes, specs, node.inputs[0], schemas)]
            schemas[node.name] = spec.output_schema([schema for schema in inputs if schema is not None])
        except SchemaError as error:
            problems.append(f"{node.kind.value} {node.name!r}: {error}")
    if problems:
        raise GraphError(graph, tuple(problems))
    assert all(schemas[node.name] is not None for node in nodes if KIND_RULES[node.kind].has_output)
    return schemas


def _side_output_schema(
    side_output: SideOutputSpec,
    nodes: Sequence[NodeSpec],
    specs: Sequence[OperatorSpec],
    source: int,
    schemas: Mapping[str, pa.Schema | None],
) -> pa.Schema:
    """Return the columns of a side output of the operator `source`."""
    node = nodes[source]
    found = [schemas[nodes[above].name] for above in node.inputs]
    ports = specs[source].side_output_schemas([schema for schema in found if schema is not None])
    if side_output.port not in ports:
        known = f"it has {', '.join(map(repr, ports))}" if ports else "it has none"
        raise SchemaError(
            f"{node.kind.value} {node.name!r} has no side output {side_output.port!r}"
            f"{nearest(side_output.port, ports)}; {known}"
        )
    return ports[side_output.port]
