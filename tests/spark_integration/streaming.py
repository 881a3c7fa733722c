"""A streaming query without Spark: the reader of the source `dos`, called as Spark calls it."""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.options import parse_options
from spark_integration.reading.readers import DosStreamReader

N = pa.schema([("n", pa.int64())])
LINE = pa.schema([("value", pa.string())])


def n(*numbers: int) -> list[dict[str, Any]]:
    return [{"n": number} for number in numbers]


class Query:
    """A streaming query: micro-batches as Spark makes them, offsets through JSON."""

    def __init__(
        self, reader: DosStreamReader, wanted: pa.Schema, start: dict[str, Any] | None = None
    ) -> None:
        self.reader = reader
        self.wanted = wanted
        self.planned = start is not None
        self.at = through_json(reader.initialOffset() if start is None else start)

    def batch(self, limit: Any = None) -> list[Any]:
        """The values of the rows of the next micro-batch."""
        end = through_json(self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit()))
        if end != self.at and self.planned:
            self.reader.commit(self.at)  # after the offsets of this micro-batch were recorded
        self.planned = True
        rows = self.between(self.at, end)
        self.at = end
        return rows

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        task = pickle.loads(pickle.dumps(self.reader))
        rows: list[Any] = []
        for one in self.reader.partitions(start, end):
            for batch in task.read(pickle.loads(pickle.dumps(one))):
                assert batch.schema.equals(self.wanted)
                rows += batch.column(0).to_pylist()
        return rows

    def batches(self) -> list[list[Any]]:
        """Until there is nothing more."""
        found = []
        while rows := self.batch():
            found.append(rows)
        return found


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


@contextmanager
def query(
    servers: Servers[ThreadedServer],
    path: str,
    wanted: pa.Schema = N,
    start: dict[str, Any] | None = None,
    **options: str,
) -> Iterator[Query]:
    reader = DosStreamReader(parse_options({"path": f"{servers.url}/{path}", **options}), wanted)
    try:
        yield Query(reader, wanted, start)
    finally:
        reader.stop()
