"""Event time through the runtime: punctuations on channels, and windows over crashes of workers."""

import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dataflow import Count, FileSink, FileSource, Graph, LogSink, Tumbling
from dataflow.sinks.base import SinkSpec
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.test_region_in_one_thread import rows_shown, write_files

SIZE = 10
EPOCH = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))


def parsed(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Lines "SECOND KEY"."""
    parts = pc.split_pattern(batch.column("line"), " ")
    seconds = pc.cast(pc.list_element(parts, 0), pa.int64())
    return {
        "at": pc.multiply(seconds, 1_000_000).cast(pa.timestamp("us", "UTC")),
        "key": pc.list_element(parts, 1),
    }


def per_window(paths: list[Path], lateness: int, sink: SinkSpec, late: SinkSpec) -> Graph:
    """A count by key and window; then, behind another exchange, a count of the rows of each window."""
    graph = Graph("windows")
    rows = graph.source("lines", FileSource([*paths])).map(
        "rows", parsed, schema="at timestamp, key string", takes="batch"
    )
    timed = rows.event_time("timed", "at", lateness=timedelta(seconds=lateness))
    counts = timed.key_by("by_key", "key").aggregate(
        "counts", Tumbling("at", timedelta(seconds=SIZE)), rows=Count()
    )
    counts.side_output("late", "late").sink("late_out", late)
    plain = counts.map("plain", as_plain_count, schema=PLAIN)
    keys = plain.key_by("by_window", "at").aggregate(
        "keys", Tumbling("at", timedelta(seconds=SIZE)), keys=Count()
    )
    as_plain = keys.map("as_plain", as_plain_keys, schema=PLAIN)
    plain.union("both", as_plain).sink("out", sink)
    return graph


PLAIN = "at timestamp, key string, n bigint"


def as_plain_count(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["window_start"], row["key"], row["rows"]


def as_plain_keys(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["at"], "", row["keys"]


def lines_of(rng: random.Random, files: int, rows: int, disorder: int) -> list[list[tuple[int, str]]]:
    return [
        [(second // 3 + rng.randrange(disorder + 1), f"k{rng.randrange(4)}") for second in range(rows)]
        for _ in range(files)
    ]


def expected(files: list[list[tuple[int, str]]]) -> Counter[tuple[int, str, int]]:
    counts = Counter((second // SIZE * SIZE, key) for rows in files for second, key in rows)
    keys = Counter(window for window, _ in counts)
    return Counter(
        [(window, key, count) for (window, key), count in counts.items()]
        + [(window, "", count) for window, count in keys.items()]
    )


def texts_of(files: list[list[tuple[int, str]]]) -> list[str]:
    return ["".join(f"{second} {key}\n" for second, key in rows) for rows in files]


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_windows_are_those_of_a_run_without_failures_with_any_resets(workers: int, tmp_path: Path) -> None:
    """Shown by step: a replay that closed a window in another step would stop it (OutputDiffersError)."""
    for seed in range(8):
        rng = random.Random(100 * workers + seed)
        files = lines_of(rng, 3, 60, disorder=2)
        late = FileSink(tmp_path / f"late{seed}")
        paths = write_files(tmp_path, texts_of(files))
        graph = per_window(paths, 2, LogSink(publish="step"), late)
        region = OneThreadRegion(graph, workers, rng.randrange)
        region.run_with_trouble(rng, rounds=8, turns=40)
        found = Counter(
            (int((row["at"] - EPOCH).total_seconds()), row["key"], row["n"])
            for side in region.sides
            for output in side.shown
            for row in rows_shown([output])
        )
        assert found == expected(files), f"seed {seed}"
        assert region.steps_replayed or seed, "a test in which something was replayed"
