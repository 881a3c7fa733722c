"""Measure Spark's Structured Streaming, for `./run bench dataflow`: its aggregates, and its two kinds of
Python state.

benchmarks/dataflow_spark.py {builtin,batch,row} FOLDER KEYS ROWS [--cap SECONDS]

builtin groupBy().agg(count, sum, max) batch applyInPandasWithState row transformWithState (needs protobuf,
see `own_environment.py`)

The settings favor Spark: RocksDB state with changelog checkpoints, as many shuffle partitions as slots, no
sink, and each micro-batch begins as soon as the previous one is complete. The number of files per micro-
batch is chosen so that it lasts about a second, if possible (each one is a checkpoint). Prints one line of
JSON.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from dataflow_meter import Meter
from dataflow_program import FILE_ROWS, input_files, linked, run
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_session import session

ROW = "key string, number long"
TOTALS = "rows long, total long, largest long"
RESULT = f"key string, {TOTALS}"
FILES_A_BATCH = {"builtin": 4, "batch": 1, "row": 1}


def built_in(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.count("*").alias("rows"), F.sum("number"), F.max("number"))


def added(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Return the new totals of one key."""
    rows, total, largest = state.get if state.exists else (0, 0, 0)
    for frame in frames:
        rows += len(frame)
        total += int(frame["number"].sum())
        largest = max(largest, int(frame["number"].max()))
    state.update((rows, total, largest))
    yield pd.DataFrame({"key": [key[0]], "rows": [rows], "total": [total], "largest": [largest]})


def batches(rows: DataFrame) -> DataFrame:
    groups = rows.groupBy("key")
    return groups.applyInPandasWithState(added, RESULT, TOTALS, "update", GroupStateTimeout.NoTimeout)


class Totals(StatefulProcessor):
    """The totals of one key, row by row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.kept = handle.getValueState("totals", TOTALS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        count, total, largest = self.kept.get() if self.kept.exists() else (0, 0, 0)
        for row in rows:
            count, total, largest = count + 1, total + row.number, max(largest, row.number)
        self.kept.update((count, total, largest))
        yield Row(key=key[0], rows=count, total=total, largest=largest)

    def close(self) -> None:
        """Do nothing: no resources are open."""


def by_row(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithState(Totals(), RESULT, "update", "none")


WAYS = {"builtin": built_in, "batch": batches, "row": by_row}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    paths = input_files(options)
    source = linked(paths, folder)
    spark = session(folder)
    reader = spark.readStream.schema(ROW).option("maxFilesPerTrigger", FILES_A_BATCH[options.way])
    query = (
        WAYS[options.way](reader.csv(str(source)))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    seen: dict[int, int] = {}

    def rows_so_far() -> int:
        """Return the number of rows in committed micro-batches."""
        failure = query.exception()
        if failure is not None:
            raise RuntimeError(str(failure))
        seen.update({one["batchId"]: one["numInputRows"] for one in query.recentProgress})
        return sum(seen.values())

    figures = Meter(len(paths) * FILE_ROWS, options.cap).watch(rows_so_far)
    spark.sparkContext._gateway.proc.kill()  # `stop` waits for the micro-batch under way, perhaps for minutes
    return {**figures, "batches": len(seen)}


if __name__ == "__main__":
    run(measure, __doc__, tuple(WAYS))
