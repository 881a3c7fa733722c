"""Rows in directories by the values of columns: the same rows once, in files and in a bucket."""

import os
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow import ParquetSink, S3Sink, SchemaError, limits
from dataflow.core.partitions import DEFAULT_PARTITION
from dataflow.errors import SinkOwnedError, UserFault
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import OutputOwner, SinkSpec, SinkWriter
from dataflow.sinks.partitions import split_by
from dataflow.testing.sink_check import check_sink
from journal.archive.bucket import Bucket
from tests.dataflow.s3_sinks import bucket, prefix, service
from tests.support.s3 import BUCKET, FakeS3
from tests.support.s3_rows import objects_below, uploads

__all__ = ["bucket", "prefix", "service"]
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("text", pa.string()), ("shop", pa.int16())])
TEXT = "id bigint, day string, text string, shop smallint"
BY = ("day", "shop")
Rows = list[tuple[Any, ...]]


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "day": f"2026-11-0{1 + number % 2}",
        "text": "x" * number,
        "shop": number % 3 or None,
    }


def opened(sink: SinkSpec, incarnation: int = 1, prepared: Any = None) -> SinkWriter:
    writer = sink.open(OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, incarnation))
    writer.reset_to(prepared)
    return writer


def batch(*numbers: int) -> pa.RecordBatch:
    columns = {name: [row(number)[name] for number in numbers] for name in SCHEMA.names}
    columns["day"] = pa.array(columns["day"]).cast(pa.date32())
    return pa.RecordBatch.from_pydict(columns, SCHEMA)


def ids_below(folder: Path) -> list[int]:
    """What pyarrow.dataset reads, which skips names that begin with _."""
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    for one in table.to_pylist():
        assert one["shop"] == row(one["id"])["shop"]
        assert str(one["day"]) == row(one["id"])["day"]
    found: list[int] = table["id"].to_pylist() if table.num_rows else []
    return found


def in_files(tmp_path: Path) -> tuple[Callable[[], SinkSpec], Callable[[], list[int]], Callable[[], Any]]:
    def left() -> Any:
        return [str(path) for path in tmp_path.glob("_*.staging/*")]

    return lambda: ParquetSink(tmp_path, partition_by=BY), lambda: ids_below(tmp_path), left


def in_bucket(
    prefix: str, tmp_path: Path
) -> tuple[Callable[[], SinkSpec], Callable[[], list[int]], Callable[[], Any]]:
    number = count()

    def ids() -> list[int]:
        folder = tmp_path / f"copy-{next(number)}"
        folder.mkdir(parents=True)
        for name, content in objects_below(prefix).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return ids_below(folder)

    return lambda: S3Sink(f"s3://{BUCKET}/{prefix}", partition_by=BY), ids, lambda: uploads(prefix)


@pytest.fixture(params=["files", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "files":
        return in_files(tmp_path / "out")
    request.getfixturevalue("bucket")
    return in_bucket(request.getfixturevalue("prefix"), tmp_path)


# EVIDENCE-OF: P-7
def test_partitioned_rows_are_neither_lost_nor_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], list[int]]]:
        folder = tmp_path / name

        def ids() -> list[int]:
            found = [pq.read_table(path, partitioning=None) for path in folder.glob("*=*/*=*/part-*.parquet")]
            return [number for table in found for number in table["id"].to_pylist()]

        return ParquetSink(folder, partition_by=BY), ids

    monkeypatch.setattr(limits, "parquet_group_bytes", 40)
    assert check_sink(fresh, runs=1, schema=TEXT, row=row)


@pytest.mark.long
def test_partitioned_rows_are_neither_lost_nor_doubled_in_a_bucket(bucket: FakeS3, tmp_path: Path) -> None:
    def fresh(name: str) -> tuple[SinkSpec, Callable[[], list[int]]]:
        make, ids, _ = in_bucket(f"partitioned-{name}".replace(" ", "-"), tmp_path / name)
        return make(), ids

    assert check_sink(fresh, workers=1, runs=1, schema=TEXT, row=row)


