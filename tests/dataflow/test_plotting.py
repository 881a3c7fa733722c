"""graph.plot: a picture in which nothing lies on anything else, whatever the graph."""

import xml.etree.ElementTree as ET
from collections import Counter
from datetime import timedelta
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dataflow import (
    CallSink,
    Count,
    Graph,
    GraphError,
    InputSource,
    LogSink,
    Tumbling,
    autonomous,
    consistent,
)
from dataflow.core.drawing import GAP, Box, Drawing, Edge, Shape, arrange, without_cycle
from dataflow.graph.plotting import drawing_of

SVG = "{http://www.w3.org/2000/svg}"


def shop() -> Graph:
    """Two regions and an outside; a join, a union, side outputs, a broadcast table in a cycle."""
    graph = Graph("shop <of> tea & more")
    clicks = graph.source("clicks", InputSource("clicks", "at timestamp, who string, page string"))
    orders = graph.source("orders", InputSource("orders", "at timestamp, who string, price double"))
    odd = {"odd": "who string"}
    clean = clicks.filter("clean", lambda row, emit: True, side_outputs=odd)
    clean.side_output("odd_clicks", "odd").sink("odd_out", CallSink(print))
    by_who = clean.event_time("clicks_timed", "at", lateness=timedelta(minutes=1)).key_by("by_who", "who")
    timed = orders.event_time("orders_timed", "at", lateness=timedelta(minutes=1))
    limits = graph.broadcast_table("limits", graph.stream("new_limits"), "who")
    checked = timed.filter("checked", lambda row, limits: True, broadcast=limits)
    sold = checked.key_by("by_customer", "who")
    pairs = by_who.join("bought", sold, times=("at", "at"), within=timedelta(minutes=30), suffix="_order")
    pairs.sink("pairs_out", CallSink(print))
    hourly = sold.aggregate("hourly", Tumbling("at", timedelta(hours=1)), orders=Count())
    hourly.map("new_limits", lambda row: (row["who"], 1.0), schema="who string, max double")
    hourly.side_output("too_late", "late").sink("late_out", CallSink(print))
    more = graph.source("more", InputSource("more", "at timestamp, who string, page string"))
    more.annotate(consistent())
    clean.union("both", more).sink("all", CallSink(print))
    rates = graph.source("rates", InputSource("rates", "key string, rate double"))
    rates.annotate(consistent(period=5)).sink("rates_out", LogSink())
    clicks.annotate(consistent())
    orders.annotate(consistent())
    ticks = graph.source("ticks_of_a_clock_with_a_name_that_is_long", InputSource("ticks", "n bigint"))
    ticks.annotate(autonomous).sink("ticks_out", CallSink(print))
    return graph


def apart(one: Box, other: Box) -> bool:
    return (
        one.x + one.width <= other.x
        or other.x + other.width <= one.x
        or one.y + one.height <= other.y
        or other.y + other.height <= one.y
    )


def within(inner: Box, outer: Box) -> bool:
    return (
        outer.x <= inner.x
        and inner.x + inner.width <= outer.x + outer.width
        and outer.y <= inner.y
        and inner.y + inner.height <= outer.y + outer.height
    )


