"""Pictures: whole or not at all, the same each time, in the two forms there are."""

import io
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from journal.pictures import check_drawable, drawn

SPACE = "{http://www.w3.org/2000/svg}"


def draw(path: Path, words: str = "some words", tooltip: str = "told") -> bytes:
    with drawn(path, "a title", 300, 200) as picture:
        axes = picture.figure.add_axes((0.2, 0.2, 0.7, 0.7))
        axes.set_title(words)
        (bar,) = axes.bar([1], [2])
        picture.describe(bar, "bar", tooltip)
    return path.read_bytes()


def test_a_png_is_one_of_twice_the_size_and_an_svg_is_one_with_its_words(tmp_path: Path) -> None:
    with Image.open(io.BytesIO(draw(tmp_path / "a.png"))) as image:
        assert (image.format, image.size) == ("PNG", (600, 400))
        image.load()
        assert len(set(image.convert("RGB").resize((60, 40)).tobytes())) > 2, "something is in it"
    root = ElementTree.fromstring(draw(tmp_path / "a.svg"))
    assert (root.tag, root.get("width"), root.get("height")) == (f"{SPACE}svg", "225pt", "150pt")
    assert "some words" in [one.text for one in root.iter(f"{SPACE}text")]
    assert [one.text for one in root.iter(f"{SPACE}title")] == ["a title", "told"]


@pytest.mark.parametrize("name", ["a.svg", "a.png"])
def test_the_same_figures_give_the_same_bytes_in_any_process_at_any_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = draw(tmp_path / name)
    (tmp_path / "matplotlibrc").write_text("axes.facecolor: red\nsvg.fonttype: path\n")
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path / "matplotlibrc"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))
    line = f"from tests.journal.test_pictures import *; draw(Path({str(tmp_path / ('other-' + name))!r}))"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", line], check=True, cwd=root)
    assert (tmp_path / f"other-{name}").read_bytes() == first
    assert str(datetime.now(UTC).year).encode() + b"-" not in first, "no date is in it"


def test_a_name_is_a_name_whatever_is_in_it(tmp_path: Path) -> None:
    odd = "$x^2$ <script>&\"'</script> \x00\x1b 表 ]]> -->"
    for name in ("a.png", "a.svg"):
        draw(tmp_path / name, odd.replace("\x00\x1b", ""), odd)
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert [one.tag for one in root.iter() if "script" in one.tag] == []
    assert odd.replace("\x00\x1b", "??") in [one.text for one in root.iter(f"{SPACE}title")]
    assert any("$x^2$" in (one.text or "") for one in root.iter(f"{SPACE}text"))


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.PNG", "a.svg.gz"])
def test_another_kind_of_file_is_refused_with_the_rule(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"name a file that ends in .svg or .png, not {name}"):
        check_drawable(tmp_path / name)


def test_nothing_is_left_when_the_drawing_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="midway"), drawn(tmp_path / "a.svg", "t", 100, 100):
        raise RuntimeError("midway")
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_the_error_names_what_to_install_and_all_else_works(tmp_path: Path) -> None:
    """In a process of its own, in which the library cannot be imported."""
    code = f"""
import sys
sys.modules["matplotlib"] = None
import journal.cli
from pathlib import Path
from typer.testing import CliRunner
path = Path({str(tmp_path)!r}) / "some.journal"
path.write_bytes(b"")
run = lambda *words: CliRunner().invoke(journal.cli.app, ["timeline", *map(str, words), str(path)])
print(run().exit_code)
done = run("--plot", path.with_suffix(".png"))
print(done.exit_code, done.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    result, refused = [line for line in done.stdout.splitlines() if line]
    assert result == "0"
    assert refused.startswith("2 dos: a picture needs the package matplotlib")
    assert refused.endswith("pip install 'dos-journal[plots]'")
    assert [one.name for one in tmp_path.iterdir()] == ["some.journal"]
