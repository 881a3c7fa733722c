"""A timeline drawn: what is in the journal is in the picture, once, and nothing breaks out of it."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from journal import Op, Record
from journal.core.inspection import Located
from journal.core.record import encode_v1
from journal.core.timeline import Timeline
from journal.plotting import _HEAD, _LEFT, _RIGHT, WIDTH, draw_timeline
from tests.journal.journal_command import journal
from tests.journal.test_timeline import WRITE, mark

SPACE = "{http://www.w3.org/2000/svg}"


def life() -> Timeline:
    """Ten seconds, a write in each; taken over after five, with a snapshot, and two checkpoints."""
    timeline, at = Timeline(), 0
    for second in range(10):
        epoch = 1 if second < 5 else 2
        several = [mark(1000 * second), WRITE]
        if second in (0, 5):
            several.append(Record(Op.SEGMENT_START, strings=(b"{}",)))
        if second == 5:
            several.append(Record(Op.SNAPSHOT_END, ints=(0,)))
        if second in (3, 8):
            several.append(Record(Op.CHECKPOINT, ints=(second,)))
        for record in several:
            timeline.take(Located(f"files.{epoch:016x}.{at:016x}", at, at + 100, 1, record))
            at += 100
    return timeline


def drawing(timeline: Timeline, path: Path, title: str = "some") -> ElementTree.Element:
    draw_timeline(timeline, title, path / "a.svg")
    return ElementTree.parse(path / "a.svg").getroot()


def bars(picture: ElementTree.Element, kind: str) -> list[str]:
    """Return the tooltip of each bar or tick of a kind."""
    groups = [one for one in picture.iter(f"{SPACE}g") if (one.get("id") or "").startswith(f"{kind}-")]
    return [one.findtext(f"{SPACE}title") or "" for one in groups]


def texts(picture: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in picture.iter(f"{SPACE}text")]


def test_each_stretch_has_its_bars_and_each_event_its_tick(tmp_path: Path) -> None:
    picture = drawing(life(), tmp_path, "dos://h/ledger/files")
    kinds = ("bytes", "records", "checkpoints", "segments", "resets", "snapshots", "steps")
    assert {kind: len(bars(picture, kind)) for kind in kinds} == {
        "bytes": 10,
        "records": 10,
        "checkpoints": 2,
        "segments": 2,
        "resets": 1,
        "snapshots": 1,
        "steps": 0,
    }
    (reset,) = bars(picture, "resets")
    second, _, label = bars(picture, "segments")[1].rpartition(": ")
    assert (reset, label) == (f"{second}: 1 resets", "1 segments"), "the second segment is another writer's"
    assert bars(picture, "bytes")[1].endswith(": 200 bytes")
    assert bars(picture, "bytes")[5] == f"{second}: 400 bytes"
    expected = {
        "dos://h/ledger/files",
        "2,500 bytes, 25 records",
        "bytes in each 1 s",
        "400 B",
        "checkpoints: 2",
    }
    assert expected <= set(texts(picture))
    assert any(one.startswith("time, ") for one in texts(picture))


def test_a_png_shows_a_bar_in_its_place(tmp_path: Path) -> None:
    draw_timeline(life(), "some", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert (image.format, image.width) == ("PNG", 2 * WIDTH)
        pixels = image.convert("RGB")
        blue = [
            pixels.getpixel((x, 2 * (_HEAD + 10))) == (0x2F, 0x6F, 0xB3)
            for x in range(2 * _LEFT, 2 * (WIDTH - _RIGHT))
        ]
    share = sum(blue) / len(blue)
    assert 0.08 < share < 0.1, "at this height there is only the tallest of ten bars"
    assert blue.index(True) / len(blue) == pytest.approx(0.5, abs=0.01)


def test_a_picture_of_nothing_reports_it_and_one_without_times_counts_bytes(tmp_path: Path) -> None:
    assert "no records" in texts(drawing(Timeline(), tmp_path))
    timeline = Timeline()
    for number in range(100):
        timeline.take(Located("some", 5000 * number, 5000 * (number + 1), 1, WRITE))
    assert {"bytes in each 4,096 bytes", "logical offset", "400,000"} <= set(
        texts(drawing(timeline, tmp_path))
    )
    alone = Timeline()
    alone.take(Located("some", 0, 100, 1, WRITE))
    assert {"bytes", "records", "100 bytes, 1 records"} <= set(texts(drawing(alone, tmp_path)))


@pytest.mark.parametrize(
    ("ms_apart", "unit"),
    [(60_000, "in each 2.8 min"), (3_600_000, "in each 2.8 h"), (86_400_000, "in each 2.8 days")],
)
def test_long_stretches_are_told_in_a_unit_that_suits_them(ms_apart: int, unit: str, tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(400):
        timeline.take(Located("some", 10 * number, 10 * number + 10, 1, mark(ms_apart * number)))
    assert any(
        one.startswith("bytes " + unit[:9]) and one.endswith(unit.split()[-1])
        for one in texts(drawing(timeline, tmp_path))
    )


def test_a_long_name_stays_in_the_picture(tmp_path: Path) -> None:
    picture = drawing(life(), tmp_path, "dos://h/" + "x" * 300 + "/files")
    (title,) = [one for one in texts(picture) if one.endswith("/files")]
    assert len(title) * 14 * 0.602 < WIDTH - _LEFT


def test_the_command_draws_and_reports_what_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "some.journal"
    path.write_bytes(b"".join(encode_v1(mark(1000 * n)) + encode_v1(WRITE) for n in range(5)))
    done = journal("timeline", "--plot", tmp_path / "a.svg", path)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(bars(ElementTree.parse(tmp_path / "a.svg").getroot(), "bytes")) == 5
    assert journal("timeline", "--plot", tmp_path / "a.png", path).returncode == 0
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
    refused = journal("timeline", "--plot", tmp_path / "a.jpg", path)
    assert (refused.returncode, "ends in .svg or .png" in refused.stderr) == (2, True)
    assert not (tmp_path / "a.jpg").exists()
    nowhere = journal("timeline", "--plot", tmp_path / "no" / "a.svg", path)
    assert (nowhere.returncode, "Traceback" in nowhere.stderr) == (2, False)
