"""Layout of a graph drawing: columns from left to right, bands from top to bottom.

Only names, sizes and coordinates; no colors and no text. Sizes are pixels; y grows downward.

The method is layered drawing after Sugiyama, Tagawa and Toda (1981). A box is in the column after the last of
its inputs; a box without inputs is just before its first consumer. Within a column, boxes are sorted by the
mean position of their neighbors, so that few lines cross. A line that passes a column gets a slot of its own
there, as if it were a flat box, and bends only in the gaps between columns; so lines never cross boxes. Each
band has its own range of y. An edge that closes a cycle returns above all bands.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

Point: TypeAlias = tuple[float, float]
Edge: TypeAlias = tuple[str, str]

GAP: Final = 56.0
"""Space between columns; lines bend here."""
SPACE: Final = 18.0
"""Space between the boxes of a column."""
MARGIN: Final = 24.0
BAND_PAD: Final = 16.0
BAND_TITLE: Final = 22.0
BAND_SPACE: Final = 20.0
PASSING: Final = 8.0
"""The height of a line's slot in a column that it passes."""
RETURN_SPACE: Final = 14.0
_SWEEPS: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A box to place. `band`: the number of its band, from 0."""

    name: str
    width: float
    height: float
    band: int = 0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Line:
    """A line between two boxes.

    Its odd legs (the first, the third) are in gaps, the others pass a column. A line that `returns` has
    corners only.
    """

    source: str
    target: str
    points: tuple[Point, ...]
    returns: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """The finished layout. `bands`: band number -> frame."""

    boxes: dict[str, Box]
    lines: list[Line]
    bands: dict[int, Box]
    width: float
    height: float


@dataclass(slots=True)
class _Item:
    """A box or, with an empty name, the slot where a line passes a column."""

    name: str
    column: int
    band: int
    height: float
    before: "list[_Item]"
    after: "list[_Item]"
    place: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def arrange(
    shapes: Sequence[Shape],
    edges: Sequence[Edge],
    returns: Sequence[Edge] = (),
    *,
    band_widths: Mapping[int, float] | None = None,
) -> Drawing:
    """Place everything. `edges` are acyclic, `returns` need not be. band_widths: minimum band widths."""
    columns_of = _columns_of(shapes, edges)
    items = {s.name: _Item(s.name, columns_of[s.name], s.band, s.height, [], []) for s in shapes}
    chains = {edge: _chain(items[edge[0]], items[edge[1]]) for edge in edges}
    columns: dict[int, list[_Item]] = defaultdict(list)
    for item in [*items.values(), *(one for chain in chains.values() for one in chain[1:-1])]:
        columns[item.column].append(item)
    _order(columns)
    top = MARGIN + RETURN_SPACE * len(returns)
    bands = _stack(columns, top)

    widths: dict[int, float] = defaultdict(float)
    for shape in shapes:
        column = columns_of[shape.name]
        widths[column] = max(widths[column], shape.width)
    lefts: dict[int, float] = {}
    x = MARGIN + BAND_PAD
    for column in range(max(columns, default=0) + 1):
        lefts[column] = x
        x += widths[column] + GAP
    boxes = {
        name: Box(lefts[item.column], item.y, widths[item.column], item.height)
        for name, item in items.items()
    }
    frames = _frames(shapes, boxes, bands, band_widths or {})
    lines = [
        Line(source, target, _through(chain, lefts, widths)) for (source, target), chain in chains.items()
    ]
    for number, (source, target) in enumerate(returns):
        points = _around(boxes[source], boxes[target], MARGIN + RETURN_SPACE * number, number)
        lines.append(Line(source, target, points, returns=True))
    rights = [frame.x + frame.width for frame in frames.values()]
    rights += [x for line in lines for x, _ in line.points]
    bottoms = [frame.y + frame.height for frame in frames.values()]
    return Drawing(boxes, lines, frames, max(rights, default=0) + MARGIN, max(bottoms, default=0) + MARGIN)


def without_cycle(edges: Sequence[Edge], more: Sequence[Edge]) -> tuple[list[Edge], list[Edge]]:
    """Return `edges` with those of `more` that close no cycle, and the rest of `more`."""
    kept, others = list(edges), []
    for source, target in more:
        after: dict[str, list[str]] = defaultdict(list)
        for one, other in kept:
            after[one].append(other)
        reached, todo = {target}, [target]
        while todo:
            fresh = [name for name in after[todo.pop()] if name not in reached]
            reached.update(fresh)
            todo += fresh
        if source in reached or (source, target) in kept:
            others.append((source, target))
        else:
            kept.append((source, target))
    return kept, others


def _columns_of(shapes: Sequence[Shape], edges: Sequence[Edge]) -> dict[str, int]:
    columns = {shape.name: 0 for shape in shapes}
    for _ in shapes:
        moved = False
        for source, target in edges:
            if columns[target] <= columns[source]:
                columns[target] = columns[source] + 1
                moved = True
        if not moved:
            break
    targets = {target for _, target in edges}
    for shape in shapes:
        consumers = [columns[target] for source, target in edges if source == shape.name]
        if shape.name not in targets and consumers:
            columns[shape.name] = min(consumers) - 1
    return columns


def _chain(source: _Item, target: _Item) -> list[_Item]:
    band = source.band if source.band == target.band else max(source.band, target.band)
    passing = [_Item("", column, band, PASSING, [], []) for column in range(source.column + 1, target.column)]
    chain = [source, *passing, target]
    for one, other in pairwise(chain):
        one.after.append(other)
        other.before.append(one)
    return chain


def _order(columns: Mapping[int, list[_Item]]) -> None:
    for items in columns.values():
        _number(items)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in sorted(columns, reverse=not forward):
            items = columns[column]
            places = [(item.band, _wanted(item, forward=forward), index) for index, item in enumerate(items)]
            items[:] = [items[index] for _, _, index in sorted(places)]
            _number(items)


def _number(items: list[_Item]) -> None:
    for index, item in enumerate(items):
        item.place = (index + 0.5) / len(items)


def _wanted(item: _Item, *, forward: bool) -> float:
    near = item.before if forward else item.after
    return sum(one.place for one in near) / len(near) if near else item.place


def _stack(columns: Mapping[int, list[_Item]], top: float) -> dict[int, tuple[float, float]]:
    """Set the y of every item and return the range of each band."""
    ranges: dict[int, tuple[float, float]] = {}
    for band in sorted({item.band for items in columns.values() for item in items}):
        first = top + BAND_TITLE + BAND_PAD
        bottom = first
        for column in sorted(columns):
            free = first
            for item in columns[column]:
                if item.band != band:
                    continue
                near = [one.middle for one in item.before if one.band == band]
                wanted = sum(near) / len(near) - item.height / 2 if near else free
                item.y = max(free, wanted)
                free = item.y + item.height + SPACE
                bottom = max(bottom, item.y + item.height)
        ranges[band] = (top, bottom + BAND_PAD)
        top = bottom + BAND_PAD + BAND_SPACE
    return ranges


def _frames(
    shapes: Sequence[Shape],
    boxes: Mapping[str, Box],
    bands: Mapping[int, tuple[float, float]],
    least: Mapping[int, float],
) -> dict[int, Box]:
    frames = {}
    for band, (top, bottom) in bands.items():
        members = [boxes[shape.name] for shape in shapes if shape.band == band]
        left = min(box.x for box in members) - BAND_PAD
        right = max(box.x + box.width for box in members) + BAND_PAD
        frames[band] = Box(left, top, max(right - left, least.get(band, 0)), bottom - top)
    return frames


def _through(
    chain: Sequence[_Item], lefts: Mapping[int, float], widths: Mapping[int, float]
) -> tuple[Point, ...]:
    points: list[Point] = []
    for item in chain:
        left = lefts[item.column]
        points += [(left, item.middle), (left + widths[item.column], item.middle)]
    return tuple(points[1:-1])


def _around(source: Box, target: Box, height: float, number: int) -> tuple[Point, ...]:
    away = GAP / 2 + 4 * (number % 4)
    right, left = source.x + source.width, target.x
    corners = [(right + away, source.middle), (right + away, height), (left - away, height)]
    return ((right, source.middle), *corners, (left - away, target.middle), (left, target.middle))


__all__ = ["Box", "Drawing", "Edge", "Line", "Shape", "arrange", "without_cycle"]
