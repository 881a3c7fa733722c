"""`./run python -m benchmarks.keyed_state`: declared state with many keys, in memory and on disk.

Each of the two runs in its own process. First all keys are inserted once, in random order; then random
keys are read and changed. Values are a number, a time and 100 bytes of text. The state and the calls are
measured, in steps of 10,000 rows, without checkpoints. Prints keys per second, also of CPU time, and the
memory of the process: its own (RssAnon), and pages of the file, which the kernel can reclaim (RssFile).
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataflow import CallSink, Graph, InputSource, KeyState
from dataflow.testing import Trial

STEP_ROWS = 10_000
TEXT = "".join(chr(97 + n % 26) for n in range(1_100))


def visit(row: dict[str, Any], state: KeyState) -> None:
    number = state.value["n"] + 1 if state.value else 1
    begin = row["key"] % 1_000
    state.value = {"n": number, "last": row["at"], "page": TEXT[begin : begin + 100]}


def trial_of(place: str) -> Trial:
    graph = Graph("visits")
    rows = graph.source("rows", InputSource("rows", "at timestamp, key bigint"))
    timed = rows.event_time("timed", "at", lateness=timedelta(0))
    timed.key_by("by_key", "key").map_state(
        "visits",
        visit,
        time="at",
        schema="key bigint",
        state="n bigint, last timestamp, page string",
        state_on=place,  # type: ignore[arg-type]
    ).sink("out", CallSink(print))
    return Trial(graph)


def steps(rng: np.random.Generator, keys: int, touches: int) -> Iterator[pa.RecordBatch]:
    """Yield all keys once, then random keys."""
    order = np.concatenate([rng.permutation(keys), rng.integers(0, keys, touches)])
    begin = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    for first in range(0, len(order), STEP_ROWS):
        some = order[first : first + STEP_ROWS]
        times = begin + np.arange(first, first + len(some))
        yield pa.record_batch({"at": pa.array(times).cast(pa.timestamp("us", "UTC")), "key": pa.array(some)})


def memory() -> dict[str, float]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    found = {words[0].rstrip(":"): words[1:2] for words in lines if words}
    return {name: int(found[name][0]) / 1024 for name in ("RssAnon", "RssFile")}


def measure(place: str, keys: int, touches: int) -> None:
    pa.set_cpu_count(1)
    trial, rng = trial_of(place), np.random.default_rng(7)
    before = memory()
    begin, begin_cpu, done = time.perf_counter(), time.process_time(), 0
    watermarks = [keys, keys + touches]
    for batch in steps(rng, keys, touches):
        trial.step({"rows": batch})
        done += batch.num_rows
        if done == watermarks[0]:
            wall, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
            count = keys if len(watermarks) == 2 else touches
            held = memory()
            words = "new" if len(watermarks) == 2 else "changed"
            own, file = (held[name] - before[name] for name in ("RssAnon", "RssFile"))
            print(
                f"{place:7} {count:>9,} keys {words:11} {count / wall:>9,.0f} keys/s"
                f" {cpu / count * 1e6:6.1f} us CPU/key  own memory {own:6.0f} MiB  file pages {file:6.0f} MiB"
                f"  disk {trial.counters()[0]['visits'].get('disk_bytes', 0) / (1 << 20):6.0f} MiB",
                flush=True,
            )
            watermarks.pop(0)
            begin, begin_cpu = time.perf_counter(), time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--touches", type=int, default=200_000)
    parser.add_argument("--place", action="append", choices=["memory", "disk"], help="default: both of them")
    given = parser.parse_args()
    for place in given.place or ["memory", "disk"]:
        child = multiprocessing.get_context("spawn").Process(
            target=measure, args=(place, given.keys, given.touches)
        )
        child.start()
        child.join()


if __name__ == "__main__":
    main()
