"""Measure a DataFrame that is processed by a region (`dos.through`), for `./run bench spark`.

benchmarks/spark_through.py through FOLDER [--rounds N] [--rows N]
benchmarks/spark_through.py frame FOLDER [--rounds N] [--rows N]
benchmarks/spark_through.py partitions FOLDER [--rounds N] [--rows N]

backlog a stream of Parquet files, read as fast as possible and counted by key: in a region (dos), and by
Spark's own count (spark); rows/s, and processor seconds of all processes
frame the same count through a frame (frame), and by a graph (graph): rows/s, processor seconds, and the time
from the first call until the query has started
partitions a backlog of JSON lines in several partitions, which Spark parses: in the task that carries the
rows (carried), or in a task for each partition, before a shuffle (shuffled); and, in a task for each
partition, with nothing behind it but a Python function that returns the rows (bound)
paced 1,000 rows per second, from when a row is sent until foreachBatch has it: two queries at the
same time, one through a region (through), one through a Python function that returns the rows (floor)

The region has one worker, and the session a slot for it and for each query. Prints a line of JSON per
measurement.
"""

import itertools
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from dataflow_meter import cpu_seconds, tree
from pyspark.sql import DataFrame, functions
from spark_program import Bench, run
from spark_writing import made

import spark_integration as dos
from dataflow import Count, Graph, InputSource, LogSink

FILES = 20
RATE = 1_000
FILES_A_BATCH = 2
SHARE = 2
"""A backlog has 1/SHARE of the rows of a batch."""
PACED_S = 40.0
WARM_BATCHES = 20
"""The first micro-batches are ignored: they take seconds."""
PAUSE_S_MAX = 60.0
WINDOW_S = 5.0
COLUMNS = "sent double, key string, n bigint"


