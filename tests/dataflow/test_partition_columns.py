"""Columns in the names of directories, as a source reads them: what sinks, Spark and Arrow write, in every
format. A file whose path lacks one is refused.
"""

import gzip
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import FileSource, ParquetSink, S3Sink, SchemaError
from dataflow.core.partitions import DEFAULT_PARTITION
from dataflow.errors import InputReadError
from dataflow.operators.base import OperatorContext
from dataflow.schema import parse_schema
from dataflow.sinks.base import SinkSpec
from dataflow.sources.file_source import reader_of
from tests.dataflow.s3_sinks import bucket, prefix, service
from tests.support.s3 import BUCKET, FakeS3

__all__ = ["bucket", "prefix", "service"]
COLUMNS = "id bigint, s string, day date, n int, b boolean"
SCHEMA = parse_schema(COLUMNS)
BY = ("s", "day", "n", "b")
Row = dict[str, Any]


def read(source: FileSource) -> list[Row]:
    """What a reader finds, also when it replays its steps."""
    reader, again = reader_of(source, 0, 1), reader_of(source, 0, 1)
    found, repeated = list[Row](), list[Row]()
    while reader.has_input:
        if (batch := reader.read(1000)) is not None:
            assert batch.batch.schema == source.output_schema(())
            found += batch.batch.to_pylist()
        division = reader.take_division()
        for one in again.replay(division):
            repeated += one.batch.to_pylist()
        again.take_division()
    assert repeated == found
    return found


def write(sink: SinkSpec, rows: list[Row]) -> None:
    writer = sink.open(OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, 1))
    writer.reset_to(None)
    writer.process(pa.RecordBatch.from_pylist(rows, SCHEMA))
    prepared = writer.prepare(1)
    writer.sync()
    writer.voted(prepared)
    writer.publish(1)
    writer.close()


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])


_values = st.fixed_dictionaries(
    {
        "s": st.none() | st.text(max_size=4) | st.text("a/=%+é \\.\n", max_size=3) | st.just("007"),
        "day": st.none() | st.dates(),
        "n": st.none() | st.integers(-(2**31), 2**31 - 1),
        "b": st.none() | st.booleans(),
    }
)


@settings(deadline=None, max_examples=30)
@given(st.lists(_values, max_size=4))
def test_what_a_sink_partitions_is_read_back_as_pyarrow_reads_it(values: list[Row]) -> None:
    rows = [{"id": index, **one} for index, one in enumerate(values)]
    expected = [{**row, "s": row["s"] or None} for row in rows]  # as in Spark
    with TemporaryDirectory() as folder:
        write(ParquetSink(folder, partition_by=BY), rows)
        typed = ds.partitioning(pa.schema([SCHEMA.field(name) for name in BY]), flavor="hive")
        other = ds.dataset(folder, format="parquet", partitioning=typed)
        if rows:
            assert by_id(other.to_table(columns=SCHEMA.names).to_pylist()) == expected
            pattern = f"{folder}/**/*.parquet"
            source = FileSource(pattern, format="parquet", schema=COLUMNS, partition_by=BY)
            assert by_id(read(source)) == expected
            inferred = FileSource(pattern, format="parquet", partition_by=BY)
            assert by_id(read(inferred)) == [
                {**row, **{name: _text(row[name]) for name in BY}} for row in expected
            ]


def _text(value: object) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def test_what_a_sink_partitions_in_a_bucket_is_read_back(bucket: FakeS3, prefix: str) -> None:
    rows = [
        {"id": 0, "s": "a/b=c%é", "day": date(2026, 1, 2), "n": -7, "b": True},
        {"id": 1, "s": None, "day": None, "n": None, "b": None},
    ]
    write(S3Sink(f"s3://{BUCKET}/{prefix}", partition_by=BY), rows)
    for how in ({}, {"watch": True}):
        source = FileSource(
            f"s3://{BUCKET}/{prefix}/**", format="parquet", schema=COLUMNS, partition_by=BY, **how
        )
        reader = reader_of(source, 0, 1)
        batch = reader.read(1 << 20)
        assert batch is not None
        assert by_id(batch.batch.to_pylist()) == rows
        reader.close()


@settings(deadline=None, max_examples=15)
@given(st.text(min_size=1, max_size=5).filter(lambda text: "\0" not in text))
def test_names_that_arrow_has_escaped_in_its_own_way_are_read(text: str) -> None:
    with TemporaryDirectory() as folder:
        table = pa.table({"id": [1], "s": [text]})
        ds.write_dataset(table, folder, format="parquet", partitioning=["s"], partitioning_flavor="hive")
        (row,) = read(FileSource(f"{folder}/**/*.parquet", format="parquet", partition_by="s"))
        assert row == {"id": 1, "s": text}


# --- every format -------------------------------------------------------------------------------------------


def files_of(folder: Path, name: str, data: bytes) -> str:
    for day, n in (("2026-01-01", "1"), ("2026-01-02", DEFAULT_PARTITION)):
        path = folder / f"day={day}" / f"n={n}" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    return f"{folder}/*/*/{name}"


