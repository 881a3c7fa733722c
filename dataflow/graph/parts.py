"""The parts of an application: divide a graph that is not one region into graphs that run separately.

Graphs in, graphs out; nothing is started. `core/regions.py` decides which operators belong together.

A part is a consistent region, or connected operators outside of any. Its name is APPLICATION.OPERATOR, after
its first operator. It has its own coordinator, manifest and workers, so a failure of one part does not reset
another. No edge connects two parts: output of a region for operators outside goes through an output log in
the store. The region gets a sink for it, and the other part a source with the operator's name. The log shows
only what committed checkpoints cover, so a reset of the region repeats nothing. So it is for the input of a
region that begins with `own_region=True`. Users connect regions of two graphs in the same way, with `LogSink`
and `LogSource`.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from checkpoint import OutputIdentity
from dataflow.core.plan import KIND_RULES, NodeSpec, OperatorKind
from dataflow.core.regions import Annotation, Consistent, Region, region_options
from dataflow.errors import GraphError
from dataflow.graph.plan import GraphPlan
from dataflow.graph.stream import Node
from dataflow.sinks.base import OutputOwner, SinkSpec
from dataflow.sinks.log import LogSink
from dataflow.sources.base import SourceSpec
from dataflow.sources.log import LogSource
from dos_protocol.errors import DosError

logger = logging.getLogger("dos.dataflow")

BRIDGE_SUFFIX = ".leaves"
"""The sink through which OPERATOR's output leaves its region is named OPERATOR.leaves."""


class DividedGraph(Protocol):
    """What is used of a graph here (`graph/builder.py`, which explains a graph by its parts)."""

    name: str

    @classmethod
    def of(cls, name: str, nodes: Iterable[Node], annotations: Mapping[str, Annotation]) -> Self: ...

    def nodes(self) -> tuple[list[Node], list[NodeSpec]]: ...

    def plan(self) -> GraphPlan: ...


G = TypeVar("G", bound=DividedGraph)


@dataclass(frozen=True, slots=True)
class GraphPart(Generic[G]):
    """A part that runs separately. `settings`: of a consistent region; None for operators outside of any."""

    name: str
    graph: G
    settings: Consistent | None
    reads: tuple[str, ...] = ()
    """The parts whose output it reads."""


def part_options(part: GraphPart[Any]) -> dict[str, Any]:
    """Return the options of a part as fields of `checkpoint.core.region.RegionSpec`."""
    return (
        {"without_checkpoints": True}
        if part.settings is None
        else region_options(part.graph.plan().the_region())
    )


def check_places(part: GraphPart[Any], store_id: bytes, identity: OutputIdentity | None = None) -> None:
    """Raise an error, before any worker starts, if a source cannot be read, or if the target of a sink holds
    output of another run (SinkOwnedError) or cannot be written. identity: the owner that the region's last
    checkpoint states; None: the region itself.

    Places that the driver cannot read are left to the workers, which check them too.
    """
    owner = identity or OutputIdentity(region=part.name, store=store_id.hex())
    for node in part.graph.nodes()[0]:
        try:
            if isinstance(node.spec, SinkSpec):
                node.spec.check_place(OutputOwner(owner.region, owner.store, node.name))
            elif isinstance(node.spec, SourceSpec):
                node.spec.check_access()
        except DosError:
            raise
        except Exception as error:
            logger.info("%r: the driver cannot read its place: %s", node.name, error)


def parts_of(graph: G, application: str) -> list[GraphPart[G]]:
    """Return the parts of `application`, regions first. A graph that is one region is one part of that name.

    Each part can run. Raises GraphError, as `Graph.plan` does for the graph and for each part, and for graphs
    that cannot be divided; BadNameError.
    """
    plan = graph.plan()
    regions, outside = plan.choice.regions, plan.choice.outside
    nodes, specs = graph.nodes()
    if len(regions) == 1 and not outside:
        only_part = GraphPart(application, graph, plan.the_region())
        _check_logs(graph.name, nodes, {node.name: only_part.name for node in nodes})
        return [only_part]
    groups: list[tuple[tuple[str, ...], Region | None]] = [(region.members, region) for region in regions]
    groups += [(members, None) for members in _connected(specs, outside)]
    owner = {member: f"{application}.{members[0]}" for members, _ in groups for member in members}
    _check_logs(graph.name, nodes, owner)
    _check_outside(graph.name, nodes, outside)
    problems = tuple(dict.fromkeys(_edge_problems(specs, owner)))
    if problems:
        raise GraphError(graph.name, problems)
    make = type(graph).of
    parts = [_part(make, nodes, specs, members, region, owner, plan.schemas) for members, region in groups]
    _check_circles(graph.name, {part.name: set(part.reads) for part in parts})
    for part in parts:
        part.graph.plan()  # the part has other sources than the whole graph
        part_options(part)
    return parts


def logs_between(parts: Sequence[GraphPart[Any]]) -> list[tuple[str, str, str]]:
    """Return the output logs between parts: (operator or sink, the part that writes, the part that reads)."""
    names = {part.name for part in parts}
    return [
        (node.spec.sink.removesuffix(BRIDGE_SUFFIX), str(node.spec.region), part.name)
        for part in parts
        for node in part.graph.nodes()[0]
        if isinstance(node.spec, LogSource) and node.spec.region in names
    ]


