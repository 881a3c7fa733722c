"""A driver as a service manager runs it: it continues the region; its exit code says how the region ended.

    python -m tests.dataflow.supervised_driver STORE DIRECTORY

Prints a line for each committed checkpoint of this driver. Exit codes: 0 finished; 3 another driver runs the
region, so it must not be started again; 1 anything else.
"""

import sys
import time
from functools import partial
from pathlib import Path

import pyarrow as pa

import dos
from checkpoint.core.region import CheckpointCommitted, RegionEvent
from dataflow.limits import WorkerLimits
from tests.dataflow.support import split_words

FENCED = 3
BATCH_S = 0.1


def slow_words(hurry: Path, batch: pa.RecordBatch) -> pa.Array:
    """Split lines to words, slowly until the file `hurry` exists."""
    if not hurry.exists():
        time.sleep(BATCH_S)
    return split_words(batch)


def print_checkpoint(event: RegionEvent) -> None:
    if isinstance(event, CheckpointCommitted):
        print(f"checkpoint {event.checkpoint}", flush=True)


def main() -> None:
    store, folder = sys.argv[1], Path(sys.argv[2])
    graph = dos.Graph("supervised")
    lines = graph.source("lines", dos.FileSource(sorted(folder.glob("in-*.txt"))))
    split = partial(slow_words, folder / "hurry")
    words = lines.flat_map("words", split, schema="word string", takes="batch")
    words.key_by("by_word", "word").count("counts").sink("out", dos.FileSink(folder / "out"))
    region = dos.run_local(
        graph,
        name="supervised",
        store=store,
        checkpoint_interval=0.1,
        on_event=print_checkpoint,
        logs=folder / "logs",
        worker_limits=WorkerLimits(step_bytes_max=8 * 1024, batch_bytes_max=4 * 1024),
        standby=0,  # each start of the driver would import everything once more
    )
    try:
        region.awaitTermination()
    except dos.RegionFencedError:
        sys.exit(FENCED)


if __name__ == "__main__":
    main()