def check(drawing: Drawing, bands: dict[str, int]) -> None:
    """Boxes and frames lie apart, boxes in their frames, and lines run through no box."""
    whole = Box(0, 0, drawing.width, drawing.height)
    for one, other in combinations(drawing.boxes.values(), 2):
        assert apart(one, other)
    for one, other in combinations(drawing.bands.values(), 2):
        assert apart(one, other)
    for name, box in drawing.boxes.items():
        assert within(box, drawing.bands[bands[name]])
    for frame in drawing.bands.values():
        assert within(frame, whole)
    for line in drawing.lines:
        assert line.points[0] == (
            drawing.boxes[line.source].x + drawing.boxes[line.source].width,
            drawing.boxes[line.source].middle,
        )
        assert line.points[-1] == (drawing.boxes[line.target].x, drawing.boxes[line.target].middle)
        for (x, y), (to_x, to_y) in pairwise(line.points):
            leg = Box(min(x, to_x), min(y, to_y), abs(to_x - x), abs(to_y - y))
            assert within(leg, whole)
            for box in drawing.boxes.values():
                assert apart(leg, box), (line, box)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Shape], list[Edge], list[Edge]]:
    count = draw(st.integers(1, 12))
    shapes = [
        Shape(f"n{n}", draw(st.integers(40, 200)), 46, draw(st.integers(0, 1)) if n else 0)
        for n in range(count)
    ]
    pairs = [(f"n{a}", f"n{b}") for a, b in combinations(range(count), 2)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    back = [(b, a) for a, b in edges]
    steering = draw(st.lists(st.sampled_from(back + edges), unique=True, max_size=3)) if edges else []
    return shapes, *without_cycle(edges, steering)


@settings(max_examples=100)
@given(graph=graphs())
def test_nothing_lies_on_anything_else(graph: tuple[list[Shape], list[Edge], list[Edge]]) -> None:
    shapes, edges, returns = graph
    drawing = arrange(shapes, edges, returns)
    check(drawing, {shape.name: shape.band for shape in shapes})
    assert len(drawing.lines) == len(edges) + len(returns)
    for source, target in edges:
        assert drawing.boxes[source].x + drawing.boxes[source].width + GAP <= drawing.boxes[target].x


def test_a_graph_with_everything_is_drawn_whole(tmp_path: Path) -> None:
    graph = shop()
    path = tmp_path / "shop.svg"
    graph.plot(path)
    plan = graph.plan()
    choice = plan.choice
    bands = {name: n for n, region in enumerate(choice.regions) for name in region.members}
    bands |= dict.fromkeys(choice.outside, len(choice.regions))
    check(drawing_of(plan), bands)

    root = ET.parse(path).getroot()
    groups = [(str(one.get("id")).rpartition("-")[0], one) for one in root.iter(f"{SVG}g")]
    kinds = {}
    for kind, group in groups:
        if told := group.findtext(f"{SVG}title"):
            name, what, *_ = told.split("\n")
            kinds[name] = (what, kind)
    assert kinds.keys() == plan.specs.keys()
    assert kinds["by_who"] == ("exchange: key_by who", "exchange")
    assert kinds["limits.rows"] == ("exchange: to all", "exchange")
    assert kinds["too_late"] == ("side output late", "side")
    assert kinds["bought"] == ("join", "box")
    assert kinds["limits"] == ("control", "control")
    texts = [one.text or "" for one in root.iter(f"{SVG}text")]
    titles = [
        *(f"region {n + 1}: {str(one.settings).partition(';')[0]}" for n, one in enumerate(choice.regions)),
        "outside of any region: no checkpoints",
    ]
    assert texts[: len(titles)] == titles
    lines_of = zip(texts[len(titles) :: 2], texts[len(titles) + 1 :: 2], strict=True)
    for name, lines in zip([node.name for node in plan.plan.nodes], lines_of, strict=True):
        assert lines[0] == (name if len(name) <= 30 else name[:29] + "…")
        for text in lines:  # the letters are 0.602 em wide
            assert len(text) * 12 * 0.602 + 12 <= drawing_of(plan).boxes[name].width
    counts = Counter(kind for kind, _ in groups)
    assert (counts["frame"], counts["outside"]) == (len(choice.regions), 1)
    assert counts["crosses"] == sum(
        plan.plan.node(above).exchange is not None for node in plan.plan.nodes for above in node.inputs
    )
    assert (counts["aside"], counts["steers"]) == (2, 1)
    assert counts["head"] == len(drawing_of(plan).lines)


def test_a_graph_is_a_png_too(tmp_path: Path) -> None:
    graph = shop()
    graph.plot(tmp_path / "shop.png")
    drawing = drawing_of(graph.plan())
    with Image.open(tmp_path / "shop.png") as image:
        assert image.format == "PNG"
        assert image.size == (2 * round(drawing.width), 2 * round(drawing.height))
        box = drawing.boxes["limits"]
        inside = image.convert("RGB").getpixel((round(2 * box.x + 8), round(2 * box.middle)))
    assert inside == (0xE8, 0xE2, 0xF8)


def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="drawn as SVG or PNG"):
        shop().plot(tmp_path / "shop.pdf")
    with pytest.raises(GraphError):
        Graph("nothing").plot(tmp_path / "nothing.svg")
    assert list(tmp_path.iterdir()) == []
