"""What tests of sinks in a bucket share: the service, a place of their own, a writer, and what it votes."""

from collections.abc import Callable, Iterator
from copy import copy
from functools import cache
from itertools import count
from typing import Any

import boto3
import moto.s3.models
import msgspec
import pyarrow as pa
import pytest

from dataflow import S3Sink, limits
from dataflow.operators.base import OperatorContext
from dataflow.sinks import s3
from dataflow.sinks.base import SinkSpec, SinkWriter
from journal.archive.bucket import Bucket, S3Url
from tests.support.s3 import BUCKET, Answer, FakeS3, Rule, serving, status
from tests.support.s3_rows import ids_in

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
_numbers = count(1)
Story = Callable[[str], tuple[SinkSpec, Callable[[], list[int]]]]


@pytest.fixture(scope="module")
def service() -> Iterator[FakeS3]:
    with serving() as found:
        _any_bucket.cache_clear()
        client().create_bucket(Bucket=BUCKET)
        yield found
    _any_bucket.cache_clear()


@pytest.fixture
def bucket(service: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """The service, whose parts may be small. A request is not repeated after a while, but at once."""
    monkeypatch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 1)
    monkeypatch.setattr(limits, "s3_part_bytes", 20)
    monkeypatch.setattr(s3, "Bucket", quick)
    service.seen.clear()
    yield service
    service.rules.clear()


def quick(url: S3Url) -> Bucket:
    """A bucket with the client of the module: to make one takes longer than most stories."""
    if url.endpoint is not None:
        return Bucket(url, tries=1)
    made = copy(_any_bucket())
    made.url = url
    return made


@cache
def _any_bucket() -> Bucket:
    return Bucket(S3Url(BUCKET, ()), tries=3, retry_s=0.0)


@pytest.fixture
def prefix() -> str:
    """A place of the test's own."""
    return f"p{next(_numbers)}"


def stories(form: Any = "tsv") -> Story:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], list[int]]]:
        place = f"p{next(_numbers)}"
        return S3Sink(f"s3://{BUCKET}/{place}", format=form), lambda: ids_in(place)

    return fresh


def opened(
    prefix: str, incarnation: int = 1, prepared: Any = None, form: Any = "tsv", *, sink: S3Sink | None = None
) -> SinkWriter:
    context = OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, incarnation)
    writer = (sink or S3Sink(f"s3://{BUCKET}/{prefix}", format=form)).open(context)
    writer.reset_to(prepared)
    return writer


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": n, "text": "x" * 10} for n in numbers], SCHEMA)


def voted(writer: SinkWriter, checkpoint: int) -> Any:
    """What the store keeps of a checkpoint: everything that another host gets."""
    prepared = writer.prepare(checkpoint)
    writer.sync()
    return msgspec.json.decode(msgspec.json.encode(writer.voted(prepared)))


def lost(times: int) -> Rule:
    """The reply to the completion of an upload is lost, after it was done."""
    return Rule("POST", "uploadId=", status(500, "InternalError"), times)


def gone(answer: Answer) -> Answer:
    """As S3 answers after a while: the upload that was completed is not known any more."""
    return status(404, "NoSuchUpload")(answer)


def client() -> Any:
    return boto3.session.Session().client("s3")


def delete(prefix: str, *names: str) -> None:
    for name in names:
        client().delete_object(Bucket=BUCKET, Key=f"{prefix}/{name}")
