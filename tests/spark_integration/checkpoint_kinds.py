"""The kinds of Spark's own streaming queries whose checkpoints tests keep in a store, and what they leave.

Each one reads files, one in a batch, whose rows overlap with those of the next file, and writes a file sink.
Times of events depend on the rows only, so two runs over the same files have the same batches, the same
state and the same output.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, window
from pyspark.sql.streaming import StatefulProcessor, StreamingQuery

STATE = "org.apache.spark.sql.execution.streaming.state."
HDFS, ROCKS = f"{STATE}HDFSBackedStateStoreProvider", f"{STATE}RocksDBStateStoreProvider"
FILES, STRIDE, ROWS = 7, 30, 40
"""Files of the input, their distance in rows, and the rows of each one."""
BEGIN_S = 1_700_000_000
SCHEMA = "n long, at timestamp"
DELAY = "10 seconds"
HOUR_MS = 3_600_000


def bodies() -> list[bytes]:
    """The files of the input, in order."""
    return [b"".join(map(_row, range(file * STRIDE, file * STRIDE + ROWS))) for file in range(FILES)]


def _row(n: int) -> bytes:
    at = pd.Timestamp(BEGIN_S + n // 2, unit="s").isoformat() + "Z"
    return json.dumps({"n": n, "at": at}).encode() + b"\n"


def write_input(folder: Path) -> str:
    """Write the files, and give each one a time of its own: sources order them by it."""
    folder.mkdir()
    for number, body in enumerate(bodies()):
        file = folder / f"{number}.json"
        file.write_bytes(body)
        os.utime(file, (BEGIN_S + number, BEGIN_S + number))
    return f"file://{folder}"


class Counter(StatefulProcessor):
    """Counts the rows of a key. With event times, a timer ends each count, and shows it.

    mark: a file that ends the next process which finds it, in the middle of a batch.
    """

    def __init__(self, mark: str, *, timers: bool) -> None:
        self._mark, self._timers = Path(mark), timers

    def init(self, handle: Any) -> None:
        self._handle = handle
        ttl = {} if self._timers else {"ttlDurationMs": HOUR_MS}
        self._count = handle.getValueState("count", "n long", **ttl)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N803 - of Spark
        if self._mark.exists():
            self._mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        count = self._count.get()[0] if self._count.exists() else 0
        count += sum(len(part) for part in rows)
        self._count.update((count,))
        if self._timers:
            if not list(self._handle.listTimers()):
                self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 40_000)
            return
        yield pd.DataFrame({"k": [key[0]], "n": [count]})

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 - of Spark
        expiredTimerInfo: Any,  # noqa: N803 - of Spark
    ) -> Iterator[pd.DataFrame]:
        if self._count.exists():
            yield pd.DataFrame({"k": [key[0]], "n": [self._count.get()[0]]})
            self._count.clear()

    def close(self) -> None:
        pass


Source = Callable[[], DataFrame]


def copied(source: Source, mark: str) -> DataFrame:
    return source().select("n")


def windows(source: Source, mark: str) -> DataFrame:
    late = source().withWatermark("at", DELAY)
    return late.groupBy(window("at", "20 seconds"), (col("n") % 5).alias("k")).count()


def distinct(source: Source, mark: str) -> DataFrame:
    return source().withWatermark("at", DELAY).dropDuplicates(["n", "at"])


def joined(source: Source, mark: str) -> DataFrame:
    left = source().selectExpr("n AS a", "at AS ta").withWatermark("ta", DELAY)
    right = source().where("n % 2 = 0").selectExpr("n AS b", "at AS tb").withWatermark("tb", DELAY)
    near = "a = b AND ta BETWEEN tb - INTERVAL 5 SECONDS AND tb + INTERVAL 5 SECONDS"
    return left.join(right, expr(near), "leftOuter")


def processed(source: Source, mark: str, *, timers: bool = True) -> DataFrame:
    keyed = source().withWatermark("at", DELAY).withColumn("k", col("n") % 5).groupBy("k")
    mode = "EventTime" if timers else "ProcessingTime"
    return keyed.transformWithStateInPandas(Counter(mark, timers=timers), "k long, n long", "Append", mode)


def expiring(source: Source, mark: str) -> DataFrame:
    return processed(source, mark, timers=False)


PROCESSORS = (processed, expiring)
"""Their rows go through Python workers."""


class Kind(NamedTuple):
    """A query. readers: the options of Spark's reader of state with which all of its state is read. store:
    where its first partition keeps state, below `state`. without_data: a last batch has none, and follows the
    last watermark; with processing times, such batches would never end. in_tree: its input, and its output.
    """

    frame: Callable[[Source, str], DataFrame]
    provider: str = ROCKS
    changelog: bool = True
    version: int = 1
    readers: tuple[dict[str, str], ...] = ({},)
    schema: str = "n long"
    available_now: bool = True
    options: tuple[tuple[str, str], ...] = ()
    store: str = "0/0"
    without_data: bool = True
    in_tree: tuple[bool, bool] = (False, True)

    @property
    def confs(self) -> dict[str, str]:
        """The settings. So few versions are kept that snapshots are made, and old files deleted."""
        store = "spark.sql.streaming.stateStore"
        return {
            f"{store}.providerClass": self.provider,
            f"{store}.rocksdb.changelogCheckpointing.enabled": str(self.changelog).lower(),
            f"{store}.checkpointFormatVersion": str(self.version),
            f"{store}.minDeltasForSnapshot": "2",
            f"{store}.maintenanceInterval": "100ms",
            "spark.sql.streaming.minBatchesToRetain": "2",
            "spark.sql.streaming.noDataMicroBatches.enabled": str(self.without_data).lower(),
        }

    @property
    def has_output(self) -> bool:
        """Spark 4.3 cannot restart a query of format 2 that ended between its sink's commit and its own: a
        file sink skips the batch then, and "CheckpointInfo length: 0" follows, also on a local directory.
        """
        return self.version == 1

    @property
    def last(self) -> int:
        """The last batch."""
        return FILES if self.store and self.without_data else FILES - 1

    def begin(self, spark: SparkSession, at: str, source: str, output: str, mark: str) -> StreamingQuery:
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).options(**dict(self.options))
        frame = self.frame(lambda: reader.json(source), mark)
        writer = frame.writeStream.option("checkpointLocation", at)
        writer = writer.format("json").option("path", output) if self.has_output else writer.format("noop")
        return (writer.trigger(availableNow=True) if self.available_now else writer).start()

    def state(self, spark: SparkSession, at: str) -> list[str]:
        """All of the state of the newest batch, as text, in order; without the times at which it expires."""
        reader = spark.read.format("statestore")
        frames = [reader.options(**options).load(at).select("key", "value") for options in self.readers]
        rows = [str(row) for frame in frames for row in sorted(frame.collect(), key=str)]
        return [re.sub(r"ttlExpirationMs=\d+", "", row) for row in rows]

    def output(self, spark: SparkSession, output: str) -> list[str]:
        """The rows that the sink shows, in order."""
        if not self.has_output:
            return []
        return sorted(map(str, spark.read.schema(self.schema).json(output).collect()))


COUNTS = "window struct<start: timestamp, end: timestamp>, k long, count long"
PAIRS = "a long, ta timestamp, b long, tb timestamp"
SIDES = ({"joinSide": "left"}, {"joinSide": "right"})
LEFT = "0/0/left-keyToNumValues"
COUNT = ({"stateVarName": "count"},)
KINDS = {
    "HDFS-backed": Kind(windows, HDFS, schema=COUNTS, available_now=False),
    "RocksDB": Kind(windows, changelog=False, schema=COUNTS, available_now=False),
    "changelog": Kind(windows, schema=COUNTS, available_now=False),
    "format 2": Kind(windows, version=2, schema=COUNTS, available_now=False),
    "join": Kind(joined, readers=SIDES, schema=PAIRS, store=LEFT),
    "join, HDFS-backed": Kind(joined, HDFS, readers=SIDES, schema=PAIRS, store=LEFT),
    "duplicates": Kind(distinct, HDFS, schema=SCHEMA),
    "processor with timers": Kind(processed, readers=COUNT, schema="k long, n long"),
    "processor with TTL": Kind(expiring, readers=COUNT, schema="k long, n long", without_data=False),
    "files in the tree": Kind(copied, readers=(), store="", available_now=False, in_tree=(True, True)),
    "latest first": Kind(
        copied,
        readers=(),
        store="",
        available_now=False,
        options=(("latestFirst", "true"),),
        in_tree=(False, False),
    ),
}
