"""The graph of the soak's region, and limits so short that everything is rolled and trimmed within minutes.

Workers import this module with the graph's function, so the limits hold in their processes, too. There it
also installs a handler of SIGUSR1, which writes what the process holds in memory to a file.
"""

import json
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pyarrow as pa

from checkpoint import limits
from checkpoint.core.coordination import rounds
from checkpoint.requests.queue import write_records
from dataflow import Graph, InputSource, LogSink
from tests.support.census import census_of_process

SCHEMA: Final = "word string, number bigint"
HANDLE, PRODUCER, SINK = "numbers", "p", "counts"
LOG_BYTES: Final = 100_000
"""Limit of the output log of each worker."""
_SHORT: Final[tuple[tuple[Any, str, int | float], ...]] = (
    (limits, "input_segment_bytes_max", 40_000),
    (limits, "output_segment_bytes_max", 20_000),
    (limits, "manifest_segment_bytes_max", 40_000),
    (limits, "manifest_replay_bytes_max", 40_000),
    (limits, "request_ids_kept_max", 4),
    (limits, "trim_poll_s", 2.0),
    (rounds, "RESETS_KEPT_MAX", 2),
)
SNAPSHOT_BYTES: Final = 30_000


def shorten() -> None:
    """Set the short limits in this process, for ever."""
    for module, name, value in _SHORT:
        setattr(module, name, value)
    write_records.__kwdefaults__["roll_bytes"] = 2_000


CENSUS_FOLDER: Final = "DOS_SOAK_CENSUS"
"""The environment variable that names the directory of the files. Set for workers only."""


def _write_census(number: int, frame: FrameType | None) -> None:
    del number, frame
    path = Path(os.environ[CENSUS_FOLDER]) / f"{os.getpid()}.json"
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(census_of_process()), encoding="utf-8")
    unfinished.replace(path)


shorten()
if CENSUS_FOLDER in os.environ:
    signal.signal(signal.SIGUSR1, _write_census)


def is_wanted(batch: pa.RecordBatch) -> pa.Array:
    """Keep all rows."""
    return pa.array([True] * batch.num_rows)


def graph_of(name: str) -> Graph:
    """Return the graph: rows of a producer, counted by word into a log."""
    graph = Graph(name)
    rows = graph.source("rows", InputSource(HANDLE, SCHEMA)).filter("wanted", is_wanted, takes="batch")
    rows.key_by("by_word", "word").count("count").sink(SINK, LogSink(max_bytes=LOG_BYTES))
    return graph
