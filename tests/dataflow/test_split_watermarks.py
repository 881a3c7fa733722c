"""Each split has a watermark of its own: bounded input loses no row, whatever the number of splits, the order
in which they are read, and the failures in between.

Mutants that these tests kill: the largest watermark of all splits instead of the least; a split that was not
begun does not count; watermarks of splits that a restore forgets; a replay that asks which splits are behind
now instead of the division; reading in the order of names.
"""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import (
    CallSink,
    Count,
    FileSource,
    Graph,
    InputSource,
    IteratorSource,
    LogSink,
    Tumbling,
)
from dataflow.core.event_time import UNKNOWN
from dataflow.errors import GraphError, InputListChangedError
from dataflow.limits import WorkerLimits
from dataflow.sources.base import SourceSpec
from dataflow.sources.file_source import reader_of
from dataflow.testing import Trial
from tests.dataflow.fed_circuit import SCHEMA, row
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.test_region_in_one_thread import rows_shown, write_files
from tests.dataflow.test_windows_in_regions import EPOCH, SIZE, parsed, texts_of

Lines = list[tuple[int, str]]


def counted(source: SourceSpec, lateness: int = 0) -> Graph:
    graph = Graph("counted")
    lines = graph.source("lines", source)
    rows = lines.map("rows", parsed, schema="at timestamp, key string", takes="batch")
    timed = rows.event_time("timed", "at", lateness=timedelta(seconds=lateness))
    window = Tumbling("at", timedelta(seconds=SIZE))
    timed.key_by("by_key", "key").aggregate("counts", window, rows=Count()).sink(
        "out", LogSink(publish="step")
    )
    return graph


