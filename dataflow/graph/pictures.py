"""A graph as text for people: a description by region, and diagrams in Mermaid and DOT.

| element | Mermaid | DOT |
|---|---|---|
| region, operators outside of any region | subgraph | cluster |
| source, sink | rounded | rounded box |
| exchange, and rows that pass it | hexagon, thick arrow | hexagon, bold arrow |
| broadcast table, and the arrow to its readers | cylinder, dotted arrow | cylinder, dotted arrow |
| side output, and the arrow to it | dashed box, dotted arrow | dashed box, dashed arrow |
| columns of an operator's output | - | tooltip |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from dataflow.core.plan import CircuitPlan, NodePlan, OperatorKind
from dataflow.core.regions import Choice
from dataflow.graph.plan import GraphPlan
from dataflow.operators.routing import KeyBySpec, SideOutputSpec
from dataflow.schema import schema_text

_MERMAID_BOXES: Final = {
    "end": '(["{}"])',
    "exchange": '{{{{"{}"}}}}',
    "table": '[("{}")]',
    "side": '["{}"]:::side',
    "box": '["{}"]',
}
_MERMAID_ARROWS: Final = {"rows": "-->", "exchange": "==>", "table": "-.->", "side": "-.->"}
_DOT_BOXES: Final = {
    "end": "shape=box, style=rounded",
    "exchange": "shape=hexagon",
    "table": "shape=cylinder",
    "side": "shape=box, style=dashed",
    "box": "shape=box",
}
_DOT_ARROWS: Final = {"rows": "solid", "exchange": "bold", "table": "dotted", "side": "dashed"}


class _Group(NamedTuple):
    """A region, or the operators outside of any."""

    title: str
    members: tuple[str, ...]


def mermaid(plan: GraphPlan) -> str:
    ids = _ids(plan)
    lines = ["flowchart LR"]
    for number, group in enumerate(_groups(plan)):
        lines.append(f'  subgraph g{number}["{_mermaid_text(group.title)}"]')
        for node in map(plan.plan.node, group.members):
            label = f"{_mermaid_text(node.name)}<br/>{_mermaid_text(_kind_text(plan, node))}"
            lines.append(f"    {ids[node.name]}{_MERMAID_BOXES[_box(node)].format(label)}")
        lines.append("  end")
    lines += [f"  {ids[a]} {_MERMAID_ARROWS[arrow]} {ids[b]}" for a, arrow, b in _arrows(plan)]
    return "\n".join([*lines, "  classDef side stroke-dasharray: 5 3"])


def dot(plan: GraphPlan) -> str:
    """Return the graph as a digraph in the DOT language."""
    ids = _ids(plan)
    lines = [f"digraph {_dot_text(plan.name)} {{", "  rankdir=LR;"]
    for number, group in enumerate(_groups(plan)):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f"    label={_dot_text(group.title)};")
        for node in map(plan.plan.node, group.members):
            kind, schema = _kind_text(plan, node), plan.schemas[node.name]
            tooltip = kind if schema is None else f"{kind}: {schema_text(schema)}"
            label = _dot_text(f"{node.name}\n{kind}")
            style = f"label={label}, {_DOT_BOXES[_box(node)]}"
            lines.append(f"    {ids[node.name]} [{style}, tooltip={_dot_text(tooltip)}];")
        lines.append("  }")
    lines += [f"  {ids[a]} -> {ids[b]} [style={_DOT_ARROWS[arrow]}];" for a, arrow, b in _arrows(plan)]
    return "\n".join([*lines, "}"])


FORMS: Final[dict[str, Callable[[GraphPlan], str]]] = {"mermaid": mermaid, "dot": dot}


def _ids(plan: GraphPlan) -> dict[str, str]:
    return {node.name: f"n{number}" for number, node in enumerate(plan.plan.nodes)}


def _groups(plan: GraphPlan) -> Iterator[_Group]:
    for number, region in enumerate(plan.choice.regions, 1):
        when = str(region.settings).partition(";")[0]
        yield _Group(f"region {number}: {when}", tuple(region.members))
    if plan.choice.outside:
        yield _Group("outside of any region: no checkpoints", tuple(plan.choice.outside))


def _arrows(plan: GraphPlan) -> Iterator[tuple[str, str, str]]:
    """Yield (operator, kind of the arrow, operator)."""
    for node in plan.plan.nodes:
        for above in dict.fromkeys(node.inputs):
            if plan.plan.node(above).exchange is not None:
                yield above, "exchange", node.name
            else:
                yield above, "side" if node.kind is OperatorKind.SIDE else "rows", node.name
        for table in node.broadcast_tables:
            yield table, "table", node.name


def _box(node: NodePlan) -> str:
    if node.exchange is not None:
        return "exchange"
    if node.kind in (OperatorKind.SOURCE, OperatorKind.SINK):
        return "end"
    return {OperatorKind.CONTROL: "table", OperatorKind.SIDE: "side"}.get(node.kind, "box")


def _kind_text(plan: GraphPlan, node: NodePlan) -> str:
    spec = plan.specs[node.name]
    if isinstance(spec, KeyBySpec):
        return f"exchange: key_by {', '.join(spec.keys)}"
    if isinstance(spec, SideOutputSpec):
        return f"side output {spec.port}"
    if node.kind is OperatorKind.BROADCAST:
        return "exchange: to all"
    return "broadcast table" if node.kind is OperatorKind.CONTROL else node.kind.value


def _mermaid_text(text: str) -> str:
    """Replace characters that have a meaning in Mermaid or HTML by entities of Mermaid."""
    return "".join(f"#{ord(one)};" if one in "#&<>\"'`" else one for one in text)


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def explain(
    name: str,
    plan: CircuitPlan,
    choice: Choice,
    sinks: Mapping[str, str],
    logs: Sequence[tuple[str, str, str]],
) -> str:
    """Return several lines. sinks: sink -> its delivery. logs: of each log between two parts, (the operator
    whose output it has, the part that writes it, the part that reads it).
    """
    lines = [
        f"graph {name!r}: {_count(len(choice.regions), 'consistent region')}, {len(choice.outside)} outside"
    ]
    divided = len(choice.regions) > 1 or bool(choice.outside)
    width = max(len(node.name) for node in plan.nodes)
    for number, region in enumerate(choice.regions, 1):
        runs = f" (NAME.{region.members[0]})" if divided else ""
        lines += ["", f"region {number}{runs}: {region.settings}"]
        lines += [
            _line(plan.node(member), width, sinks, starts=region.starts, ends=region.ends)
            for member in region.members
        ]
    if choice.outside:
        lines += [
            "",
            "outside of any region: no checkpoints; after a failure it starts again at the current input",
        ]
        lines += [_line(plan.node(member), width, sinks) for member in choice.outside]
    if logs:
        lines += ["", "logs in the store, with what committed checkpoints cover:"]
        lines += [f"  {operator:<{width}}  from {writer} to {reader}" for operator, writer, reader in logs]
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _line(
    node: NodePlan,
    width: int,
    sinks: Mapping[str, str],
    *,
    starts: Sequence[str] = (),
    ends: Sequence[str] = (),
) -> str:
    roles = [role for role, names in (("start", starts), ("end", ends)) if node.name in names]
    inputs = f" from {', '.join(node.inputs)}" if node.inputs else ""
    table = f", reads table {', '.join(node.broadcast_tables)}" if node.broadcast_tables else ""
    delivery = f", {sinks[node.name]}" if node.name in sinks else ""
    return f"  {'+'.join(roles):<9}  {node.name:<{width}}  {node.kind.value}{inputs}{table}{delivery}"
