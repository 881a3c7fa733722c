"""Timelines: counts over time as text and JSON, and as a picture; what all pictures have in common.
The inspection of a journal, and the lines that its records become.
"""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dos_protocol.errors import CorruptDataError
from journal import Op, Record
from journal.core.chain import Predecessor, SegmentStart, start_record
from journal.core.errors import (
    ChainError,
    CorruptRecordError,
    LostBytesError,
    TornRecordError,
    UnknownRecordError,
)
from journal.core.inspection import (
    EXTENT_MAGIC,
    Inspector,
    Located,
    Timeline,
    fault_fields,
    fault_text,
    kind_of,
    original_text,
    record_json,
    record_text,
)
from journal.core.record import encode, encode_v1
from journal.limits import timeline_stretches_max
from journal.pictures import _HEAD, _LEFT, _RIGHT, WIDTH, check_drawable, draw_timeline, drawn
from journal.showing import Bound, as_line, dumper, timeline_json, timeline_text
from tests.journal.journal_command import journal
from tests.journal.test_cli import V0, V1

BEGIN_MS = 1_700_000_000_000


def timeline_of(records: list[Record], bytes_each: int = 100) -> Timeline:
    timeline = Timeline()
    for number, record in enumerate(records):
        timeline.take(Located("s", number * bytes_each, (number + 1) * bytes_each, 1, record))
    return timeline


def mark(ms: int) -> Record:
    return Record(Op.MARK, ints=(BEGIN_MS + ms,))


WRITE = Record(Op.WRITE, ints=(0,), strings=(b"f", b"x"))
ANY = st.one_of(
    st.just(WRITE),
    st.builds(mark, st.integers(0, 10**8)),
    st.builds(lambda step: Record(Op.CHECKPOINT, ints=(step, step, 1), strings=(b"{}",)), st.integers(0, 9)),
)


@given(st.lists(ANY, min_size=1, max_size=60), st.integers(1, 40))
def test_every_record_is_counted_once(records: list[Record], lines: int) -> None:
    found = timeline_of(records).stretches(lines)
    assert 0 < len(found) <= lines
    assert sum(one.records for one in found) == len(records)
    assert sum(one.bytes for one in found) == 100 * len(records)
    assert sum(one.events["checkpoints"] for one in found) == sum(
        record.op is Op.CHECKPOINT for record in records
    )
    begins = [one.begin for one in found]
    assert len({later - earlier for earlier, later in pairwise(begins)}) <= 1, "equally long"


def test_what_stands_between_two_clocks_belongs_to_the_first() -> None:
    found = timeline_of([WRITE, mark(0), WRITE, WRITE, mark(9_000), WRITE]).stretches(10)
    assert [(one.begin - BEGIN_MS, one.records) for one in found if one.records] == [(0, 4), (9_000, 2)]
    assert len(found) == 10


def test_memory_does_not_grow_with_the_journal() -> None:
    timeline = timeline_of([mark(60_000 * number) for number in range(3 * timeline_stretches_max)])
    assert len(timeline._by_time._found) <= timeline_stretches_max
    assert sum(one.records for one in timeline.stretches(7)) == 3 * timeline_stretches_max


def test_the_chart_has_a_bar_for_the_bytes_and_names_what_stands_out() -> None:
    timeline = timeline_of(
        [mark(0), WRITE, WRITE, mark(1000), Record(Op.CHECKPOINT, ints=(1, 1, 1), strings=(b"{}",))]
    )
    first, second = timeline_text(timeline, lines=5, columns=100).splitlines()
    assert first.count("#") * 2 == second.count("#") * 3 or first.count("#") > second.count("#") > 0
    assert "300 bytes" in first
    assert second.endswith("200 bytes  2 records  from 300  1 checkpoints")
    report = timeline_json(timeline, lines=5)
    assert report["by"] == "time"
    assert report["stretches"][1] == {
        "begin": BEGIN_MS + 1000, "offset": 300, "records": 2, "bytes": 200, "checkpoints": 1,
    }  # fmt: skip


def test_a_journal_without_clocks_is_divided_by_offset() -> None:
    assert json.loads(journal("timeline", V0, "--json").stdout)["by"] == "offset"
    assert journal("timeline", V1).returncode == 0
    assert timeline_text(Timeline(), lines=3, columns=80) == "no records"


def checkpoint(number: int, ms: int) -> Record:
    text = b'{"cut":%d,"step":4,"wall_time_ms":%d,"workers":{}}' % (number, BEGIN_MS + ms)
    return Record(Op.CHECKPOINT, ints=(number, 4, 1), strings=(text,))


def test_a_manifest_has_times_because_its_checkpoints_have() -> None:
    timeline = timeline_of([Record(Op.SNAPSHOT_END), checkpoint(1, 0), checkpoint(2, 5_000)])
    assert timeline.by_time
    assert [one.offset for one in timeline.stretches(10) if one.records] == [0, 200]


