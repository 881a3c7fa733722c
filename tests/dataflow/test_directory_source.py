"""Directories that grow: each line once, whatever comes when; a file that is not what was read is refused."""

import gzip
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint.core.region import ResetReport
from dataflow import FileSink, FileSource, Graph, SchemaError, limits
from dataflow.errors import (
    InputChangedError,
    InputEncodingError,
    InputGoneError,
    InputReadError,
)
from dataflow.sources.base import Positions, SourceDivision
from dataflow.sources.file_source import reader_of
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_processes import finished, kill, running


class Reading:
    """A reader on a clock that the test moves: each `lines` looks again."""

    def __init__(self, source: FileSource, positions: Positions | None = None) -> None:
        self.now = 0.0
        self.reader = reader_of(source, 0, 1, lambda: self.now)
        self.reader.reset_to(positions or {})

    def read(self, bytes_max: int) -> list[str]:
        """Once in a step."""
        self.now += 10
        batch = self.reader.read(bytes_max) if self.reader.has_input else None
        found: list[str] = [] if batch is None else batch.batch.column("line").to_pylist()
        return found

    def lines(self, bytes_max: int = 1 << 20) -> list[str]:
        """What a step finds."""
        found = self.read(bytes_max)
        self.division: SourceDivision = self.reader.take_division()
        return found


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_files_and_appended_lines_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("b1\nb2\n")
    reading = Reading(FileSource(tmp_path, watch=True))
    assert reading.lines() == ["b1", "b2"]
    assert reading.lines() == []
    assert not reading.reader.has_input
    assert reading.reader.wakes_in == 1.0
    (tmp_path / "c").write_text("c1\n")
    (tmp_path / "a").write_text("a1\n")
    append(tmp_path / "b", "b3\n")
    assert reading.lines() == ["c1", "a1", "b3"], "the next after b, and round"
    assert not reading.reader.exhausted


