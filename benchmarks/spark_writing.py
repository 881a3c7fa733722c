"""Measure writing with the sink `dos`, for `./run bench spark`, compared with a Python sink that writes one
Parquet file per task.

    benchmarks/spark_writing.py sink FOLDER [--rounds N] [--rows N]

sink      a batch of rows that Spark generates, into an input handle; compared with a Parquet file per task

The two run alternately on one session, after a warm-up round. Prints a line of JSON per measurement.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from spark_program import Bench, run
from spark_session import SLOTS

APPLICATION = "shop"
HANDLE = "rows"


def made(spark: SparkSession, rows: int) -> DataFrame:
    """Return the rows to write."""
    keys = "concat('k', lpad(cast(id * 7919 % 100000 AS string), 7, '0')) AS key"
    return spark.range(0, rows, 1, SLOTS).selectExpr(keys, "id AS number")


def sink(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure writes until they are committed."""
    files = bench.folder / "parquet"
    files.mkdir()
    rows = bench.options.rows
    frame = made(bench.spark, rows)

    def ours() -> None:
        writer = frame.write.format("dos").option("input", HANDLE).mode("append")
        writer.save(f"{bench.url}/{APPLICATION}")

    def parquet() -> None:
        frame.write.format("parquet-a-task").mode("append").save(str(files))

    ways: dict[str, Callable[[], None]] = {"dos": ours, "parquet": parquet}
    for way in ways.values():
        way()
    check(bench, str(files), rows)
    for number in range(bench.options.rounds):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            seconds = round(time.perf_counter() - begun, 3)
            yield {"system": name, "round": number, "seconds": seconds, "rows": rows}


def check(bench: Bench, files: str, rows: int) -> None:
    """Check that both sinks wrote all rows."""
    ours = bench.spark.read.format("dos").option("input", HANDLE).load(f"{bench.url}/{APPLICATION}")
    for name, frame in {"dos": ours, "parquet": bench.spark.read.parquet(files)}.items():
        if (found := frame.count()) != rows:
            raise RuntimeError(f"the sink {name} wrote {found:,} rows of {rows:,}")


if __name__ == "__main__":
    run({"sink": sink}, __doc__)