def through(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure rounds, each with regions of its own."""
    rows, count = files(bench)
    for number in range(bench.options.rounds):
        yield from backlogs(bench, number, {"backlog dos": in_region, "backlog spark": by_spark}, rows, count)
        yield from paced(bench, number)


def frame(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure rounds, each with regions of its own."""
    rows, count = files(bench)
    for number in range(bench.options.rounds):
        yield from backlogs(bench, number, {"frame": in_frame, "graph": in_region}, rows, count)


def backlogs(
    bench: Bench,
    number: int,
    systems: dict[str, Callable[[Bench, DataFrame, int], DataFrame]],
    rows: DataFrame,
    count: int,
) -> Iterator[dict[str, Any]]:
    """Measure a round, whose order changes with its number."""
    for system in list(systems)[:: 1 if number % 2 else -1]:
        figures = backlog(bench, partial(systems[system], bench, rows, number), count)
        yield {"system": system, "round": number, **figures}


def files(bench: Bench) -> tuple[DataFrame, int]:
    """Return a stream of Parquet files, and how many rows they have."""
    parquet = bench.folder / "backlog"
    count = bench.options.rows // SHARE
    rows = made(bench.spark, count).selectExpr("substr(key, 6) AS key", "number")
    rows.repartition(FILES).write.parquet(str(parquet))
    reading = bench.spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", FILES_A_BATCH)
    return reading.parquet(str(parquet)), count


def partitions(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure rounds, each with regions of its own."""
    lines = bench.folder / "lines"
    count = bench.options.rows // SHARE
    frame = made(bench.spark, count).selectExpr(
        "substr(key, 6) AS key",
        "number",
        "uuid() AS id",
        "number % 977 / 4 AS amount",
        "array(key, id) AS tags",
    )
    frame.repartition(FILES).write.json(str(lines))
    text = bench.spark.readStream.option("maxFilesPerTrigger", FILES_A_BATCH).text(str(lines))
    columns = "key string, number bigint, id string, amount double, tags array<string>"
    parsed = text.select(functions.from_json("value", columns).alias("row"))
    parsed = parsed.where("row.amount >= 0 and size(row.tags) = 2").select("row.key", "row.number")
    ways: dict[str, Callable[[int], DataFrame]] = {
        "carried": lambda number: in_region(bench, parsed, number),
        "shuffled": lambda number: in_region(bench, parsed.repartition(1), number),
    }
    for number in range(bench.options.rounds):
        for system in list(ways)[:: 1 if number % 2 else -1]:
            make = partial(ways[system], 2 * number + (system == "carried"))
            figures = backlog(bench, make, count)
            yield {"system": system, "round": number, **figures}
        yield {"system": "bound", "round": number, **bound(bench, parsed, count)}


def bound(bench: Bench, parsed: DataFrame, wanted: int) -> dict[str, Any]:
    """Measure the parsing alone, in a task for each partition."""
    ended: list[tuple[float, float]] = []

    def take(batch: DataFrame, _: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        ended.append((time.perf_counter(), cpu_seconds(tree(os.getpid()))))

    place = bench.folder / f"checkpoint{time.monotonic_ns()}"
    same_rows = parsed.mapInArrow(same, parsed.schema)
    writing = same_rows.writeStream.foreachBatch(take).trigger(availableNow=True)
    writing.option("checkpointLocation", str(place)).start().awaitTermination()
    return rate(ended, wanted)


# --- a backlog --------------------------------------------------------------------------------------------


def in_region(bench: Bench, frame: DataFrame, number: int) -> DataFrame:
    """Count by key in a region."""
    graph = Graph(f"backlog{number}")
    rows = graph.source("rows", InputSource("rows", "key string, number bigint"))
    rows.key_by("by_key", "key").aggregate("totals", rows=Count()).sink("out", LogSink())
    return dos.through(frame, graph, workers=1, store=bench.url)


def in_frame(bench: Bench, frame: DataFrame, number: int) -> DataFrame:
    """Count by key through a frame."""
    counts: DataFrame = (
        dos.frame(frame, name=f"frame{number}", store=bench.url, workers=1).groupBy("key").count()
    )
    return counts


def by_spark(bench: Bench, frame: DataFrame, number: int) -> DataFrame:
    """Count by key in Spark."""
    del bench, number
    return frame.groupBy("key").count()


def backlog(bench: Bench, make: Callable[[], DataFrame], wanted: int) -> dict[str, Any]:
    """Measure from the end of the first micro-batch until all rows are counted in the output."""
    begun, frame = time.perf_counter(), make()
    looks: list[tuple[float, float]] = []
    newest: dict[str, int] = {}

    def take(batch: DataFrame, _: int) -> None:
        newest.update(batch.toDF("key", "rows").groupBy("key").agg({"rows": "max"}).collect())
        looks.append((time.perf_counter(), cpu_seconds(tree(os.getpid()))))

    place = bench.folder / f"checkpoint{time.monotonic_ns()}"
    writing = frame.writeStream.outputMode("update").foreachBatch(take).trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(place)).start()
    start_s = time.perf_counter() - begun
    query.awaitTermination()
    stop(frame)
    if sum(newest.values()) != wanted:
        raise RuntimeError(f"{sum(newest.values()):,} of {wanted:,} rows were counted")
    return {**rate(looks, wanted), "start_s": round(start_s, 2)}


def rate(looks: list[tuple[float, float]], wanted: int) -> dict[str, Any]:
    """Return the figures from the end of the first micro-batch on. looks: (time, processor seconds)."""
    (begun, cpu_begun), (ended, cpu_ended) = looks[0], looks[-1]
    rows = wanted * (len(looks) - 1) // len(looks)
    return {
        "rows": wanted,
        "rows_per_s": round(rows / (ended - begun), 1),
        "cpu_s": round(cpu_ended - cpu_begun, 2),
    }


def stop(frame: DataFrame) -> None:
    """End the region of a DataFrame, if it has one."""
    if (region := getattr(frame, "dos", None)) is not None:
        region.stop()


# --- rows at a pace ---------------------------------------------------------------------------------------


class Feed:
    """Sends lines over a socket to Spark: the time in ms, a key, a number."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        peer, _ = self._listener.accept()
        begin, sent = time.time(), 0
        with peer:
            while not self._over.wait(0.005):
                due, now = int((time.time() - begin) * RATE), time.time() * 1000
                try:
                    peer.sendall("".join(f"{now},k{n % 100},{n}\n" for n in range(sent, due)).encode())
                except OSError:
                    return  # the query has ended
                sent = due

    def close(self) -> None:
        """End the feed."""
        self._over.set()
        self._thread.join()
        self._listener.close()


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows unchanged: what any Python function costs."""
    yield from batches


def unchanged(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the batch unchanged."""
    return {name: batch.column(name) for name in batch.schema.names}


class Watched:
    """A query at a pace, and what it has received."""

    def __init__(self, bench: Bench, name: str, make: Callable[[DataFrame], DataFrame]) -> None:
        self.feed = Feed()
        reading = bench.spark.readStream.format("socket").options(host="127.0.0.1", port=self.feed.port)
        parts = functions.split("value", ",")
        columns = (
            parts[0].cast("double").alias("sent"),
            parts[1].alias("key"),
            parts[2].cast("bigint").alias("n"),
        )
        self.frame = make(reading.load().select(*columns))
        self.found: list[tuple[float, float]] = []
        """(when a row was received in ms, how late)"""
        self.batches = 0
        writing = self.frame.writeStream.foreachBatch(self._take)
        self.query = writing.option("checkpointLocation", str(bench.folder / name)).start()

    def _take(self, batch: DataFrame, _: int) -> None:
        sent = [row["sent"] for row in batch.collect()]
        now = time.time() * 1000
        if self.batches >= WARM_BATCHES:
            self.found += [(now, now - one) for one in sent]
        self.batches += 1

    def figures(self, begin_ms: float, end_ms: float) -> dict[str, float]:
        """Return how late the rows were that were received in this time; nothing without any."""
        found = sorted(late for at, late in self.found if begin_ms <= at < end_ms)
        if not found:
            return {}
        p50, p99 = statistics.median(found), found[int(len(found) * 0.99)]
        return {"p50_ms": round(p50, 1), "p99_ms": round(p99, 1)}

    def end(self) -> None:
        """End query, region and feed."""
        self.query.stop()
        stop(self.frame)
        self.feed.close()


def paced(bench: Bench, number: int) -> Iterator[dict[str, Any]]:
    """Measure two queries that run at the same time."""

    def in_region(frame: DataFrame) -> DataFrame:
        graph = Graph(f"paced{number}")
        rows = graph.source("rows", InputSource("rows", COLUMNS))
        rows.map("same", unchanged, schema=COLUMNS, takes="batch").sink("out", LogSink())
        return dos.through(frame, graph, workers=1, store=bench.url)

    made = {
        "floor": Watched(bench, f"floor{number}", lambda frame: frame.coalesce(1).mapInArrow(same, COLUMNS)),
        "through": Watched(bench, f"through{number}", in_region),
    }
    try:
        deadline = time.monotonic() + PAUSE_S_MAX
        while any(one.batches <= WARM_BATCHES for one in made.values()):
            failures = [one.query.exception() for one in made.values()]
            if any(failures) or time.monotonic() > deadline:
                raise RuntimeError(f"rows do not come out: {failures}")
            time.sleep(0.1)  # a poll for the rows that `_take` receives
        begin = time.time() * 1000
        time.sleep(PACED_S)  # the time of the measurement
        end = time.time() * 1000
    finally:
        for one in made.values():
            one.end()
    floor, ours = (made[name].figures(begin, end) for name in ("floor", "through"))
    edges = itertools.pairwise(begin + WINDOW_S * 1000 * n for n in range(int(PACED_S / WINDOW_S) + 1))
    windows = [[made[name].figures(*edge) for name in ("through", "floor")] for edge in edges]
    for figure in ("p50", "p99"):
        ratios = [one[f"{figure}_ms"] / other[f"{figure}_ms"] for one, other in windows if one and other]
        ours[f"{figure}_ratio"] = round(statistics.median(ratios), 3)
    yield {"system": "paced floor", "round": number, **floor}
    yield {"system": "paced through", "round": number, **ours}


if __name__ == "__main__":
    run({"through": through, "frame": frame, "partitions": partitions}, __doc__, slots=3)