def dumped(begin: Bound, end: Bound | None, *, times: bool = False) -> list[str]:
    """The lines of a journal with a clock each second, at offset 100, 300, ..."""
    records = [record for number in range(4) for record in (WRITE, mark(1000 * number))]
    located = [Located("s", 100 * n, 100 * n + 100, 1, record) for n, record in enumerate(records)]
    lines: list[str] = []
    dumper(lines.append, as_line, begin=begin, end=end, times=times)(located)
    return "".join(lines).splitlines()


def test_records_are_shown_from_a_time_to_a_time_or_an_offset_with_their_times() -> None:
    def at(second: float) -> datetime:
        return datetime.fromtimestamp(BEGIN_MS / 1000 + second, UTC)

    assert [line.split()[0] for line in dumped(at(1), at(2))] == ["300", "400"]
    assert [line.split()[0] for line in dumped(at(0.5), 500)] == ["300", "400"]
    assert [line.split()[0] for line in dumped(200, at(0))] == []
    first, second, third, *_ = dumped(0, None, times=True)
    assert first.startswith("0 WRITE ")
    assert second.startswith("100 2023-11-14T22:13:20.000+00:00 MARK ")
    assert third.startswith("200 2023-11-14T22:13:20.000+00:00 WRITE "), "the last time that is known"


def test_the_command_takes_offsets_and_times_and_refuses_anything_else() -> None:
    whole = journal("dump", V1).stdout.splitlines()
    assert journal("dump", V1, "--from", "time:2999-01-01T00:00", "--to", "99999999").stdout == ""
    assert journal("dump", V1, "--from", "0", "--times").stdout.count("\n") == len(whole)
    for bad in ("soon", "step:4", "-1"):
        refused = journal("dump", V1, f"--from={bad}")
        assert refused.returncode == 2
        assert "--from" in refused.stderr


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
    line = f"from tests.journal.test_inspection import *; draw(Path({str(tmp_path / ('other-' + name))!r}))"
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


BELOW = Predecessor("J.0000000000000002.0000000000000000", 500, 7)
FIRST = SegmentStart("J", 3, 0, None, 1, "00" * 16)
LATER = SegmentStart("J", 3, 500, BELOW, 1, "00" * 16)
MARKS = [Record(Op.MARK, 0, (number,)) for number in range(3)]


def fed(inspector: Inspector, data: bytes, piece: int) -> list[tuple[int, int, Record]]:
    found = []
    for at in range(0, len(data), piece):
        found += [(one.offset, one.end, one.record) for one in inspector.feed(data[at : at + piece])]
    return found


@given(st.sampled_from([None, FIRST, LATER]), st.integers(1, 400), st.booleans())
def test_each_record_has_its_place_on_the_chain(start: SegmentStart | None, piece: int, named: bool) -> None:
    """Under any name, an object that was copied to a file is recognized by its start alone."""
    records = MARKS if start is None else [start_record(start), *MARKS]
    base, name = (start.base, start.name) if start is not None else (0, "file")
    inspector = Inspector(name if named else "file")
    found = fed(inspector, b"".join(map(encode, records)), piece)
    assert [record for *_, record in found] == records
    at = base
    for offset, end, record in found:
        assert (offset, end) == (at, at + len(encode(record)))
        at = end
    assert inspector.finish() is None
    tally = inspector.tally
    assert (tally.segments, tally.records, tally.bytes, tally.version) == (1, len(records), at - base, 1)
    assert (tally.first_offset, tally.end_offset, inspector.logical_base) == (base, at, base)


def test_the_plain_way_gives_the_same_ends() -> None:
    data = b"".join(map(encode, [start_record(LATER), *MARKS]))
    ends = [end for end, _ in Inspector(LATER.name).feed_plain(data)]
    assert ends == [end for _, end, _ in fed(Inspector(LATER.name), data, len(data))]


def test_nothing_seen_is_nothing_counted() -> None:
    inspector = Inspector("file")
    assert inspector.feed(b"") == []
    assert inspector.finish() is None
    assert (inspector.tally.version, inspector.tally.first_offset, inspector.tally.end_offset) == (
        None,
        None,
        0,
    )


@pytest.mark.parametrize(
    ("records", "sound", "text"),
    [
        ([*MARKS, start_record(LATER)], 3, "a segment start only as the first record"),
        ([start_record(FIRST), MARKS[0], start_record(LATER)], 2, "another segment's start"),
        ([start_record(FIRST), MARKS[0], Record(Op.SNAPSHOT_BEGIN)], 2, "a snapshot only at"),
        ([start_record(FIRST), Record(Op.SNAPSHOT_END, 0, (0,))], 1, "no snapshot begun"),
        ([start_record(LATER)], 0, "the start record of this segment"),
    ],
)
@pytest.mark.parametrize("piece", [1, 100_000])
def test_what_stands_before_a_misplaced_record_is_handed_out_and_then_nothing(
    records: list[Record], sound: int, text: str, piece: int
) -> None:
    inspector = Inspector(FIRST.name)
    found = fed(inspector, b"".join(map(encode, [*records, MARKS[0]])), piece)
    assert [record for *_, record in found] == records[:sound]
    assert isinstance(inspector.fault, ChainError)
    assert text in str(inspector.fault)
    assert inspector.fault.offset == sum(len(encode(record)) for record in records[:sound])
    assert inspector.tally.records == sound
    assert inspector.feed(encode(MARKS[0])) == []
    assert inspector.finish() is inspector.fault


