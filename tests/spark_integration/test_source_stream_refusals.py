"""What a stream of the source `dos` refuses: offsets and columns that do not fit, and data that was lost."""

import json

import pyarrow as pa
import pytest

from dos_client.blocking import BlockingStore
from dos_server.testing import Servers, ThreadedServer
from spark_integration.errors import (
    DataLossError,
    MalformedOffsetError,
    SchemaMismatchError,
)
from spark_integration.spark_api import ReadAllAvailable
from tests.spark_integration.stored_data import take_away, write_objects, write_steps
from tests.spark_integration.streaming import LINE, N, n, query

pytestmark = pytest.mark.usefixtures("transfer")


def test_an_offset_of_another_store_or_source_is_refused_at_the_start(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1)}, N)
    write_steps(store, name, "other", 0, {1: n(1)}, N, epoch=2)
    with query(servers, name, output="other") as stream:
        elsewhere = stream.at
    with (
        query(servers, name, output="out") as stream,
        pytest.raises(MalformedOffsetError, match="belongs to out"),
    ):
        stream.reader.latestOffset(elsewhere, ReadAllAvailable())
    foreign = {**elsewhere, "store": "0" * 32}
    with (
        pytest.raises(MalformedOffsetError, match="belongs to store 0000"),
        query(servers, name, output="other", startingOffset=json.dumps(foreign)),
    ):
        pass
    odd = {"index": 7}
    with query(servers, name, output="out", start=odd) as stream, pytest.raises(MalformedOffsetError):
        stream.batch()


def test_columns_that_do_not_fit_are_reported_before_the_first_batch(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1)}, N)
    with (
        pytest.raises(
            SchemaMismatchError, match=r"'n' was requested as string, but in output .* it is bigint"
        ),
        query(servers, name, pa.schema([("n", pa.string())]), output="out"),
    ):
        pass


def test_an_object_that_disappears_is_an_error_unless_that_is_meant(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_objects(store, name, {"a": b"one\n", "b": b"two\n"})
    with (
        query(servers, name, LINE, content="lines") as stream,
        query(servers, name, LINE, content="lines", failOnDataLoss="false") as brave,
    ):
        assert stream.batch() == brave.batch() == ["one", "two"]
        take_away(store, name, "a", epoch=2)
        write_objects(store, name, {"c": b"new\n"}, epoch=3)
        with pytest.raises(DataLossError, match=r"'a' of objects .* is gone; it was read up to 4"):
            stream.batch()
        assert brave.batch() == ["new"]


def test_a_log_that_was_trimmed_is_an_error_unless_that_is_meant(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    write_steps(store, name, "out", 0, {1: n(1), 2: n(2)}, N)
    with query(servers, name, output="out", maxRowsPerTrigger="1") as stream:
        assert stream.batch() == [1]
        at = stream.at
    first = min(one for objects in store.inspect(f"{name}.w0000").answers.values() for one in objects)
    write_steps(store, name, "out", 0, {3: n(3)}, N, epoch=2, trims=first)
    with (
        query(servers, name, output="out", start=at) as stream,
        pytest.raises(DataLossError, match="was trimmed"),
    ):
        stream.batch()
    with query(servers, name, output="out", start=at, failOnDataLoss="false") as stream:
        assert stream.batch() == [3]
    with query(servers, name, output="out") as stream:
        assert stream.batch() == [3], "the earliest is what there is"


def test_an_output_that_was_taken_back_is_an_error_unless_that_is_meant(
    servers: Servers[ThreadedServer], store: BlockingStore, name: str
) -> None:
    ends = write_steps(store, name, "out", 0, {1: n(1), 2: n(2)}, N)
    with (
        query(servers, name, output="out") as stream,
        query(servers, name, output="out", failOnDataLoss="false") as brave,
    ):
        assert stream.batch() == brave.batch() == [1, 2]
        at = stream.at
        write_steps(store, name, "out", 0, {2: n(22), 3: n(33)}, N, epoch=2, back_to=ends[0])
    with (
        query(servers, name, output="out", start=at) as stream,
        pytest.raises(DataLossError, match="rolled back"),
    ):
        stream.batch()
    limited = query(servers, name, output="out", start=at, maxRowsPerTrigger="9")
    with limited as stream, pytest.raises(DataLossError, match="failOnDataLoss"):
        stream.batch()
    for limits in ({}, {"maxRowsPerTrigger": "9"}):
        with query(servers, name, output="out", start=at, failOnDataLoss="false", **limits) as stream:
            assert stream.batch() == [22, 33]
