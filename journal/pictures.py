"""Pictures in SVG or PNG: file format, fonts, colors and sizes of all of them, and the picture of a timeline.
matplotlib is imported only when a picture is drawn. Equal figures produce equal bytes. Sizes are pixels of
the SVG; a PNG has twice as many.
"""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

from journal.core.inspection import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

SUFFIXES: Final = (".svg", ".png")
INK, PALE, LINE, PAPER = "#1b1f24", "#57606a", "#d0d7de", "#ffffff"
"""Colors: text, small text, grid lines, background."""
LETTERS_PX: Final = 12
SMALL_PX: Final = 11
HEAD_PX: Final = 14
_POINTS_PER_PX: Final = 0.75
_PNG_DOTS_PER_PX: Final = 2
_PX_PER_INCH: Final = 96
_STYLE: Final = {
    "axes.axisbelow": True,
    "axes.edgecolor": PALE,
    "axes.labelcolor": PALE,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": PAPER,
    "font.family": "monospace",
    "font.monospace": ["DejaVu Sans Mono"],  # included in matplotlib, so the widths are known
    "font.size": LETTERS_PX * _POINTS_PER_PX,
    "grid.color": LINE,
    "svg.fonttype": "none",  # text stays text: it can be searched and copied
    "svg.hashsalt": "dos",  # otherwise each drawing has new ids
    "text.color": INK,
    "text.parse_math": False,  # a name may contain two $
    "xtick.color": PALE,
    "xtick.labelsize": SMALL_PX * _POINTS_PER_PX,
    "ytick.color": PALE,
    "ytick.labelsize": SMALL_PX * _POINTS_PER_PX,
}
_NO_DATES: Final = {"svg": dict.fromkeys(("Date", "Creator", "Format", "Type")), "png": {"Software": None}}


class Picture:
    """A picture that is being drawn. `figure` is the figure of matplotlib; `describe` describes its parts."""

    def __init__(self, figure: "Figure", title: str) -> None:
        self.figure = figure
        self._title = title
        self._tooltips: dict[str, str] = {}

    def describe(self, part: Any, kind: str, text: str = "") -> None:
        """Give a part of the figure the id KIND-NUMBER in the SVG, and `text` as its tooltip."""
        name = f"{kind}-{len(self._tooltips)}"
        part.set_gid(name)
        self._tooltips[name] = f"<title>{escape(printable(text))}</title>" if text else ""

    def encoded(self, form: str) -> bytes:
        """Return the bytes of the picture file. form: svg or png."""
        file = io.BytesIO()
        dots = _PX_PER_INCH * (_PNG_DOTS_PER_PX if form == "png" else 1)
        metadata = {"Title": self._title, **_NO_DATES[form]}
        self.figure.savefig(file, format=form, dpi=dots, metadata=metadata)
        if form == "png":
            return file.getvalue()
        text = re.sub(" +$", "", file.getvalue().decode(), flags=re.MULTILINE)
        return re.sub(
            '<g id="([^"]+)">', lambda group: group[0] + self._tooltips.get(group[1], ""), text
        ).encode()


@contextmanager
def drawn(path: Path, title: str, width: int, height: int) -> Iterator[Picture]:
    """Yield a picture to draw into; the file is written at its end. Raises ValueError, OSError."""
    check_drawable(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)  # drawn as a box
        matplotlib.rcdefaults()  # ignore the user's own settings
        matplotlib.rcParams.update(_STYLE)
        picture = Picture(Figure((width / _PX_PER_INCH, height / _PX_PER_INCH)), printable(title))
        yield picture
        path.write_bytes(picture.encoded(path.suffix[1:]))


def check_drawable(path: Path) -> None:
    """Raise ValueError if the suffix is not supported or matplotlib is missing. Call it before long work."""
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"pictures are drawn as SVG or PNG: name a file that ends in .svg or .png, not {path.name}"
        )
    try:
        import matplotlib.figure  # noqa: F401 - to find out whether it is installed
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a picture needs the package matplotlib, and {error.name} is not installed: "
            "pip install 'dos-journal[plots]'"
        ) from None