def naive(splits: list[Lines]) -> Counter[tuple[int, str, int]]:
    counts = Counter((second // SIZE * SIZE, key) for rows in splits for second, key in rows)
    return Counter((start, key, count) for (start, key), count in counts.items())


def shown(region: OneThreadRegion) -> Counter[tuple[int, str, int]]:
    return Counter(
        (int((row["window_start"] - EPOCH).total_seconds()), row["key"], row["rows"])
        for side in region.sides
        for output in side.shown
        for row in rows_shown([output])
    )


def late_rows(region: OneThreadRegion) -> int:
    """Since the last reset."""
    return sum(side.shared.operators.get("counts", {}).get("late_rows", 0) for side in region.sides)


def run_through(region: OneThreadRegion, rng: random.Random, resets: int) -> None:
    region.restore()
    for _ in range(resets):
        for _ in range(rng.randrange(40)):
            region.turn()
        if rng.random() < 0.5:
            region.request_checkpoint()
        else:
            assert not late_rows(region)
            region.restore()
    region.finish()


def test_files_that_cover_the_same_time_are_counted_whole(tmp_path: Path) -> None:
    """Four files, two workers: 101,000 of 200,000 rows were counted when each worker had one watermark."""
    files: list[Lines] = [[(second, "k") for second in range(100)] for _ in range(4)]
    write_files(tmp_path, texts_of(files))
    region = OneThreadRegion(counted(FileSource(tmp_path / "*")), 2, random.Random(1).randrange)
    run_through(region, random.Random(1), 0)
    assert shown(region) == naive(files)
    assert not late_rows(region)


def test_files_that_are_not_begun_hold_event_time_back(tmp_path: Path) -> None:
    """A step has room for the first file alone, and its rows are far ahead already."""
    files: list[Lines] = [[(second, "k") for second in range(0, 200, 5)] for _ in range(4)]
    write_files(tmp_path, texts_of(files))
    small = WorkerLimits(step_bytes_max=28, batch_bytes_max=28)  # rows up to second 25
    region = OneThreadRegion(counted(FileSource(tmp_path / "*")), 1, random.Random(1).randrange, small)
    run_through(region, random.Random(1), 4)
    assert shown(region) == naive(files)
    assert not late_rows(region)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[Lines], int]:
    """Splits that each keep the lateness that comes with them."""
    lateness = draw(st.sampled_from([0, 0, 3, 25]))
    splits = []
    for _ in range(draw(st.integers(1, 6))):
        times = sorted(draw(st.lists(st.integers(0, 100), max_size=12)))
        splits.append([(max(0, time - draw(st.integers(0, lateness))), f"k{time % 2}") for time in times])
    return splits, lateness


@settings(max_examples=40, deadline=None)
@given(inputs(), st.integers(1, 3), st.integers(0, 6), st.booleans(), st.integers(0, 1 << 30))
def test_no_row_is_lost_whatever_the_splits_workers_checkpoints_and_crashes(
    given_splits: tuple[list[Lines], int], workers: int, resets: int, iterates: bool, seed: int
) -> None:
    splits, lateness = given_splits
    rng = random.Random(seed)
    with TemporaryDirectory() as directory:
        if iterates:
            source: SourceSpec = iterated(splits)
        else:
            source = FileSource(write_files(Path(directory), texts_of(splits)))
        region = OneThreadRegion(counted(source, lateness), workers, rng.randrange)
        run_through(region, rng, resets)
        assert shown(region) == naive(splits)
        assert not late_rows(region)


def iterated(splits: list[Lines]) -> IteratorSource:
    def rows(split: str, at: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, (second, key) in enumerate(splits[int(split)]):
            if index >= at:
                yield index + 1, {"line": f"{second} {key}"}

    return IteratorSource(rows, "line string", splits=[str(index) for index in range(len(splits))])


def test_a_directory_with_a_backlog_is_counted_whole(tmp_path: Path) -> None:
    files: list[Lines] = [[(second, "k") for second in range(0, 100, 3)] for _ in range(5)]
    paths = write_files(tmp_path, texts_of(files))
    (tmp_path / "END").touch()
    source = FileSource([*paths], watch=True, until=tmp_path / "END", poll_s=1e-9)
    for workers in (1, 2):
        region = OneThreadRegion(counted(source), workers, random.Random(workers).randrange)
        run_through(region, random.Random(workers), 5)
        assert shown(region) == naive(files)
        assert not late_rows(region)


def test_balanced_reading_keeps_few_windows_open(tmp_path: Path) -> None:
    """Of one day, read one after the other, the first would open all windows."""
    files: list[Lines] = [[(second, "k") for second in range(0, 2000, gap)] for gap in (1, 2, 3, 5)]
    paths = write_files(tmp_path, texts_of(files))
    limits = WorkerLimits(step_bytes_max=512, batch_bytes_max=512)
    region = OneThreadRegion(counted(FileSource(paths)), 1, random.Random(1).randrange, limits)
    region.restore()
    most = 0
    while not region.sides[0].shared.exhausted:
        region.turn()
        most = max(most, region.sides[0].shared.operators.get("counts", {}).get("windows", 0))
    region.finish()
    assert shown(region) == naive(files)
    assert most < 60, f"{most} of 200 windows were open at once"


def trial_of(*, splits: list[str], workers: int = 1, union: bool = False) -> Trial:
    graph = Graph("g")
    rows = graph.source("rows", InputSource("rows", SCHEMA))
    if union:
        rows = rows.union("both", graph.source("more", InputSource("more", SCHEMA)))
    timed = rows.event_time("timed", "at", lateness=timedelta(0)).key_by("by_key", "key")
    timed.aggregate("counts", Tumbling("at", timedelta(seconds=SIZE)), n=Count()).sink("out", CallSink(print))
    return Trial(graph, workers=workers, splits={"rows": splits})


def counts(trial: Trial) -> list[int]:
    return [row["n"] for row in trial.rows("out")]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_watermark_is_the_least_over_the_splits_that_are_not_done(workers: int) -> None:
    trial = trial_of(splits=["a", "b"], workers=workers)
    trial.step({"rows": {"a": [row(5), row(31)]}})
    assert counts(trial) == [], "split b was not begun"
    trial.step({"rows": {"b": [row(5), row(12)]}}, checkpoint=True)
    assert counts(trial) == [2], "up to 12"
    trial.step({"rows": {"a": [row(50)]}})
    assert counts(trial) == [2]
    trial.crash()
    trial.step({"rows": {"b": [row(12)]}})
    assert counts(trial) == [2], "a restore knows how far each split is"
    trial.step({}, done={"rows": ["b"]})
    assert counts(trial) == [2, 2], "b is exhausted: up to 31"
    trial.step({}, end=True)
    assert counts(trial) == [2, 2, 1]


def test_a_union_keeps_the_splits_of_its_inputs_apart() -> None:
    trial = trial_of(splits=["a", "b"], union=True)
    trial.step({"rows": {"a": [row(5), row(31)]}, "more": [row(25)]})
    trial.step({"rows": {"b": [row(5), row(12)]}, "more": [row(26)]})
    assert counts(trial) == [2]
    trial.step({"rows": {"b": [row(13)]}}, done={"rows": ["a", "b"]})
    assert counts(trial) == [2, 2], "the other source is at 26"
    trial.step({}, end=True)
    assert sum(counts(trial)) == 7


def test_event_time_behind_an_exchange_is_refused() -> None:
    graph = Graph("g")
    keyed = graph.source("rows", InputSource("rows", SCHEMA)).key_by("by_key", "key")
    first = keyed.aggregate("latest", n=Count()).map("again", lambda row: row, schema="key string, n bigint")
    first.map("at", lambda row: row, schema=SCHEMA).event_time("timed", "at", lateness=timedelta(0)).sink(
        "out", CallSink(print)
    )
    with pytest.raises(GraphError, match="event_time 'timed' is below 'by_key', which mixes the rows"):
        graph.plan()


def test_files_that_end_before_an_earlier_one_are_few_bytes_in_a_checkpoint(tmp_path: Path) -> None:
    texts = ["x\n" * 5000, *["y\n"] * 500]
    paths = [tmp_path / f"f{index:03}" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    reader = reader_of(FileSource(paths), 0, 1)
    reader.reached = lambda split: UNKNOWN
    for _ in range(501):
        reader.read(1 << 20)
    at = reader.positions()
    assert set(at) == {"", ">1-500", f"0:{paths[0]}"}
    again = reader_of(FileSource(paths), 0, 1)
    again.reached = reader.reached
    again.reset_to(at)
    assert again.positions() == at
    assert sum(batch.batch.num_rows for batch in iter(lambda: again.read(1 << 20), None)) == 5000 - 2048
    assert again.exhausted
    with pytest.raises(InputListChangedError, match="1-500"):
        reader_of(FileSource([paths[0], *reversed(paths[1:-1]), tmp_path / "other"]), 0, 1).reset_to(at)
