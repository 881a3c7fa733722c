"""Draw a graph: its operators, regions, exchanges, side outputs and broadcast tables.

It converts a plan to boxes, texts and lines. `core/drawing.py` computes the layout, `journal/pictures.py`
writes the picture. In an SVG, an operator's schema is shown as a tooltip.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

from dataflow.core.drawing import Box, Drawing, Line, Point, Shape, arrange, without_cycle
from dataflow.core.plan import NodePlan, OperatorKind
from dataflow.graph.plan import GraphPlan
from dataflow.operators.key_by import KeyBySpec
from dataflow.operators.side_output import SideOutputSpec
from dataflow.schema import schema_text
from journal.pictures import INK, LETTERS_PX, PALE, PAPER, SMALL_PX, Picture, drawn, points, printable

_CHARACTER: Final = 7.3
"""Width of one character in pixels; the font is monospaced."""
_TEXT_MAX: Final = 30
_HEIGHT: Final = 46.0
_ARROW: Final = 8.0
_BOXES: Final[dict[str, dict[str, Any]]] = {
    "frame": {"facecolor": "#f3f6fa", "edgecolor": "#8c959f"},
    "outside": {"facecolor": "none", "edgecolor": "#8c959f", "linestyle": (0, (2, 4))},
    "box": {"facecolor": PAPER, "edgecolor": PALE},
    "source": {"facecolor": "#ddf0dd", "edgecolor": "#2f7a3b"},
    "sink": {"facecolor": "#ddf0dd", "edgecolor": "#2f7a3b"},
    "exchange": {"facecolor": "#fdf0d5", "edgecolor": "#9a6700", "linewidth": points(2.5)},
    "control": {"facecolor": "#e8e2f8", "edgecolor": "#6639ba"},
    "side": {"facecolor": PAPER, "edgecolor": PALE, "linestyle": (0, (5, 3))},
}
_LINES: Final[dict[str, dict[str, Any]]] = {
    "line": {"color": PALE, "linewidth": points(1.3)},
    "crosses": {"color": "#9a6700", "linewidth": points(3)},
    "aside": {"color": PALE, "linewidth": points(1.3), "linestyle": (0, (5, 3))},
    "steers": {"color": "#6639ba", "linewidth": points(1.3), "linestyle": (0, (2, 3))},
}


def plot(plan: GraphPlan, path: Path) -> None:
    """Write the picture as SVG or PNG. Raises what `drawn` raises."""
    drawing = drawing_of(plan)
    width, height = round(drawing.width), round(drawing.height)
    with drawn(path, f"graph {plan.name}", width, height) as picture:
        canvas = _Canvas(picture, width, height)
        for number, (title, _) in _bands(plan).items():
            frame = drawing.bands[number]
            outside = number == len(plan.choice.regions)
            canvas.box("outside" if outside else "frame", frame, corner=8)
            canvas.text(frame.x + 12, frame.y + 19, title, pale=True)
        steering = {(table, node.name) for node in plan.plan.nodes for table in node.broadcast_tables}
        for line in drawing.lines:
            canvas.line(_kind_of(plan, line, steers=(line.source, line.target) in steering), line)
        for node in plan.plan.nodes:
            _operator(canvas, plan, node, drawing.boxes[node.name])


def drawing_of(plan: GraphPlan) -> Drawing:
    """Return the layout. A region is a band, and so is what is outside of any region."""
    nodes = plan.plan.nodes
    bands = {name: number for number, (_, members) in enumerate(_bands(plan).values()) for name in members}
    shapes = []
    for node in nodes:
        text = max(len(_short(node.name)), len(_short(_kind_text(plan, node))))
        shapes.append(Shape(node.name, text * _CHARACTER + 24, _HEIGHT, bands[node.name]))
    data = [(above, node.name) for node in nodes for above in dict.fromkeys(node.inputs)]
    steering = [(table, node.name) for node in nodes for table in node.broadcast_tables]
    edges, returns = without_cycle(data, steering)
    titles = {number: len(title) * _CHARACTER + 32 for number, (title, _) in _bands(plan).items()}
    return arrange(shapes, edges, returns, band_widths=titles)


def _bands(plan: GraphPlan) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return number -> title and operators."""
    found = {}
    for number, region in enumerate(plan.choice.regions):
        when = str(region.settings).partition(";")[0]
        found[number] = (f"region {number + 1}: {when}", tuple(region.members))
    if plan.choice.outside:
        found[len(found)] = ("outside of any region: no checkpoints", tuple(plan.choice.outside))
    return found


