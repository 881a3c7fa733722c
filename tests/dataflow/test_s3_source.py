"""Objects of a bucket as input: each line once, from any position and on any host; objects that were replaced
are refused; few requests.
"""

import gzip
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataflow import FileSink, FileSource, Graph, SchemaError, limits
from dataflow.errors import (
    InputChangedError,
    InputGoneError,
    InputReadError,
)
from dataflow.sources import input_files
from dataflow.sources.file_source import reader_of
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.s3_sources import (
    LONG,
    Reading,
    bucket,
    forget,
    half_read,
    lines_of,
    prefix,
    put,
    remove,
    service,
    small_requests,
    stored,
    url,
)
from tests.dataflow.support import rows_of
from tests.dataflow.test_formats import GROUPED, write_table
from tests.support.examples import run_example
from tests.support.polling import until
from tests.support.s3 import FakeS3

__all__ = ["bucket", "prefix", "service"]
KIB = 1024


def lists(service: FakeS3) -> int:
    return sum("list-type=2" in path for _, path in service.seen)


# --- how much waits -----------------------------------------------------------------------------------------


def test_objects_of_a_pattern_are_known_without_a_request_and_those_by_name_when_they_were_asked_for(
    bucket: FakeS3, prefix: str
) -> None:
    names = ("a", "b", "c")
    for number, name in enumerate(names, 1):
        put(f"{prefix}/{name}", "x" * 9 * number + "\n")
    listed = FileSource(url(prefix, "/*"))
    forget(bucket)
    pattern = reader_of(listed, 0, 1)
    assert pattern.backlog_bytes == 57
    assert bucket.seen == []
    named = reader_of(FileSource([url(prefix, f"/{name}") for name in names]), 0, 1)
    assert named.backlog_bytes is None, "it does not wait for the service"
    until(lambda: named.backlog_bytes == 57, "all sizes are known", 20)
    assert [method for method, _ in bucket.seen] == ["HEAD"] * 3
    for reader in (pattern, named):
        left = 57
        while (batch := reader.read(10)) is not None:
            reader.take_division()
            left -= batch.bytes_read
            assert reader.backlog_bytes == left
        assert left == 0
        reader.reset_to({})
        assert reader.backlog_bytes == 57
        reader.close()


def test_the_backlog_is_not_known_of_packed_objects_or_if_the_service_refuses(
    bucket: FakeS3, prefix: str
) -> None:
    put(f"{prefix}/a.gz", gzip.compress(b"packed\n"))
    put(f"{prefix}/b", "plain\n")
    packed = reader_of(FileSource([url(prefix, "/b"), url(prefix, "/a.gz")]), 0, 1)
    gone = reader_of(FileSource([url(prefix, "/b"), url(prefix, "/none")]), 0, 1)
    forget(bucket)
    assert gone.backlog_bytes is None
    until(lambda: len(bucket.seen) == 2, "both objects were asked for", 20)
    assert packed.backlog_bytes is gone.backlog_bytes is None
    gone.close()
    assert gone.backlog_bytes is None, "what is not known is asked for once"


# --- every line once ----------------------------------------------------------------------------------------


def test_every_line_comes_once_whatever_the_requests_and_a_reader_continues_from_any_position(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch, 12)
    texts = {"a": "one\ntwo\n\nfour", "b": "", "c.gz": "packed\nlines\n" * 4, "d": "x" * 50 + "\ny\n"}
    for name, text in texts.items():
        put(f"{prefix}/{name}", gzip.compress(text.encode()) if name.endswith(".gz") else text)
    whole = [line for text in texts.values() for line in text.removesuffix("\n").split("\n") if text]
    for source, bytes_max in ((FileSource(url(prefix, "/*")), 1), (FileSource(url(prefix), watch=True), 20)):
        reading = Reading(source)
        steps, divisions, positions = [], [], [reading.reader.positions()]
        while found := reading.lines(bytes_max):
            steps.append(found)
            divisions.append(reading.division)
            positions.append(reading.reader.positions())
        assert [line for step in steps for line in step] == whole
        for begin in range(0, len(steps), 2):
            again = Reading(source, stored(positions[begin]))
            made = again.reader.replay(divisions[begin])
            assert lines_of(made) == steps[begin]
            assert again.reader.take_division() == divisions[begin]
            assert again.reader.positions() == positions[begin + 1]
            assert again.all_lines() == [line for step in steps[begin + 1 :] for line in step]


