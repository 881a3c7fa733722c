"""Sources in a bucket whose service fails, answers wrongly or denies access, and URLs that make no sense."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dataflow import CallSink, FileSource, Graph, SchemaError
from dataflow.errors import (
    InputReadError,
    InputUnavailableError,
)
from dataflow.limits import WorkerLimits
from dataflow.sources import input_files
from dataflow.sources.input_files import GzipBytes
from dataflow.worker.circuit_thread import CircuitLoop, Inbox
from dataflow.worker.messages import Shared
from dataflow.worker.spec import Identity
from dos_client.errors import BadUrlError
from journal.archive.bucket import Bucket
from tests.dataflow.s3_sources import (
    LONG,
    Reading,
    bucket,
    half_read,
    prefix,
    put,
    service,
    small_requests,
    stored,
    url,
)
from tests.support.s3 import BUCKET, Answer, FakeS3, Rule, cut, status

__all__ = ["bucket", "prefix", "service"]


# --- the service --------------------------------------------------------------------------------------------


def test_a_bucket_that_cannot_be_read_is_refused_with_the_remedy(
    bucket: FakeS3, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(f"{prefix}/a", LONG)
    for source in (FileSource("s3://no-such-bucket/x"), FileSource("s3://no-such-bucket/x", watch=True)):
        with pytest.raises(InputReadError, match=r"NoSuchBucket.*create the bucket 'no-such-bucket'"):
            source.check_access()
    with pytest.raises(InputReadError, match="NoSuchBucket"):
        Reading(source).lines()
    there = FileSource(url(prefix, "/a"))
    there.check_access()
    nowhere = "http://127.0.0.1:9"
    assert FileSource(url(prefix, f"?endpoint={nowhere}"), watch=True).endpoint == nowhere
    unreachable = FileSource(url(prefix, "/a"), endpoint=nowhere)
    with pytest.raises(ConnectionError, match="Could not connect to the endpoint"):
        unreachable.check_access()
    with pytest.raises(InputUnavailableError, match=rf"cannot be reached.*the endpoint \({nowhere}\)"):
        Reading(unreachable).lines()
    bucket.rules.append(Rule("GET", prefix, status(403, "AccessDenied")))
    for refused in (there.check_access, Reading(there).lines):
        with pytest.raises(InputUnavailableError, match=r"AccessDenied.*needs GetObject and ListBucket"):
            refused()
    monkeypatch.setattr(input_files, "Bucket", Bucket)
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

    number, is_over, operator = 1, False, ""

    def advance(self) -> bool:
        return False

    def wakes_in(self) -> float:
        raise InputUnavailableError("the list failed")

    def blame(self, error: BaseException) -> str:
        del error
        return "lines"

    def close(self) -> None: ...


def test_a_list_that_fails_between_two_steps_is_reported_as_any_failure() -> None:
    graph, posted = Graph("idle"), list[Any]()
    graph.source("lines", FileSource("s3://bucket/logs", watch=True)).sink("out", CallSink(print))
    loop = CircuitLoop(
        graph.plan(),
        Identity("idle", 0, 1),
        worker_limits=WorkerLimits(),
        inbox=Inbox(),
        shared=Shared(),
        post=posted.append,
    )
    loop._run = Waiting()  # type: ignore[assignment]
    loop.turn(None)
    assert [(failed.report.kind, failed.report.message) for failed in posted] == [
        ("internal", "InputUnavailableError: the list failed (operator 'lines')")
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
    for kind in (FileSource, partial(FileSource, watch=True)):
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
    with pytest.raises(SchemaError, match="no file matches 's3://"):
        FileSource(url(prefix, "/*"))
    with pytest.raises(SchemaError, match="must both be paths, or both be URLs"):
        FileSource("s3://bucket/a", watch=True, until=tmp_path)
    assert Reading(FileSource(f"s3://{BUCKET}", watch=True, poll_s=7.0)).reader.has_input is not None
    assert isinstance(input_files.BucketFiles(None).open("s3://bucket/a.gz"), GzipBytes)