def as_bytes(write_table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    write_table(pa.table({"id": [7, 8], "n": [99, 99]}), sink)
    return bytes(sink.getvalue())


FORMATS: Mapping[str, tuple[str, bytes]] = {
    "csv": ("a.csv", b"id,n\n7,99\n8,99\n"),
    "json": ("a.json.gz", gzip.compress(b'{"id":7,"n":99}\n{"id":8,"n":99}\n')),
    "parquet": ("a.parquet", as_bytes(pq.write_table)),
    "arrow": ("a.arrow", as_bytes(pyarrow.feather.write_feather)),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("watch", [False, True], ids=["a list", "watched"])
def test_every_format_has_the_columns_and_the_path_counts_before_the_file(
    kind: Any, watch: bool, tmp_path: Path
) -> None:
    pattern = files_of(tmp_path, *FORMATS[kind])
    ends = {"watch": True, "until": tmp_path / "day=2026-01-01"} if watch else {}
    expected = [(7, 1, date(2026, 1, 1)), (8, 1, date(2026, 1, 1))]
    expected += [(one, None, date(2026, 1, 2)) for one in (7, 8)]
    columns = "day date, id bigint, n int"
    source = FileSource(pattern, format=kind, schema=columns, partition_by=("day", "n"), **ends)  # type: ignore[arg-type]
    assert source.output_schema(()).names == ["day", "id", "n"]
    assert [(row["id"], row["n"], row["day"]) for row in read(source)] == expected
    strings = FileSource(pattern, format=kind, partition_by=("n", "day"), **ends)  # type: ignore[arg-type]
    assert strings.output_schema(()) == parse_schema("id bigint, n string, day string")
    assert [tuple(row.values()) for row in read(strings)] == [
        (id_, n and str(n), str(day)) for id_, n, day in expected
    ]


def test_lines_have_the_columns_of_their_file_as_strings(tmp_path: Path) -> None:
    pattern = files_of(tmp_path, "a.txt", b"\xef\xbb\xbfone\r\n\ntwo")
    rows = read(FileSource(pattern, partition_by="day"))
    expected = [(line, f"2026-01-0{day}") for day in (1, 2) for line in ("one", "", "two")]
    assert [tuple(row.values()) for row in rows] == expected
    with pytest.raises(SchemaError, match="has all columns"):
        FileSource(pattern, partition_by=("day", "line"))


def test_rows_that_do_not_fit_go_aside_and_the_others_keep_the_columns(tmp_path: Path) -> None:
    pattern = files_of(tmp_path, "a.csv", b"id\nx\n1\n")
    source = FileSource(
        pattern, format="csv", schema="id bigint, day string", partition_by="day", on_bad="side"
    )
    reader = reader_of(source, 0, 1)
    batch = reader.read(1000)
    assert batch is not None
    assert batch.batch.to_pylist() == [{"id": 1, "day": f"2026-01-0{day}"} for day in (1, 2)]
    assert [one.column("line").to_pylist() for one in batch.bad] == [[2], [2]]


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("day=2026-01-01/a.csv", "no directory n=VALUE for the column of that name"),
        ("day=/n=1/a.csv", "directory day= has no date for that column"),
        ("day=today/n=1/a.csv", "directory day=today has no date for that column"),
        ("day=2026-01-01/n=1.5/a.csv", "directory n=1.5 has no int for that column"),
        ("day=2026-01-01/n=0x10/a.csv", "directory n=0x10 has no int for that column"),
        ("day=2026-01-01/n=3000000000/a.csv", "directory n=3000000000 has no int for that column"),
        ("day=2026-01-01/n=1/day=2026-01-01/a.csv", "two directories for the column 'day'"),
        ("day=%FF/n=1/a.csv", "directory %FF is not UTF-8"),
        ("n=1/day=2026-01-01", "no directory day=VALUE"),
    ],
)
def test_a_file_whose_path_has_no_such_value_is_refused_by_name(
    path: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("id\n1\n")
    how: Any = {"format": "csv", "schema": "id bigint, day date, n int", "partition_by": ("day", "n")}
    with pytest.raises(SchemaError) as refused:
        FileSource(file, **how)
    (tmp_path / "empty").mkdir()
    reader = reader_of(FileSource(f"{tmp_path}/**", watch=True, **how), 0, 1)
    with pytest.raises(InputReadError) as later:
        reader.read(1000)
    for error in (refused.value, later.value):
        assert repr(str(file)) in error.args[0]
        assert words in error.args[0]
        assert "move the file to a directory such as day=2026-01-31" in error.remedy


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"schema": "id bigint", "partition_by": "day"}, "has the column 'day', which the rows do not have"),
        ({"schema": "id bigint, day double", "partition_by": "day"}, "of type double, whose values do not"),
        ({"partition_by": ("day", "day")}, "has a column twice"),
        ({"partition_by": "_day"}, "readers skip directories with such names"),
    ],
)
def test_columns_that_no_path_can_have_are_refused(how: Any, words: str, tmp_path: Path) -> None:
    pattern = files_of(tmp_path, "a.csv", b"id\n1\n")
    with pytest.raises(SchemaError, match=words):
        FileSource(pattern, format="csv", **how)


def test_a_pattern_does_not_descend_into_files_that_are_not_committed(tmp_path: Path) -> None:
    """`**` would read the rows that a sink has staged, and again when they are visible."""
    for name in ("_w.staging/1/day=a/x.csv", "day=a/x.csv", "day=a/_x.csv", "_day=a/y.csv", "_old/z.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("id\n1\n")

    def found(pattern: str) -> list[str]:
        return [str(Path(path).relative_to(tmp_path)) for path in FileSource(f"{tmp_path}/{pattern}").paths]

    assert found("**/*.csv") == ["_day=a/y.csv", "day=a/x.csv"]
    assert found("_old/*.csv") == ["_old/z.csv"], "what the pattern names is meant"
    assert found("day=a/_*.csv") == ["day=a/_x.csv"]
    watched = reader_of(FileSource(f"{tmp_path}/**/*.csv", watch=True), 0, 1)
    watched.read(1000)
    assert {Path(path).name for path in watched.positions()} == {"x.csv", "y.csv"}
