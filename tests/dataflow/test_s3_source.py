"""Objects of a bucket as input: each line once, from any position and on any host; objects that were replaced
are refused; few requests.
"""

import gzip
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from checkpoint import SplitPosition
from dataflow import CallSink, DirectorySource, FileSink, FileSource, Graph, SchemaError, limits
from dataflow.errors import (
    InputChangedError,
    InputGoneError,
    InputReadError,
    InputUnavailableError,
)
from dataflow.limits import WorkerLimits
from dataflow.sources import objects
from dataflow.sources.base import Positions
from dataflow.sources.file_bytes import GzipBytes
from dataflow.worker.circuit_loop import CircuitLoop, LoopState
from dataflow.worker.identity import Identity
from dataflow.worker.messages import Inbox, Shared
from dos_client.errors import BadUrlError
from journal.archive.bucket import Bucket
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.s3_sources import (
    Reading,
    bucket,
    forget,
    lines_of,
    prefix,
    put,
    remove,
    service,
    small_requests,
    url,
)
from tests.dataflow.support import rows_of
from tests.support.examples import run_example
from tests.support.s3 import BUCKET, Answer, FakeS3, Rule, cut, status

__all__ = ["bucket", "prefix", "service"]
KIB = 1024


def stored(positions: Positions) -> Positions:
    """What another host gets: the positions as a checkpoint stores them."""
    return msgspec.json.decode(msgspec.json.encode(positions), type=dict[str, SplitPosition])


def lists(service: FakeS3) -> int:
    return sum("list-type=2" in path for _, path in service.seen)


# --- every line once ----------------------------------------------------------------------------------------


def test_every_line_comes_once_whatever_the_requests_and_a_reader_continues_from_any_position(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch, 12)
    texts = {"a": "one\ntwo\n\nfour", "b": "", "c.gz": "packed\nlines\n" * 4, "d": "x" * 50 + "\ny\n"}
    for name, text in texts.items():
        put(f"{prefix}/{name}", gzip.compress(text.encode()) if name.endswith(".gz") else text)
    whole = [line for text in texts.values() for line in text.removesuffix("\n").split("\n") if text]
    for source, bytes_max in ((FileSource(url(prefix, "/*")), 1), (DirectorySource(url(prefix)), 20)):
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
        found = objects.BucketFiles(None).expand([url(prefix, f"/{pattern}")])
        assert [path.removeprefix(url(prefix, "/")) for path in found] == expected, pattern
    assert Reading(DirectorySource(url(prefix, "/"))).all_lines() == ["a.log", "b.txt", "e#1?.log"]
    forget(bucket)
    assert Reading(DirectorySource(url(prefix, "/**/*.log"))).all_lines()[-1] == "x/z/h.log"
    one = FileSource([url(prefix, "/e#1?.log").replace("?", "[?]")])
    assert one.paths == (url(prefix, "/e#1?.log"),)


def test_any_part_of_an_object_can_be_read_in_any_order(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch, 20)
    content = bytes(range(256)) * 2
    put(f"{prefix}/a", content)
    rng, at = random.Random(3), 0
    held = objects.BucketFiles(None).open(url(prefix, "/a"))
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
    source = DirectorySource(url(prefix), until=url(prefix, "/END"), poll_s=1e-9)
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
            region.request_cut()
        elif rng.random() < 0.2:
            region.restore()
    put(f"{prefix}/END", "")
    region.finish()
    assert sorted(row[0] or "" for _, row in rows_of(tmp_path / "out")) == sorted(wrote)


# --- recovery -----------------------------------------------------------------------------------------------