def test_records_of_csv_come_from_objects_with_quotes_and_headers_and_continue_from_any_position(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch, 12)
    text = "n,line\n" + "".join(f'{number},"a\n{number}"\nx,y\n' for number in range(9))
    for name, data in {"a.csv": text.encode(), "b.csv.gz": gzip.compress(text.encode())}.items():
        put(f"{prefix}/{name}", data)
    whole = [f"a\n{number}" for number in range(9)] * 2
    for watch in (False, True):
        source = FileSource(
            url(prefix, "" if watch else "/*"),
            watch=watch,
            format="csv",
            schema="line string, n int",
            on_bad="drop",
        )
        reading, found = Reading(source), list[str]()
        while len(found) < len(whole):
            found += reading.lines(20)
            reading = Reading(source, stored(reading.reader.positions()))
        assert found == whole


@pytest.mark.parametrize("form", GROUPED)
def test_row_groups_come_from_objects_and_continue_from_any_position(
    form: str, bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_requests(monkeypatch, 300)
    monkeypatch.setattr(limits, "file_part_bytes", 500)
    whole = [f"line {number}" for number in range(9)]
    write_table(form, tmp_path / "f", pa.table({"line": whole, "n": range(9)}), group=2)
    put(f"{prefix}/a", (tmp_path / "f").read_bytes())
    kind: Any = form.removesuffix("s")
    for watch in (False, True):
        source = FileSource(url(prefix, "" if watch else "/*"), watch=watch, format=kind)
        reading, found = Reading(source), list[str]()
        while len(found) < len(whole):
            found += reading.lines(1)
            reading = Reading(source, stored(reading.reader.positions()))
        assert found == whole
    source = FileSource(url(prefix, "/a"), format=kind)
    assert len(source.pieces) > 1
    write_table(form, tmp_path / "f", pa.table({"line": whole[::-1], "n": range(9)}), group=2)
    put(f"{prefix}/a", (tmp_path / "f").read_bytes())
    with pytest.raises(InputChangedError, match="the file that was divided into parts"):
        Reading(source).lines()


def test_a_worker_requests_the_footer_and_the_row_groups_of_its_parts(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_requests(monkeypatch, 1000)
    table = pa.table({"line": [f"{number:0500}" for number in range(80)]})
    pq.write_table(table, tmp_path / "f", row_group_size=1, compression="none", write_statistics=False)
    size = (tmp_path / "f").stat().st_size
    monkeypatch.setattr(limits, "file_part_bytes", size // 8 + 1)
    put(f"{prefix}/a", (tmp_path / "f").read_bytes())
    source = FileSource(url(prefix, "/a"), format="parquet", schema="line string")
    assert len(source.pieces) == 8
    footer = int.from_bytes((tmp_path / "f").read_bytes()[-8:-4], "little")
    found = list[str]()
    for worker in range(4):
        forget(bucket)
        reader = reader_of(source, worker, 4)
        while not reader.exhausted:
            batch = reader.read(1)  # None: no row group begins in the part with the footer
            assert batch is None or batch.batch.num_rows == 1, "a step has one row group"
            found += lines_of([batch] if batch else [])
        spans = [map(int, span[6:].split("-")) for span, _ in bucket.spans]
        requested = sum(min(end, size - 1) - begin + 1 for begin, end in spans)
        assert requested < size / 4 + 2 * (
            footer + 3 * 4000
        )  # of two parts; requests are of up to 4,000 bytes
        reader.close()
    assert sorted(found) == table["line"].to_pylist()


def test_patterns_mean_what_they_mean_for_paths(bucket: FakeS3, prefix: str, tmp_path: Path) -> None:
    names = [
        "a.log",
        "b.txt",
        ".c.log",
        "_d.log",
        "e#1?.log",
        "x/f.log",
        "x/.y/g.log",
        "x/z/h.log",
        "x/[i].log",
    ]
    for name in names:
        put(f"{prefix}/{name}", f"{name}\n")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    put(f"{prefix}/x/", "")  # as tools mark an empty directory
    for pattern in ("*.log", "**/*.log", "**", "x/*", "*/f.log", "x/[[]i].log", ".*", "[ab].*", "x/**/h.log"):
        files = [str(tmp_path / pattern)]
        try:
            expected = [path.removeprefix(f"{tmp_path}/") for path in FileSource(files).paths]
        except SchemaError:
            expected = []
        expected = [path for path in expected if (tmp_path / path).is_file()]
        found = input_files.BucketFiles(None).expand([url(prefix, f"/{pattern}")])
        assert [path.removeprefix(url(prefix, "/")) for path in found] == expected, pattern
    assert Reading(FileSource(url(prefix, "/"), watch=True)).all_lines() == ["a.log", "b.txt", "e#1?.log"]
    forget(bucket)
    assert Reading(FileSource(url(prefix, "/**/*.log"), watch=True)).all_lines()[-1] == "x/z/h.log"
    one = FileSource([url(prefix, "/e#1?.log").replace("?", "[?]")])
    assert one.paths == (url(prefix, "/e#1?.log"),)


def test_any_part_of_an_object_can_be_read_in_any_order(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch, 20)
    content = bytes(range(256)) * 2
    put(f"{prefix}/a", content)
    rng, at = random.Random(3), 0
    held = input_files.BucketFiles(None).open(url(prefix, "/a"))
    for _ in range(60):
        at = rng.choice([at, at, rng.randrange(600)])
        count = rng.randrange(1, 60)
        assert held.read(at, count) == content[at : at + count]
        at += count


def test_the_example_of_the_docs(bucket: FakeS3, prefix: str) -> None:
    put(f"{prefix}/2026-01.txt.gz", gzip.compress(b"one\n"))
    put(f"{prefix}/today/a", "two\n")
    put(f"{prefix}/today/END", "")
    found = run_example("docs/sources-and-sinks.md", "s3_source", bucket=url(prefix))
    sources = [node.spec for node in found["graph"].nodes()[0][:2]]
    assert [Reading(source).all_lines() for source in sources] == [["one"], ["two"]]


# EVIDENCE-OF: P-7
def test_a_region_on_a_growing_bucket_is_exact_however_often_it_is_reset(
    bucket: FakeS3, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch, 64)
    rng, wrote = random.Random(1), list[str]()
    graph = Graph("growing")
    source = FileSource(url(prefix), watch=True, until=url(prefix, "/END"), poll_s=1e-9)
    graph.source("lines", source).sink("out", FileSink(tmp_path / "out"))
    region = OneThreadRegion(graph, 2, rng.randrange)
    region.restore()
    for number in range(5):
        lines = [f"line {number} {index}" for index in range(rng.randrange(1, 30))]
        put(f"{prefix}/{number}", "\n".join(lines))
        wrote += lines
        for _ in range(rng.randrange(5)):
            region.turn()
        if rng.random() < 0.2:
            region.request_checkpoint()
        elif rng.random() < 0.2:
            region.restore()
    put(f"{prefix}/END", "")
    region.finish()
    assert sorted(row[0] or "" for _, row in rows_of(tmp_path / "out")) == sorted(wrote)


# --- recovery -----------------------------------------------------------------------------------------------


def test_a_reset_requests_as_much_of_a_large_object_as_of_a_small_one(bucket: FakeS3, prefix: str) -> None:
    """One request, which begins at most 128 KiB before the position and ends after it."""
    for size in (400 * KIB, 1_600 * KIB):
        put(f"{prefix}/{size}", b"%09d\n" % 7 * (size // 10))
        for source in (FileSource(url(prefix, f"/{size}")), FileSource(url(prefix, f"/{size}*"), watch=True)):
            reading = Reading(source)
            while reading.lines(200 * KIB):
                (at,) = [at for at in reading.reader.positions().values() if at.version]
                if at.position > size - 250 * KIB:
                    break
            forget(bucket)
            again = Reading(source, stored(reading.reader.positions()))
            again.lines(10)
            assert len(bucket.spans) == 1
            span, version = bucket.spans[0]
            begin, end = map(int, span.removeprefix("bytes=").split("-"))
            assert at.position - 128 * KIB < begin < at.position < end
            assert end - begin == limits.object_read_bytes_min - 1
            assert version == at.version


def test_requests_become_larger_and_the_next_one_is_made_ahead(bucket: FakeS3, prefix: str) -> None:
    text = b"".join(b"%09d\n" % number for number in range(200_000))
    put(f"{prefix}/a", text)
    reading = Reading(FileSource(url(prefix, "/a")))
    assert "\n".join(reading.all_lines()) == text.decode().removesuffix("\n")
    lengths = [end - begin + 1 for begin, end in (map(int, span[6:].split("-")) for span, _ in bucket.spans)]
    assert [length // KIB for length in lengths] == [256, 512, 1024, 2048]
    assert [version for _, version in bucket.spans] == ["", *[bucket.spans[1][1]] * 3]
    forget(bucket)
    Reading(FileSource(url(prefix, "/a"))).lines(10)
    assert len(bucket.spans) == 1, "a reader of the beginning alone requests nothing ahead"


def test_what_objects_hold_in_memory_is_bounded_however_many_are_open(prefix: str) -> None:
    files = input_files.BucketFiles("http://127.0.0.1:9")
    open_ones = [input_files.ObjectBytes(files, object(), f"{number}", "") for number in range(256)]  # type: ignore[arg-type]
    assert open_ones[0]._length_max() == limits.object_read_bytes_min
    for one in open_ones[1:]:
        one.close()
    assert open_ones[0]._length_max() == limits.object_read_bytes_max


def test_the_bucket_is_listed_once_per_interval_also_while_steps_are_replayed(
    bucket: FakeS3, prefix: str
) -> None:
    for number in range(5):
        put(f"{prefix}/{number}", "some\nlines\n")
    source = FileSource(url(prefix), watch=True)
    assert source.poll_s == limits.object_poll_s
    reading = Reading(source)
    divisions = []
    while reading.lines(1):
        divisions.append(reading.division)
    again = Reading(source)
    forget(bucket)
    for division in divisions:
        again.now += 0.1
        assert again.reader.has_input
        again.reader.replay(division)
    assert not again.reader.has_input
    assert again.reader.wakes_in == pytest.approx(source.poll_s - 0.1 * (len(divisions) - 1))
    assert lists(bucket) == 1
    again.now += source.poll_s
    assert not again.reader.has_input
    assert lists(bucket) == 2


# --- objects that are not what they were --------------------------------------------------------------------


def continued(reading: Reading, *, restarted: bool) -> Reading:
    """The same reader, or one on another host."""
    reader: Any = reading.reader
    return Reading(reader._spec, stored(reader.positions())) if restarted else reading


@pytest.mark.parametrize("kind", [FileSource, partial(FileSource, watch=True)])
@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize("restarted", [True, False])
def test_an_object_that_was_replaced_while_it_is_read_is_refused_by_name(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, restarted: bool
) -> None:
    """Also by a longer one that begins with the same bytes."""
    small_requests(monkeypatch, 12)
    packed = name.endswith(".gz")
    monkeypatch.setattr("dataflow.sources.input_files._block_bytes", 4)
    text = "".join(f"{number * 7919}\n" for number in range(100))
    put(f"{prefix}/{name}", gzip.compress(text.encode()) if packed else text)
    reading = half_read(kind(url(prefix, f"/{name[:1]}*")))
    text += "more\n"
    put(f"{prefix}/{name}", gzip.compress(text.encode()) if packed else text)
    with pytest.raises(InputChangedError, match=r"expected the object \"\w+\", found") as caught:
        continued(reading, restarted=restarted).all_lines(10)
    assert caught.value.path == url(prefix, f"/{name}")
    assert "write new lines into an object with another name" in str(caught.value)


def test_an_object_that_was_read_and_then_replaced_is_refused_or_read_as_a_new_one(
    bucket: FakeS3, prefix: str
) -> None:
    put(f"{prefix}/a", "line\n")
    for gone in ("stop", "forget"):
        put(f"{prefix}/a", "line\n")
        source = FileSource(url(prefix), watch=True, gone=gone)  # type: ignore[arg-type]
        reading = Reading(source)
        assert reading.all_lines() == ["line"]
        put(f"{prefix}/a", "line\n")
        assert reading.all_lines() == [], "the same content is the same version"
        put(f"{prefix}/a", "line\nmore\n")
        for again in (Reading(source, stored(reading.reader.positions())), reading):
            if gone == "forget":
                assert again.all_lines() == ["line", "more"]
            else:
                with pytest.raises(InputChangedError, match="found another one"):
                    again.lines()
    files = FileSource(url(prefix, "/a"))
    reading = Reading(files)
    assert reading.all_lines() == ["line", "more"]
    put(f"{prefix}/a", "other\n")
    assert continued(reading, restarted=True).all_lines() == [], "a file that was read is done"


def test_objects_that_were_deleted_are_reported(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch, 12)
    for source in (FileSource(url(prefix, "/a")), FileSource(url(prefix), watch=True)):
        put(f"{prefix}/a", LONG)
        reading = half_read(source)
        remove(f"{prefix}/a")
        with pytest.raises(InputGoneError, match=r"/a', read up to byte \d+, does not exist any more"):
            reading.all_lines(10)
        with pytest.raises(InputGoneError, match="does not exist any more"):
            Reading(source, stored(reading.reader.positions())).lines()
    put(f"{prefix}/a", LONG)
    forgetting = FileSource(url(prefix), watch=True, gone="forget")
    reading = Reading(forgetting)
    assert reading.lines()
    division, before = reading.division, reading.reader.positions()
    remove(f"{prefix}/a")
    assert reading.all_lines() == []
    assert reading.reader.positions() == {}
    assert Reading(forgetting, stored(before)).all_lines() == []
    with pytest.raises(InputGoneError):
        Reading(forgetting).reader.replay(division)
    put(f"{prefix}/a", LONG)
    part = half_read(forgetting).reader.positions()
    remove(f"{prefix}/a")
    with pytest.raises(InputGoneError):
        Reading(forgetting, stored(part)).lines()  # it was not read to its end
    with pytest.raises(InputReadError, match=r"no such bucket or object.*correct the URL"):
        Reading(FileSource(url(prefix, "/nowhere"))).lines()


def test_a_replay_of_other_bytes_is_refused_and_so_is_one_of_more_bytes(bucket: FakeS3, prefix: str) -> None:
    put(f"{prefix}/a", LONG)
    source = FileSource(url(prefix), watch=True)
    reading = half_read(source, 1_000)
    for other in ("LINE\n" + LONG[5:], LONG + "more\n"):
        put(f"{prefix}/a", other)
        with pytest.raises(InputChangedError, match=r"content with digest|its end there"):
            Reading(source).reader.replay(reading.division)
    put(f"{prefix}/a", LONG)
    reading = half_read(source)
    again = Reading(source)
    assert again.reader.has_input
    put(f"{prefix}/a", LONG + "more\n")  # after it was listed, and with the bytes of the recorded step
    again.reader.replay(reading.division)
    again.reader.take_division()
    assert again.all_lines()[-1] == "more"
