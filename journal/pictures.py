"""Pictures for people, SVG or PNG: how a file of one is made, with which letters, and in which size.

Rules of this file: what all pictures have in common, whatever they show; what a timeline, a graph or a curve
looks like is said where it is drawn. The library for it, matplotlib, is imported when a picture is drawn and
never before: who draws none does not need it. The same figures give the same bytes, so that a picture under
version control changes when what it shows did. Sizes are pixels of the SVG; a PNG has twice as many each way.
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
"""Colours: of words, of smaller words, of lines to read by, of the ground."""
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
    "font.monospace": ["DejaVu Sans Mono"],  # comes with the library, so that widths are known
    "font.size": LETTERS_PX * _POINTS_PER_PX,
    "grid.color": LINE,
    "svg.fonttype": "none",  # text stays text: it can be searched and copied
    "svg.hashsalt": "dos",  # else each drawing names its parts anew
    "text.color": INK,
    "text.parse_math": False,  # a name with two $ in it is a name
    "xtick.color": PALE,
    "xtick.labelsize": SMALL_PX * _POINTS_PER_PX,
    "ytick.color": PALE,
    "ytick.labelsize": SMALL_PX * _POINTS_PER_PX,
}
_NO_DATES: Final = {"svg": dict.fromkeys(("Date", "Creator", "Format", "Type")), "png": {"Software": None}}


class Picture:
    """One that is being drawn. `figure` is matplotlib's; what a part of it stands for is said by `tell`."""

    def __init__(self, figure: "Figure", title: str) -> None:
        self.figure = figure
        self._title = title
        self._told: dict[str, str] = {}

    def tell(self, part: Any, kind: str, words: str = "") -> None:
        """Name a part of the figure KIND-NUMBER in the SVG; a reader who points at it sees the words."""
        name = f"{kind}-{len(self._told)}"
        part.set_gid(name)
        self._told[name] = f"<title>{escape(printable(words))}</title>" if words else ""

    def encoded(self, form: str) -> bytes:
        """The picture's file. form: svg or png."""
        file = io.BytesIO()
        dots = _PX_PER_INCH * (_PNG_DOTS_PER_PX if form == "png" else 1)
        metadata = {"Title": self._title, **_NO_DATES[form]}
        self.figure.savefig(file, format=form, dpi=dots, metadata=metadata)
        if form == "png":
            return file.getvalue()
        text = re.sub(" +$", "", file.getvalue().decode(), flags=re.MULTILINE)
        return re.sub(
            '<g id="([^"]+)">', lambda group: group[0] + self._told.get(group[1], ""), text
        ).encode()


@contextmanager
def drawn(path: Path, title: str, width: int, height: int) -> Iterator[Picture]:
    """A picture to draw into; at the end of the block it is written, whole, and not if the block raises.

    Raises ValueError as `check_drawable` does, and OSError.
    """
    check_drawable(path)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)  # drawn as a box
        matplotlib.rcdefaults()  # what somebody likes elsewhere changes nothing here
        matplotlib.rcParams.update(_STYLE)
        picture = Picture(Figure((width / _PX_PER_INCH, height / _PX_PER_INCH)), printable(title))
        yield picture
        path.write_bytes(picture.encoded(path.suffix[1:]))


def check_drawable(path: Path) -> None:
    """Before long work: raises ValueError if no picture can have that name, or the library is missing."""
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"pictures are drawn as SVG or PNG: name a file that ends in .svg or .png, not {path.name}"
        )
    try:
        import matplotlib.figure  # noqa: F401 - to see whether it can be
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a picture needs the package matplotlib, and {error.name} is not installed: "
            "pip install 'dos-journal[plots]'"
        ) from None


def printable(words: str) -> str:
    """Without what neither XML nor a font has."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in words)


def points(pixels: float) -> float:
    """What the library measures letters and lines in."""
    return pixels * _POINTS_PER_PX
