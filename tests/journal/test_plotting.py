"""A timeline drawn: what is in the journal is in the picture, once, and nothing breaks out of it."""

from pathlib import Path
from xml.etree import ElementTree

from journal import Op, Record
from journal.core.inspection import Located
from journal.core.record import encode_v1
from journal.core.timeline import Timeline
from journal.plotting import WIDTH, as_svg
from tests.journal.test_files_cli import journal
from tests.journal.test_timeline import WRITE, mark

SPACE = "{http://www.w3.org/2000/svg}"


def life() -> Timeline:
    """Ten seconds, a write in each; taken over after five, with a snapshot, and two cuts."""
    timeline, at = Timeline(), 0
    for second in range(10):
        epoch = 1 if second < 5 else 2
        several = [mark(1000 * second), WRITE]
        if second in (0, 5):
            several.append(Record(Op.SEGMENT_START, strings=(b"{}",)))
        if second == 5:
            several.append(Record(Op.SNAPSHOT_END, ints=(0,)))
        if second in (3, 8):
            several.append(Record(Op.CUT, ints=(second,)))
        for record in several:
            timeline.take(Located(f"files.{epoch:016x}.{at:016x}", at, at + 100, 1, record))
            at += 100
    return timeline


def bars(picture: str, kind: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(picture).iter(f"{SPACE}rect") if one.get("class") == kind]


def test_each_stretch_has_its_bars_and_each_event_its_tick() -> None:
    picture = as_svg(life(), "dos://h/ledger/files")
    assert {
        kind: len(bars(picture, kind)) for kind in ("bytes", "records", "cuts", "segments", "resets")
    } == {
        "bytes": 10,
        "records": 10,
        "cuts": 2,
        "segments": 2,
        "resets": 1,
    }
    assert bars(picture, "steps") == []
    (reset,) = bars(picture, "resets")
    assert bars(picture, "segments")[1].get("x") == reset.get("x"), "the second segment is another writer's"
    assert "200 bytes" in (bars(picture, "bytes")[1].findtext(f"{SPACE}title") or "")
    assert "bytes in each 1 s" in picture
    tallest = max(bars(picture, "bytes"), key=lambda one: float(one.get("height") or 0))
    assert "400 bytes" in (tallest.findtext(f"{SPACE}title") or "")
    for one in ElementTree.fromstring(picture).iter(f"{SPACE}rect"):
        assert 0 <= float(one.get("x") or 0) + float(one.get("width") or 0) <= WIDTH + 1


def test_a_name_cannot_break_out_of_the_picture_and_nothing_is_loaded() -> None:
    picture = as_svg(life(), "<script>&\"'</script>")
    root = ElementTree.fromstring(picture)
    assert [one.tag for one in root.iter() if "script" in one.tag] == []
    assert "href" not in picture


def test_a_picture_of_nothing_says_so_and_one_without_times_counts_bytes() -> None:
    assert "no records" in as_svg(Timeline(), "empty")
    timeline = Timeline()
    for number in range(100):
        timeline.take(Located("some", 5000 * number, 5000 * (number + 1), 1, WRITE))
    assert "bytes in each 4,096 bytes" in as_svg(timeline, "no times")


def test_the_command_draws_and_says_what_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "some.journal"
    path.write_bytes(b"".join(encode_v1(mark(1000 * n)) + encode_v1(WRITE) for n in range(5)))
    done = journal("timeline", "--plot", tmp_path / "a.svg", path)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(bars((tmp_path / "a.svg").read_text(), "bytes")) == 5
    refused = journal("timeline", "--plot", tmp_path / "a.png", path)
    assert (refused.returncode, "ends in .svg" in refused.stderr) == (2, True)
    assert not (tmp_path / "a.png").exists()
    nowhere = journal("timeline", "--plot", tmp_path / "no" / "a.svg", path)
    assert (nowhere.returncode, "Traceback" in nowhere.stderr) == (2, False)
