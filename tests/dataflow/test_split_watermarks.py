"""Each split has a watermark of its own: bounded input loses no row, whatever the number of splits, the order
in which they are read, and the failures in between.

Mutants that these tests kill: the largest watermark of all splits instead of the least; a split that was not
begun does not count; watermarks of splits that a restore forgets; a replay that asks which splits are behind
now instead of the division; reading in the order of names.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint import SplitPosition
from checkpoint.core.records.layout import even_layout
from dataflow import (
    CallSink,
    Count,
    FileSource,
    Graph,
    InputSource,
    IteratorSource,
    LogSink,
    Max,
    Sliding,
    Stream,
    Sum,
    Tumbling,
)
from dataflow.core.event_time import UNKNOWN
from dataflow.errors import GraphError, InputListChangedError
from dataflow.limits import WorkerLimits
from dataflow.sources.base import SourceSpec
from dataflow.sources.file_source import reader_of
from dataflow.testing import Trial
from dataflow.worker.circuit import Circuit
from dataflow.worker.spec import Clock
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


# --- event time neither stops nor runs away -----------------------------------------------------------------


NOW: Final = 20_000 * 86_400
DAY: Final = 86_400
POLL_S: Final = 1e-4


class AnyClock(Clock):
    """Its wall clock is set anew at each look, within four hours; the other one moves when the test says."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self._rng = rng

    def seconds(self) -> float:  # type: ignore[override]
        return self.now

    def wall_ms(self) -> int:  # type: ignore[override]
        return 1000 * (NOW + self._rng.randrange(4 * 3600))


class Tap:
    """Splits whose rows come when the test says, and that end when it says."""

    def __init__(self, splits: list[Lines]) -> None:
        self.splits = {f"s{number}": lines for number, lines in enumerate(splits)}
        self.given = dict.fromkeys(self.splits, 0)
        self.ended: set[str] = set()
        self.source = IteratorSource(self._rows, "line string", splits=list(self.splits), poll_s=POLL_S)

    def _rows(self, split: str, at: int) -> Iterator[tuple[int, dict[str, Any]] | None]:
        while at < len(self.splits[split]) or split not in self.ended:
            if at < self.given[split]:
                second, key = self.splits[split][at]
                at += 1
                yield at, {"line": f"{second} {key}"}
            else:
                yield None

    def end(self, splits: Iterable[str]) -> None:
        self.given |= {split: len(self.splits[split]) for split in splits}
        self.ended |= set(splits)


def filtered(source: SourceSpec, lateness: int, idle_after: timedelta | None) -> Graph:
    """Rows with key "above" never reach `event_time`, rows with key "below" leave it and go no further."""
    graph = Graph("filtered")
    rows = graph.source("lines", source).map("rows", parsed, schema="at timestamp, key string", takes="batch")
    timed = rows.filter("above", lambda row: row["key"] != "above").event_time(
        "timed", "at", lateness=timedelta(seconds=lateness), idle_after=idle_after, on_ahead="drop"
    )
    kept = timed.filter("below", lambda row: row["key"] != "below").key_by("by_key", "key")
    window = Tumbling("at", timedelta(seconds=SIZE))
    kept.aggregate("counts", window, rows=Count()).sink("out", LogSink(publish="step"))
    return graph


def counter(region: OneThreadRegion, operator: str, name: str) -> int:
    return sum(side.shared.operators.get(operator, {}).get(name, 0) for side in region.sides)


def is_kept(line: tuple[int, str]) -> bool:
    return line[1] not in ("above", "below") and line[0] < NOW


