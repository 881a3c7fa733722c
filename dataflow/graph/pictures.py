"""A graph as text for people: a description by region, and diagrams in Mermaid, DOT and SVG.

| element | Mermaid | DOT | SVG |
|---|---|---|---|
| region, operators outside of any region | subgraph | cluster | tooltip |
| source, sink | rounded | rounded box | rounded box |
| exchange, and rows that pass it | hexagon, thick arrow | hexagon, bold arrow | box, thick arrow |
| broadcast table, arrow to its readers | cylinder, dotted arrow | the same | box, dotted arrow |
| side output, arrow to it | dashed box, dotted arrow | dashed box, dashed arrow | dashed box, dashed arrow |
| columns of an operator's output | - | tooltip | tooltip |

SVG is drawn here for notebooks, which run no script of a file that is not trusted. The page of `dos ui` draws
with a library in the browser.
"""

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
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
_SVG_ARROWS: Final = {
    "rows": "",
    "exchange": ' stroke-width="2.4"',
    "table": ' stroke-dasharray="2 4"',
    "side": ' stroke-dasharray="6 4"',
}
_BOX_PX: Final = (168, 58)
_GAP_PX: Final = (44, 18)
"""Between layers, and between operators of a layer."""
_SHRINK_MIN: Final = 0.8
"""Its text can still be read then, as in `dos_ui/page/graph.js`; what is wider is scrolled."""
_NAME_MAX: Final = 28
_ACROSS_MAX: Final = 5
"""So many layers are drawn from left to right; more of them from top to bottom: notebooks are narrow."""


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


def svg(plan: GraphPlan, notes: Mapping[str, str] | None = None) -> str:
    """Return the graph as an SVG element in the colors of the text around it. notes: operator -> its last
    line of text.
    """
    layers = _layers(plan)
    across = len(layers) <= _ACROSS_MAX
    room = max(map(len, layers))
    names = {node.name: _shortened(node.name, _NAME_MAX) for node in plan.plan.nodes}
    width = max(_BOX_PX[0], *(8 * len(name) + 24 for name in names.values()))
    along, beside = (width, _BOX_PX[1]) if across else (_BOX_PX[1], width)
    places: dict[tuple[str, int], tuple[float, float]] = {}
    for number, layer in enumerate(layers):
        for place, spot in enumerate(layer):
            middle = place + (room - len(layer)) / 2
            at = (number * (along + _GAP_PX[0]) + along / 2, middle * (beside + _GAP_PX[1]) + beside / 2)
            places[spot] = at if across else (at[1], at[0])
    size = (
        len(layers) * (along + _GAP_PX[0]) - _GAP_PX[0],
        room * (beside + _GAP_PX[1]) - _GAP_PX[1],
    )
    wide, high = (one + 4 for one in (size if across else (size[1], size[0])))
    layer_of = {name: number for layer in reversed(layers) for name, number in layer}
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {wide:g} {high:g}" role="img"'
        f' style="width: 100%; max-width: {wide:g}px; min-width: {_SHRINK_MIN * wide:g}px"'
        ' font-family="system-ui, sans-serif" fill="currentColor">'
    )
    lines = [begin]
    half = along / 2
    for above, arrow, below in _arrows(plan):
        first, last = layer_of[above], layer_of[below]
        passed = () if arrow == "table" else range(first + 1, last)
        points = [places[above, first], *(places[above, n] for n in passed), places[below, last]]
        lines.append(_svg_line(points, half, _SVG_ARROWS[arrow], across=across))
    regions = {name: group.title for group in _groups(plan) for name in group.members}
    for node in plan.plan.nodes:
        x, y = places[node.name, layer_of[node.name]]
        schema, kind = plan.schemas[node.name], html.escape(_kind_text(plan, node))
        columns = "" if schema is None else f"; {schema_text(schema)}"
        box = _box(node)
        rounded, dashed = 14 if box == "end" else 4, ' stroke-dasharray="6 4"' if box == "side" else ""
        lines.append(
            f'<g transform="translate({x - width / 2:g},{y - _BOX_PX[1] / 2:g})">'
            f"<title>{html.escape(f'{node.name}, {regions[node.name]}{columns}')}</title>"
            f'<rect width="{width:g}" height="{_BOX_PX[1]}" rx="{rounded}" fill="currentColor"'
            f' fill-opacity="0.06" stroke="currentColor" stroke-opacity="0.45"{dashed} />'
            f'<text x="12" y="20" font-size="13" font-weight="600">{html.escape(names[node.name])}</text>'
            f'<text x="12" y="35" font-size="11" opacity="0.7">{kind}</text>'
            f'<text x="12" y="50" font-size="11">{html.escape((notes or {}).get(node.name, ""))}</text></g>'
        )
    return "\n".join([*lines, "</svg>"])


def _layers(plan: GraphPlan) -> list[list[tuple[str, int]]]:
    """Return the operators by the longest way from a source. An arrow that passes a layer has a place there:
    (the operator where it begins, the layer). In a layer, the order is that of what is above, on average.
    """
    nodes = {node.name: node for stage in plan.plan.stages for node in stage.nodes}
    depth: dict[str, int] = {}
    last: dict[str, int] = {}
    for name, node in nodes.items():  # inputs first; a cycle is closed by a table, which is no input
        depth[name] = max((depth[one] + 1 for one in node.inputs), default=0)
        last |= {one: max(last.get(one, 0), depth[name]) for one in node.inputs}
    layers: list[list[tuple[str, int]]] = []
    for number in range(max(depth.values()) + 1):
        before = {name: place for place, (name, _) in enumerate(layers[-1])} if layers else {}
        order: dict[str, float] = {}
        for name, node in nodes.items():
            if depth[name] == number:
                found = [before[one] for one in node.inputs]
                order[name] = sum(found) / max(len(found), 1)
            elif depth[name] < number < last.get(name, 0):
                order[name] = before[name]
        layers.append([(name, number) for name in sorted(order, key=order.__getitem__)])
    return layers


def _svg_line(points: Sequence[tuple[float, float]], half: float, style: str, *, across: bool) -> str:
    """Return a curve from the border of the first box to that of the last one, with a tip."""
    turned = [point if across else (point[1], point[0]) for point in points]  # (along, beside)
    back = -1 if turned[-1][0] < turned[0][0] else 1
    turned[0] = turned[0][0] + back * half, turned[0][1]
    turned[-1] = turned[-1][0] - back * (half + 6), turned[-1][1]
    path = [f"M{_point(turned[0], across=across)}"]
    for (a, b), (c, d) in pairwise(turned):
        middle = (a + c) / 2
        path.append("C" + " ".join(_point(one, across=across) for one in ((middle, b), (middle, d), (c, d))))
    along, beside = turned[-1]
    tip = ((along, beside - 4), (along + back * 6, beside), (along, beside + 4))
    return (
        f'<path d="{" ".join(path)}" fill="none" stroke="currentColor" stroke-opacity="0.6"{style} />'
        f'<path d="M{" L".join(_point(one, across=across) for one in tip)} z" opacity="0.7" />'
    )


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _point(point: tuple[float, float], *, across: bool) -> str:
    along, beside = point
    return f"{along:g} {beside:g}" if across else f"{beside:g} {along:g}"


FORMS: Final[dict[str, Callable[[GraphPlan], str]]] = {"mermaid": mermaid, "dot": dot, "svg": svg}


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
