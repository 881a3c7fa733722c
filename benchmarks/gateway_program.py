"""The Spark side of `./run bench gateway`: streaming queries with their checkpoints in some place.

gateway_program.py kinds --places FILE --folder FOLDER [--only KINDS] [--rounds N] [--batches N]
gateway_program.py soak --places FILE --folder FOLDER --batches N [--queries N]

FILE has JSON: {"gateway": webhdfs://..., "local": file://..., "confs": {...}, "pid": that of the gateway}.
One session runs everything. `kinds` runs each kind of query in both places in each round, in changing order,
and prints one line of JSON for each run. `soak` prints a line with the seconds of the micro-batches since the
line before.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd
from dataflow_meter import cpu_seconds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery
from spark_session import session

ROWS: Final = 100
"""Rows of a micro-batch, and of each side of a join."""
KEYS: Final = 50
WARM: Final = 3
"""Micro-batches that are not measured: the first one starts Python and loads classes."""
POLL_S: Final = 0.1
LOOK_S: Final = 3.0
"""How often the soak collects progress reports: the session keeps REPORTS of them."""
REPORTS: Final = 500
RUN_S_MAX: Final = 600.0
PLACES: Final = ("gateway", "local")
_STORE: Final = "spark.sql.streaming.stateStore."
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state."


def numbers(spark: SparkSession) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    return source.option("numPartitions", 1).option("advanceMillisPerBatch", 1_000).load()


def counted(spark: SparkSession) -> DataFrame:
    return numbers(spark).groupBy((col("value") % KEYS).alias("k")).count()


def joined(spark: SparkSession) -> DataFrame:
    left, right = (
        numbers(spark)
        .select(col("value").alias(name), col("timestamp").alias(f"t{name}"))
        .withWatermark(f"t{name}", "2 seconds")
        for name in ("a", "b")
    )
    near = "a = b AND ta >= tb - interval 2 seconds AND ta <= tb + interval 2 seconds"
    return left.join(right, expr(near))


class Counting(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("n", "n long")

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803, ARG002
    ) -> Iterator[Any]:
        count = self._count.get()[0] if self._count.exists() else 0
        count += sum(len(part) for part in rows)
        self._count.update((count,))
        yield pd.DataFrame({"k": [key[0]], "n": [count]})

    def close(self) -> None:
        """Nothing is open."""


def transformed(spark: SparkSession) -> DataFrame:
    keyed = numbers(spark).withColumn("k", col("value") % KEYS).groupBy("k")
    return keyed.transformWithStateInPandas(Counting(), "k long, n long", "Update", "None")


class Kind(NamedTuple):
    """A kind of query. rows: its sink is Parquet files, in the same place, otherwise nothing is kept."""

    frame: Callable[[SparkSession], DataFrame]
    provider: str = "HDFSBacked"
    changelog: bool = False
    version: int = 1
    mode: str = "update"
    rows: bool = False


KINDS: Final = {
    "stateless": Kind(numbers),
    "hdfs": Kind(counted),
    "rocksdb": Kind(counted, "RocksDB"),
    "changelog": Kind(counted, "RocksDB", changelog=True),
    "format2": Kind(counted, "RocksDB", changelog=True, version=2),
    "files": Kind(numbers, mode="append", rows=True),
    "join": Kind(joined, mode="append"),
    "transform": Kind(transformed, "RocksDB", changelog=True),
}


def begin(spark: SparkSession, kind: Kind, place: str) -> StreamingQuery:
    """Start a query of this kind with all its files below a place."""
    spark.conf.set(f"{_STORE}providerClass", f"{_PROVIDERS}{kind.provider}StateStoreProvider")
    spark.conf.set(f"{_STORE}rocksdb.changelogCheckpointing.enabled", str(kind.changelog).lower())
    spark.conf.set(f"{_STORE}checkpointFormatVersion", str(kind.version))
    writer = kind.frame(spark).writeStream.outputMode(kind.mode)
    writer = writer.option("checkpointLocation", f"{place}/checkpoint")
    if kind.rows:
        return writer.format("parquet").start(f"{place}/rows")
    return writer.format("noop").start()


def last_batch(query: StreamingQuery) -> int:
    """Return the number of the newest micro-batch. Raises the error of the query."""
    if (error := query.exception()) is not None:
        raise error
    progress: Any = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def wait_for(query: StreamingQuery, batch: int) -> None:
    """Raises RuntimeError if it takes too long."""
    end = time.monotonic() + RUN_S_MAX
    while last_batch(query) < batch:
        if time.monotonic() > end:
            raise RuntimeError(f"micro-batch {batch} was not reached in {RUN_S_MAX:.0f} s: {query.status}")
        time.sleep(POLL_S)  # a poll: progress is reported by a thread of the JVM


def run(spark: SparkSession, kind: Kind, place: str, batches: int, gateway: int) -> dict[str, Any]:
    """Run a query, and return the times of its micro-batches and the processor time of the gateway."""
    query = begin(spark, kind, place)
    try:
        wait_for(query, WARM - 1)
        first, before = last_batch(query), cpu_seconds([gateway])
        wait_for(query, first + batches)
        last, after = last_batch(query), cpu_seconds([gateway])
        reports: list[Any] = [one for one in query.recentProgress if first < one["batchId"] <= last]
    finally:
        query.stop()
    return {
        "batch_ms": [one["durationMs"]["triggerExecution"] for one in reports],
        "wal_ms": [one["durationMs"]["walCommit"] for one in reports],
        "commit_ms": [one["durationMs"]["commitOffsets"] for one in reports],
        "state_ms": [sum(each["commitTimeMs"] for each in one["stateOperators"]) for one in reports],
        "cpu_ms": 1_000 * (after - before) / (last - first),
    }


def run_kinds(spark: SparkSession, places: dict[str, Any], options: argparse.Namespace) -> None:
    for number in range(options.rounds):
        for name in options.only:
            for place in PLACES if number % 2 == 0 else PLACES[::-1]:
                at = f"{places[place]}/{name}-{number}"
                found = run(spark, KINDS[name], at, options.batches, places["pid"])
                print(json.dumps({"kind": name, "round": number, "place": place, **found}), flush=True)


def run_soak(spark: SparkSession, places: dict[str, Any], options: argparse.Namespace) -> None:
    queries = [
        begin(spark, KINDS["changelog"], f"{places['gateway']}/soak-{number}")
        for number in range(options.queries)
    ]
    seen, done = [-1] * len(queries), 0
    try:
        while done < options.batches:
            time.sleep(LOOK_S)  # a poll
            new_ms = list[int]()
            for number, query in enumerate(queries):
                last_batch(query)
                reports: list[Any] = [one for one in query.recentProgress if one["batchId"] > seen[number]]
                if reports and seen[number] >= 0 and reports[0]["batchId"] > seen[number] + 1:
                    raise RuntimeError("progress reports were lost: look more often")
                new_ms += [one["durationMs"]["triggerExecution"] for one in reports]
                seen[number] = max([seen[number], *(one["batchId"] for one in reports)])
            done += len(new_ms)
            print(json.dumps({"batch_ms": new_ms}), flush=True)
    finally:
        for query in queries:
            query.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=("kinds", "soak"))
    parser.add_argument("--places", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--queries", type=int, default=1)
    options = parser.parse_args()
    places = json.loads(options.places.read_text())
    more = {"spark.sql.streaming.numRecentProgressUpdates": str(REPORTS)}
    spark = session(options.folder, more=more)
    try:
        for name, value in places["confs"].items():
            spark.conf.set(name, value)
        (run_kinds if options.work == "kinds" else run_soak)(spark, places, options)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
