"""The splits of sources continue on another number of workers: each on one, from where it was."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataflow import (
    FileSource,
    InputSource,
    IteratorSource,
    LogSource,
    RateSource,
    SchemaError,
)
from dataflow.errors import InputListChangedError
from dataflow.operators.base import OperatorContext
from dataflow.sources import base
from dataflow.sources.rate import RateReader
from tests.dataflow.test_generated_sources import Clock
from tests.stories.markers.words import Words

LIVES = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 4), min_size=6, max_size=6)), min_size=1
)
"""Numbers of workers, one after the other, and how many batches each of them reads."""
SMALL = 40
"""Bytes that one read takes, about."""


def context(worker: int, workers: int) -> OperatorContext:
    return OperatorContext("g", "rows", worker, workers, bytes(16), (), None)


def read_in_lives(
    spec: base.SourceSpec,
    lives: list[tuple[int, list[int]]],
    *,
    opened: Callable[[int, int], base.SourceReader] | None = None,
    by_time: bool = False,
    ended: Callable[[base.SourceReader], bool] = lambda reader: reader.exhausted,
) -> Counter[Any]:
    """All rows that are read when the workers change again and again, the last ones to the end."""
    rows: Counter[Any] = Counter()
    before: list[base.Positions] = [{}]
    for life, (workers, batches) in enumerate([*lives, (lives[-1][0], [])]):
        at: list[base.Positions] = []
        for worker in range(workers):
            reader = opened(worker, workers) if opened else spec.open(context(worker, workers))
            assert isinstance(reader, base.SourceReader)
            if by_time:
                reader.reached = lambda _: 0
            same = len(before) == workers  # a reset: each continues with its own
            reader.reset_to(before[worker] if same else spec.redeal(before, worker, workers) if life else {})
            for _ in range(batches[worker] if batches else 10_000):
                if (batch := reader.read(SMALL)) is not None:
                    rows.update(tuple(row.values()) for row in batch.batch.to_pylist())
                elif ended(reader):
                    break
                reader.take_division()
            at.append(reader.positions())
            assert batches or ended(reader)
            reader.close()
        before = at
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    found = []
    for number in range(9):
        found.append(folder / f"f{number}.txt")
        found[-1].write_text("".join(f"{number}-{line}\n" for line in range(3 * number)))
    return found


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=LIVES, repeat=st.integers(1, 3), by_time=st.booleans())
def test_every_line_of_files_is_read_once(
    files: list[Path], lives: list[tuple[int, list[int]]], repeat: int, by_time: bool
) -> None:
    rows = read_in_lives(FileSource(files, repeat=repeat), lives, by_time=by_time)
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert rows == Counter({(line,): repeat for line in lines})


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lives=LIVES)
def test_every_line_of_a_directory_is_read_once(
    files: list[Path], lives: list[tuple[int, list[int]]]
) -> None:
    def ended(reader: base.SourceReader) -> bool:
        return not reader.has_input

    spec = FileSource(f"{files[0].parent}/*.txt", watch=True, poll_s=0.001)
    rows = read_in_lives(spec, lives, ended=ended)
    assert rows == Counter((line,) for file in files for line in file.read_text().splitlines())


@settings(max_examples=30)
@given(lives=LIVES, by_time=st.booleans())
def test_every_row_of_an_iterator_is_read_once(lives: list[tuple[int, list[int]]], by_time: bool) -> None:
    def rows_of(split: str, at: int) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from ((n + 1, {"split": split, "n": n}) for n in range(at, 12))

    spec = IteratorSource(rows_of, "split string, n bigint", splits=["a", "b", "c", "d"])
    rows = read_in_lives(spec, lives, by_time=by_time)
    assert rows == Counter((split, n) for split in "abcd" for n in range(12))


class Ticking(Clock):
    """Three milliseconds pass with each look at it."""

    def __call__(self) -> int:
        self.now += 3000
        return self.now


@settings(max_examples=60)
@given(lives=LIVES, total=st.integers(0, 40))
def test_every_number_of_a_rate_source_is_generated_once(
    lives: list[tuple[int, list[int]]], total: int
) -> None:
    clock, spec = Ticking(), RateSource(1000, rows=total)
    rows = read_in_lives(spec, lives, opened=lambda *place: RateReader(spec, *place, clock))
    assert Counter(value for _, value in rows.elements()) == Counter(range(total))


def test_splits_that_are_known_by_name_go_to_their_owner() -> None:
    for spec, splits in (
        (InputSource("orders", pa.schema([("n", pa.int64())])), ["alice", "bob", "carol", "dave"]),
        (LogSource("out", "n bigint", region="other"), ["w0000", "w0001", "w0002", "w0007"]),
    ):
        positions = [
            {splits[0]: base.SplitPosition(1)},
            {split: base.SplitPosition(2) for split in splits[1:]},
        ]
        for workers in (1, 2, 3, 5):
            dealt = [spec.redeal(positions, worker, workers) for worker in range(workers)]
            assert sum(len(one) for one in dealt) == 4
            for worker, own in enumerate(dealt):
                assert all(spec.owner(split, workers) == worker for split in own)


def test_a_list_of_files_that_changed_is_noticed(files: list[Path]) -> None:
    spec = FileSource(files)
    reader = spec.open(context(0, 2))
    reader.reset_to({})
    while not reader.exhausted:
        reader.read(SMALL)
    positions = [reader.positions(), {}]
    reader.close()
    assert spec.redeal(positions, 0, 1)
    other = FileSource([*files[1:], files[0]])
    with pytest.raises(InputListChangedError, match="the 5 inputs that worker 0 has fully read are no"):
        other.redeal(positions, 0, 1)


def test_a_source_without_a_rule_is_refused() -> None:
    with pytest.raises(SchemaError, match="Words does not define how its splits are dealt"):
        Words().redeal([{}], 0, 2)
