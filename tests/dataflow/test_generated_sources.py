"""Sources whose rows a program generates: at a rate, or by an iterator with positions."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dataflow import FileSink, Graph, IteratorSource, OperatorError, RateSource, SchemaError
from dataflow.errors import InputChangedError
from dataflow.sources.base import SourceReader
from dataflow.sources.iterator import IteratorReader
from dataflow.sources.rate import RateReader
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_processes import finished, kill, running

SPLITS = ("a", "b", "c")
SCHEMA = "split string, n bigint"


def numbers(split: str, position: int) -> Iterator[tuple[int, dict[str, Any]] | None]:
    """Positions 10, 20, ... and pauses."""
    for n in range(position // 10, 40):
        if n % 7 == 3:
            yield None
        yield 10 * (n + 1), {"split": split, "n": n}


class Clock:
    """Moved by the test."""

    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def iterator(rows: Any = numbers, clock: Any = time.monotonic) -> IteratorReader:
    """Asked again a millisecond after it had nothing."""
    spec = IteratorSource(rows, SCHEMA, splits=SPLITS, poll_s=0.001)
    return IteratorReader(spec, "made", SPLITS, clock)


def step(reader: SourceReader, *sizes: int) -> list[dict[str, Any]]:
    batches = [batch for size in sizes if (batch := reader.read(size)) is not None]
    return [row for batch in batches for row in batch.batch.to_pylist()]


# EVIDENCE-OF: P-7
def test_an_iterator_gives_the_same_steps_again_however_they_were_cut_into_batches() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        ticks = count()
        reader = iterator(clock=lambda ticks=ticks: next(ticks) / 3000)  # it has more within the same step
        began, steps = reader.positions(), []
        while not reader.exhausted:
            rows = step(reader, *rng.choices([1, 30, 200], k=3))
            steps.append((reader.take_division(), rows))
            if rng.random() < 0.1:
                began, steps = reader.positions(), []
        again = iterator()
        again.reset_to(began)
        for division, rows in steps:
            made = [row for batch in again.replay(division) for row in batch.batch.to_pylist()]
            assert made == rows
            assert again.take_division() == division
        assert again.positions() == reader.positions()
        assert not again.has_input
        assert again.exhausted


def test_no_split_holds_up_the_others() -> None:
    reader = iterator()
    order = []
    for _ in range(3):
        order.append(step(reader, 1)[0]["split"])
        reader.take_division()
    assert order == ["a", "b", "c"]


def test_other_rows_than_before_stop_the_region() -> None:
    reader = iterator()
    step(reader, 100)
    division = reader.take_division()

    def other(split: str, position: int) -> Iterator[Any]:
        for found in numbers(split, position):
            yield found and (found[0], {**found[1], "n": found[1]["n"] + 1})

    with pytest.raises(InputChangedError, match=r"input 'a' changed below byte .* expected rows up to there"):
        iterator(other).replay(division)
    with pytest.raises(InputChangedError, match="rows up to 0 with digest"):
        iterator(lambda *_: iter(())).replay(division)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda *_: iter([(3, {"n": 1})]), "operator 'made' failed at split 'a', after position 0: KeyError"),
        (lambda *_: iter([(0, {"n": 1})]), "it yielded position 0 after 0; positions must increase"),
        (
            lambda *_: iter([(1, {"split": 5, "n": "x"})]),
            "split 'a', row 0 of those from 0 to 1: column 'split' is string, which holds text; .* int 5",
        ),
        (lambda *_: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_goes_wrong_in_an_iterator_is_told_with_its_place(rows: Any, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        step(iterator(rows), 10)


def test_while_an_iterator_has_nothing_no_steps_are_made() -> None:
    now = Clock()
    spec = IteratorSource(lambda *_: iter([None, (1, {"n": 1})]), "n bigint", poll_s=5.0)
    reader = IteratorReader(spec, "made", ("rows",), lambda: now.now)
    assert not reader.has_input
    assert reader.wakes_in == 5.0
    assert reader.read(100) is None
    now.now += 5
    assert reader.has_input
    assert step(reader, 1) == [{"n": 1}]
    assert not reader.has_input
    assert reader.exhausted


# EVIDENCE-OF: P-7
def test_a_region_on_an_iterator_is_exact_however_often_it_is_reset(tmp_path: Path) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        graph = Graph("made")
        source = graph.source("rows", IteratorSource(numbers, SCHEMA, splits=SPLITS, poll_s=1e-9))
        source.key_by("by", "split").count("counts").sink("out", FileSink(tmp_path / str(seed)))
        region = OneThreadRegion(graph, 2, rng.randrange)
        region.restore()
        for _ in range(6):
            for _ in range(rng.randrange(40)):
                region.turn()
            if rng.random() < 0.5:
                region.request_checkpoint()
            else:
                region.restore()
        region.finish()
        last = {row[0]: row[1] for _, row in rows_of(tmp_path / str(seed))}
        assert last == dict.fromkeys(SPLITS, "40")


# --- at a rate ----------------------------------------------------------------------------------------------


def rate(clock: Clock, worker: int = 0, *, workers: int = 2, rows: int | None = None) -> RateReader:
    return RateReader(RateSource(10, rows=rows), worker, workers, clock)


def test_rows_come_when_they_are_due_with_their_times() -> None:
    clock = Clock()
    readers = [rate(clock, worker) for worker in (0, 1)]
    assert [step(reader, 1000)[0]["value"] for reader in readers] == [0, 1]
    assert readers[0].read(1000) is None
    assert not readers[0].has_input
    assert readers[0].wakes_in == pytest.approx(0.2)
    clock.now += 400_000
    assert readers[0].has_input
    rows = step(readers[0], 1000)
    assert [row["value"] for row in rows] == [2, 4]
    assert [row["timestamp"].timestamp() for row in rows] == [1.2, 1.4]
    clock.now -= 300_000
    assert step(readers[0], 1000) == [], "a clock that goes back gives nothing twice"


# EVIDENCE-OF: P-7
def test_rows_at_a_rate_come_again_as_they_were() -> None:
    clock = Clock()
    reader = rate(clock)
    steps = []
    for _ in range(4):
        clock.now += 500_000
        steps.append((step(reader, 16, 16), reader.take_division(), reader.positions()))
    clock.now += 10**9
    for begin in range(4):
        again = rate(clock)
        again.reset_to(steps[begin - 1][2] if begin else {})
        for rows, division, positions in steps[begin:]:
            made = [row for batch in again.replay(division) for row in batch.batch.to_pylist()]
            assert made == rows
            assert again.take_division() == division
            assert again.positions() == positions
    with pytest.raises(InputChangedError, match="expected row 1 of one that began at"):
        rate(clock).replay(steps[1][1])


def test_all_rows_are_given_once_and_then_it_is_at_its_end() -> None:
    clock = Clock()
    readers = [rate(clock, worker, workers=3, rows=7) for worker in range(3)]
    for reader in readers:
        step(reader, 1000)
    clock.now += 10**8
    values = [row["value"] for reader in readers for row in step(reader, 1000)] + [0, 1, 2]
    assert sorted(values) == list(range(7))
    assert all(reader.exhausted and reader.wakes_in is None for reader in readers)
    assert rate(clock, 2, workers=3, rows=2).exhausted


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_region_wakes_when_rows_are_due_and_loses_none(shared_store: str, tmp_path: Path) -> None:
    graph = Graph("made")
    graph.source("rated", RateSource(200, rows=300)).sink("rated_out", FileSink(tmp_path / "rated"))
    made = graph.source("made", IteratorSource(numbers, SCHEMA, splits=SPLITS, poll_s=0.05))
    made.sink("made_out", FileSink(tmp_path / "made"))
    with running(graph, shared_store, tmp_path, checkpoint_interval=600.0) as (control, _):
        control.checkpoint(60)
        kill(control, 0, wipe=True)
        assert finished(control), control.status
    assert Counter(row[1] for _, row in rows_of(tmp_path / "rated")) == Counter(map(str, range(300)))
    expected = {(split, str(n)) for split in SPLITS for n in range(40)}
    found = [tuple(row) for _, row in rows_of(tmp_path / "made")]
    assert sorted(found) == sorted(expected)


def test_what_makes_no_sense_is_refused_at_once() -> None:
    with pytest.raises(SchemaError, match="rows_per_second must be a number above 0, not 0"):
        RateSource(0)
    with pytest.raises(SchemaError, match="rows must be a number of 0 or more"):
        RateSource(1, rows=-1)
    with pytest.raises(SchemaError, match="needs a function of a split and a position"):
        IteratorSource([], "n bigint")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="splits must be a list of different names"):
        IteratorSource(numbers, SCHEMA, splits=("a", "a"))
    with pytest.raises(SchemaError, match="poll_s must be a number of seconds above 0"):
        IteratorSource(numbers, SCHEMA, poll_s=0)
    assert pa.types.is_int64(IteratorSource(numbers, SCHEMA).schema.field("n").type)
