"""Partitioned sinks against Spark: it makes the same directories, and reads the same rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from dataflow import ParquetSink
from dataflow.operators.base import OperatorContext

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
ASCII = [*map(chr, range(1, 128))]
ODD = [
    "".join(ASCII[:60]),
    "".join(ASCII[60:]),
    *"=/%:",
    "é",
    "a b",
    "007",
    "..",
    "_x",
    "%3A",
    "2026-11-30",
    "null",
]
SCHEMA = pa.schema([("id", pa.int64()), ("text=", pa.string()), ("n", pa.int16()), ("day", pa.date32())])


def test_spark_makes_the_same_directories_and_reads_the_rows_with_their_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    texts = [*ODD, None, ""]
    rows = [
        {"id": at, "text=": text, "n": at % 2 or None, "day": pa.scalar(at % 3, pa.date32()).as_py()}
        for at, text in enumerate(texts)
    ]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    sink = ParquetSink(tmp_path / "ours", partition_by=("text=", "n", "day"))
    writer = sink.open(OperatorContext("r", "out", 0, 1, bytes(16), (SCHEMA,), None, 1))
    writer.reset_to(None)
    writer.process(batch)
    writer.prepare(1)
    writer.sync()
    writer.publish(1)
    writer.close()
    columns = "id bigint, `text=` string, n smallint, day date"
    given = spark.createDataFrame([tuple(row.values()) for row in rows], columns)
    given.coalesce(1).write.partitionBy("text=", "n", "day").parquet(str(tmp_path / "theirs"))

    def directories(folder: Path) -> set[str]:
        return {str(path.parent.relative_to(folder)) for path in folder.glob("*=*/**/*.parquet")}

    assert directories(tmp_path / "ours") == directories(tmp_path / "theirs")
    expected = {row["id"]: (row["text="] or None, row["n"], row["day"]) for row in rows}
    read = spark.read.schema(columns).parquet(str(tmp_path / "ours")).collect()
    assert {row["id"]: (row["text="], row["n"], row["day"]) for row in read} == expected
    assert len(read) == len(rows)
    inferred = spark.read.parquet(str(tmp_path / "ours"))
    assert dict(inferred.dtypes) == {"id": "bigint", "text=": "string", "n": "int", "day": "date"}
    flavor = ds.partitioning(pa.schema(list(SCHEMA)[1:]), flavor="hive")
    table = ds.dataset(tmp_path / "ours", format="parquet", partitioning=flavor).to_table()
    assert {row["id"]: (row["text="], row["n"], row["day"]) for row in table.to_pylist()} == expected
