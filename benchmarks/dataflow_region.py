"""Measure a region, for `./run bench dataflow`: real servers, real workers, a checkpoint every second.

benchmarks/dataflow_region.py {builtin,batch,row} FOLDER KEYS ROWS [--workers N] [--cap SECONDS]

FOLDER: of `dataflow_input.make_input`. The region computes the number of rows of each key, and the sum and
maximum of its numbers, once per step:

builtin Count, Sum and Max batch the same in a `UserOperator`, which receives Arrow batches, uses pandas,
and keeps a table row a function of (row, state), in the order of event time (`map_state`)

A checkpoint counts after everything that it needs is synced on two of three servers. Results are
discarded. Prints one line of JSON.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import trio

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from dataflow_meter import Meter  # noqa: E402
from dataflow_program import FILE_ROWS, input_files, run  # noqa: E402

from checkpoint.core.region import CheckpointCommitted, RegionEvent, RegionState, RegionStatus  # noqa: E402  # noqa: E402
from dataflow import CallSink, Count, FileSource, Graph, Max, Sum, UserOperator  # noqa: E402
from dataflow.graph.builder import Stream  # noqa: E402
from dataflow.handle import RegionHandle  # noqa: E402
from dataflow.local import run_local  # noqa: E402
from dos_client import init_store  # noqa: E402
from tests.support.servers import ServerProcess, url_of  # noqa: E402

ROW = "key string, number bigint"
RESULT = "key string, rows bigint, total bigint, largest bigint"
NAMES = ["key", "rows", "total", "largest"]
SERVERS = 3


def parsed(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of `key,number` lines."""
    parts = pc.split_pattern(batch.column("line"), ",")
    return {"key": pc.list_element(parts, 0), "number": pc.list_element(parts, 1).cast(pa.int64())}


def parsed_with_time(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the same columns, and the number as milliseconds of event time."""
    columns = parsed(batch)
    return {
        **columns,
        "at": columns["number"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
    }


class Totals(UserOperator):
    """An operator as a user would write it with pandas and numpy: it adds batches to a table by key."""

    needs = ROW
    schema = RESULT
    state = RESULT

    def __init__(self) -> None:
        self.keys = pd.Index([], dtype="object")
        self.totals = np.zeros((0, 3), np.int64)

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        groups = batch.to_pandas().groupby("key", sort=False)["number"]
        new = groups.agg(rows="size", total="sum", largest="max")
        fresh = new.index[self.keys.get_indexer(new.index) < 0]
        if len(fresh):
            self.keys = self.keys.append(fresh)
            self.totals = np.concatenate([self.totals, np.zeros((len(fresh), 3), np.int64)])
        at, found = self.keys.get_indexer(new.index), new.to_numpy()
        self.totals[at, :2] += found[:, :2]
        self.totals[at, 2] = np.maximum(self.totals[at, 2], found[:, 2])
        return self.shown(new.index, self.totals[at])

    def shown(self, keys: pd.Index, totals: npt.NDArray[np.int64]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), *totals.T.copy()], names=NAMES)

    def checkpoint(self) -> pa.RecordBatch:
        return self.shown(self.keys, self.totals)

    def reset(self, state: pa.RecordBatch) -> None:
        self.keys = pd.Index(state.column("key").to_pandas())
        self.totals = state.select(NAMES[1:]).to_pandas().to_numpy()


def add(row: dict[str, Any], state: Any) -> list[dict[str, Any]]:
    """Add one row to the totals of its key, and return them."""
    kept = state.value
    number = row["number"]
    if kept is None:
        state.value = {"rows": 1, "total": number, "largest": number}
    else:
        kept["rows"] += 1
        kept["total"] += number
        kept["largest"] = max(kept["largest"], number)
    return [{"key": row["key"], **state.value}]


def built_in(lines: Stream) -> Stream:
    rows = lines.map("rows", parsed, schema=ROW, takes="batch")
    wanted = {"rows": Count(), "total": Sum("number"), "largest": Max("number")}
    return rows.key_by("by_key", "key").aggregate("totals", **wanted)


def batches(lines: Stream) -> Stream:
    return (
        lines.map("rows", parsed, schema=ROW, takes="batch").key_by("by_key", "key").apply("totals", Totals())
    )


def rows(lines: Stream) -> Stream:
    timed = lines.map("rows", parsed_with_time, schema=f"{ROW}, at timestamp", takes="batch")
    ordered = timed.event_time("time", "at", lateness=timedelta(0))
    state = "rows bigint, total bigint, largest bigint"
    return ordered.key_by("by_key", "key").map_state("totals", add, time="at", schema=RESULT, state=state)


WAYS = {"builtin": built_in, "batch": batches, "row": rows}


def forget(batch: pa.RecordBatch) -> None:
    """Discard the results."""


class Checkpoints:
    """The events of committed checkpoints."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, event: RegionEvent) -> None:
        if isinstance(event, CheckpointCommitted):
            self.seconds.append(event.seconds)


@contextmanager
def running(
    folder: Path, url: str, way: str, paths: list[Path], workers: int, checkpoints: Checkpoints
) -> Iterator[RegionHandle]:
    graph = Graph("totals")
    WAYS[way](graph.source("lines", FileSource(paths))).sink("nowhere", CallSink(forget, takes="batch"))
    control = run_local(
        graph,
        name="totals",
        workers=workers,
        store=url,
        on_event=checkpoints,
        logs=folder / "logs",
        checkpoint_interval=1.0,
        standby=0,
    )
    assert isinstance(control, RegionHandle)
    try:
        yield control
    finally:
        control.stop()
        control.wait(60)


def totals_of(status: RegionStatus) -> list[dict[str, int]]:
    """Return the counters of the operator that keeps the totals, for each worker."""
    return [worker.counters.operators.get("totals", {}) for worker in status.workers]


def rows_through(control: RegionHandle) -> int:
    """Return the number of rows that were read, without those that wait for event time."""
    status = control.status
    return status.rows_in - sum(one.get("rows", 0) for one in totals_of(status))


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    paths = input_files(options)
    meter, checkpoints = Meter(len(paths) * FILE_ROWS, options.cap), Checkpoints()
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(folder / f"s{index}")) for index in range(SERVERS)]
        url = url_of(servers)
        trio.run(init_store, url)
        control = stack.enter_context(running(folder, url, options.way, paths, options.workers, checkpoints))
        figures = meter.watch(lambda: rows_through(control), lambda: control.status.state.is_end)
        status = control.status
        if status.state.is_end and status.state is not RegionState.FINISHED:
            raise RuntimeError(f"the region ended as {status.state}: {control.exception()}")
        state = totals_of(status)
    seconds = sorted(checkpoints.seconds)
    return {
        **figures,
        "state_bytes": sum(one.get("state_bytes", 0) for one in state),
        "checkpoints": len(seconds),
        "checkpoint_s_median": round(seconds[len(seconds) // 2], 3) if seconds else None,
    }


if __name__ == "__main__":
    run(measure, __doc__, tuple(WAYS))