def test_a_line_is_taken_when_its_end_has_come(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("whole\nha")
    reading = Reading(FileSource(tmp_path, watch=True))
    assert reading.lines() == ["whole"]
    reading.now += 10
    assert not reading.reader.has_input, "no step is made for half a line"
    append(path, "lf\nagain")
    assert reading.lines() == ["half"]


def test_patterns_say_which_files_and_some_names_are_of_files_being_written(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    for name in ("a.log", "a.txt", "_b.log", ".c.log", "deep/er/d.log"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "e.log").mkdir()
    assert Reading(FileSource(tmp_path / "**/*.log", watch=True)).lines() == ["a.log", "deep/er/d.log"]
    assert Reading(FileSource([tmp_path / "a.txt", tmp_path / "*.txt"], watch=True)).lines() == ["a.txt"]
    reading = Reading(FileSource(tmp_path / "*.log", watch=True))
    assert reading.lines() == ["a.log"]
    (tmp_path / "_b.log").rename(tmp_path / "b.log")
    assert reading.lines() == ["_b.log"]


def test_a_gzip_file_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    packed = gzip.compress(b"one\ntwo\nthree")
    path = tmp_path / "a.gz"
    path.write_bytes(packed[:20])
    reading = Reading(FileSource(tmp_path, watch=True))
    assert reading.lines() == []
    path.write_bytes(packed[:25])
    assert reading.lines() == reading.lines() == []
    path.write_bytes(packed)
    assert reading.lines() == [], "it has just grown"
    assert reading.lines(5) == ["one", "two"]
    assert reading.lines(5) == ["three"]
    assert reading.lines() == []
    for other in (packed + packed, gzip.compress(b"1ne\ntwo\nthree")):
        path.write_bytes(other)
        with pytest.raises(InputChangedError, match="another file, of"):
            reading.lines()
        with pytest.raises(InputChangedError, match="another file, of"):
            Reading(FileSource(tmp_path, watch=True), reading.reader.positions()).lines()
    path.write_bytes(packed)
    assert Reading(FileSource(tmp_path, watch=True), reading.reader.positions()).lines() == []


def test_damaged_gzip_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"no gzip")
    with pytest.raises(InputReadError, match="is damaged gzip"):
        Reading(FileSource(tmp_path, watch=True)).lines()


def test_it_ends_when_its_end_exists_and_all_is_read(tmp_path: Path) -> None:
    end = tmp_path / "END"
    (tmp_path / "a").write_text("one\ntwo")
    reading = Reading(FileSource(tmp_path, watch=True, until=end))
    assert reading.lines() == ["one"]
    (tmp_path / "b").write_text("three\n")
    end.touch()
    steps = [(reading.lines(1), reading.reader.exhausted) for _ in range(3)]
    assert steps == [(["three"], False), (["two"], False), ([], True)], "nobody will end the line 'two'"
    assert reading.reader.wakes_in is None
    (tmp_path / "c.gz").write_bytes(gzip.compress(b"four")[:-3])
    with pytest.raises(InputReadError, match="ends within its gzip stream"):
        Reading(FileSource(tmp_path, watch=True, until=end), reading.reader.positions()).lines()


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.write_text("li"), "expected at least 10 bytes, found 2"),
        (lambda path: path.write_text("LINE\nline\nmore\n"), "expected content with digest"),
        (lambda path: replace(path, "LINE\nline\nmore\n"), "expected content with digest"),
        (lambda path: path.unlink(), "read up to byte 10, does not exist any more"),
        (lambda path: path.rename(path.with_name("_old")), "does not exist any more"),
    ],
)
def test_a_file_that_is_not_what_was_read_is_refused_by_name(
    change: Callable[[Path], Any], said: str, restarted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_text("line\nline\n")
    reading = Reading(FileSource(tmp_path, watch=True))
    assert reading.lines() == ["line", "line"]
    change(path)
    if restarted:
        reading = Reading(FileSource(tmp_path, watch=True), reading.reader.positions())
    with pytest.raises(InputChangedError, match=said) as caught:
        reading.lines()
    assert caught.value.path == str(path)


def replace(path: Path, text: str) -> None:
    path.with_name("_new").write_text(text)
    path.with_name("_new").rename(path)


def test_the_same_content_under_the_same_name_is_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("line\n")
    reading = Reading(FileSource(tmp_path, watch=True))
    reading.lines()
    replace(path, "line\nmore\n")
    assert reading.lines() == ["more"]


def test_read_files_may_be_taken_away_where_that_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("line\n")
    source = FileSource(tmp_path, watch=True, gone="forget")
    reading = Reading(source)
    reading.lines()
    before, division = reading.reader.positions(), reading.division
    path.unlink()
    assert reading.lines() == []
    assert reading.reader.positions() == {}
    path.write_text("another of this name\n")
    assert reading.lines() == ["another of this name"]
    again = Reading(source, before)
    again.reader.replay(reading.division)
    assert again.reader.positions() == reading.reader.positions()
    append(path, "more\n")
    reading.now += 10
    assert reading.reader.has_input
    path.unlink()
    with pytest.raises(InputGoneError):
        reading.lines()  # what came last was seen, and not read
    with pytest.raises(InputGoneError):
        Reading(source).reader.replay(division)


def test_a_replay_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("line\n" * 2000)
    reading = Reading(FileSource(tmp_path, watch=True))
    reading.lines()
    path.write_text("LINE\n" + "line\n" * 1999)
    with pytest.raises(InputChangedError, match="expected content with digest"):
        Reading(FileSource(tmp_path, watch=True)).reader.replay(reading.division)
    with pytest.raises(InputChangedError, match="expected a step from 0, found 10000"):
        reading.reader.replay(reading.division)


def test_bad_lines_are_told_with_file_and_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_bytes(b"fine\nnot \xff fine\n")
    with pytest.raises(InputEncodingError, match=f"input '{tmp_path}/log' is not UTF-8 at byte 9"):
        Reading(FileSource(tmp_path, watch=True)).lines()
    assert Reading(FileSource(tmp_path, watch=True, errors="replace")).lines() == ["fine", "not \ufffd fine"]
    monkeypatch.setattr(limits, "line_bytes_max", 8)
    reading = Reading(FileSource(tmp_path, watch=True))
    assert reading.lines(4) == ["fine"]
    with pytest.raises(InputReadError, match="of more than 8 bytes at byte 5"):
        reading.lines(4)


# EVIDENCE-OF: P-7
def test_steps_come_again_as_they_were_while_files_come_and_grow(tmp_path: Path) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        source = FileSource(folder, watch=True)
        reading, wrote, steps, positions = Reading(source), Counter[str](), [], [Positions()]
        before: list[str] = []
        for number in range(40):
            path = folder / f"{rng.randrange(5)}"
            line = f"line {number} {'x' * rng.randrange(60)}"
            if rng.random() < 0.2:
                path = folder / f"{number}.gz"
                path.write_bytes(gzip.compress(f"{line}\n{line}\n".encode()))
                wrote[line] += 1
            else:
                append(path, f"{line}\n")
            wrote[line] += 1
            if rng.random() < 0.3:
                before += reading.read(rng.choice([1, 40, 1000]))
            elif rng.random() < 0.5:
                steps.append((before + reading.lines(rng.choice([1, 40, 1000])), reading.division))
                positions.append(reading.reader.positions())
                before = []
        while (found := before + reading.lines()) or reading.reader.has_input:
            steps.append((found, reading.division))
            positions.append(reading.reader.positions())
            before = []
        assert Counter(line for found, _ in steps for line in found) == wrote
        begin = rng.randrange(len(steps))
        again = Reading(source, positions[begin])
        for number in range(begin, len(steps)):
            assert again.reader.has_input, "it looks round before it replays"
            found, division = steps[number]
            made = again.reader.replay(division)
            assert [row for batch in made for row in batch.batch.column("line").to_pylist()] == found
            assert again.reader.take_division() == division
            assert again.reader.positions() == positions[number + 1]
        assert again.lines() == []


def copied(source: FileSource, out: Path) -> Graph:
    graph = Graph("growing")
    graph.source("lines", source).sink("out", FileSink(out))
    return graph


# EVIDENCE-OF: P-7
def test_a_region_on_a_growing_directory_is_exact_however_often_it_is_reset(tmp_path: Path) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        folder, wrote = tmp_path / f"in{seed}", list[str]()
        folder.mkdir()
        source = FileSource(folder, watch=True, until=folder / "END", poll_s=1e-9)
        region = OneThreadRegion(copied(source, tmp_path / f"out{seed}"), 2, rng.randrange)
        region.restore()
        for number in range(40):
            wrote.append(f"line {number}")
            append(folder / f"{rng.randrange(number + 1) % 7}", f"line {number}\n")
            for _ in range(rng.randrange(8)):
                region.turn()
            if rng.random() < 0.1:
                region.request_checkpoint()
            elif rng.random() < 0.1:
                region.restore()
        (folder / "END").touch()
        region.finish()
        assert sorted(row[0] or "" for _, row in rows_of(tmp_path / f"out{seed}")) == sorted(wrote)


def shown_in(out: Path) -> int:
    return sum(part.read_bytes().count(b"\n") for part in out.glob("part-w*.tsv"))


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_lines_written_while_workers_are_killed_exist_once(shared_store: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    source = FileSource(folder, watch=True, until=folder / "END", poll_s=0.05)
    wrote = 0
    with running(copied(source, tmp_path / "out"), shared_store, tmp_path) as (control, watch):
        for round_ in range(3):
            shown = shown_in(tmp_path / "out")
            for number in range(8):
                append(folder / f"old{number}", f"{wrote}\n")
                packed = folder / f"_{round_}-{number}"
                packed.write_bytes(gzip.compress(f"{wrote + 1}\n".encode()))
                packed.rename(folder / f"{round_}-{number}.gz")
                wrote += 2
            while shown_in(tmp_path / "out") <= shown:
                control.wait(0.01)
            if round_ < 2:
                kill(control, round_, wipe=True)
                watch.wait(lambda event: isinstance(event, ResetReport), round_ + 1)
        (folder / "END").touch()
        assert finished(control), control.status
    assert sorted(int(row[0] or 0) for _, row in rows_of(tmp_path / "out")) == list(range(wrote))


def test_what_makes_no_sense_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SchemaError, match="directory '/no/such' that a FileSource watches does not exist; create it first"
    ):
        FileSource("/no/such/*/*.log", watch=True)
    with pytest.raises(
        SchemaError, match=r"'/.*/typo' that a FileSource watches does not exist; create it first"
    ):
        FileSource(tmp_path / "typo", watch=True)
    with pytest.raises(SchemaError, match="at least one file, directory or pattern"):
        FileSource([], watch=True)
    with pytest.raises(SchemaError, match="poll_s must be a number of seconds above 0"):
        FileSource(tmp_path, watch=True, poll_s=0)
    with pytest.raises(SchemaError, match="gone must be 'stop' or 'forget', not 'away'"):
        FileSource(tmp_path, watch=True, gone="away")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="errors must be 'strict' or 'replace'"):
        FileSource(tmp_path, watch=True, errors="never")  # type: ignore[arg-type]
    folder = tmp_path / "in"
    folder.mkdir()
    reading = Reading(FileSource(folder, watch=True))
    folder.rmdir()
    with pytest.raises(InputReadError, match="no longer exists"):
        reading.lines()
    folder.mkdir()
    monkeypatch.setattr(limits, "directory_files_max", 1)
    (folder / "a").touch()
    (folder / "b").touch()
    with pytest.raises(InputReadError, match="2 input files exist for one worker"):
        reading.lines()