def printable(text: str) -> str:
    """Replace characters that are not valid in XML or in a font by "?"."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def points(pixels: float) -> float:
    """Convert pixels to points, the unit of matplotlib for text and lines."""
    return pixels * _POINTS_PER_PX


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
    """Draw a timeline to a file: bars over time, events in rows below them, with tooltips in an SVG."""
    chart = _TimelineChart(timeline)
    with drawn(path, title, WIDTH, chart.height) as picture:
        chart.draw(picture, title)


class _TimelineChart:
    def __init__(self, timeline: Timeline) -> None:
        self._by_time = timeline.by_time
        self._stretches = stretches = timeline.stretches(_STRETCHES_MAX)
        self._events = [name for name in _EVENTS if any(name in one.events for one in stretches)]
        panels = [size for _, size in _PANELS.values()] + [_STRIP * len(self._events)] * bool(self._events)
        filled = _HEAD + sum(panels) + _GAP * (len(panels) - 1) + _FOOT
        self.height = filled if stretches else _NOTHING
        self._width = stretches[1].begin - stretches[0].begin if len(stretches) > 1 else 1000
        """Of an interval; of a single one the width is unknown: 1000 ms or bytes."""

    def draw(self, picture: Picture, title: str) -> None:
        self._text(picture, 22, _short(title), HEAD_PX, INK)
        total, records = (
            sum(one.bytes for one in self._stretches),
            sum(one.records for one in self._stretches),
        )
        summary = f"{total:,} bytes, {records:,} records" if self._stretches else "no records"
        self._text(picture, 40, summary, SMALL_PX, PALE)
        if not self._stretches:
            return
        top = _HEAD
        for (name, (colour, size)), last in zip(_PANELS.items(), (False, not self._events), strict=True):
            self._panel(picture, self._axes(picture, top, size, dated=last), name, colour)
            top += size + _GAP
        if self._events:
            self._rows(picture, self._axes(picture, top, _STRIP * len(self._events), dated=True))

    def _text(self, picture: Picture, y: int, text: str, size: int, colour: str) -> None:
        picture.figure.text(_LEFT / WIDTH, 1 - y / self.height, text, size=points(size), color=colour)

    def _axes(self, picture: Picture, top: int, size: int, *, dated: bool) -> "Axes":
        height = self.height
        box = (_LEFT / WIDTH, 1 - (top + size) / height, (WIDTH - _LEFT - _RIGHT) / WIDTH, size / height)
        axes = picture.figure.add_axes(box)
        axes.set_xlim(self._x(self._stretches[0].begin), self._x(self._stretches[-1].begin + self._width))
        if self._by_time:
            _dates(axes, self._stretches[0].begin)
        else:
            axes.set_xlabel("logical offset")
            axes.xaxis.set_major_locator(_integer_ticks(6))
            axes.xaxis.set_major_formatter("{x:,.0f}")
        if not dated:
            axes.xaxis.label.set_visible(False)
            axes.tick_params(labelbottom=False)
            axes.xaxis.get_offset_text().set_visible(False)
        return axes

    def _panel(self, picture: Picture, axes: "Axes", name: str, colour: str) -> None:
        from matplotlib.ticker import EngFormatter

        axes.set_title(f"{name}{self._length()}", loc="left", size=points(SMALL_PX), color=PALE)
        axes.grid(visible=True, axis="y")
        axes.yaxis.set_major_locator(_integer_ticks(4))
        axes.yaxis.set_major_formatter(EngFormatter("B" if name == "bytes" else ""))
        values = [one.bytes if name == "bytes" else one.records for one in self._stretches]
        least = max(values) * _BAR_MIN
        self._bars(picture, axes, name, colour, values, [max(one, least) for one in values])

    def _rows(self, picture: Picture, axes: "Axes") -> None:
        """Draw a row for each kind of event, with a tick in each interval that has any."""
        labels = []
        for row, name in enumerate(self._events):
            values = [one.events[name] for one in self._stretches]
            labels.append(f"{name}: {sum(values):,}")
            ticks = [_TICK] * len(values)
            self._bars(picture, axes, name, _EVENTS[name], values, ticks, row - _TICK / 2)
            axes.axhline(row + 0.5, color=LINE, linewidth=points(1))
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)

    def _bars(
        self,
        picture: Picture,
        axes: "Axes",
        name: str,
        colour: str,
        values: Sequence[int],
        heights: Sequence[float],
        bottom: float = 0,
    ) -> None:
        numbers = [number for number, value in enumerate(values) if value]
        bars = axes.bar(
            [self._x(self._stretches[number].begin) for number in numbers],
            [heights[number] for number in numbers],
            width=self._x(self._width),
            bottom=bottom,
            align="edge",
            color=colour,
            edgecolor="white",
            linewidth=points(0.7),
        )
        for number, bar in zip(numbers, bars, strict=True):
            when = self._when(self._stretches[number].begin)
            picture.describe(bar, name, f"{when}: {values[number]:,} {name}")

    def _x(self, value: int) -> float:
        """Return the place on the x axis: in days for a time, the unit of matplotlib."""
        return value / _MS_PER_DAY if self._by_time else value

    def _length(self) -> str:
        width = self._width
        if len(self._stretches) == 1:
            return ""
        if not self._by_time:
            return f" in each {width:,} bytes"
        unit, size = next(
            (unit, size) for unit, size in _UNITS_MS.items() if width >= 2 * size or unit == "s"
        )
        return f" in each {width / size:.3g} {unit}"

    def _when(self, begin: int) -> str:
        if not self._by_time:
            return f"at {begin:,}"
        return datetime.fromtimestamp(begin / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _dates(axes: "Axes", first_ms: int) -> None:
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


def _integer_ticks(most: int) -> "MaxNLocator":
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(most, integer=True, steps=[1, 2, 5, 10])


def _short(title: str) -> str:
    title = printable(title)
    return title if len(title) <= _TITLE_MAX else "\u2026" + title[1 - _TITLE_MAX :]
