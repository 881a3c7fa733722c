"""Nexmark's query 5 (which auctions had the most bids) on real workers: bounded input loses no row.

Splits follow each other in time. A worker that took the time of the latest row that it read dropped those of
the others as late: of 92,000 bids 33,081 from files, 13,920 from iterators, 20,794 from a directory, 3,662
from a backlog of four producers. It is 0 of each now.
"""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dataflow import (
    Count,
    FileSource,
    Graph,
    InputSource,
    IteratorSource,
    LogSink,
    Sliding,
    StepRows,
    Tumbling,
    blocking,
)
from dataflow.limits import WorkerLimits
from dataflow.sources.base import SourceSpec
from dos_client.blocking import open_store as open_blocking
from tests.dataflow.test_input_processes import steps_of
from tests.dataflow.test_region_processes import finished, running

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]

EPOCH = datetime(2026, 5, 1, tzinfo=UTC)
COLUMNS = "at timestamp, auction bigint"
SPLITS = 4
SIZE, SLIDE = 2_000, 1_000
"""Milliseconds. All bids are within ten seconds."""
Bid = tuple[int, int]
"""Microseconds since EPOCH, auction."""


def bids_of(count: int) -> list[list[Bid]]:
    """As Nexmark has them, evenly in time: half of them of the hottest of the auctions that are new."""
    rng = random.Random(5)
    made = []
    for number in range(count):
        newest = number // 15
        auction = (
            newest // 100 * 100 if rng.random() < 0.5 else rng.randrange(max(0, newest - 100), newest + 1)
        )
        made.append((number * 10_000_000 // count, auction))
    share = -(-count // SPLITS)
    return [made[begin : begin + share] for begin in range(0, count, share)]


def query(source: SourceSpec, parsed: bool) -> Graph:
    """Of each window that slides, the auction with the most bids; of several the smallest number."""
    graph = Graph("q5")
    rows = graph.source("bids", source)
    if parsed:
        rows = rows.map("parsed", _parsed, schema=COLUMNS)
    timed = rows.event_time("timed", "at", lateness=timedelta(0))
    window = Sliding("at", timedelta(milliseconds=SIZE), timedelta(milliseconds=SLIDE))
    counts = timed.key_by("by_auction", "auction").aggregate("counts", window, bids=Count())
    one = counts.key_by("by_window", "window_start")
    hottest = one.top_k("hottest", Tumbling("window_end", timedelta(milliseconds=SLIDE)), 1, by="bids")
    hottest.sink("shown", LogSink(publish="step"))
    return graph


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    return bid_row(*map(int, row["line"].split()))


def bid_row(micros: int, auction: int) -> dict[str, Any]:
    return {"at": EPOCH + timedelta(microseconds=micros), "auction": auction}


def expected(splits: list[list[Bid]]) -> Counter[tuple[int, int, int]]:
    """(start of the window in milliseconds, auction, bids)"""
    counts: dict[int, Counter[int]] = {}
    for bids in splits:
        for micros, auction in bids:
            newest = micros // 1000 // SLIDE * SLIDE
            for start in range(newest, newest - SIZE, -SLIDE):
                counts.setdefault(start, Counter())[auction] += 1
    best = {start: min(of.items(), key=lambda one: (-one[1], one[0])) for start, of in counts.items()}
    return Counter((start, *found) for start, found in best.items())


def found(steps: list[StepRows]) -> Counter[tuple[int, int, int]]:
    rows = [row for step in steps if step.table is not None for row in step.table.to_pylist()]
    milli = timedelta(milliseconds=1)
    return Counter(((row["window_start"] - EPOCH) // milli, row["auction"], row["bids"]) for row in rows)


def files(folder: Path, splits: list[list[Bid]]) -> list[Path]:
    paths = [folder / f"bids-{index}.txt" for index in range(len(splits))]
    for path, bids in zip(paths, splits, strict=True):
        path.write_text("".join(f"{micros} {auction}\n" for micros, auction in bids))
    return paths


class Iterated:
    """Rows of a split from a position on."""

    def __init__(self, splits: list[list[Bid]]) -> None:
        self._splits = splits

    def __call__(self, split: str, position: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, bid in enumerate(self._splits[int(split)][position:], position + 1):
            yield number, bid_row(*bid)


def source_of(kind: str, splits: list[list[Bid]], folder: Path, url: str) -> SourceSpec:
    """All bids are there before the region starts."""
    if kind == "files":
        return FileSource(files(folder, splits))
    if kind == "iterators":
        return IteratorSource(Iterated(splits), COLUMNS, splits=[str(index) for index in range(len(splits))])
    if kind == "directory":
        paths = files(folder, splits)
        (folder / "END").touch()
        return FileSource(paths, watch=True, until=folder / "END", poll_s=0.05)
    with open_blocking(url) as client:
        for index, bids in enumerate(splits):
            with blocking.open_producer(client, folder.name, "bids", f"p{index}", COLUMNS) as writer:
                for begin in range(0, len(bids), 500):
                    writer.send([bid_row(*bid) for bid in bids[begin : begin + 500]])
                writer.wait_recorded()
        blocking.close_input(client, folder.name, "bids")
    return InputSource("bids", COLUMNS)


KINDS = ("files", "iterators", "directory", "producers")


def run_query(kind: str, count: int, folder: Path, url: str) -> tuple[int, str, bool]:
    """Late rows, the reason why the region ended, whether the output is that of all bids."""
    splits = bids_of(count)
    limits = WorkerLimits(step_bytes_max=count * 2, batch_bytes_max=count)
    graph = query(source_of(kind, splits, folder, url), kind in ("files", "directory"))
    with running(graph, url, folder, worker_limits=limits) as (control, _):
        assert finished(control), control.status.reason
        status = control.status
        late = sum(status.dropped.get("late", {}).values())
        return late, status.reason, found(steps_of(url, folder.name)) == expected(splits)


@pytest.mark.parametrize("kind", KINDS)
def test_no_bid_is_late_whatever_the_bids_are_read_from(kind: str, shared_store: str, tmp_path: Path) -> None:
    late, reason, whole = run_query(kind, 9_200, tmp_path, shared_store)
    assert (late, reason, whole) == (0, "all input is processed", True)
