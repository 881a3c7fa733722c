"""Words are counted while two operators kill the worker that they run in; the result is as without them.

After the sample of IBM Streams' article on consistent regions, whose operators crash after a number of
tuples: one before the words are exchanged, one behind it.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import dos

FIRST_AFTER, SECOND_AFTER = 400, 8

LAST_OF_KEY = True
"""A count comes out each time that it changed: what counts is the last line of each word."""


def split(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    words = pc.list_flatten(pc.ascii_split_whitespace(batch["line"]))
    return {"word": words.filter(pc.not_equal(words, ""))}


def crash_after(rows: int, marker: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that passes batches on, and kills its process at that row, once for all runs."""
    seen = 0

    def passes(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal seen
        seen += batch.num_rows
        if seen >= rows and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    return passes


def make_graph(data: Path, out: Path, *, crashes: bool = True) -> dos.Graph:
    never = 1 << 62
    graph = dos.Graph("crashing_word_count")
    lines = graph.source("lines", dos.FileSource(data / "poems" / "*.txt")).annotate(
        dos.consistent(period=0.1)
    )
    words = lines.flat_map("words", split, schema="word string", takes="batch")
    words = words.map(
        "first_fault", crash_after(FIRST_AFTER if crashes else never, out / "first"), takes="batch"
    )
    counts = words.key_by("by_word", "word").count("counts")
    counts = counts.map(
        "second_fault", crash_after(SECOND_AFTER if crashes else never, out / "second"), takes="batch"
    )
    counts.sink("out", dos.FileSink(out / "counts"))
    return graph
