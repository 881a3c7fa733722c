"""Draw the line charts and bars of docs/benchmarks.md. `journal/pictures.py` provides the drawing."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from journal.pictures import HEAD_PX, INK, drawn, points

WIDTH, HEIGHT = 720, 400
PLACE = (0.13, 0.14, 0.66, 0.74)
"""Area of the lines: left, bottom, width and height, as fractions of the picture."""
COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#7b2d8b")

Points = Sequence[tuple[float, float]]


def chart(path: Path, title: str, across: str, lines: Mapping[str, Points]) -> None:
    """Draw lines of (x, y), all above 0, on logarithmic axes.

    Raises ValueError if there is no point, and errors of `drawn`.
    """
    found = {name: sorted(line) for name, line in lines.items() if line}
    if not found:
        raise ValueError("a chart needs a point")
    colours = dict(zip(lines, COLOURS, strict=False))
    with drawn(path, title, WIDTH, HEIGHT) as picture:
        axes = picture.figure.add_axes(PLACE)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(visible=True)
        for name in sorted(found, key=lambda name: found[name][-1][1], reverse=True):
            xs, ys = zip(*found[name], strict=True)
            (line,) = axes.plot(xs, ys, color=colours[name], marker="o", label=name)
            picture.describe(line, "line", name)
        plain_numbers(axes)
        axes.set_ylim(*_decades([y for line in found.values() for _, y in line]))
        axes.set_title(title, loc="left", size=points(HEAD_PX), color=INK)
        axes.set_xlabel(across)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def plain_numbers(axes: Any) -> None:
    """Write the numbers of logarithmic axes without exponents."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axis.set_minor_formatter("")


def bars(path: Path, title: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a bar for each name in each group, with its value. Raises as `chart`."""
    names = list({name: None for group in groups.values() for name in group})
    if not names:
        raise ValueError("a chart needs a bar")
    width = 0.8 / len(names)
    with drawn(path, title, WIDTH, HEIGHT) as picture:
        axes = picture.figure.add_axes(PLACE)
        for number, name in enumerate(names):
            places = [at + width * (number - (len(names) - 1) / 2) for at, _ in enumerate(groups)]
            values = [group.get(name, 0.0) for group in groups.values()]
            drawn_bars = axes.bar(places, values, width * 0.9, color=COLOURS[number], label=name)
            axes.bar_label(drawn_bars, [f"{value:.2g}" if value else "-" for value in values])
        axes.set_xticks(range(len(groups)), list(groups))
        axes.set_title(title, loc="left", size=points(HEAD_PX), color=INK)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Return the powers of ten around the values: another start of the axis would exaggerate differences."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**first, 10.0 ** max(last, first + 1)
