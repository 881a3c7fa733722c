"""Event time neither stops nor runs away: filters above and below `event_time`, splits that are silent,
end or have only rows that a filter drops, rows from the future.

Mutants that these tests kill: silence is that of reading; a split of which no row passed never counts, or it
always does; max_ahead is not applied; a replay asks the clock again.
"""

import random
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import CallSink, Count, Graph, IteratorSource, LogSink, Tumbling
from dataflow.sources.base import SourceSpec
from dataflow.worker.spec import Clock
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.test_region_in_one_thread import rows_shown
from tests.dataflow.test_split_watermarks import Lines, naive, run_through, shown
from tests.dataflow.test_windows_in_regions import SIZE, parsed

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