@st.composite
def any_splits(draw: st.DrawFn) -> tuple[list[Lines], int]:
    """Splits that keep their lateness, but for rows from the future; filters drop some rows, or all."""
    lateness = draw(st.sampled_from([0, 3, 25]))
    splits = []
    for _ in range(draw(st.integers(1, 4))):
        keys = st.sampled_from(
            draw(st.sampled_from([["above"], ["below"], ["k0", "above"], ["k0", "k1", "above", "below"]]))
        )
        times = sorted(draw(st.lists(st.integers(0, 100), max_size=10)))
        lines = [(max(0, time - draw(st.integers(0, lateness))), draw(keys)) for time in times]
        for _ in range(draw(st.integers(0, 2))):
            ahead = draw(st.integers(DAY + 4 * 3600, 100 * 365 * DAY))
            lines.insert(draw(st.integers(0, len(lines))), (NOW + ahead, draw(keys)))
        splits.append([(0, "above")] * draw(st.sampled_from([0, 0, 4])) + lines)
    return splits, lateness


@settings(max_examples=40, deadline=None)
@given(any_splits(), st.integers(1, 2), st.integers(0, 4), st.booleans(), st.integers(0, 1 << 30))
def test_bounded_splits_lose_no_row_whatever_is_dropped_and_comes_from_the_future(
    of: tuple[list[Lines], int], workers: int, resets: int, idles: bool, seed: int
) -> None:
    splits, lateness = of
    rng = random.Random(seed)
    tap, clock = Tap(splits), AnyClock(rng)
    tap.end(tap.splits)
    graph = filtered(tap.source, lateness, timedelta(seconds=1) if idles else None)
    region = OneThreadRegion(graph, workers, rng.randrange, clock=clock)
    region.restore()
    for _ in range(resets):
        for _ in range(rng.randrange(40)):
            region.turn()
            clock.now += rng.choice([0, 0, 5])
        if rng.random() < 0.5:
            region.request_checkpoint()
        else:
            region.restore()
    region.finish()
    assert shown(region) == naive([[line for line in lines if is_kept(line)] for lines in splits])
    assert not counter(region, "counts", "late_rows")
    ahead = sum(second > NOW and key != "above" for lines in splits for second, key in lines)
    assert counter(region, "timed", "ahead_rows_dropped") == ahead


@settings(max_examples=25, deadline=None)
@given(any_splits(), st.integers(1, 2), st.lists(st.integers(0, 3), max_size=6), st.integers(0, 1 << 30))
def test_a_split_that_still_has_rows_moves_time_whatever_became_of_the_others(
    of: tuple[list[Lines], int], workers: int, rounds: list[int], seed: int
) -> None:
    """All others are silent, at their end, or have only rows that filters drop. Each row that filters keep is
    in a window or is counted as late.
    """
    splits, lateness = of
    rng = random.Random(seed)
    live = [(second, "live") for second in range(400, 800, 50)]
    drops = [(0, "k0"), *((second, "above") for second in range(0, 800, 50))]
    tap, clock = Tap([*splits, drops, live]), AnyClock(rng)
    *_, dropped, moving = tap.splits
    graph = filtered(tap.source, lateness, timedelta(seconds=60))
    region = OneThreadRegion(graph, workers, rng.randrange, clock=clock)
    region.restore()

    def goes_on() -> None:
        """Until nothing happens, also after the sources have polled again."""
        until = time.monotonic() + 2 * POLL_S
        while time.monotonic() < until:
            if region.turn():
                until = time.monotonic() + 2 * POLL_S

    for resets in rounds:
        clock.now += rng.choice([0, 20, 70])
        for split in tap.splits.keys() - {moving}:
            tap.given[split] = rng.randint(tap.given[split], len(tap.splits[split]))
        tap.end(split for split in tap.splits.keys() - {moving} if rng.random() < 0.1)
        for _ in range(rng.randrange(60)):
            region.turn()
        for _ in range(resets):
            region.request_checkpoint() if rng.random() < 0.5 else region.restore()
    tap.given |= {split: len(lines) for split, lines in tap.splits.items() if split not in (moving, dropped)}
    goes_on()
    for number in range(1, len(live) + 1):  # the others are silent, except the one whose rows are dropped
        clock.now += 10
        tap.given[moving] = number
        tap.given[dropped] = max(tap.given[dropped], min(2 * number, len(drops)))
        goes_on()
    seen = shown(region)
    closed = 750 - lateness - SIZE
    assert sum(rows for _, key, rows in seen.elements() if key == "live") >= (closed - 400) // 50
    late = counter(region, "counts", "late_rows")
    ahead = counter(region, "timed", "ahead_rows_dropped")
    of_others = [line for lines in [*splits, drops] for line in lines if line[1] != "above"]
    in_windows = sum(rows for _, key, rows in seen.elements() if key != "live")
    assert ahead == sum(second > NOW for second, _ in of_others)
    assert in_windows + late == sum(is_kept(line) for line in of_others)
    tap.end(tap.splits)
    region.finish()