@pytest.mark.parametrize("piece", [1, 2, 50])
def test_an_extent_of_a_data_directory_is_named_as_that(piece: int) -> None:
    inspector = Inspector("file")
    assert fed(inspector, EXTENT_MAGIC + bytes(50), piece) == []
    assert "read it through the server" in str(inspector.finish())


def test_a_cut_off_record_and_a_broken_one_are_faults_at_their_place() -> None:
    data = b"".join(map(encode, MARKS))
    inspector = Inspector("file")
    assert len(inspector.feed(data[:-1])) == 2
    assert isinstance(inspector.finish(), TornRecordError)
    inspector = Inspector("file")
    assert len(inspector.feed(data[:80] + bytes([data[80] ^ 1]) + data[81:])) == 2
    assert isinstance(inspector.finish(), CorruptRecordError)
    assert inspector.finish().offset == 80  # type: ignore[union-attr]
    inspector = Inspector("file")
    inspector.feed(data)
    assert inspector.feed(b"garbage" * 10) == []
    assert inspector.feed(data) == []
    assert isinstance(inspector.finish(), CorruptRecordError)


SHOWN = 64


def located(*strings: bytes, flags: int = 0) -> Located:
    return Located("J", 100, 140, 1, Record(Op.WRITE, 2, (10,), strings, flags))


def test_a_line_is_what_the_original_wrote_with_place_and_name() -> None:
    assert (
        record_text(located(b"/w/a", b"0\n"))
        == "100 WRITE version=1 op=1 tag=2 ints=[10] strings=['/w/a', '0\\n']"
    )
    assert (
        original_text(located(b"\x1b[2J\xff")) == "version=1 op=1 tag=2 ints=[10] strings=['\\x1b[2J\\xff']"
    )
    assert original_text(located(flags=0x12)) == "version=1 op=1 tag=2 flags=0x0012 ints=[10] strings=[]"


@pytest.mark.parametrize("size", [0, 1, SHOWN - 1, SHOWN, SHOWN + 1, 1000])
@pytest.mark.parametrize("full", [False, True])
def test_of_a_long_string_the_beginning_is_visible_and_how_long_it_is(size: int, full: bool) -> None:
    cut = size > SHOWN and not full
    shown = "a" * (SHOWN if cut else size)
    expected = f"'{shown}'" + (f"...[{size} bytes]" if cut else "")
    assert record_text(located(b"a" * size), full=full).endswith(f" strings=[{expected}]")
    assert original_text(located(b"a" * size)).endswith(f" strings=['{'a' * size}']")
    (text,) = json.loads(record_json(located(b"a" * size), full=full))["strings"]
    assert text == {"bytes": size, "text": shown} | ({"cut": True} if cut else {})
    (binary,) = json.loads(record_json(located(b"\xff" * size), full=full))["strings"]
    if size:
        assert binary == {"bytes": size, "hex": "ff" * len(shown)} | ({"cut": True} if cut else {})


def test_a_character_that_the_cut_divides_is_left_out() -> None:
    (one,) = json.loads(record_json(located(b"a" * (SHOWN - 1) + "é".encode())))["strings"]
    assert one == {"bytes": SHOWN + 1, "text": "a" * (SHOWN - 1), "cut": True}


def test_a_json_line_has_every_field() -> None:
    assert json.loads(record_json(located(b"p", flags=5))) == {
        "segment": "J", "offset": 100, "end": 140, "version": 1, "op": 1, "name": "WRITE", "tag": 2,
        "flags": 5, "ints": [10], "strings": [{"bytes": 1, "text": "p"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (TornRecordError("J", 5, "a record", "the end", "why"), "torn"),
        (UnknownRecordError("J", 5, "a record", "the end", "why"), "version"),
        (ChainError("J", 5, "a record", "the end", "why"), "chain"),
        (CorruptRecordError("J", 5, "a record", "the end", "why"), "corrupt"),
    ],
)
def test_a_fault_in_bytes_is_told_with_both_offsets(fault: CorruptDataError, kind: str) -> None:
    assert kind_of(fault) == kind
    assert fault_fields(fault, 1000) == {
        "kind": kind, "segment": "J", "offset": 5, "logical_offset": 1005,
        "expected": "a record", "found": "the end", "hint": "why",
    }  # fmt: skip
    assert fault_text(fault, 1000).splitlines()[:3] == [
        f"kind            {kind}", "segment         J", "offset          5",
    ]  # fmt: skip
    assert "logical offset  1005" in fault_text(fault, 1000).splitlines()


def test_of_another_fault_the_problem_and_the_remedy_are_reported_and_nothing_empty() -> None:
    fault = LostBytesError("bytes are gone", remedy="get them back")
    assert fault_fields(fault) == {"kind": "lost", "problem": "bytes are gone", "hint": "get them back"}
    assert len(fault_text(CorruptRecordError("J", 0, "x", "y", "")).splitlines()) == 6