def _part(
    make: "Callable[[str, Iterable[Node], Mapping[str, Annotation]], G]",
    nodes: Sequence[Node],
    specs: Sequence[NodeSpec],
    members: Sequence[str],
    region: Region | None,
    owner: Mapping[str, str],
    schemas: "Mapping[str, pa.Schema | None]",
) -> GraphPart[G]:
    name = owner[members[0]]
    copies: dict[str, Node] = {}
    entries: list[str] = []
    reads: set[str] = set()
    for index, spec in enumerate(specs):
        node = nodes[index]
        if node.name not in members:
            continue
        inputs: list[Node | str] = []
        for source in spec.inputs:
            above = nodes[source].name
            if above not in members and above not in copies:
                schema = schemas[above]
                assert schema is not None, "what has consumers has columns"
                reads.add(owner[above])
                entries.append(above)
                bridge = LogSource(above + BRIDGE_SUFFIX, schema, region=owner[above])
                copies[above] = Node(above, bridge, ())
            inputs.append(above)
        operator = node.spec
        if isinstance(operator, LogSource) and operator.region is None:
            operator = operator.of_region(owner[operator.sink])
        if isinstance(operator, LogSource) and operator.region in owner.values():
            reads.add(str(operator.region))
        copies[node.name] = Node(node.name, operator, tuple(inputs))
    for leaving in _leaving(nodes, specs, members):
        copies[leaving + BRIDGE_SUFFIX] = Node(
            leaving + BRIDGE_SUFFIX, LogSink(publish="checkpoint"), (leaving,)
        )
    settings = None if region is None else region.settings
    annotations: dict[str, Annotation] = {}
    if region is not None:  # it begins at the logs that it reads, and they are in this graph
        annotations |= dict.fromkeys([*region.starts, *entries], replace(region.settings, own_region=False))
    return GraphPart(name, make(name, copies.values(), annotations), settings, tuple(sorted(reads)))


def _leaving(nodes: Sequence[Node], specs: Sequence[NodeSpec], members: Sequence[str]) -> list[str]:
    """Return the members whose output goes to operators outside."""
    names = {
        nodes[source].name
        for index, spec in enumerate(specs)
        if nodes[index].name not in members
        for source in spec.inputs
        if nodes[source].name in members
    }
    return sorted(names)


def _connected(specs: Sequence[NodeSpec], outside: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the connected groups of operators outside of any region, each in the order of `outside`."""
    group = {name: name for name in outside}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for spec in specs:
        for source in (*spec.inputs, *spec.broadcast_tables):
            if spec.name in group and specs[source].name in group:
                group[root(spec.name)] = root(specs[source].name)
    roots = dict.fromkeys(root(name) for name in outside)
    return [tuple(name for name in outside if root(name) == one) for one in roots]


def _check_logs(graph: str, nodes: Sequence[Node], owner: Mapping[str, str]) -> None:
    """Check that every log that is read exists and belongs to another region."""
    sinks = {node.name: node.spec for node in nodes if isinstance(node.spec, LogSink)}
    problems = []
    for node in nodes:
        source = node.spec
        if not isinstance(source, LogSource) or source.region not in (None, *owner.values()):
            continue
        if source.sink not in sinks:
            problems.append(
                f"source {node.name!r} reads the log of sink {source.sink!r}, and no LogSink of this graph"
                " has that name; correct the name, or pass region=... for a log of another graph"
            )
        elif owner[source.sink] == owner[node.name]:
            problems.append(
                f"source {node.name!r} reads the log of sink {source.sink!r}, which is in the same region: it"
                " would wait for itself; annotate both as consistent(...), so that they are two regions"
            )
        elif source.region not in (None, owner[source.sink]):
            problems.append(f"source {node.name!r}: sink {source.sink!r} belongs to {owner[source.sink]!r}")
    if problems:
        raise GraphError(graph, tuple(problems))


def _check_outside(graph: str, nodes: Sequence[Node], outside: Sequence[str]) -> None:
    """Check that sources and sinks outside of any region support that."""
    problems = []
    for node in nodes:
        if node.name in outside and isinstance(node.spec, SourceSpec) and not node.spec.runs_outside:
            problems.append(
                f"source {node.name!r} is outside of any consistent region, and after a failure it would"
                " be read again from its beginning; annotate it as consistent(...), or read an input handle"
            )
        if node.name in outside and isinstance(node.spec, SinkSpec) and not node.spec.runs_outside:
            problems.append(
                f"sink {node.name!r} is outside of any consistent region, and publishes its output at"
                " checkpoints, which it has none of; annotate it as consistent(...), or use a CallSink"
            )
    if problems:
        raise GraphError(graph, tuple(problems))


def _edge_problems(specs: Sequence[NodeSpec], owner: Mapping[str, str]) -> Iterator[str]:
    """Yield problems of edges that a log between two parts cannot replace, and of ambiguous names."""
    for spec in specs:
        name, mine = spec.name, owner[spec.name]
        for table in (specs[index].name for index in spec.broadcast_tables):
            if owner[table] != mine:
                yield f"{name!r} reads broadcast table {table!r}, which is not in the same region"
        for above, kind in ((specs[index].name, specs[index].kind) for index in spec.inputs):
            by_key = KIND_RULES[spec.kind].needs_key or (
                spec.kind is OperatorKind.APPLY and kind is OperatorKind.KEY_BY
            )
            if owner[above] != mine and by_key:
                yield f"{name!r} needs rows by key, and {above!r} is in another region; put a key_by between"
        if name.endswith(BRIDGE_SUFFIX):
            yield f"operator {name!r}: names that end with {BRIDGE_SUFFIX!r} are reserved; rename it"
        if mine.endswith(".in"):
            yield f"{name!r} names its region, but '.in' at the end is reserved for inputs; rename it"


def _check_circles(graph: str, reads: dict[str, set[str]]) -> None:
    while ready := [name for name, others in reads.items() if not others & set(reads)]:
        for name in ready:
            del reads[name]
    if reads:
        listed = ", ".join(sorted(reads))
        problem = f"regions {listed} read each other's output in a cycle, so none could ever end; break it"
        raise GraphError(graph, (problem,))
