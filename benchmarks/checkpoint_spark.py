"""Measure recovery, latency and another number of partitions of Spark's micro-batches: `groupBy().agg()` with
RocksDB state.

benchmarks/checkpoint_spark.py recovery KEYS ROUNDS # local-cluster: an executor's JVM is killed
benchmarks/checkpoint_spark.py latency ROWS_PER_S SECONDS benchmarks/checkpoint_spark.py scale KEYS ROUNDS
# from 2 to 3 partitions and back

It uses changelog checkpoints on the local disk and two shuffle partitions. Each batch begins as soon as
the previous one is complete. The source is a socket, whose lines the driver keeps in memory; in `scale`
files and the rate source, because a query with a socket cannot be started again. Output counts as visible
when `foreachBatch` has the result of the batch. Prints one line of JSON.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from spark_session import SLOTS, session
from word_feed import WordFeed

PART_KEYS = 50_000
PACE_S = 0.02
RECOVERY_ROWS_PER_S = 5_000
LATENCY_KEYS = 10_000
SCALE_ROWS_PER_S = 1_000
SETTLE_S = 3.0
"""Between two changes of the number of partitions."""
WARM_BATCHES = 3
WARM_ROUNDS = 40
WARM_ROWS = 500
WARM_S = 30.0
"""A JVM is slow at first. Small batches, one after the other, or this time, precede the measurement."""
LIMIT_S = 240.0
"""From the start of the program. The figures measured by then are the result."""
BEGUN = time.monotonic()
MORE = {
    # a long batch of a socket, or a `stop`, overflows the default stack
    "spark.driver.extraJavaOptions": "-Xss64m",
    "spark.executor.memory": "1g",
}


class TimeIsUp(Exception):  # noqa: N818
    """The program did not reach the expected state within LIMIT_S."""


class Query:
    """The query that counts keys. `seen`: when each batch was visible, and the time of its last line."""

    def __init__(self, spark: SparkSession, feed: WordFeed, folder: Path) -> None:
        self.seen: list[tuple[float, float]] = []
        self.keys = 0
        self.changed = threading.Condition()
        lines = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", feed.port).load()
        parts = F.split("value", " ")
        words = lines.select(parts[0].alias("word"), parts[1].cast("long").alias("sent"))
        counts = words.groupBy("word").agg(F.count("*").alias("n"), F.max("sent").alias("sent"))
        self.query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(self._batch)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )

    def _batch(self, rows: DataFrame, number: int) -> None:
        del number
        last, new = rows.agg(F.max("sent"), F.sum((F.col("n") == 1).cast("long"))).collect()[0]
        with self.changed:
            self.keys += new or 0
            self.seen.append((time.time(), (last or 0) / 1e6))
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            while not condition():
                if not self.query.isActive:
                    raise RuntimeError(f"the query ended: {self.query.exception()}")
                if time.monotonic() > BEGUN + LIMIT_S:
                    raise TimeIsUp
                self.changed.wait(0.1)

    def warm(self, feed: WordFeed) -> None:
        """Run small batches, one after the other."""
        until = time.monotonic() + WARM_S
        for number in range(WARM_ROUNDS):
            sent = feed.send(range(WARM_ROWS))
            self.visible(sent - 1e-6)
            if time.monotonic() > until:
                print(f"Spark had {number + 1} batches as a warm-up", file=sys.stderr, flush=True)
                return

    def visible(self, sent: float) -> float:
        """Return when a line that was sent at `sent` or later was visible."""
        self.until(lambda: any(last >= sent for _, last in self.seen))
        return next(when for when, last in self.seen if last >= sent)


def executors_of(driver: int) -> list[int]:
    """Return the JVMs of the executors below a driver of local-cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(b"CoarseGrainedExecutorBackend" in word for word in words) and _is_below(
                entry.name, driver
            ):
                found.append(int(entry.name))
    return found


def _is_below(pid: str, ancestor: int) -> bool:
    while int(pid) > 1:
        if int(pid) == ancestor:
            return True
        pid = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]
    return False


def recovery(folder: Path, keys: int, rounds: int) -> dict[str, Any]:
    """Measure the seconds from the SIGKILL of an executor until output of later input is visible."""
    with ExitStack() as stack:
        spark = session(folder, "local-cluster[2,1,1024]", MORE)
        stack.callback(spark.stop)
        feed = WordFeed()
        stack.callback(feed.close)
        query = Query(spark, feed, folder)
        for begin in range(0, keys, PART_KEYS):  # one at a time: tasks carry their batch to the executors
            end = min(begin + PART_KEYS, keys)
            feed.send(range(begin, end), timed=False)
            query.until(lambda end=end: query.keys >= end)
        print(f"Spark has {query.keys:,} keys after {len(query.seen)} batches", file=sys.stderr, flush=True)
        query.warm(feed)
        feed.paced(keys, RECOVERY_ROWS_PER_S, PACE_S)
        seconds: list[float] = []
        try:
            for _ in range(rounds):
                batches = len(query.seen)
                query.until(lambda batches=batches: len(query.seen) >= batches + WARM_BATCHES)
                os.kill(executors_of(os.getpid())[0], signal.SIGKILL)
                killed = time.time()
                seconds.append(round(query.visible(killed) - killed, 3))
                print(f"Spark is back after {seconds[-1]} s", file=sys.stderr, flush=True)
        except TimeIsUp:
            if not seconds:
                raise
        query.query.stop()
    return {"keys": keys, "seconds": seconds}


