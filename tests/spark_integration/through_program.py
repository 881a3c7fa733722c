"""A program that puts DataFrames through regions, and may be killed at any moment: for tests of `through`.

    python -m tests.spark_integration.through_program STORE DIRECTORY SPARK_DIRECTORY

Orders come as names of runs, one in a line: `stream` or `batch`; `parquet` or `each`, which are frames. What
happens goes out as lines of JSON. A program that is started behind a killed one is given the same orders.

Functions of its own, on both sides of a region and in it, wait at their place for as long as the test holds
them there (`Holds`): so that a moment lasts until it was seen.
"""

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

import spark_integration as dos
from checkpoint.core.region import CheckpointCommitted, RegionEvent, ResetReport, StateChanged, WorkerJoined
from dataflow import Graph, InputSource, LogSink, UserOperator
from examples.demo.engine import start_spark

FILES = {"stream": 5, "batch": 9}
FRAMES = {"parquet": 3, "each": 3}
"""Files of the runs of frames."""
NAMES = 60
"""Of the lines of a frame: less than lines, so that names come again."""
LINES = 40
"""Of a file."""
KEYS = 7
WORKERS = {"stream": 2, "batch": 1}
SLOTS = 6
"""The workers', and one for each task that may be held at the same time."""
STEP_S = 0.3
"""What user code takes for a batch: longer than a step should, so that there are steps, and checkpoints,
between.
"""
TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a process ten seconds to start, which a busy machine may not keep: the call is made again."""
LOOK_S = 0.01
_said = threading.Lock()


class Holds:
    """Who is held where. A place is `RUN.PLACE`; files say it, because processes are many."""

    def __init__(self, folder: Path) -> None:
        self._held, self._reached = folder / "held", folder / "reached"
        for one in (self._held, self._reached):
            one.mkdir(parents=True, exist_ok=True)

    def pass_by(self, place: str) -> None:
        """Wait for as long as this place is held."""
        while (self._held / place).exists():
            (self._reached / place).touch()
            time.sleep(LOOK_S)

    def hold(self, *places: str) -> None:
        for place in places:
            (self._reached / place).unlink(missing_ok=True)
            (self._held / place).touch()

    def release(self, *places: str) -> None:
        for place in places:
            (self._held / place).unlink()

    def reached(self, place: str) -> bool:
        """Whether a task has waited there since it is held."""
        return (self._reached / place).exists()


def line(number: int) -> str:
    """A line of the input: its number, a key, and text that does not pack well. Only rows of the first file
    fit into a message to the driver; the others make about one part each, so that a call of user code gets at
    most about one file.
    """
    text = random.Random(number).randbytes(12_500 if number >= LINES else 1_000).hex()
    return f"{number:06d} {number * number % KEYS} {text}"


def as_bytes(rows: list[Any]) -> bytes:
    return "".join(f"{json.dumps(list(row))}\n" for row in sorted(map(tuple, rows))).encode()


# --- the graph, and what stands on both its sides ---------------------------------------------------------


def items(holds: Holds, run: str, batch: pa.RecordBatch) -> dict[str, Any]:
    """Number, key and length of lines. May be held at the first line of each file."""
    parts = pc.split_pattern(batch["value"], " ", max_splits=2)
    numbers = pc.cast(pc.list_element(parts, 0), pa.int64())
    for number in numbers.to_pylist():
        if number % LINES == 0:
            holds.pass_by(f"{run}.graph{number // LINES}")
    time.sleep(STEP_S)
    lengths = pc.cast(pc.utf8_length(pc.list_element(parts, 2)), pa.int64())
    return {"number": numbers, "key": pc.list_element(parts, 1), "length": lengths}


class Numbering(UserOperator):
    """Numbers the rows of each key as they come. May be held while it is given its state back."""

    needs = "number bigint, key string, length bigint"
    schema = "number bigint, key string, nth bigint, length bigint"
    state = "key string, count bigint"

    def __init__(self, holds: Holds, run: str) -> None:
        self._holds, self._run = holds, run
        self._counts: dict[str, int] = {}

    def reset(self, state: pa.RecordBatch) -> None:
        self._holds.pass_by(f"{self._run}.restoring")
        self._counts = dict(zip(state["key"].to_pylist(), state["count"].to_pylist(), strict=True))

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        for row in batch.to_pylist():
            nth = self._counts[row["key"]] = self._counts.get(row["key"], 0) + 1
            yield row["number"], row["key"], nth, row["length"]

    def checkpoint(self) -> list[tuple[str, int]]:
        return list(self._counts.items())


def graph_of(holds: Holds, run: str, schema: Any) -> Graph:
    graph = Graph(run)
    lines = graph.source("lines", InputSource("lines", schema))
    found = lines.map(
        "items",
        partial(items, holds, run),
        schema="number bigint, key string, length bigint",
        takes="batch",
    )
    numbered = found.key_by("by_key", "key").apply("numbered", Numbering(holds, run))
    numbered.sink("out", LogSink())
    return graph


def passing(holds: Holds, place: str, frame: DataFrame) -> DataFrame:
    """The same rows. May be held where a batch begins with a row of file N, at the place with that number."""

    def go(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                number = str(batch.column(0)[0].as_py()).split(" ")[0]
                holds.pass_by(f"{place}{int(number) // LINES}")
            yield batch

    return frame.mapInArrow(go, frame.schema)


# --- the program ------------------------------------------------------------------------------------------


class Program:
    """Runs what it is ordered to."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self._spark, self._url, self._folder = spark, url, folder
        self._holds = Holds(folder)

    def run(self, run: str) -> None:
        try:
            runs = {"stream": self._stream, "batch": self._batch, **dict.fromkeys(FRAMES, self._frame)}
            runs[run](run)
        except Exception as error:
            if TOO_SLOW in str(error):
                say(run=run, event="again")
                self.run(run)
            else:
                say(run=run, event="failed", error=f"{type(error).__name__}: {error}")
        else:
            say(run=run, event="done")

    def _stream(self, run: str) -> None:
        lines = self._spark.readStream.option("maxFilesPerTrigger", "1").text(str(self._folder / run))
        frame = self._through(run, lines)
        rows = passing(self._holds, f"{run}.reading", frame)
        table = rows.writeStream.format("parquet").trigger(availableNow=True)
        table = table.option("checkpointLocation", str(self._folder / "checkpoint"))
        try:
            table.start(str(self._folder / "table")).awaitTermination()
        finally:
            frame.dos.stop()
        self._write(run, self._spark.read.parquet(str(self._folder / "table")))

    def _batch(self, run: str) -> None:
        lines = self._spark.read.text(str(self._folder / run))
        lines = lines.coalesce(1).sortWithinPartitions("value")
        frame = self._through(run, lines, name=run)
        self._write(run, frame)
        frame.dos.stop()

    def _frame(self, run: str) -> None:
        lines = self._spark.readStream.option("maxFilesPerTrigger", "1").text(str(self._folder / run))
        given = dos.frame(
            passing(self._holds, f"{run}.feeding", lines),
            store=self._url,
            workers=1,
            on_event=partial(tell, run),
        )
        number = F.split("value", " ")[0].cast("int").alias("number")
        numbers = given.select(number).withColumn("name", F.col("number") % NAMES)
        if run == "parquet":
            rows = passing(self._holds, f"{run}.reading", numbers.dropDuplicates(["name"]))
            writer = rows.writeStream.format("parquet").option("path", str(self._folder / "frames"))
        else:
            counted = numbers.groupBy("name").agg(F.count("*").alias("n"), F.sum("number").alias("total"))
            writer = counted.writeStream.outputMode("update").foreachBatch(partial(self._each, run))
        writer = writer.option("checkpointLocation", str(self._folder / f"{run}-checkpoint"))
        writer.queryName(run).trigger(availableNow=True).start().awaitTermination()
        if run == "parquet":  # of micro-batches that Spark has not committed there are files, too
            self._write(run, self._spark.read.parquet(str(self._folder / "frames")))

    def _each(self, run: str, df: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch. May be held before."""
        rows = as_bytes(df.collect())
        self._holds.pass_by(f"{run}.writing{batch}")
        (self._folder / f"{run}{batch}.rows").write_bytes(rows)

    def _through(self, run: str, lines: DataFrame, **options: Any) -> DataFrame:
        graph = graph_of(self._holds, run, lines.schema)
        return dos.through(
            passing(self._holds, f"{run}.feeding", lines),
            graph,
            workers=WORKERS[run],
            store=self._url,
            checkpoint_interval=0.2,
            on_event=partial(tell, run),
            **options,
        )

    def _write(self, run: str, frame: DataFrame) -> None:
        (self._folder / f"{run}.rows").write_bytes(as_bytes(frame.collect()))


def say(**what: Any) -> None:
    with _said:
        print(json.dumps(what), flush=True)


def tell(run: str, event: RegionEvent) -> None:
    """One line for each event that another process waits for."""
    if isinstance(event, CheckpointCommitted):
        say(run=run, event="checkpoint", checkpoint=event.checkpoint, step=event.step)
    elif isinstance(event, WorkerJoined):
        say(run=run, event="joined", worker=event.worker, pid=event.pid)
    elif isinstance(event, ResetReport):
        say(run=run, event="reset", reason=event.reason)
    elif isinstance(event, StateChanged):
        say(run=run, event="state", state=event.state.value)


def main() -> None:
    url, folder, own = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    program = Program(start_spark(own, SLOTS - 2), url, folder)
    runs = []
    for order in sys.stdin:
        runs.append(InheritableThread(target=program.run, args=(order.strip(),)))
        runs[-1].start()
    for one in runs:
        one.join()


if __name__ == "__main__":
    main()