def test_a_replay_excludes_the_same_rows_from_the_future_at_any_later_time() -> None:
    """The clock of a step is recorded with its input. Otherwise a replayed step would show other rows."""
    for seed in range(10):
        rng = random.Random(seed)
        tap, clock = Tap([[(NOW + DAY + 600 * number, "k0") for number in range(24)]]), AnyClock(rng)
        tap.end(tap.splits)
        graph = Graph("ahead")
        rows = graph.source("lines", tap.source).map(
            "rows", parsed, schema="at timestamp, key string", takes="batch"
        )
        timed = rows.event_time("timed", "at", lateness=timedelta(days=9), on_ahead="side")
        timed.side_output("future", "ahead").sink("out", LogSink(publish="step"))
        timed.sink("in_time", CallSink(list))
        region = OneThreadRegion(graph, 1, rng.randrange, clock=clock)
        run_through(region, rng, 6)
        (side,) = region.sides
        excluded = [row["at"] for output in side.shown for row in rows_shown([output])]
        assert 0 < len(excluded) < 24
        assert len({*excluded}) == len(excluded)


# --- chains of operators that wait for event time -----------------------------------------------------------


BEGIN = datetime(2024, 5, 1, 12, tzinfo=UTC)


def second(number: float) -> datetime:
    return BEGIN + timedelta(seconds=number)


def windowed(name: str, stream: Stream, time: str, window: tuple[int, int], out: str) -> Stream:
    """A window over `time`; of its bounds `out` is the time of the rows."""
    size, slide = (timedelta(seconds=part) for part in window)
    over = Tumbling(time, size) if size == slide else Sliding(time, size, slide)
    made = stream.key_by(f"{name}_key", "key").aggregate(f"{name}_made", over, n=Sum("n"), top=Max(time))
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    return made.map(name, lambda row: (row["key"], row[out], row["n"]), schema=CHAINED)


CHAINED = "key string, at timestamp, n bigint"
Link = Callable[[str, Stream], Stream]


def window_link(window: tuple[int, int], out: str) -> Link:
    return lambda name, stream: windowed(name, stream, "at", window, out)


def sorting(name: str, stream: Stream) -> Stream:
    made = stream.sort(name, "at")
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    return made


def best(name: str, stream: Stream) -> Stream:
    made = stream.key_by(f"{name}_key", "key").top_k(name, Tumbling("at", timedelta(seconds=7)), 100, by="n")
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    return made


def joining(name: str, stream: Stream) -> Stream:
    """Each row with those of its key that are near it, itself too."""
    left, right = stream.key_by(f"{name}_l", "key"), stream.key_by(f"{name}_r", "key")
    made = left.join(f"{name}_made", right, times=("at", "at"), within=timedelta(seconds=5), suffix="_r")
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    made.side_output(f"{name}_late_r", "late_right").sink(f"{name}_late_r_out", CallSink(print))
    return made.map(name, lambda row: (row["key"], min(row["at"], row["at_r"]), row["n"]), schema=CHAINED)


def telling(name: str, stream: Stream) -> Stream:
    made = stream.key_by(f"{name}_key", "key").map_state(
        name,
        lambda row, state: [(row["key"], row["at"], row["n"])],
        time="at",
        state="n bigint",
        schema=CHAINED,
    )
    made.side_output(f"{name}_late", "late").sink(f"{name}_late_out", CallSink(print))
    return made


LINKS: dict[str, Link] = {
    **{
        f"window {size} by {slide} at {out}": window_link((size, slide), out)
        for size, slide in ((10, 10), (10, 2), (3, 3))
        for out in ("window_start", "window_end", "top")
    },
    "sort": sorting,
    "top_k": best,
    "join": joining,
    "map_state": telling,
}


