"""The driver: a program with a Spark session of its own, which runs one region after another as ordered.

    python -m tests.region_chaos.driver DIRECTORY

It reads orders as lines of JSON (`CommandRegion`) and prints events as lines of JSON. It may be killed at
any moment; the next one is given the same order.
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

from checkpoint.core.region import (
    CheckpointCommitted,
    Recovery,
    RegionEvent,
    ResetReport,
    StateChanged,
    WorkerJoined,
)
from dataflow import FileSink, FileSource, Graph
from examples.demo.engine import start_spark
from spark_integration import RegionHandle, run

WORKERS = 2
CHECKPOINT_INTERVAL_S = 0.2
BATCH_S = 0.2
"""The time of user code for a batch until the test ends that: too long, so batches get small."""
_said = threading.Lock()


class Order(msgspec.Struct, frozen=True):
    """A region to be run to its end."""

    name: str
    store: str
    folder: str
    paths: list[str]
    recovery: Recovery = "global"
    standby: int = 0


def records(hurry: str, batch: pa.RecordBatch) -> dict[str, Any]:
    """Key and number of a line."""
    if not Path(hurry).exists():
        time.sleep(BATCH_S)
    parts = pc.split_pattern(batch["line"], " ")
    return {"key": pc.list_element(parts, 0), "number": pc.cast(pc.list_element(parts, 1), pa.int64())}


def graph_of(order: Order) -> Graph:
    """Every record as it is, and how many there are of each key."""
    folder = Path(order.folder)
    graph = Graph("chaos")
    lines = graph.source("lines", FileSource(order.paths))
    function = partial(records, str(folder / "hurry"))
    rows = lines.map("records", function, schema="key string, number long", takes="batch")
    rows.sink("rows", FileSink(folder / "rows"))
    rows.key_by("by_key", "key").count("counts").sink("out", FileSink(folder / "counts"))
    return graph


def say(**what: Any) -> None:
    with _said:
        print(json.dumps(what), flush=True)


def print_event(region: str, event: RegionEvent) -> None:
    """One line for each event that another process waits for."""
    if isinstance(event, CheckpointCommitted):
        say(region=region, event="checkpoint", checkpoint=event.checkpoint)
    elif isinstance(event, WorkerJoined):
        say(region=region, event="joined", worker=event.worker, pid=event.pid)
    elif isinstance(event, ResetReport):
        say(region=region, event="reset", reason=event.reason, seconds=event.seconds, term=event.term)
    elif isinstance(event, StateChanged):
        say(region=region, event="state", state=event.state.value, reason=event.reason)


def end_of(region: RegionHandle) -> dict[str, str]:
    try:
        region.awaitTermination()
    except Exception as error:
        return {"state": region.status.state.value, "reason": str(error)}
    return {"state": region.status.state.value, "reason": region.status.reason}


def main() -> None:
    spark = start_spark(Path(sys.argv[1]), WORKERS)
    say(event="ready")
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        region = run(
            spark,
            graph_of(order),
            name=order.name,
            workers=WORKERS,
            store=order.store,
            checkpoint_interval=CHECKPOINT_INTERVAL_S,
            recovery=order.recovery,
            standby=order.standby,
            on_event=partial(print_event, order.name),
        )
        say(region=order.name, event="end", **end_of(region))
    spark.stop()


if __name__ == "__main__":
    main()
