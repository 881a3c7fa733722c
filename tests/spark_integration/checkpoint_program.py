"""A driver with a query of Spark's own, whose checkpoint is in a store: for tests that kill or stop drivers.

    python -m tests.spark_integration.checkpoint_program FOLDER OWN

It says `ready` once Spark runs, and waits for an order, one line of JSON (`Order`). What happens goes out as
lines of JSON. OWN has all that the driver keeps on its machine. FOLDER stands for the world outside: what the
query has shown, and where it is held (`Holds`).
"""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming import StreamingQuery

import dos
from examples.demo.engine import start_spark
from tests.spark_integration.through_program import Holds, as_bytes
from tests.support.polling import until

ROWS: Final = 100
"""Of a micro-batch."""
KEYS: Final = 7
QUERY_S_MAX: Final = 240.0
_PROVIDER: Final = "spark.sql.streaming.stateStore"
_said = threading.Lock()


class Order(NamedTuple):
    """Run the query until micro-batch `last` is committed, or it fails, and show its state.

    The checkpoint is in the tree of `url`; or at `place`, where `confs` find its gateways. `name`: the query
    is held at `NAME.begunN`, when micro-batch N is in the log of offsets, `NAME.halfN`, when the state of one
    partition of two is committed, if `halves`, and `NAME.shownN`, when it is shown and not committed.
    """

    name: str
    last: int
    url: str = ""
    place: str = ""
    confs: dict[str, str] | None = None
    provider: str = "RocksDBStateStoreProvider"
    halves: bool = False


def expected(batches: int) -> dict[str, int]:
    """Return the state of an undisturbed run after so many micro-batches."""
    return {str(key): len(range(key, batches * ROWS, KEYS)) for key in range(KEYS)}


def is_whole(state: dict[str, int], batches_min: int) -> bool:
    """Return whether this is the state of an undisturbed run after at least so many micro-batches."""
    batches = sum(state.values()) // ROWS
    return batches >= batches_min and state == expected(batches)


class Driver:
    """What one order needs."""

    def __init__(self, spark: SparkSession, folder: Path, order: Order) -> None:
        self._spark, self._folder, self._order = spark, folder, order
        self._holds = Holds(folder)

    def run(self) -> None:
        order, confs = self._order, self._spark.conf
        confs.set(
            f"{_PROVIDER}.providerClass", f"org.apache.spark.sql.execution.streaming.state.{order.provider}"
        )
        confs.set(f"{_PROVIDER}.rocksdb.changelogCheckpointing.enabled", "true")
        confs.set("spark.sql.shuffle.partitions", "2")
        for name, value in (order.confs or {}).items():
            confs.set(name, value)
        place = order.place or dos.checkpoints(self._spark, order.url)
        say(event="place", place=place)
        try:
            query = self._start(f"{place}/totals")
            until(lambda: self._is_over(query), f"micro-batch {order.last}", QUERY_S_MAX)
            query.stop()
            if error := query.exception():
                raise error
        except Exception as error:
            say(event="failed", error=str(error))
            return
        state = self._spark.read.format("statestore").load(f"{place}/totals").select("key.*", "value.*")
        say(event="state", state={str(row[0]): int(row[1]) for row in state.collect()})

    def _is_over(self, query: StreamingQuery) -> bool:
        progress: Any = query.lastProgress
        committed = -1 if progress is None else int(progress["batchId"])
        return committed >= self._order.last or query.exception() is not None

    def _start(self, at: str) -> StreamingQuery:
        numbers = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
        counted = numbers.option("numPartitions", 1).load().groupBy((col("value") % KEYS).alias("k")).count()
        if self._order.halves:
            counted = halves(self._holds, self._order.name, counted)
        writer = counted.writeStream.outputMode("update").foreachBatch(self._take)
        return writer.option("checkpointLocation", at).start()

    def _take(self, df: DataFrame, batch: int) -> None:
        self._holds.pass_by(f"{self._order.name}.begun{batch}")
        rows, shown = as_bytes(df.collect()), self._folder / f"{batch}.shown"
        before = shown.read_bytes() if shown.exists() else rows
        assert before == rows, f"micro-batch {batch} had other rows before"
        shown.write_bytes(rows)
        self._holds.pass_by(f"{self._order.name}.shown{batch}")
        say(event="batch", batch=batch)


def halves(holds: Holds, name: str, frame: DataFrame) -> DataFrame:
    """The same rows. May be held when the state of the first partition is committed: a driver with one slot
    begins the task of the second one afterwards.
    """

    def go(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        if task.partitionId() == 0:
            holds.pass_by(f"{name}.half{task.getLocalProperty('streaming.sql.batchId')}")
        yield from batches

    return frame.mapInArrow(go, frame.schema)


def say(**what: Any) -> None:
    with _said:
        print(json.dumps(what), flush=True)


def main() -> None:
    folder, own = map(Path, sys.argv[1:])
    spark = start_spark(own, -1)
    say(event="ready")
    for order in sys.stdin:
        Driver(spark, folder, Order(**json.loads(order))).run()


if __name__ == "__main__":
    main()
