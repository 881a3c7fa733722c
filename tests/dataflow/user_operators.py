"""Operators as users write them, and a graph of one of them, for the tests of `apply`."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dataflow import CallSink, Graph, InputSource, UserOperator


class Seen(UserOperator):
    """Numbers the rows of each word; words that begin with x go aside. Counts its calls, for the tests."""

    needs = "word string"
    schema = "word string, n bigint"
    state = "word string, n bigint"
    side_outputs = {"crossed": "word string", "batches": "word string"}  # noqa: RUF012 - as users write it

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def process(self, batch: pa.RecordBatch) -> Iterator[Any]:
        for word in batch.column("word").to_pylist():
            if word.startswith("x"):
                self.emit("crossed", {"word": word})
                continue
            self.counts[word] += 1
            yield word, self.counts[word]
        self.emit("batches", batch.select(["word"]))

    def checkpoint(self) -> list[tuple[str, int]]:
        return [*self.counts.items()]

    def reset(self, state: pa.RecordBatch) -> None:
        assert not self.counts, "a copy is new when it is reset"
        self.counts.update({one["word"]: one["n"] for one in state.to_pylist()})


def graph_of(operator: UserOperator, schema: str = "word string", *, side_outputs: bool = False) -> Graph:
    graph = Graph("words")
    rows = graph.source("rows", InputSource("rows", schema))
    made = rows.key_by("by_word", "word").apply("own", operator)
    made.sink("out", CallSink(print))
    if side_outputs:
        for port in ("crossed", "batches"):
            made.side_output(port, port).sink(f"{port}_out", CallSink(print))
    return graph


class Flushes(UserOperator):
    """Gives what it has gathered when a checkpoint comes, or three rows are there."""

    deterministic = False
    state = "word string"

    def __init__(self) -> None:
        self.waiting: list[str] = ["never"]

    def process(self, batch: pa.RecordBatch) -> list[str]:
        self.waiting += batch.column("word").to_pylist()
        return self.flush() if len(self.waiting) >= 3 else []

    def drain(self) -> list[str]:
        return self.flush()

    def flush(self) -> list[str]:
        made, self.waiting = [word for word in self.waiting if word != "never"], []
        return made

    def checkpoint(self) -> list[str]:
        return self.waiting

    def reset(self, state: pa.RecordBatch) -> None:
        self.waiting = state.column("word").to_pylist()
