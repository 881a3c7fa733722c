"""Measure reading with the source `dos`, for `./run bench spark`, compared with minimal sources.

    benchmarks/spark_reading.py {overhead,rows,journal} FOLDER [--rounds N] ...

overhead  a stream of very small micro-batches, and one of an empty Python data source
rows      a batch of rows: the output of a region, and JSON lines in the store; compared with a Python
          source that yields prebuilt Arrow batches, and with Spark's own JSON lines
journal   a batch of the records of a chain: as `dos-journal`, and as `dos` with content="journal"

All run alternately on one session, after a warm-up round. Rows are discarded. Prints a line of JSON per
measurement.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from spark_others import ROW
from spark_program import Bench, run
from spark_session import SLOTS
from spark_stored import (
    CHAIN,
    JOURNALS,
    LINES,
    REGION,
    SINK,
    STEP_ROWS,
    WORKERS,
    block_of,
    json_of,
    write_files,
    write_journal,
    write_objects,
    write_output,
)

SMALL_ROWS = 100
"""Rows of a worker in a micro-batch of `overhead`."""
WARM_BATCHES = 15
SPARKS_OWN = ("walCommit", "commitOffsets")
"""The phases in which Spark writes its own logs: the same for every source, and most of the variation."""
BATCH_S_MAX = 60.0
READ_TIMES = 4
"""Factor of `--rows` for `rows`: with this many, the second that a query needs to start matters little."""


# --- overhead ---------------------------------------------------------------------------------------------


def overhead(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure micro-batches of one step per worker, which is the minimum."""
    batches = WARM_BATCHES + bench.options.batches
    write_output(bench.url, 2 * batches, block_of(SMALL_ROWS))
    sources = {
        "dos": bench.spark.readStream.format("dos")
        .options(output=SINK, maxRowsPerTrigger=str(WORKERS * SMALL_ROWS))
        .load(f"{bench.url}/{REGION}"),
        "empty": bench.spark.readStream.format("empty").option("partitions", str(WORKERS)).load(),
    }
    for number in range(bench.options.rounds):
        for name, source in sources.items():
            place = bench.folder / f"checkpoint-{name}-{number}"
            found = micro_batches(source, str(place), batches)[WARM_BATCHES:]
            yield {"system": name, "round": number, **split_up(found)}


def micro_batches(source: DataFrame, checkpoint: str, count: int) -> list[dict[str, int]]:
    """Return the durations of the phases of `count` consecutive micro-batches."""
    query = source.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        return _watched(query, count)
    finally:
        query.stop()


def _watched(query: StreamingQuery, count: int) -> list[dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    heard = time.monotonic()
    while len(found) < count:
        time.sleep(0.2)  # a poll for progress, which Spark reports per micro-batch
        before = len(found)
        for one in query.recentProgress:
            if "addBatch" in one["durationMs"]:
                found[one["batchId"]] = one["durationMs"]
        heard = time.monotonic() if len(found) > before else heard
        if query.exception() is not None or time.monotonic() - heard > BATCH_S_MAX:
            raise RuntimeError(f"the query gave {len(found)} of {count} micro-batches: {query.exception()}")
    return [found[number] for number in sorted(found)][:count]


def split_up(batches: list[dict[str, int]]) -> dict[str, Any]:
    """Return medians in ms: of the micro-batch, of it without Spark's own logs, and of each phase."""
    phases = {name: statistics.median(one.get(name, 0) for one in batches) for name in sorted(batches[0])}
    own = [one["triggerExecution"] - sum(one.get(name, 0) for name in SPARKS_OWN) for one in batches]
    return {"ms": statistics.median(own), "whole_ms": phases["triggerExecution"], "phases": phases}


# --- rows -------------------------------------------------------------------------------------------------


def rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """Measure the same rows from all sources."""
    steps = max(1, READ_TIMES * bench.options.rows // (WORKERS * STEP_ROWS))
    count = steps * WORKERS * STEP_ROWS
    block = block_of(STEP_ROWS)
    text = json_of(block)
    names = [f"{number}.json" for number in range(WORKERS)]
    write_output(bench.url, steps, block)
    write_objects(bench.url, names, text, steps)
    write_files(bench.folder / "json", names, text, steps)
    spark, url = bench.spark, bench.url
    times = {"partitions": str(SLOTS), "times": str(steps * WORKERS // SLOTS), "rows": str(STEP_ROWS)}
    ways: dict[str, Callable[[], DataFrame]] = {
        "dos": lambda: spark.read.format("dos").option("output", SINK).load(f"{url}/{REGION}"),
        "prebuilt": lambda: spark.read.format("prebuilt").options(**times).load(),
        "dos-json": lambda: (
            spark.read.format("dos").schema(ROW).option("content", "json").load(f"{url}/{LINES}")
        ),
        "json": lambda: spark.read.schema(ROW).json(str(bench.folder / "json")),
    }
    for name, way in ways.items():
        if (found := way().count()) != count:
            raise RuntimeError(f"{name} gave {found:,} rows of {count:,}")
    yield from in_turn(bench, ways, {"rows": count})


def in_turn(
    bench: Bench, ways: dict[str, Callable[[], DataFrame]], said: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Measure rounds of all ways: the time from `load` to the last row."""
    for number in range(bench.options.rounds):
        for name, way in ways.items():
            begun = time.perf_counter()
            way().write.format("noop").mode("overwrite").save()
            yield {"system": name, "round": number, "seconds": round(time.perf_counter() - begun, 3), **said}


# --- journal ----------------------------------------------------------------------------------------------


def journal(bench: Bench) -> Iterator[dict[str, Any]]:
    """Read all columns of all records."""
    total = bench.options.journal_mb * 1_000_000
    count = write_journal(bench.url, total, bench.options.record_bytes)
    ways = journal_ways(bench.spark, bench.url)
    for name, way in ways.items():
        found = way().where(f"{'name' if name == 'dos-journal' else 'op'} = 'WRITE'").count()
        if found != count:
            raise RuntimeError(f"{name} gave {found:,} records of {count:,}")
    yield from in_turn(bench, ways, {"rows": count, "bytes": total})


def journal_ways(spark: SparkSession, url: str) -> dict[str, Callable[[], DataFrame]]:
    return {
        "dos-journal": lambda: spark.read.format("dos-journal").load(f"{url}/{JOURNALS}/{CHAIN}"),
        "dos": lambda: spark.read.format("dos").option("content", "journal").load(f"{url}/{JOURNALS}"),
    }


if __name__ == "__main__":
    run({"overhead": overhead, "rows": rows, "journal": journal}, __doc__)
