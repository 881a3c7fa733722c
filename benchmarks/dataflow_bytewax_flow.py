"""The flow that `dataflow_bytewax.py` runs: it reads lines from files and computes totals by key.

It uses only Bytewax and the standard library. Each process regularly writes the number of rows that its
`stateful_map` has processed to a file of 8 bytes, which the meter reads.
"""

import os
import struct
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.connectors.files import DirSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition

BATCH_ROWS = 1_000
COUNT_EACH = 5_000


class Counted:
    """The number of rows of this process, in a file."""

    def __init__(self) -> None:
        self.rows = 0
        self.file = Path(os.environ["DOS_BENCH_COUNTS"], str(os.getpid())).open("wb", buffering=0)  # noqa: SIM115
        self.file.write(struct.pack("q", 0))

    def one(self) -> None:
        self.rows += 1
        if self.rows % COUNT_EACH == 0:
            self.file.seek(0)
            self.file.write(struct.pack("q", self.rows))


counted = Counted()


def parsed(line: str) -> tuple[str, int]:
    key, _, number = line.partition(",")
    return key, int(number)


def add(state: tuple[int, int, int] | None, number: int) -> tuple[tuple[int, int, int], Any]:
    """Add one row to the totals of its key, and return them."""
    counted.one()
    rows, total, largest = state or (0, 0, 0)
    state = (rows + 1, total + number, max(largest, number))
    return state, state


class Nowhere(StatelessSinkPartition[Any]):
    """A sink that discards its rows."""

    def write_batch(self, items: list[Any]) -> None:
        del items


class NowhereSink(DynamicSink[Any]):
    """Builds the sink on each worker."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Nowhere:
        del step_id, worker_index, worker_count
        return Nowhere()


flow = Dataflow("totals")
lines = op.input("lines", flow, DirSource(Path(os.environ["DOS_BENCH_INPUT"]), batch_size=BATCH_ROWS))
pairs = op.map("rows", lines, parsed)
totals = op.stateful_map("totals", pairs, add)
op.output("nowhere", totals, NowhereSink())
