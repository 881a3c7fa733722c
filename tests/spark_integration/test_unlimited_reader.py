"""The reader for a PySpark without admission control, called as such a PySpark calls it, and the refusal of
what it cannot do. `tests/versions` runs it on such a PySpark.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dos_client.blocking import BlockingStore
from dos_server.testing import Servers, ThreadedServer
from spark_integration.core.options import parse_options
from spark_integration.data_source import DosSource
from spark_integration.errors import DataLossError, MalformedOffsetError, UnsupportedVersionError
from spark_integration.reading.merged import MergedSource
from spark_integration.reading.readers import UnlimitedStreamReader
from tests.spark_integration.stored_data import take_away, write_objects, write_steps
from tests.spark_integration.streaming import LINE, N, n


@contextmanager
def process(
    servers: Servers[ThreadedServer], path: str, wanted: pa.Schema = N, **options: str
) -> Iterator[UnlimitedStreamReader]:
    """The process of a query on the driver. Offsets outlive it."""
    reader = UnlimitedStreamReader(parse_options({"path": f"{servers.url}/{path}", **options}), wanted)
    try:
        yield reader
    finally:
        reader.stop()


def rows(reader: UnlimitedStreamReader, start: Any, end: Any) -> list[Any]:
    start, end = json.loads(json.dumps([start, end]))
    parts = reader.partitions(start, end)
    return [value for part in parts for batch in reader.read(part) for value in batch.column(0).to_pylist()]


def test_a_query_that_is_restarted_has_each_row_once(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1)}, N)
    with process(servers, name, output="out") as reader:
        begin, first = reader.initialOffset(), reader.latestOffset()
        assert rows(reader, begin, first) == [1]
        write_steps(store, name, "out", 0, {2: n(2)}, N, epoch=2)
        second = reader.latestOffset()
        assert rows(reader, first, second) == [2]
    write_steps(store, name, "out", 0, {3: n(3)}, N, epoch=3)
    with process(servers, name, output="out") as reader:
        third = reader.latestOffset()
        assert rows(reader, first, second) == [2], "the micro-batch whose commit was not recorded"
        assert rows(reader, second, third) == [3]
        assert reader.latestOffset() == third


def test_a_new_query_from_the_latest_point_on_begins_at_the_end_that_was_requested_first(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_objects(store, name, {"a": b"one\n"})
    with process(servers, name, LINE, content="lines", startingOffset="latest") as reader:
        end = reader.latestOffset()  # as with availableNow
        write_objects(store, name, {"b": b"two\n"}, epoch=2)
        assert reader.initialOffset() == end
        assert rows(reader, end, reader.latestOffset()) == ["two"]


def test_data_that_vanished_while_the_query_was_stopped_is_noticed(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_objects(store, name, {"a": b"one\n", "b": b"two\n"})
    with process(servers, name, LINE, content="lines") as reader:
        start = reader.latestOffset()
    take_away(store, name, "a", epoch=2)
    write_objects(store, name, {"c": b"three\n"}, epoch=3)
    with process(servers, name, LINE, content="lines") as reader:
        end = reader.latestOffset()
        with pytest.raises(DataLossError, match=r"'a' of .* is gone; it was read up to 4"):
            rows(reader, start, end)
    with process(servers, name, LINE, content="lines", failOnDataLoss="false") as reader:
        assert rows(reader, start, end) == ["three"]


def test_a_micro_batch_that_ends_on_an_older_line_than_it_begins_is_refused(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1)}, N)
    with process(servers, name, output="out") as reader:
        end = reader.latestOffset()
        start = json.loads(json.dumps(end))
        start["splits"]["w0000"]["line"] = 1
        with pytest.raises(MalformedOffsetError, match=r"begins on line 1 .* ends on line 0: .*`offsets`"):
            rows(reader, start, end)


def pretend_pyspark(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "pyspark" else installed(name))


@pytest.mark.parametrize(
    ("option", "value"), [("maxRowsPerTrigger", "1"), ("maxBytesPerTrigger", "1"), ("consumer", "me")]
)
def test_an_option_that_needs_the_beginning_of_a_micro_batch_is_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    pretend_pyspark(monkeypatch, "4.1.4")
    source = DosSource({"path": "dos://127.0.0.1:1/r", "output": "out", option: value})
    expected = (
        rf"the option '{option}' of a stream needs PySpark 4.2 or newer, but 4.1.4 is .* omit '{option}'"
    )
    with pytest.raises(UnsupportedVersionError, match=expected):
        source.streamReader(StructType())


def test_the_format_dos_merged_is_refused_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_pyspark(monkeypatch, "4.0.5")
    with pytest.raises(UnsupportedVersionError, match=r"dos-merged needs PySpark 4.2 or newer, but 4.0.5 is"):
        MergedSource({})
