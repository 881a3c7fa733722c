"""The processor time of operators behind filters of duplicates, by the number of replicas that feed them.

Table I of the paper, with its set-up: rows 1 ms apart on each input; the filter passes all rows; the
aggregate counts in windows of 10 ms that slide by 1 ms; the join finds one partner for each row. The join
of the paper compares each row with 100 partners; ours looks them up by key. What is measured is
`hash_rows` and `DuplicateFilter` for each input and replica, and the operator with the rows that pass; not
sending and receiving, which the paper's figures include.

python benchmarks/replication_operators.py ROUNDS # prints one line of JSON
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))

from checkpoint.key_hash import hash_rows
from dataflow import CallSink, Count, Graph, InputSource, Sliding
from dataflow.core.duplicate_filter import DuplicateFilter
from dataflow.testing import Trial

SCHEMA: Final = pa.schema(
    [pa.field("at", pa.timestamp("us")), pa.field("key", pa.int64()), pa.field("value", pa.float64())]
)
BATCHES: Final = (1_000, 50)
DEGREES: Final = (0, 1, 2, 3, 4)
"""0: without a filter, as an operator that is not replicated."""
ROWS: Final = 30_000
"""Of each input, in a measurement."""
_MS: Final = 1_000
_MARKS: Final = 500
"""Rows between two marks, at least, in which the filter needs a bucket."""


def union() -> tuple[Graph, list[str]]:
    graph = Graph("union")
    one, other = (graph.source(name, InputSource(name, SCHEMA)) for name in ("one", "other"))
    one.union("merged", other).sink("out", CallSink(print))
    return graph, ["one", "other"]


def passing() -> tuple[Graph, list[str]]:
    graph = Graph("filter")
    rows = graph.source("one", InputSource("one", SCHEMA))
    rows.filter("passed", lambda batch: pa.array(np.ones(len(batch), np.bool_)), takes="batch").sink(
        "out", CallSink(print)
    )
    return graph, ["one"]


def aggregate() -> tuple[Graph, list[str]]:
    graph = Graph("aggregate")
    rows = graph.source("one", InputSource("one", SCHEMA))
    timed = rows.event_time("timed", "at", lateness=timedelta(0))
    window = Sliding("at", timedelta(milliseconds=10), timedelta(milliseconds=1))
    timed.key_by("by_key", "key").aggregate("counted", window, n=Count()).sink("out", CallSink(print))
    return graph, ["one"]


def join() -> tuple[Graph, list[str]]:
    graph = Graph("join")
    one, other = (
        graph.source(name, InputSource(name, SCHEMA))
        .event_time(f"timed_{name}", "at", lateness=timedelta(0))
        .key_by(f"by_{name}", "key")
        for name in ("one", "other")
    )
    one.join("joined", other, times=("at", "at"), within=timedelta(milliseconds=50)).sink(
        "out", CallSink(print)
    )
    return graph, ["one", "other"]


OPERATORS: Final[dict[str, Callable[[], tuple[Graph, list[str]]]]] = {
    "union": union,
    "filter": passing,
    "aggregate": aggregate,
    "join": join,
}


def batches(size: int, seed: int, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an input, one each millisecond."""
    rng = np.random.default_rng(seed)
    for begin in range(0, ROWS, size):
        numbers = np.arange(begin, begin + size, dtype=np.int64)
        columns = [pa.array(numbers * _MS).view(pa.timestamp("us")), pa.array(numbers % keys)]
        yield pa.RecordBatch.from_arrays([*columns, pa.array(rng.random(size))], schema=SCHEMA)


class Port:
    """An input that reads some replicas of its sender."""

    def __init__(self, size: int, degree: int) -> None:
        self._streams = [str(number) for number in range(degree)]
        self._filter = DuplicateFilter(max(size, _MARKS) // 2 * _MS)
        for stream in self._streams:
            self._filter.join(stream, ["w0"])

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return what passes of a batch, which each replica gives. They are first in turn."""
        if not self._streams:
            return batch
        times = batch.column(0).view(pa.int64()).to_numpy()
        passed = []
        for stream in self._streams:
            # each replica sends a copy of its own, of which the digests have to be computed
            passes = self._filter.take(stream, hash_rows(batch.columns), times)
            if passes.all():
                passed.append(batch)
            elif passes.any():
                passed.append(batch.filter(pa.array(passes)))
        for stream in self._streams:
            self._filter.set_mark(stream, "w0", int(times[-1]))
        self._streams.append(self._streams.pop(0))
        assert sum(map(len, passed)) == len(batch)
        return passed[0]


def measure(operator: str, size: int, degree: int) -> tuple[float, float]:
    """Return microseconds per input row: of the filters, and of the operator."""
    graph, inputs = OPERATORS[operator]()
    trial = Trial(graph)
    ports = {name: Port(size, degree) for name in inputs}
    rows = {
        name: list(batches(size, seed, 1 if operator == "aggregate" else 100))
        for seed, name in enumerate(inputs)
    }
    filters = operators = 0.0
    for at in range(len(rows[inputs[0]])):
        begin = time.process_time()
        passed = {name: ports[name].take(rows[name][at]) for name in inputs}
        middle = time.process_time()
        trial.step(passed)
        end = time.process_time()
        filters += middle - begin
        operators += end - middle
    count = ROWS * len(inputs) / 1e6
    return filters / count, operators / count


def main() -> None:
    found: dict[str, list[float]] = {}
    for _ in range(int(sys.argv[1])):
        for size in BATCHES:
            for operator in OPERATORS:
                for degree in DEGREES:
                    both = measure(operator, size, degree)
                    name = f"{operator}/{size}/{degree}"
                    # the least is the figure: other programs on the machine only add
                    found[name] = [min(pair) for pair in zip(found.get(name, both), both, strict=True)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
