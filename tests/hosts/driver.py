"""The driver: a program with a Spark session on a cluster, which runs one region after another as ordered.

python -m tests.hosts.driver MASTER ADDRESS DIRECTORY

Orders arrive as lines of JSON (`Order`); events leave as lines of JSON. It may be killed at any time; the
next driver gets the same order.
"""

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from checkpoint import RegionEvent
from checkpoint.core.region import CheckpointCommitted, ResetReport, StateChanged, WorkerJoined, WorkerLost
from dataflow import FileSource, Graph, LogSink
from spark_integration import run

CHECKPOINT_INTERVAL_S = 0.2
BATCH_S = 0.1
"""Time of user code for each batch until the file `hurry` exists."""
_output = threading.Lock()


class Order(msgspec.Struct, frozen=True):
    """A region to run to its end."""

    name: str
    store: str
    folder: str
    paths: list[str]
    workers: int = 2
    options: dict[str, Any] = {}


def records(hurry: str, batch: pa.RecordBatch) -> dict[str, Any]:
    """Split a line into a key and a number."""
    if not Path(hurry).exists():
        time.sleep(BATCH_S)
    parts = pc.split_pattern(batch["line"], " ")
    return {"key": pc.list_element(parts, 0), "number": pc.cast(pc.list_element(parts, 1), pa.int64())}


def graph_of(order: Order) -> Graph:
    """Count the rows of each key, across the exchange between the workers."""
    graph = Graph("hosts")
    lines = graph.source("lines", FileSource(order.paths, local=True))
    function = partial(records, str(Path(order.folder, "hurry")))
    rows = lines.map("records", function, schema="key string, number long", takes="batch")
    rows.key_by("by_key", "key").count("counts").sink("out", LogSink())
    return graph


def report(**event: Any) -> None:
    with _output:
        print(json.dumps(event), flush=True)


def report_event(region: str, event: RegionEvent) -> None:
    """Write one line for each event that the test waits for."""
    if isinstance(event, CheckpointCommitted):
        report(region=region, event="checkpoint", checkpoint=event.checkpoint)
    elif isinstance(event, WorkerJoined):
        report(region=region, event="joined", worker=event.worker, host=event.host, pid=event.pid)
    elif isinstance(event, WorkerLost):
        report(region=region, event="lost", worker=event.worker, reason=event.reason)
    elif isinstance(event, ResetReport):
        report(region=region, event="reset", reason=event.reason, seconds=event.seconds)
    elif isinstance(event, StateChanged):
        report(region=region, event="state", state=event.state.value, reason=event.reason)


def start_spark(master: str, address: str, folder: Path) -> SparkSession:
    """Return a session on the cluster: executors of one core."""
    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", address)
        .config("spark.driver.bindAddress", address.strip("[]"))
        .config("spark.driver.memory", "600m")
        .config("spark.executor.memory", "600m")
        .config("spark.executor.cores", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )


def main() -> None:
    master, address, folder = sys.argv[1:]
    spark = start_spark(master, address, Path(folder))
    report(event="ready", region="")
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        state, reason = "", ""
        try:
            region = run(
                spark,
                graph_of(order),
                name=order.name,
                workers=order.workers,
                store=order.store,
                checkpoint_interval=CHECKPOINT_INTERVAL_S,
                spare_slots=0,
                insecure=True,
                on_event=partial(report_event, order.name),
                **order.options,
            )
            region.awaitTermination()
            state, reason = region.status.state.value, region.status.reason
        except Exception as error:  # reported as the end of the region; the test judges it
            state, reason = "FAILED", f"{type(error).__name__}: {error}"
        report(region=order.name, event="end", state=state, reason=reason)
    spark.stop()


if __name__ == "__main__":
    main()