def latency(folder: Path, rows_per_s: float, seconds: float) -> dict[str, Any]:
    """Measure from before a line is sent until its batch is visible, without the first seconds."""
    with ExitStack() as stack:
        spark = session(folder, more=MORE)
        stack.callback(spark.stop)
        feed = WordFeed()
        stack.callback(feed.close)
        query = Query(spark, feed, folder)
        feed.send(range(LATENCY_KEYS), timed=False)
        query.until(lambda: query.keys >= LATENCY_KEYS)
        query.warm(feed)
        sent: list[float] = []
        feed.paced(LATENCY_KEYS, rows_per_s, PACE_S, sent)
        batches = len(query.seen)
        query.until(lambda: len(query.seen) >= batches + WARM_BATCHES)
        begun = time.time()
        query.until(lambda: time.time() > begun + seconds)
        feed.rest()
        measured = [when for when in sent if begun <= when <= begun + seconds]
        with suppress(TimeIsUp):
            query.visible(measured[-1] - 1e-6)
        now = time.time()  # lines that are not visible by then took at least this long
        shown = [next((at for at, last in query.seen if last >= when - 1e-6), 0.0) for when in measured]
        found = [(at or now) - when for at, when in zip(shown, measured, strict=True)]
        late = shown.count(0.0)
        query.query.stop()
    points = statistics.quantiles(found, n=100)
    percentiles = {"p50_ms": round(points[49] * 1000, 1), "p99_ms": round(points[98] * 1000, 1)}
    return {"rows_per_s": rows_per_s, "batches": len(found), "late": late, **percentiles}


class Scaled:
    """A count of the keys of a file, and of 1,000 generated rows per second, that is stopped and started."""

    def __init__(self, folder: Path, spark: SparkSession, keys: int) -> None:
        (folder / "keys").mkdir()
        (folder / "keys" / "all").write_text("".join(f"k{key:09d}\n" for key in range(keys)))
        stored = spark.readStream.text(str(folder / "keys"))
        rows = spark.readStream.format("rate").option("rowsPerSecond", SCALE_ROWS_PER_S).load()
        paced = rows.select(F.format_string("k%09d", F.col("value") % keys).alias("value"))
        self._counts = stored.union(paced).groupBy("value").count()
        self._spark, self._folder = spark, folder
        self.shown: list[float] = []

    def start(self, partitions: int) -> int:
        """Start the query with this setting; return the number of partitions that it has."""
        self._spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        writer = self._counts.writeStream.outputMode("update").foreachBatch(self._batch)
        self.query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()
        batches = len(self.shown)
        while len(self.shown) < batches + WARM_BATCHES:
            if not self.query.isActive:
                raise RuntimeError(f"the query ended: {self.query.exception()}")
            if time.monotonic() > BEGUN + LIMIT_S:
                raise TimeIsUp
            time.sleep(0.01)
        state = self.query.lastProgress["stateOperators"][0]
        self.keys = int(state["numRowsTotal"])
        return int(state["numShufflePartitions"])

    def change(self, partitions: int) -> dict[str, Any]:
        """Stop the query, divide its state anew, and start it."""
        time.sleep(SETTLE_S)
        began = time.time()
        self.query.stop()
        manager = self._spark._streamingCheckpointManager  # not public in 4.3
        # False: the batch that `stop` has interrupted is done again
        folder = str(self._folder / "checkpoint")
        manager.repartition(folder, partitions, enforce_exactly_once_sink=False)
        divided = time.time()
        assert self.start(partitions) == partitions, "the state was divided anew"
        shown = [when for when in self.shown if when > began - SETTLE_S]
        pause_s = max(after - before for before, after in pairwise(shown))
        back = next(when for when in shown if when > divided)
        return {"workers": partitions, "pause_s": round(pause_s, 3), "seconds": round(back - began, 3)}

    def _batch(self, rows: DataFrame, number: int) -> None:
        del number
        rows.count()
        self.shown.append(time.time())


def scale(folder: Path, keys: int, rounds: int) -> dict[str, Any]:
    """Measure the time to build the state, the partitions after a start with another setting, and a division
    of the state anew. pause_s: the longest time between the results of two batches.
    """
    with ExitStack() as stack:
        spark = session(folder, f"local[{SLOTS + 1}]", MORE)
        stack.callback(spark.stop)
        query = Scaled(folder, spark, keys)
        begun = time.time()
        query.start(SLOTS)
        built_s = query.shown[0] - begun
        query.query.stop()
        kept = query.start(SLOTS + 1)
        changes: list[dict[str, Any]] = []
        with suppress(TimeIsUp):
            for partitions in (SLOTS + 1, SLOTS) * rounds:
                changes.append(query.change(partitions))
                print(f"Spark: {changes[-1]}", file=sys.stderr, flush=True)
        query.query.stop()
    return {"keys": query.keys, "built_s": round(built_s, 3), "kept": kept, "changes": changes}


MEASURES: dict[str, Callable[[Path, float, float], dict[str, Any]]] = {
    "recovery": lambda folder, keys, rounds: recovery(folder, int(keys), int(rounds)),
    "latency": latency,
    "scale": lambda folder, keys, rounds: scale(folder, int(keys), int(rounds)),
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dos-yardstick-", ignore_cleanup_errors=True) as name:
        try:
            figures = MEASURES[sys.argv[1]](Path(name), float(sys.argv[2]), float(sys.argv[3]))
        except TimeIsUp:
            figures = {"missing": f"not finished within {LIMIT_S:.0f} s"}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
