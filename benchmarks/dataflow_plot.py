"""A line chart as SVG: what `./run bench dataflow` draws of its curves.

Rules of this file: points to text. Both axes are logarithmic; a line has a name at its end.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 80, 110, 40, 50
MIDDLE = (LEFT + WIDTH - RIGHT) // 2
COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#7b2d8b")

Points = Sequence[tuple[float, float]]


def chart(title: str, across: str, lines: Mapping[str, Points]) -> str:
    """Lines of (x, y), all above 0. Raises ValueError if there is no point."""
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError("a chart needs a point")
    xs, ys = _decades([x for x, _ in points]), _decades([y for _, y in points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font-family: sans-serif; font-size: 12px }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22">{escape(title)}</text>',
        f'<text x="{MIDDLE}" y="{HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>',
    ]
    for x in range(xs[0], xs[1] + 1):
        at = _place(10.0**x, xs, LEFT, WIDTH - RIGHT)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_short(x)}</text>')
    for y in range(ys[0], ys[1] + 1):
        at = _place(10.0**y, ys, HEIGHT - BOTTOM, TOP)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_short(y)}</text>')
    for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
        placed = [
            (_place(x, xs, LEFT, WIDTH - RIGHT), _place(y, ys, HEIGHT - BOTTOM, TOP)) for x, y in sorted(line)
        ]
        if placed:
            way = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
            x, y = placed[-1]
            parts.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return first, max(last, first + 1)


def _place(value: float, decades: tuple[int, int], begin: float, end: float) -> float:
    part = (math.log10(value) - decades[0]) / (decades[1] - decades[0])
    return begin + part * (end - begin)


def _short(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
