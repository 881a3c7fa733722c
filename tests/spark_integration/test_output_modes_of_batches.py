"""Output modes of an aggregate in the micro-batches of a query, compared with Spark's own."""

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

import dos
from dataflow import Count, Graph, InputSource, LogSink, Tumbling
from dos_server.testing import Servers, ThreadedServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

TEN_SECONDS = timedelta(seconds=10)


def batches_of(df: DataFrame, mode: str, checkpoint: Path) -> dict[int, Counter[tuple[Any, ...]]]:
    """The rows (window start, key, n) of each micro-batch in a foreachBatch."""
    found: dict[int, Counter[tuple[Any, ...]]] = {}

    def each(batch: DataFrame, number: int) -> None:
        rows = Counter(tuple(row) for row in batch.select("start", "key", "n").collect())
        if rows:
            found[number] = rows

    writing = df.writeStream.outputMode(mode).trigger(availableNow=True).foreachBatch(each)
    writing.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    return found


@pytest.mark.parametrize(("emit", "mode"), [("updates", "update"), ("table", "complete")])
def test_an_output_mode_emits_what_sparks_does_and_each_group_once(
    spark: SparkSession,
    servers: Servers[ThreadedServer],
    tmp_path: Path,
    name: str,
    emit: Any,
    mode: str,
) -> None:
    (tmp_path / "in").mkdir()
    for number, seconds in enumerate(([100, 50, 50, 95, 300, 299], [292, 310], [250, 400], [405, 399])):
        hidden = tmp_path / f"{number}.csv"
        hidden.write_text("".join(f"{one}\n" for one in seconds * 200))
        os.utime(hidden, (1_700_000_000 + number,) * 2)  # a stream takes the oldest first
        hidden.rename(tmp_path / "in" / hidden.name)
    stream = spark.readStream.schema("s bigint").option("maxFilesPerTrigger", 1).csv(str(tmp_path / "in"))
    stream = stream.selectExpr("string(s % 2) key", "timestamp_seconds(s) at")
    graph = Graph(name)
    rows = graph.source("rows", InputSource("rows", "key string, at timestamp"))
    timed = rows.event_time("timed", "at", lateness=TEN_SECONDS).key_by("by_key", "key")
    timed.aggregate("counts", Tumbling("at", TEN_SECONDS), emit=emit, n=Count()).sink("out", LogSink())
    ours = dos.through(stream, graph, workers=2, store=servers.url)
    theirs = stream.withWatermark("at", "10 seconds").groupBy(functions.window("at", "10 seconds"), "key")
    theirs = theirs.agg(functions.count("*").alias("n")).withColumn("start", functions.col("window.start"))
    try:
        found = batches_of(ours.withColumnRenamed("window_start", "start"), "append", tmp_path / "ours")
    finally:
        ours.dos.stop()
    assert found == batches_of(theirs, mode, tmp_path / "theirs")
    assert len(found) == 4
    for batch in found.values():
        keys = Counter((start, key) for start, key, _ in batch.elements())
        assert set(keys.values()) == {1}