def test_a_reset_requests_as_much_of_a_large_object_as_of_a_small_one(bucket: FakeS3, prefix: str) -> None:
    """One request, which begins at most 128 KiB before the position, and goes on after it."""
    for size in (400 * KIB, 1_600 * KIB):
        put(f"{prefix}/{size}", b"%09d\n" % 7 * (size // 10))
        for source in (FileSource(url(prefix, f"/{size}")), DirectorySource(url(prefix, f"/{size}*"))):
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
    assert len(bucket.spans) == 1, "whoever reads only the beginning requests nothing ahead"


def test_what_objects_hold_in_memory_is_bounded_however_many_are_open(prefix: str) -> None:
    files = objects.BucketFiles("http://127.0.0.1:9")
    open_ones = [objects.ObjectBytes(files, object(), f"{number}", "") for number in range(256)]  # type: ignore[arg-type]
    assert open_ones[0]._length_max() == limits.object_read_bytes_min
    for one in open_ones[1:]:
        one.close()
    assert open_ones[0]._length_max() == limits.object_read_bytes_max


def test_the_bucket_is_listed_once_per_interval_also_while_steps_are_replayed(
    bucket: FakeS3, prefix: str
) -> None:
    for number in range(5):
        put(f"{prefix}/{number}", "some\nlines\n")
    source = DirectorySource(url(prefix))
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


def half_read(source: "FileSource | DirectorySource", bytes_max: int = 10) -> Reading:
    reading = Reading(source)
    assert reading.lines(bytes_max)
    return reading


def continued(reading: Reading, *, restarted: bool) -> Reading:
    """The same reader, or one on another host."""
    reader: Any = reading.reader
    return Reading(reader._spec, stored(reader.positions())) if restarted else reading


LONG = "line\n" * 20


@pytest.mark.parametrize("kind", [FileSource, DirectorySource])
@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize("restarted", [True, False])
def test_an_object_that_was_replaced_while_it_is_read_is_refused_by_name(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, restarted: bool
) -> None:
    """Also by a longer one that begins with the same bytes."""
    small_requests(monkeypatch, 12)
    packed = name.endswith(".gz")
    monkeypatch.setattr("dataflow.sources.file_bytes._block_bytes", 4)
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
        source = DirectorySource(url(prefix), gone=gone)  # type: ignore[arg-type]
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
    for source in (FileSource(url(prefix, "/a")), DirectorySource(url(prefix))):
        put(f"{prefix}/a", LONG)
        reading = half_read(source)
        remove(f"{prefix}/a")
        with pytest.raises(InputGoneError, match=r"/a', read up to byte \d+, does not exist any more"):
            reading.all_lines(10)
        with pytest.raises(InputGoneError, match="does not exist any more"):
            Reading(source, stored(reading.reader.positions())).lines()
    put(f"{prefix}/a", LONG)
    forgetting = DirectorySource(url(prefix), gone="forget")
    reading = Reading(forgetting)
    assert reading.lines()
    division, before = reading.division, reading.reader.positions()
    remove(f"{prefix}/a")
    assert reading.all_lines() == []
    assert reading.reader.positions() == {}
    assert Reading(forgetting, stored(before)).all_lines() == []
    with pytest.raises(InputGoneError):
        Reading(forgetting).reader.replay(division)
    with pytest.raises(InputReadError, match=r"no such bucket or object.*correct the URL"):
        Reading(FileSource(url(prefix, "/nowhere"))).lines()


def test_a_replay_of_other_bytes_is_refused_and_so_is_one_of_more_bytes(bucket: FakeS3, prefix: str) -> None:
    put(f"{prefix}/a", LONG)
    source = DirectorySource(url(prefix))
    reading = half_read(source, 1_000)
    for other in ("LINE\n" + LONG[5:], LONG + "more\n"):
        put(f"{prefix}/a", other)
        with pytest.raises(InputChangedError, match="100 bytes with digest"):
            Reading(source).reader.replay(reading.division)


# --- the service --------------------------------------------------------------------------------------------


def test_a_bucket_that_cannot_be_read_is_refused_with_the_remedy(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{prefix}/a", LONG)
    for source in (FileSource("s3://no-such-bucket/x"), DirectorySource("s3://no-such-bucket/x")):
        with pytest.raises(InputReadError, match=r"NoSuchBucket.*create the bucket 'no-such-bucket'"):
            source.check_access()
    with pytest.raises(InputReadError, match="NoSuchBucket"):
        Reading(source).lines()
    there = FileSource(url(prefix, "/a"))
    there.check_access()
    nowhere = "http://127.0.0.1:9"
    assert DirectorySource(url(prefix, f"?endpoint={nowhere}")).endpoint == nowhere
    unreachable = FileSource(url(prefix, "/a"), endpoint=nowhere)
    with pytest.raises(ConnectionError, match="Could not connect to the endpoint"):
        unreachable.check_access()
    with pytest.raises(InputUnavailableError, match=rf"cannot be reached.*the endpoint \({nowhere}\)"):
        Reading(unreachable).lines()
    bucket.rules.append(Rule("GET", prefix, status(403, "AccessDenied")))
    for refused in (there.check_access, Reading(there).lines):
        with pytest.raises(InputUnavailableError, match=r"AccessDenied.*needs GetObject and ListBucket"):
            refused()
    monkeypatch.setattr(objects, "Bucket", Bucket)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(InputUnavailableError, match=r"Unable to locate credentials.*AWS_ACCESS_KEY_ID"):
        there.check_access()


def test_temporary_failures_are_repeated_and_end_as_a_failure_of_the_worker(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_requests(monkeypatch)
    put(f"{prefix}/a", LONG)
    bucket.rules += [Rule("GET", f"{prefix}/a", status(503, "SlowDown"), 2)]
    reading = half_read(FileSource(url(prefix, "/a")))
    bucket.rules += [Rule("GET", f"{prefix}/a", cut, 2)]
    reading.lines(10)
    bucket.rules += [Rule("GET", f"{prefix}/a", status(503, "SlowDown"))]
    with pytest.raises(InputUnavailableError, match="cannot be reached"):
        reading.all_lines(10)
    bucket.rules.clear()
    again = Reading(FileSource(url(prefix, "/a")), stored(reading.reader.positions()))
    assert again.all_lines(), "nothing has to be repaired"


class Waiting:
    """An incarnation without work, whose source cannot list its bucket when it is asked how long to wait."""

    number, is_over = 1, False

    def advance(self) -> bool:
        return False

    def wakes_in(self) -> float:
        raise InputUnavailableError("the list failed")

    def close(self) -> None: ...


def test_a_list_that_fails_between_two_steps_is_reported_as_any_failure() -> None:
    graph, posted = Graph("idle"), list[Any]()
    graph.source("lines", DirectorySource("s3://bucket/logs")).sink("out", CallSink(print))
    loop = CircuitLoop(
        graph.plan(),
        Identity("idle", 0, 1),
        worker_limits=WorkerLimits(),
        inbox=Inbox(),
        shared=Shared(),
        post=posted.append,
    )
    loop._run, loop._state = Waiting(), LoopState.RUNNING  # type: ignore[assignment]
    loop.turn(None)
    assert [(failed.kind, failed.message) for failed in posted] == [
        ("internal", "InputUnavailableError: the list failed")
    ]


def whole(answer: Answer) -> Answer:
    """As of a service that knows no ranges."""
    code, headers, body = answer
    others = {name: value for name, value in headers.items() if name.lower() != "content-range"}
    return 200 if code == 206 else code, others, body


def test_a_service_without_ranges_is_refused(bucket: FakeS3, prefix: str) -> None:
    put(f"{prefix}/a", LONG)
    bucket.rules.append(Rule("GET", f"{prefix}/a", whole))
    with pytest.raises(InputUnavailableError, match="the service does not support ranged requests"):
        Reading(FileSource(url(prefix, "/a"))).lines()


# --- refused when the graph is built ------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused_at_once(tmp_path: Path, bucket: FakeS3, prefix: str) -> None:
    for kind in (FileSource, DirectorySource):
        for wrong in (Path("s3://bucket/a"), "s3a://bucket/a", "https://host/a"):
            with pytest.raises(SchemaError, match=r"neither a path nor the URL of a bucket.*as text"):
                kind(wrong)
        with pytest.raises(SchemaError, match="is a path and 's3://bucket/a' a URL"):
            kind(["s3://bucket/a", str(tmp_path)])
        with pytest.raises(SchemaError, match="endpoint is the service of a bucket"):
            kind(tmp_path, endpoint="http://minio:9000")
        with pytest.raises(SchemaError, match="one source reads from one service"):
            kind(["s3://bucket/a?endpoint=http://one:1", "s3://bucket/b"])
        with pytest.raises(BadUrlError, match="not a valid bucket name"):
            kind("s3://A_B/x")
    for none in ("s3://bucket", "s3://bucket/a/"):
        with pytest.raises(SchemaError, match=r"names no object; write s3://bucket.*/\* for all below it"):
            FileSource(none)
    with pytest.raises(SchemaError, match="no file matches the pattern"):
        FileSource(url(prefix, "/*"))
    with pytest.raises(SchemaError, match="must both be paths, or both be URLs"):
        DirectorySource("s3://bucket/a", until=tmp_path)
    assert Reading(DirectorySource(f"s3://{BUCKET}", poll_s=7.0)).reader.has_input is not None
    assert isinstance(objects.BucketFiles(None).open("s3://bucket/a.gz"), GzipBytes)
