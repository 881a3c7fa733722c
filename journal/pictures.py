"""The common part of all pictures, in SVG or PNG: file format, fonts, colors and sizes.

The content of a timeline, a graph or a curve is drawn elsewhere. matplotlib is imported only when a picture
is drawn, so it is an optional dependency. Equal figures produce equal bytes, so that a picture under version
control changes only when its content does. Sizes are pixels of the SVG; a PNG has twice as many in each
direction.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """Yield a picture to draw into, and write the file at the end of the block, unless the block raises.

    Raises the ValueError of `check_drawable`, OSError.
    """
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
