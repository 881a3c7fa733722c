"""Reports about stream engines: rows that an operator hides, splits that are new or not there any more."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from dataflow import CallSink, Graph, InputSource, IteratorSource, UserOperator
from dataflow.errors import InputListChangedError
from dataflow.sources.base import Positions, SourceReader
from dataflow.testing import assert_crash_safe
from tests.dataflow.test_rescaling import context


class Batching(UserOperator):
    """Forwards rows three at a time, and forgets to declare the rows that wait as its state."""

    schema = "n bigint"

    def __init__(self) -> None:
        self.waiting: list[int] = []

    def process(self, batch: pa.RecordBatch) -> Iterator[int]:
        self.waiting += batch.column("n").to_pylist()
        while len(self.waiting) >= 3:
            yield from self.waiting[:3]
            del self.waiting[:3]


class Declared(Batching):
    """The same with its state."""

    state = "n bigint"

    def checkpoint(self) -> list[int]:
        return self.waiting

    def reset(self, state: pa.RecordBatch) -> None:
        self.waiting = state.column("n").to_pylist()


def test_an_operator_that_hides_rows_from_a_checkpoint_is_named_with_the_rows() -> None:
    def graph(operator: UserOperator) -> Graph:
        made = Graph("g")
        rows = made.source("rows", InputSource("rows", "n bigint"))
        rows.apply("batching", operator).sink("out", CallSink(print))
        return made

    rows = {"rows": [{"n": n} for n in range(6)]}
    assert_crash_safe(graph(Declared()), rows, workers=1, rows_per_step=1, steps_per_checkpoint=1)
    with pytest.raises(AssertionError, match=r"missing: {'n': 0}.*none declared: 'batching'"):
        assert_crash_safe(graph(Batching()), rows, workers=1, rows_per_step=1, steps_per_checkpoint=1)


def ten(split: str, position: int) -> Iterator[tuple[int, dict[str, Any]]]:
    yield from ((n + 1, {"split": split, "n": n}) for n in range(position, 10))


def readers(splits: str, before: list[Positions]) -> list[SourceReader]:
    """The readers of all workers of a program with these splits, restored from a checkpoint."""
    spec = IteratorSource(ten, "split string, n bigint", splits=splits.split())
    made = []
    for worker, at in enumerate(before):
        reader = spec.open(context(worker, len(before)))
        reader.reset_to(at)
        made.append(reader)
    return made


def read(reader: SourceReader, bytes_max: int) -> Counter[Any]:
    batch = reader.read(bytes_max)
    reader.take_division()
    return Counter() if batch is None else Counter(tuple(row.values()) for row in batch.batch.to_pylist())


@pytest.mark.parametrize(
    ("splits", "moved"),
    [("a b c", ""), ("a b c d e", ""), ("b", "a"), ("a", "b"), ("b a", "a"), ("x a b", "a")],
)
def test_splits_that_are_new_are_read_from_their_beginning_and_one_that_left_its_worker_is_named(
    splits: str, moved: str
) -> None:
    first = readers("a b", [{}, {}])
    rows = sum((read(reader, 60) for reader in first), Counter())
    assert {split for split, _ in rows} == {"a", "b"}
    before = [reader.positions() for reader in first]
    if moved:
        with pytest.raises(InputListChangedError, match=rf"'{moved}'"):
            readers(splits, before)
        return
    for reader in readers(splits, before):
        while not reader.exhausted:
            rows += read(reader, 1_000)
    assert rows == Counter((split, n) for split in splits.split() for n in range(10))


def test_a_split_that_left_the_program_is_named_when_the_number_of_workers_changes() -> None:
    before = [reader.positions() for reader in readers("a b", [{}, {}]) if read(reader, 60)]
    spec = IteratorSource(ten, "split string, n bigint", splits=["b", "c"])
    for worker in range(3):
        with pytest.raises(InputListChangedError, match="'a'"):
            spec.redeal(before, worker, 3)
