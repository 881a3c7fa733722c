"""A graph as a picture: SVG with its operators, their regions, exchanges, side outputs and control tables.

Rules of this file: a plan to text; where things stand is decided in `core/drawing.py`. The picture has no
script and loads nothing; it takes its colours from what the reader has set, light or dark.
"""

from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from dataflow.core.drawing import Box, Drawing, Line, Point, Shape, arrange, without_cycle
from dataflow.core.plan import Kind, NodePlan
from dataflow.graph_plan import GraphPlan
from dataflow.operators.key_by import KeyBySpec
from dataflow.operators.side import SideSpec
from dataflow.schema import schema_text

_CHARACTER: Final = 7.3
"""Width of one character of the font, which has characters of one width."""
_TEXT_MAX: Final = 30
_HEIGHT: Final = 46.0

_HEAD: Final = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
    ' markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
)
_STYLE: Final = """
text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1b1f24 }
.kind { fill: #57606a; font-size: 11px }
.paper { fill: #ffffff }
.frame { fill: #f3f6fa; stroke: #8c959f }
.outside { fill: none; stroke: #8c959f; stroke-dasharray: 2 4 }
.box { fill: #ffffff; stroke: #57606a }
.source, .sink { fill: #ddf0dd; stroke: #2f7a3b }
.exchange { fill: #fdf0d5; stroke: #9a6700; stroke-width: 2.5 }
.control { fill: #e8e2f8; stroke: #6639ba }
.side { fill: #ffffff; stroke: #57606a; stroke-dasharray: 5 3 }
.line { fill: none; stroke: #57606a; stroke-width: 1.3 }
.crosses { stroke: #9a6700; stroke-width: 3 }
.aside { stroke-dasharray: 5 3 }
.steers { stroke: #6639ba; stroke-dasharray: 2 3 }
.head { fill: #57606a }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.kind { fill: #9aa4af }
.paper { fill: #0d1117 }
.frame { fill: #161b22; stroke: #6e7681 }
.outside { fill: none; stroke: #6e7681 }
.box, .side { fill: #21262d; stroke: #8b949e }
.source, .sink { fill: #12351b; stroke: #56b366 }
.exchange { fill: #3d2e0a; stroke: #d29922 }
.control { fill: #2b2145; stroke: #a78bfa }
.line { stroke: #8b949e }
.crosses { stroke: #d29922 }
.steers { stroke: #a78bfa }
.head { fill: #8b949e }
}
"""


def plot(plan: GraphPlan, path: Path) -> None:
    """Write the picture. Raises OSError."""
    path.write_text(svg_of(plan), encoding="utf-8")


def drawing_of(plan: GraphPlan) -> Drawing:
    """Where everything stands. A region is a band, and so is what is outside of any."""
    nodes = plan.plan.nodes
    bands = {name: number for number, (_, members) in enumerate(_bands(plan).values()) for name in members}
    shapes = []
    for node in nodes:
        text = max(len(_short(node.name)), len(_short(_kind_text(plan, node))))
        shapes.append(Shape(node.name, text * _CHARACTER + 24, _HEIGHT, bands[node.name]))
    data = [(above, node.name) for node in nodes for above in dict.fromkeys(node.inputs)]
    steering = [(table, node.name) for node in nodes for table in node.controls]
    edges, returns = without_cycle(data, steering)
    titles = {number: len(title) * _CHARACTER + 32 for number, (title, _) in _bands(plan).items()}
    return arrange(shapes, edges, returns, band_widths=titles)


def svg_of(plan: GraphPlan) -> str:
    """The picture as text."""
    drawing = drawing_of(plan)
    steering = {(table, node.name) for node in plan.plan.nodes for table in node.controls}
    width, height = round(drawing.width), round(drawing.height)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" role="img">'
        ),
        f"<title>graph {escape(plan.name)}</title>",
        f"<style>{_STYLE}</style>",
        _HEAD,
        _rectangle("paper", Box(0, 0, width, height), corner=0),
    ]
    for number, (title, _) in _bands(plan).items():
        frame = drawing.bands[number]
        outside = number == len(plan.choice.regions)
        parts.append(_rectangle("outside" if outside else "frame", frame, corner=8))
        parts.append(_text(frame.x + 12, frame.y + 19, title, "kind"))
    parts += [_line(plan, line, steers=(line.source, line.target) in steering) for line in drawing.lines]
    parts += [_operator(plan, node, drawing.boxes[node.name]) for node in plan.plan.nodes]
    return "\n".join([*parts, "</svg>", ""])


def _bands(plan: GraphPlan) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Number -> title and operators."""
    found = {}
    for number, region in enumerate(plan.choice.regions):
        when = str(region.settings).partition(";")[0]
        found[number] = (f"region {number + 1}: {when}", tuple(region.members))
    if plan.choice.outside:
        found[len(found)] = ("outside of any region: no cuts", tuple(plan.choice.outside))
    return found


def _kind_text(plan: GraphPlan, node: NodePlan) -> str:
    spec = plan.specs[node.name]
    if isinstance(spec, KeyBySpec):
        return f"exchange: key_by {', '.join(spec.keys)}"
    if isinstance(spec, SideSpec):
        return f"side output {spec.port}"
    return "exchange: to all" if node.kind is Kind.BROADCAST else node.kind.value


def _class_of(node: NodePlan) -> str:
    if node.exchange is not None:
        return "exchange"
    named = {Kind.SOURCE, Kind.SINK, Kind.CONTROL, Kind.SIDE}
    return node.kind.value if node.kind in named else "box"


def _operator(plan: GraphPlan, node: NodePlan, box: Box) -> str:
    schema = plan.schemas[node.name]
    kind = _kind_text(plan, node)
    told = f"{node.name}\n{kind}" + (f"\ngives {schema_text(schema)}" if schema is not None else "")
    corner = 4 if node.exchange is not None else 10
    return (
        f"<g><title>{escape(told)}</title>{_rectangle(_class_of(node), box, corner=corner)}"
        f"{_text(box.x + 12, box.y + 20, _short(node.name))}"
        f"{_text(box.x + 12, box.y + 36, _short(kind), 'kind')}</g>"
    )


def _line(plan: GraphPlan, line: Line, *, steers: bool) -> str:
    classes = "line"
    if steers:
        classes += " steers"
    elif plan.plan.node(line.source).exchange is not None:
        classes += " crosses"
    elif plan.plan.node(line.target).kind is Kind.SIDE:
        classes += " aside"
    path = _corners(line.points) if line.returns else _curves(line.points)
    return f'<path class="{classes}" marker-end="url(#head)" d="{path}"/>'


def _curves(points: tuple[Point, ...]) -> str:
    path = f"M{_at(points[0])}"
    for index in range(1, len(points)):
        (x, y), (to_x, to_y) = points[index - 1], points[index]
        middle = (x + to_x) / 2
        bends = index % 2 == 1
        path += f"C{_at((middle, y))} {_at((middle, to_y))} {_at((to_x, to_y))}" if bends else f"H{to_x:.1f}"
    return path


def _corners(points: tuple[Point, ...]) -> str:
    return "M" + "L".join(_at(point) for point in points)


def _at(point: Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _rectangle(kind: str, box: Box, *, corner: int) -> str:
    return (
        f'<rect class="{kind}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}"'
        f' height="{box.height:.1f}" rx="{corner}"/>'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "\u2026"
