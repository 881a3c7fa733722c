"""What tests of sources in a bucket share: objects, and readers on a clock that the test moves."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from moto.s3.models import s3_backends

from checkpoint import SplitPosition
from dataflow import FileSource, limits
from dataflow.sources import input_files
from dataflow.sources.base import Positions, SourceBatch
from dataflow.sources.file_source import reader_of
from tests.dataflow.s3_sinks import prefix, quick, service
from tests.support.s3 import BUCKET, FakeS3

__all__ = ["prefix", "service"]
LONG = "line\n" * 20


@pytest.fixture
def bucket(service: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    """The service. A request is not repeated after a while, but at once."""
    monkeypatch.setattr(input_files, "Bucket", quick)
    forget(service)
    yield service
    service.rules.clear()


def forget(service: FakeS3) -> None:
    """Forget what was requested so far."""
    service.seen.clear()
    service.spans.clear()


def put(key: str, data: "str | bytes") -> None:
    s3_backends["123456789012"]["aws"].put_object(
        BUCKET, key, data.encode() if isinstance(data, str) else data
    )


def remove(key: str) -> None:
    s3_backends["123456789012"]["aws"].delete_object(BUCKET, key)


def url(prefix: str, rest: str = "") -> str:
    return f"s3://{BUCKET}/{prefix}{rest}"


def small_requests(monkeypatch: pytest.MonkeyPatch, least: int = 7) -> None:
    """Let each request be for some bytes only."""
    monkeypatch.setattr(limits, "object_read_bytes_min", least)
    monkeypatch.setattr(limits, "object_read_bytes_max", 4 * least)


def lines_of(batches: list[SourceBatch]) -> list[str]:
    return [line for batch in batches for line in batch.batch.column("line").to_pylist()]


class Reading:
    """A reader of either source, as one that is started on any host: from a checkpoint alone."""

    def __init__(self, source: FileSource, positions: Positions | None = None, **options: Any) -> None:
        self.now = 0.0
        self.reader = reader_of(source, 0, 1, lambda: self.now, **options)
        self.reader.reset_to(positions or {})

    def lines(self, bytes_max: int = 1 << 20) -> list[str]:
        """What a step finds. The next list of a directory is due."""
        self.now += 100
        batch = self.reader.read(bytes_max) if self.reader.has_input else None
        self.division = self.reader.take_division()
        return [] if batch is None else lines_of([batch])

    def all_lines(self, bytes_max: int = 1 << 20) -> list[str]:
        found = []
        while more := self.lines(bytes_max):
            found += more
        return found


def stored(positions: Positions) -> Positions:
    """What another host gets: the positions as a checkpoint stores them."""
    return msgspec.json.decode(msgspec.json.encode(positions), type=dict[str, SplitPosition])


def half_read(source: FileSource, bytes_max: int = 10) -> Reading:
    reading = Reading(source)
    assert reading.lines(bytes_max)
    return reading
