"""Draw a timeline as a picture: bytes and records as bars over time, and events in rows below them.

In an SVG, each bar and tick has a tooltip with its value.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from journal.core.timeline import Timeline, TimelineInterval
from journal.pictures import HEAD_PX, INK, LINE, PALE, SMALL_PX, Picture, drawn, points, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import MaxNLocator

WIDTH: Final = 960
_PANELS: Final = {"bytes": ("#2f6fb3", 170), "records": ("#2f7a3b", 110)}
"""Panel -> its color and height."""
_EVENTS: Final = {
    "steps": "#8c959f",
    "checkpoints": "#9a6700",
    "snapshots": "#6639ba",
    "segments": "#0f7b8a",
    "resets": "#c62f2f",
}
_HEAD, _FOOT, _GAP, _STRIP = 76, 46, 34, 24
_NOTHING: Final = 56
"""The height of a picture without records."""
_LEFT, _RIGHT = 150, 40
_TICK: Final = 0.6
"""The height of a tick, as a fraction of its row."""
_STRETCHES_MAX: Final = 144
_TITLE_MAX: Final = 90
_BAR_MIN: Final = 0.006
"""The minimum height of a bar, as a fraction of the tallest, so that small values are visible."""
_MS_PER_DAY: Final = 86_400_000
_UNITS_MS: Final = {"days": _MS_PER_DAY, "h": 3_600_000, "min": 60_000, "s": 1000}


def draw_timeline(timeline: Timeline, title: str, path: Path) -> None:
    """Draw a timeline to a file. Without records, the picture has only the text "no records".

    Raises the errors of `drawn`.
    """
    stretches = timeline.stretches(_STRETCHES_MAX)
    events = [name for name in _EVENTS if any(name in one.events for one in stretches)]
    heights = [size for _, size in _PANELS.values()] + ([_STRIP * len(events)] if events else [])
    height = _HEAD + sum(heights) + _GAP * (len(heights) - 1) + _FOOT if stretches else _NOTHING
    summary = (
        f"{sum(one.bytes for one in stretches):,} bytes, {sum(one.records for one in stretches):,} records"
    )
    with drawn(path, title, WIDTH, height) as picture:
        _text(picture, height, 22, _short(title), HEAD_PX)
        _text(picture, height, 40, summary if stretches else "no records", SMALL_PX, colour=PALE)
        if not stretches:
            return
        top = _HEAD
        for (name, (colour, size)), last in zip(_PANELS.items(), (False, not events), strict=True):
            axes = _axes(picture, height, top, size, stretches, timeline, dated=last)
            _panel(picture, axes, name, colour, stretches, timeline)
            top += size + _GAP
        if events:
            axes = _axes(picture, height, top, heights[-1], stretches, timeline, dated=True)
            _rows(picture, axes, events, stretches, timeline)


def _text(picture: Picture, height: int, y: int, text: str, size: int, *, colour: str = INK) -> None:
    picture.figure.text(_LEFT / WIDTH, 1 - y / height, text, size=points(size), color=colour)


def _axes(
    picture: Picture,
    height: int,
    top: int,
    size: int,
    stretches: Sequence[TimelineInterval],
    timeline: Timeline,
    *,
    dated: bool,
) -> "Axes":
    """Return axes of height `size`, `top` pixels from the top. dated: with the labels of the x axis below."""
    box = (_LEFT / WIDTH, 1 - (top + size) / height, (WIDTH - _LEFT - _RIGHT) / WIDTH, size / height)
    axes = picture.figure.add_axes(box)
    axes.set_xlim(_x(stretches[0].begin, timeline), _x(stretches[-1].begin + _width(stretches), timeline))
    if timeline.by_time:
        _dates(axes, stretches[0].begin)
    else:
        axes.set_xlabel("logical offset")
        axes.xaxis.set_major_locator(_integer_ticks(6))
        axes.xaxis.set_major_formatter("{x:,.0f}")
    if not dated:
        axes.xaxis.label.set_visible(False)
        axes.tick_params(labelbottom=False)
        axes.xaxis.get_offset_text().set_visible(False)
    return axes


def _dates(axes: "Axes", first_ms: int) -> None:
    """Label the x axis with times in the local time zone at the first time, and name that zone."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    begin = datetime.fromtimestamp(first_ms / 1000, UTC).astimezone()
    locator = AutoDateLocator(begin.tzinfo, minticks=4, maxticks=9)
    formatter = ConciseDateFormatter(
        locator,
        begin.tzinfo,
        formats=["%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M", "%H:%M:%S"],
        zero_formats=["", "%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M"],
        offset_formats=["", "%Y", "%Y", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d"],
    )
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(formatter)
    axes.set_xlabel(f"time, {begin.tzname()}")


def _panel(
    picture: Picture,
    axes: "Axes",
    name: str,
    colour: str,
    stretches: Sequence[TimelineInterval],
    timeline: Timeline,
) -> None:
    """Draw the bars of one panel."""
    from matplotlib.ticker import EngFormatter

    axes.set_title(f"{name}{_length(stretches, timeline)}", loc="left", size=points(SMALL_PX), color=PALE)
    axes.grid(visible=True, axis="y")
    axes.yaxis.set_major_locator(_integer_ticks(4))
    axes.yaxis.set_major_formatter(EngFormatter("B" if name == "bytes" else ""))
    values = [one.bytes if name == "bytes" else one.records for one in stretches]
    least = max(values) * _BAR_MIN
    _bars(picture, axes, name, colour, stretches, timeline, values, [max(one, least) for one in values])


def _rows(
    picture: Picture,
    axes: "Axes",
    events: Sequence[str],
    stretches: Sequence[TimelineInterval],
    timeline: Timeline,
) -> None:
    """Draw a row for each kind of event, with a tick in each interval that has any."""
    for row, name in enumerate(events):
        values = [one.events[name] for one in stretches]
        ticks = [_TICK] * len(values)
        _bars(picture, axes, name, _EVENTS[name], stretches, timeline, values, ticks, row - _TICK / 2)
        axes.axhline(row + 0.5, color=LINE, linewidth=points(1))
    totals = [sum(one.events[name] for one in stretches) for name in events]
    axes.set_yticks(
        range(len(events)), [f"{name}: {total:,}" for total, name in zip(totals, events, strict=True)]
    )
    axes.set_ylim(len(events) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _bars(
    picture: Picture,
    axes: "Axes",
    name: str,
    colour: str,
    stretches: Sequence[TimelineInterval],
    timeline: Timeline,
    values: Sequence[int],
    heights: Sequence[float],
    bottom: float = 0,
) -> None:
    """Draw a bar for each interval whose value is not 0."""
    numbers = [number for number, value in enumerate(values) if value]
    width = _x(_width(stretches), timeline)
    lefts = [_x(stretches[number].begin, timeline) for number in numbers]
    bars = axes.bar(
        lefts,
        [heights[number] for number in numbers],
        width=width,
        bottom=bottom,
        align="edge",
        color=colour,
        edgecolor="white",
        linewidth=points(0.7),
    )
    for number, bar in zip(numbers, bars, strict=True):
        picture.describe(bar, name, f"{_when(stretches[number].begin, timeline)}: {values[number]:,} {name}")


def _integer_ticks(most: int) -> "MaxNLocator":
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(most, integer=True, steps=[1, 2, 5, 10])


def _x(value: int, timeline: Timeline) -> float:
    """Return the place on the x axis: in days for a time, the unit of matplotlib, otherwise the offset."""
    return value / _MS_PER_DAY if timeline.by_time else value


def _width(stretches: Sequence[TimelineInterval]) -> int:
    """Return the width of an interval; 1000 (ms or bytes) for a single one, whose width is unknown."""
    return stretches[1].begin - stretches[0].begin if len(stretches) > 1 else 1000


def _length(stretches: Sequence[TimelineInterval], timeline: Timeline) -> str:
    """Return the width of an interval as text for a panel title; "" for a single interval."""
    if len(stretches) == 1:
        return ""
    width = _width(stretches)
    if not timeline.by_time:
        return f" in each {width:,} bytes"
    unit, size = next((unit, size) for unit, size in _UNITS_MS.items() if width >= 2 * size or unit == "s")
    return f" in each {width / size:.3g} {unit}"


def _when(begin: int, timeline: Timeline) -> str:
    if not timeline.by_time:
        return f"at {begin:,}"
    return datetime.fromtimestamp(begin / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _short(title: str) -> str:
    """Shorten a title to its end, which distinguishes journals."""
    title = printable(title)
    return title if len(title) <= _TITLE_MAX else "\u2026" + title[1 - _TITLE_MAX :]