def chain(links: Sequence[str]) -> Graph:
    graph = Graph("chain")
    stream = graph.source("rows", InputSource("rows", CHAINED))
    stream = stream.event_time("timed", "at", lateness=timedelta(0))
    for index, link in enumerate(links):
        stream = LINKS[link](f"link{index}", stream)
    stream.sink("out", CallSink(print))
    return graph


def check(links: Sequence[str], times: Sequence[int], steps: int, workers: int) -> None:
    graph = chain(links)
    rows = [{"key": "ab"[at % 2], "at": second(at), "n": 1} for at in sorted(times)]
    whole = Trial(graph, workers=1)
    whole.step({"rows": rows}, end=True)  # nothing can be late
    trial = Trial(graph, workers=workers)
    for begin in range(0, len(rows), steps):
        trial.step({"rows": rows[begin : begin + steps]})
    trial.step({}, end=True)
    for sink in trial.sinks:
        assert not sink.endswith(("late_out", "late_r_out")) or trial.rows(sink) == [], sink
    assert sorted(map(repr, trial.rows("out"))) == sorted(map(repr, whole.rows("out")))


@pytest.mark.parametrize("last", LINKS)
@pytest.mark.parametrize("first", LINKS)
def test_two_links_lose_nothing(first: str, last: str) -> None:
    check([first, last], range(0, 60, 3), 2, 1)


@settings(max_examples=25)
@given(
    links=st.lists(st.sampled_from(sorted(LINKS)), min_size=2, max_size=3),
    times=st.lists(st.integers(0, 40), max_size=12),
    steps=st.integers(1, 4),
    workers=st.integers(1, 2),
)
def test_any_chain_loses_nothing(links: list[str], times: list[int], steps: int, workers: int) -> None:
    check(links, times, steps, workers)


@pytest.mark.parametrize("bound", ["window_start", "window_end"])
def test_a_tumbling_window_over_the_bounds_of_a_sliding_one_counts_every_window(bound: str) -> None:
    graph = Graph("g")
    stream = graph.source("rows", InputSource("rows", CHAINED))
    stream = (
        stream.event_time("timed", "at", lateness=timedelta(0))
        .key_by("k1", "key")
        .aggregate("sliding", Sliding("at", timedelta(seconds=10), timedelta(seconds=2)), n=Count())
    )
    stream.sink("first_out", CallSink(print))
    second_one = stream.key_by("k2", "key").aggregate(
        "tumbling", Tumbling(bound, timedelta(seconds=10)), windows=Count()
    )
    second_one.sink("out", CallSink(print))
    trial = Trial(graph)
    for at in range(100):
        trial.step({"rows": [{"key": "a", "at": second(at), "n": 1}]})
    before_the_end = len(trial.rows("out"))
    trial.step({}, end=True)
    assert sum(row["windows"] for row in trial.rows("out")) == len(trial.rows("first_out")) > 50
    assert before_the_end > 5, "windows close as time moves"


def test_a_source_with_the_name_of_another_one_has_nothing_of_its_watermarks() -> None:
    """What a checkpoint stores of them is of the uid of the source: it moves with a rename, too."""
    graph = Graph("g")
    rows = graph.source("orders", InputSource("orders", "at timestamp, n bigint"))
    rows.event_time("timed", "at", lateness=timedelta(0)).sink("out", CallSink(print))
    settings = {"region": "g", "worker": 0, "workers": 1, "store_id": bytes(16), "layout": even_layout(1)}
    time = Circuit(graph.plan(), uids={"orders": "_1f-orders"}, **settings).time
    stored = {"timed": {f"{source}/p": SplitPosition(7) for source in ("orders", "_1f-orders", "gone")}}
    time.restore(stored)
    assert time.positions() == {"timed": {"_1f-orders/p": SplitPosition(7)}}
    time.restore({"timed": {"orders/p": SplitPosition(7)}})
    assert time.positions() == {"timed": {}}