def test_a_commit_that_ends_between_two_partitions_is_completed_or_taken_back(
    place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, ids, left = place
    writer = opened(make())
    writer.process(batch(1, 2))
    first = writer.prepare(1)
    writer.sync()
    first = writer.voted(first)
    writer.publish(1)
    writer.process(batch(*range(3, 9)))
    second = writer.prepare(2)
    writer.sync()
    second = writer.voted(second)
    assert sorted(ids()) == [1, 2]

    kill_in_commit(writer, 2, monkeypatch)
    assert {1, 2} < {*ids()} < {*range(1, 9)}
    other = opened(make(), 2, first)  # a restore of the first checkpoint
    assert sorted(ids()) == [1, 2]
    assert left() == []
    other.process(batch(*range(3, 9)))
    second = other.prepare(2)
    other.sync()
    second = other.voted(second)
    kill_in_commit(other, 2, monkeypatch)
    later = opened(make(), 3, second)
    later.publish(2)
    later.publish(2)
    assert sorted(ids()) == [*range(1, 9)]
    assert left() == []


def kill_in_commit(writer: SinkWriter, checkpoint: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker end when it has made two files or objects of a checkpoint visible."""

    class KilledError(BaseException):
        pass

    calls = count()

    def killed(real: Any) -> Any:
        def called(*args: Any) -> Any:
            if next(calls) == 2:
                raise KilledError
            return real(*args)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed(Path.rename))
        patch.setattr(Bucket, "complete_upload", killed(Bucket.complete_upload))
        with pytest.raises(KilledError):
            writer.publish(checkpoint)


def test_a_sink_that_is_partitioned_from_now_on_continues_and_back(place: Any, tmp_path: Path) -> None:
    make, _, left = place
    sink = make()
    plain = (
        ParquetSink(sink.directory) if isinstance(sink, ParquetSink) else S3Sink(sink.url)  # type: ignore[attr-defined]
    )
    prepared = None
    for number, one in enumerate([plain, sink, plain, sink], 1):
        writer = opened(one, number, prepared)
        writer.publish(number - 1)
        writer.process(batch(number))
        prepared = writer.prepare(number)
        writer.sync()
        prepared = writer.voted(prepared)
        writer.close()  # before it shows the rows
    writer = opened(plain, 5, prepared)
    writer.publish(4)
    assert left() == []
    writer.close()


@given(
    st.lists(
        st.tuples(st.none() | st.text("a/=%é ", max_size=2), st.none() | st.booleans(), st.integers(0, 9))
    )
)
def test_rows_are_split_by_their_values_in_their_order(rows: Rows) -> None:
    schema = pa.schema([("s", pa.string()), ("b", pa.bool_()), ("n", pa.int64())])
    whole = pa.RecordBatch.from_pylist([dict(zip("sbn", one, strict=True)) for one in rows], schema)
    expected = dict[tuple[Any, Any], list[int]]()
    for s, b, n in rows:
        expected.setdefault((s or None, b), []).append(n)
    found = dict[tuple[Any, Any], list[int]]()
    for directory, part in split_by(whole, ("s", "b")):
        s, b = (name.partition("=")[2] for name in directory.split("/"))
        text = re.sub("%(..)", lambda one: chr(int(one[1], 16)), s)
        key = (None if s == DEFAULT_PARTITION else text, {"true": True, "false": False}.get(b))
        assert key not in found
        assert part.schema.names == ["n"]
        found[key] = part.column("n").to_pylist()
    assert found == expected


def test_a_value_that_looks_like_the_name_of_a_file_is_a_directory(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("part-x", pa.string())])
    sink = ParquetSink(tmp_path, partition_by="part-x")
    writer = sink.open(OperatorContext("r", "out", 0, 1, bytes(16), (schema,), None, 1))
    writer.reset_to(None)
    writer.process(pa.RecordBatch.from_pylist([{"id": 7, "part-x": "y.parquet"}], schema))
    writer.prepare(1)
    writer.sync()
    writer.publish(1)
    (path,) = tmp_path.glob("part-x=y.parquet/part-*.parquet")
    assert pq.read_table(path, partitioning=None).to_pylist() == [{"id": 7}]


def test_memory_and_partitions_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "sink_partitions_max", 3)
    writer = opened(ParquetSink(tmp_path, partition_by="id"))
    writer.process(batch(1, 2, 3, 1))
    with pytest.raises(UserFault, match=r"more than 3 partitions .* 'id=4' is the last one"):
        writer.process(batch(2, 4))
    long = opened(ParquetSink(tmp_path / "long", partition_by="text"))
    with pytest.raises(UserFault, match="would have a name of 305 bytes"):
        long.process(batch(300))
    monkeypatch.setattr(limits, "parquet_group_bytes", 200)
    bounded = opened(ParquetSink(tmp_path / "bounded", partition_by="shop"))
    for number in range(30):
        bounded.process(batch(number))
    (files,) = bounded._output._files.values()  # type: ignore[attr-defined]
    assert 0 < sum(file.waiting_bytes for file in files.files.values()) < 200


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (("day", "day"), "has a column twice"),
        ("dya", "which the rows do not have.*'day'"),
        ("_day", "readers skip directories"),
        ("price", "of type double, whose values do not name directories"),
        (("day", "price"), "of type double"),
        ("all", None),
    ],
)
@pytest.mark.parametrize("make", [ParquetSink, lambda _, **options: S3Sink("s3://bucket/p", **options)])
def test_columns_that_cannot_name_directories_are_refused_before_anything_runs(
    make: Any, by: Any, message: str | None, tmp_path: Path
) -> None:
    schema = pa.schema([("day", pa.date32()), ("price", pa.float64())])
    if by == "all":
        schema, by, message = pa.schema([("day", pa.date32())]), "day", "none is left for the files"
    with pytest.raises(SchemaError, match=message):  # when it is made, or put into a graph
        make(tmp_path, partition_by=by).check_input(schema)


def test_partitions_of_another_program_are_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "of-spark.parquet").touch()
    sink = ParquetSink(tmp_path, partition_by="day")
    with pytest.raises(SinkOwnedError, match=r"day=1/of-spark.parquet but no _region.json"):
        sink.check_place(OutputOwner("r", bytes(16).hex(), "out"))
    assert sorted(os.listdir(tmp_path)) == ["day=1"]  # noqa: PTH208
