"""Measure a DataFrame that is processed by a region (`dos.through`), for `./run bench spark`.

benchmarks/spark_through.py through FOLDER [--rounds N] [--rows N]

backlog a stream of Parquet files, read as fast as possible; counted by key in a region, whose output Spark
reads paced 1,000 rows per second through a region that passes them on, each with the time when it was due

The region has one worker, because a session of two slots leaves the other one to the stream. Prints a line
of JSON per measurement.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from spark_program import Bench, run
from spark_writing import made

import spark_integration as dos
from dataflow import Count, Graph, InputSource, LogSink

FILES = 20
RATE = 1_000
ROUNDS_MAX = 3
FILES_A_BATCH = 2
SHARE = 2
"""A backlog has 1/SHARE of the rows of a batch."""
PACED_S = 10.0
WARM_ROWS = 6_000
"""The first paced rows are ignored: Spark's first micro-batches take seconds."""
PAUSE_S_MAX = 60.0


def through(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure rounds, each with a region of its own."""
    parquet = bench.folder / "backlog"
    count = bench.options.rows // SHARE
    frame = made(bench.spark, count).selectExpr("substr(key, 6) AS key", "number")
    frame.repartition(FILES).write.parquet(str(parquet))
    files = bench.spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", FILES_A_BATCH)
    for number in range(min(bench.options.rounds, ROUNDS_MAX)):
        figures = backlog(bench, files.parquet(str(parquet)), count, number)
        yield {"system": "backlog", "round": number, **figures}
        yield {"system": "paced", "round": number, **paced(bench, number)}


def backlog(bench: Bench, frame: DataFrame, wanted: int, number: int) -> dict[str, Any]:
    """Measure from the first output until all rows are counted in the output."""
    graph = Graph(f"backlog{number}")
    rows = graph.source("rows", InputSource("rows", "key string, number bigint"))
    totals = rows.key_by("by_key", "key").aggregate("totals", rows=Count())
    totals.sink("out", LogSink())
    newest: dict[str, int] = {}
    looks: list[tuple[float, int]] = []

    def take(batch: DataFrame, _: int) -> None:
        for key, count in batch.groupBy("key").agg({"rows": "max"}).collect():
            newest[key] = max(count, newest.get(key, 0))
        if newest:
            looks.append((time.perf_counter(), sum(newest.values())))

    def done() -> int:
        return wanted - (looks[-1][1] if looks else 0)

    run_through(bench, frame, graph, take, done)
    (begun, first), (ended, last) = looks[0], looks[-1]
    if last == first:
        raise RuntimeError(f"all {wanted:,} rows came out at once: give more --rows")
    return {"rows": wanted, "rows_per_s": round((last - first) / (ended - begun), 1)}


def same(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the batch unchanged."""
    return {name: batch.column(name) for name in batch.schema.names}


def paced(bench: Bench, number: int) -> dict[str, Any]:
    """Measure from when a row of Spark's rate source is due until the driver receives it."""
    graph = Graph(f"paced{number}")
    rows = graph.source("rows", InputSource("rows", "due_ms bigint"))
    rows.map("same", same, schema="due_ms bigint", takes="batch").sink("out", LogSink())
    rate = bench.spark.readStream.format("rate").options(rowsPerSecond=str(RATE), numPartitions="1").load()
    found: list[float] = []
    wanted = WARM_ROWS + int(PACED_S * RATE)

    def take(batch: DataFrame, _: int) -> None:
        dues = [row[0] for row in batch.collect()]
        now_ms = time.time() * 1000
        found.extend(now_ms - due for due in dues)

    run_through(
        bench, rate.selectExpr("unix_millis(timestamp) AS due_ms"), graph, take, lambda: wanted - len(found)
    )
    late = sorted(found[WARM_ROWS:])
    return {"p50_ms": round(statistics.median(late), 1), "p99_ms": round(late[int(len(late) * 0.99)], 1)}


def run_through(
    bench: Bench,
    frame: DataFrame,
    graph: Graph,
    take: Callable[[DataFrame, int], None],
    left: Callable[[], int],
) -> None:
    """Run until no rows are left."""
    place = bench.folder / graph.name
    out = dos.through(frame, graph, workers=1, store=bench.url)
    query = out.writeStream.foreachBatch(take).option("checkpointLocation", f"{place}-out").start()
    moved, before = time.monotonic(), left()
    try:
        while (now := left()) > 0:
            time.sleep(0.05)  # a poll for the rows that `take` received
            failure = out.dos.exception() or query.exception()
            moved = time.monotonic() if now != before else moved
            before = now
            if failure is not None or time.monotonic() - moved > PAUSE_S_MAX:
                raise RuntimeError(f"{now:,} rows did not come out of {graph.name}: {failure}")
    finally:
        query.stop()
        out.dos.stop()


if __name__ == "__main__":
    run({"through": through}, __doc__)