def _kind_text(plan: GraphPlan, node: NodePlan) -> str:
    spec = plan.specs[node.name]
    if isinstance(spec, KeyBySpec):
        return f"exchange: key_by {', '.join(spec.keys)}"
    if isinstance(spec, SideOutputSpec):
        return f"side output {spec.port}"
    return "exchange: to all" if node.kind is OperatorKind.BROADCAST else node.kind.value


def _class_of(node: NodePlan) -> str:
    if node.exchange is not None:
        return "exchange"
    named = {OperatorKind.SOURCE, OperatorKind.SINK, OperatorKind.CONTROL, OperatorKind.SIDE}
    return node.kind.value if node.kind in named else "box"


def _operator(canvas: "_Canvas", plan: GraphPlan, node: NodePlan, box: Box) -> None:
    schema = plan.schemas[node.name]
    kind = _kind_text(plan, node)
    tooltip = f"{node.name}\n{kind}" + (f"\noutput: {schema_text(schema)}" if schema is not None else "")
    canvas.box(_class_of(node), box, corner=4 if node.exchange is not None else 10, tooltip=tooltip)
    canvas.text(box.x + 12, box.y + 20, _short(node.name))
    canvas.text(box.x + 12, box.y + 36, _short(kind), pale=True)


def _kind_of(plan: GraphPlan, line: Line, *, steers: bool) -> str:
    if steers:
        return "steers"
    if plan.plan.node(line.source).exchange is not None:
        return "crosses"
    return "aside" if plan.plan.node(line.target).kind is OperatorKind.SIDE else "line"


class _Canvas:
    """A canvas in pixels; y grows downward. Later elements are drawn above earlier ones."""

    def __init__(self, picture: Picture, width: int, height: int) -> None:
        self._picture = picture
        self._axes = picture.figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._above = 1

    def box(self, kind: str, box: Box, *, corner: int, tooltip: str = "") -> None:
        from matplotlib.patches import FancyBboxPatch

        shape = f"round,pad=0,rounding_size={corner}"
        look = {"linewidth": points(1), **_BOXES[kind]}
        patch = FancyBboxPatch((box.x, box.y), box.width, box.height, boxstyle=shape, **look)
        self._add(patch, kind, tooltip)

    def text(self, x: float, y: float, words: str, *, pale: bool = False) -> None:
        size, colour = (SMALL_PX, PALE) if pale else (LETTERS_PX, INK)
        self._axes.text(x, y, printable(words), size=points(size), color=colour, zorder=self._next())

    def line(self, kind: str, line: Line) -> None:
        """Draw a line with an arrow head. A returning line has corners, others bend between columns."""
        from matplotlib.patches import PathPatch, Polygon
        from matplotlib.path import Path as Way

        (x, y), look = line.points[-1], _LINES[kind]
        way = _corners(line) if line.returns else _curves(line)
        patch = PathPatch(Way([point for point, _ in way], [code for _, code in way]), fill=False, **look)
        self._add(patch, kind)
        head = [(x - _ARROW, y - _ARROW / 2), (x, y), (x - _ARROW, y + _ARROW / 2)]
        self._add(Polygon(head, facecolor=look["color"], edgecolor="none"), "head")

    def _add(self, patch: Any, kind: str, tooltip: str = "") -> None:
        patch.set_zorder(self._next())
        self._picture.describe(patch, kind, tooltip)
        self._axes.add_patch(patch)

    def _next(self) -> int:
        self._above += 1
        return self._above


_Way: TypeAlias = list[tuple[Point, int]]
"""Points with the code of the segment that leads there: 1 move, 2 straight line, 4 curve."""


def _curves(line: Line) -> _Way:
    way: _Way = [(line.points[0], 1)]
    for index, ((x, y), (to_x, to_y)) in enumerate(pairwise(line.points)):
        middle = (x + to_x) / 2
        if index % 2 == 0:
            way += [((middle, y), 4), ((middle, to_y), 4), ((to_x, to_y), 4)]
        else:
            way.append(((to_x, y), 2))
    return way


def _corners(line: Line) -> _Way:
    return [(point, 2 if number else 1) for number, point in enumerate(line.points)]


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "\u2026"
