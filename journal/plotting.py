"""A timeline as a picture: SVG with bytes and records as bars over time, and what stands out below them.

Rules of this file: stretches to text. The picture has no script and loads nothing; it takes its colours from
what the reader has set, light or dark. What a bar or a tick stands for is said when it is pointed at.
"""

from datetime import UTC, datetime
from typing import Final
from xml.sax.saxutils import escape

from journal.core.timeline import Stretch, Timeline

WIDTH: Final = 960
_LEFT, _RIGHT, _TOP = 96, 20, 54
_PANELS: Final = (("bytes", 170), ("records", 110))
_GAP, _STRIP = 26, 24
_EVENTS: Final = ("steps", "cuts", "snapshots", "segments", "resets")
_STRETCHES_MAX: Final = 144
_TIMES_MAX: Final = 6

_STYLE: Final = """
text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1b1f24 }
.small { fill: #57606a; font-size: 11px }
.head { font-size: 14px }
.paper { fill: #ffffff }
.line { stroke: #d0d7de; stroke-width: 1 }
.axis { stroke: #57606a; stroke-width: 1 }
.bytes { fill: #2f6fb3 }
.records { fill: #2f7a3b }
.steps { fill: #8c959f }
.cuts { fill: #9a6700 }
.snapshots { fill: #6639ba }
.segments { fill: #0f7b8a }
.resets { fill: #c62f2f }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.small { fill: #9aa4af }
.paper { fill: #0d1117 }
.line { stroke: #30363d }
.axis { stroke: #8b949e }
.bytes { fill: #6cb0f5 }
.records { fill: #56b366 }
.steps { fill: #8b949e }
.cuts { fill: #d29922 }
.snapshots { fill: #a78bfa }
.segments { fill: #4fc3d0 }
.resets { fill: #ff7b72 }
}
"""


def as_svg(timeline: Timeline, title: str) -> str:
    """The picture. A timeline without records is an empty one that says so."""
    stretches = timeline.stretches(_STRETCHES_MAX)
    events = [name for name in _EVENTS if any(name in one.events for one in stretches)]
    height = _TOP + sum(size + _GAP for _, size in _PANELS) + _STRIP * len(events) + 34
    told = f"{sum(one.bytes for one in stretches):,} bytes, {sum(one.records for one in stretches):,} records"
    extent = f'width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {extent} role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        _text(_LEFT, 22, title, "head"),
        _text(WIDTH - _RIGHT, 22, told if stretches else "no records", "small", anchor="end"),
    ]
    if stretches:
        y = _TOP
        for name, size in _PANELS:
            parts += _panel(name, stretches, y, size, timeline)
            y += size + _GAP
        for name in events:
            parts += _strip(name, stretches, y, timeline)
            y += _STRIP
        parts += _times(stretches, y, timeline)
    return "\n".join([*parts, "</svg>", ""])


def _panel(name: str, stretches: list[Stretch], y: int, height: int, timeline: Timeline) -> list[str]:
    """Bars of one figure, with three lines to read them by."""
    most = _round_up(max(_figure(one, name) for one in stretches))
    parts = [_text(_LEFT, y - 5, f"{name} in each {_length(stretches, timeline)}", "small")]
    for share in (0.0, 0.5, 1.0):
        at = y + height * (1 - share)
        style = "line" if share else "axis"
        parts.append(f'<line class="{style}" x1="{_LEFT}" y1="{at:g}" x2="{WIDTH - _RIGHT}" y2="{at:g}"/>')
        parts.append(_text(_LEFT - 8, at + 4, _short(most * share), "small", anchor="end"))
    for number, one in enumerate(stretches):
        value = _figure(one, name)
        if value:
            bar = max(height * value / most, 1.0)
            words = f"{_when(one.begin, timeline)}: {value:,} {name}"
            parts.append(_rect(name, stretches, number, y + height - bar, bar, words))
    return parts


def _strip(name: str, stretches: list[Stretch], y: int, timeline: Timeline) -> list[str]:
    """A row of ticks, one where there is any of it."""
    total = sum(one.events[name] for one in stretches)
    parts = [
        _text(_LEFT - 8, y + 13, name, "small", anchor="end"),
        f'<line class="line" x1="{_LEFT}" y1="{y + 18}" x2="{WIDTH - _RIGHT}" y2="{y + 18}"/>',
        f"<g><title>{total:,} {name}</title>",
    ]
    for number, one in enumerate(stretches):
        if one.events[name]:
            words = f"{_when(one.begin, timeline)}: {one.events[name]:,} {name}"
            parts.append(_rect(name, stretches, number, y + 4, 13, words))
    return [*parts, "</g>"]


def _times(stretches: list[Stretch], y: int, timeline: Timeline) -> list[str]:
    """When it was, at a few places of the axis."""
    every = -(-len(stretches) // _TIMES_MAX)
    parts = []
    for number in range(0, len(stretches), every):
        x = _x(stretches, number)
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="{y + 2}" x2="{x:.1f}" y2="{y + 7}"/>')
        parts.append(_text(x, y + 21, _when(stretches[number].begin, timeline, short=True), "small"))
    return parts


def _rect(name: str, stretches: list[Stretch], number: int, y: float, height: float, words: str) -> str:
    x = _x(stretches, number)
    width = max((WIDTH - _LEFT - _RIGHT) / len(stretches) - 1, 1.5)
    return (
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{escape(words)}</title></rect>"
    )


def _x(stretches: list[Stretch], number: int) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * number / len(stretches)


def _text(x: float, y: float, words: str, style: str, *, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _figure(stretch: Stretch, name: str) -> int:
    return stretch.bytes if name == "bytes" else stretch.records


def _round_up(value: int) -> int:
    """To 1, 2, 4, 6, 8 or 10 times a power of ten; at least 2, so that its half is a whole number."""
    power = int("1" + "0" * (len(str(max(value, 1))) - 1))
    return max(next(power * times for times in (1, 2, 4, 6, 8, 10) if power * times >= value), 2)


def _short(value: float) -> str:
    """With the prefix that suits it."""
    for prefix, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:g} {prefix}"
    return f"{value:g}"


def _length(stretches: list[Stretch], timeline: Timeline) -> str:
    """Of one stretch."""
    width = stretches[1].begin - stretches[0].begin if len(stretches) > 1 else 0
    if not timeline.by_time:
        return f"{width:,} bytes" if width else "journal"
    return f"{width / 1000:g} s" if width else "second"


def _when(begin: int, timeline: Timeline, *, short: bool = False) -> str:
    if not timeline.by_time:
        return f"at {begin:,}"
    local = datetime.fromtimestamp(begin / 1000, UTC).astimezone()
    return local.strftime("%m-%d %H:%M:%S" if short else "%Y-%m-%d %H:%M:%S")
