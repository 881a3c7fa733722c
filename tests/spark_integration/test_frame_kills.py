"""Random aggregations of streams, by a region whose workers are killed while its query ends and is started
again: the rows are those of Spark, in a batch on the same rows.
"""

import os
import random
import signal
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

import spark_integration as dos
from checkpoint.core.region import WorkerJoined
from dos_server.testing import Servers, ThreadedServer
from tests.spark_integration.frame_cases import DDL, START, RandomResults, rows, table
from tests.support.parts import with_long

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Fault: TypeAlias = Literal["kill", "stop", "fail before", "fail after", "kill and fail", "none"]
FAULTS: Final[list[Fault]] = ["kill", "stop", "fail before", "fail after", "kill and fail", "kill"]
"""One of each micro-batch: a worker is killed, or the query is stopped, at any time of it; or the sink fails
before or after it has the rows.
"""
ROWS: Final = 40
"""Of a micro-batch."""
MOMENT_S_MAX: Final = 0.4
DELAY: Final = timedelta(hours=3)
"""Of the watermark. Longer than from the first row to the last: no row is late."""
FAILURE: Final = "the sink fails"


class Disturbed:
    """A query whose micro-batches have faults. `shown`: micro-batch -> its rows."""

    def __init__(self, spark: SparkSession, store: str, folder: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._folder = folder
        self._faults = dict(enumerate(self._rng.sample(FAULTS, len(FAULTS))))
        self._pids: dict[int, int] = {}
        self._query: Any = None
        self._started = threading.Event()
        self._timers: list[threading.Timer] = []
        self.starts = 0
        self.killed = 0
        self.shown: dict[int, list[Any]] = {}
        stream = (
            spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(folder / "in" / "*"))
        )
        self.frame = dos.frame(stream, store=store, workers=2, on_event=self._seen)

    def _seen(self, event: object) -> None:
        if isinstance(event, WorkerJoined):
            self._pids[event.worker] = event.pid

    def _kill(self) -> None:
        if not self._pids:
            return  # the first workers are not there yet
        worker = self._rng.choice(sorted(self._pids))
        with suppress(ProcessLookupError):  # it was killed before, and the next one is not there yet
            os.kill(self._pids[worker], signal.SIGKILL)
            self.killed += 1

    def _take(self, df: DataFrame, batch: int) -> None:
        self._started.wait()
        fault = self._faults.pop(batch, "none")
        if fault == "fail before":
            raise RuntimeError(FAILURE)
        if fault != "none":
            call = self._query.stop if fault == "stop" else self._kill
            self._timers.append(threading.Timer(self._rng.uniform(0, MOMENT_S_MAX), call))
            self._timers[-1].start()
        found = df.collect()
        assert repr(self.shown.setdefault(batch, found)) == repr(found), "a repeated one has its rows"
        if fault in ("fail after", "kill and fail"):
            raise RuntimeError(FAILURE)

    def run(self, df: DataFrame, mode: str) -> None:
        while len(self.shown) < len(FAULTS):
            self.starts += 1
            writer = df.writeStream.outputMode(mode).foreachBatch(self._take).trigger(availableNow=True)
            self._query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()
            self._started.set()
            try:
                self._query.awaitTermination()
            except StreamingQueryException as error:
                if FAILURE not in str(error):
                    raise
            finally:
                self._started.clear()
                for timer in self._timers:
                    timer.join()


def program(given: DataFrame, seed: int, mode: str) -> DataFrame:
    """Aggregations by columns and expressions, and in *append* by windows."""
    rng = random.Random(seed)
    keys: list[Any] = ["k", rng.choice(["flag", (F.col("a") % 3).alias("m"), F.upper("s").alias("u")])]
    if mode == "append":
        sizes = rng.choice(
            [("20 minutes",), ("1 hour", "25 minutes"), ("30 minutes", "20 minutes", "7 minutes")]
        )
        keys.insert(rng.randrange(3), F.window("ts", *sizes))
        given = given.withWatermark("ts", f"{DELAY.total_seconds():.0f} seconds")
    given = given.withColumn("st.x", F.col("a") * 100)
    return given.groupBy(*keys).agg(*RandomResults(seed).some(8))


@pytest.mark.parametrize("seed", with_long([3], [2], [1, *range(4, 40)]))
def test_random_aggregations_of_a_stream_are_sparks_whatever_is_killed_or_started_again(
    spark: SparkSession, servers: Servers[ThreadedServer], tmp_path: Path, seed: int
) -> None:
    mode = "append" if seed % 2 else "complete"
    given = rows(ROWS * len(FAULTS), seed)
    last = START + timedelta(days=1)  # it ends the windows of all others
    given[-1] = (*given[-1][:8], last, *given[-1][9:])
    for number in range(len(FAULTS)):
        part = spark.createDataFrame(given[number * ROWS : (number + 1) * ROWS], DDL).coalesce(1)
        part.write.parquet(f"{tmp_path}/in/{number}")
        (file,) = (tmp_path / "in" / str(number)).glob("*.parquet")
        os.utime(file, (1_700_000_000 + number,) * 2)  # a stream takes the oldest first
    disturbed = Disturbed(spark, servers.url, tmp_path, seed)
    framed = program(disturbed.frame, seed, mode)
    disturbed.run(framed, mode)
    expected = program(spark.read.schema(DDL).parquet(f"{tmp_path}/in/*"), seed, mode)
    assert framed.columns == expected.columns
    if mode == "append":
        expected = expected.where(F.col("window.end") <= F.lit(last - DELAY))
        found = [row for each in disturbed.shown.values() for row in each]
    else:
        found = disturbed.shown[len(FAULTS) - 1]
    assert table(spark.createDataFrame(found, expected.schema)) == table(expected)
    assert len(found) > 5
    assert disturbed.killed
    assert disturbed.starts >= 4
