"""`./run python -m benchmarks.keyed_state`: declared state with many keys, in memory and on disk.

Each of the two runs in its own process. First all keys are inserted once, in random order; then random
keys are read and changed. Values are a number, a time and 100 bytes of text. The state and the calls are
measured, in steps of 10,000 rows, without checkpoints. Prints keys per second, also of CPU time, and the
memory of the process: its own (RssAnon), and pages of the file, which the kernel can reclaim (RssFile).

`--functions`: instead, milliseconds of CPU time per row of functions written for Spark, with a call for each
row or for the rows of a key and step, at 1, 10 and 100 rows of each key in a step. Medians of 5 alternating
rounds. The functions sum a column; those with DataFrames return one.

`--joins`: instead, milliseconds of CPU time of a step of a join, of 1,000 new rows on each side, beside the
rows that each side keeps; as many leave. Means of 100 steps. Beside it, a join by Arrow of the same rows with
all kept ones, as the operator did before its rows were indexed.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from checkpoint.key_hash import HASH_COLUMN, hash_keys
from dataflow import CallSink, Graph, InputSource, KeyState
from dataflow.operators.join import JoinOperator, JoinSpec
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


def summed(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    n, total = state.get if state.exists else (0, 0.0)
    for frame in frames:
        n, total = n + len(frame), total + float(frame["v"].sum())
    state.update((n, total))
    yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


class Summed:
    """The same as a processor of rows."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("sum", "n bigint, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], values: Any) -> Iterator[Any]:  # noqa: N802
        del values
        n, total = self.state.get() or (0, 0.0)
        for row in rows:
            n, total = n + 1, total + row.v
        self.state.update((n, total))
        yield key[0], n, total


def functions_trial(function: Any, calls: Any) -> Trial:
    graph = Graph("sums")
    rows = graph.source("rows", InputSource("rows", "k bigint, t timestamp, v double"))
    keyed = rows.event_time("timed", "t", lateness=timedelta(0)).key_by("by_key", "k")
    made = "k bigint, n bigint, total double"
    if function is summed:
        summed_up = keyed.apply_in_pandas_with_state(
            "sums", summed, made, "n bigint, total double", "append", time="t", calls=calls
        )
    else:
        summed_up = keyed.transform_with_state(
            "sums", Summed(), made, "append", "none", time="t", calls=calls
        )
    summed_up.sink("out", CallSink(print))
    return Trial(graph)


def milliseconds(function: Any, calls: Any, rows_per_key: int, rows: int) -> float:
    """Return the CPU time of a row in the second of two steps: the first has made the keys."""
    trial, keys = functions_trial(function, calls), rows // rows_per_key
    for step in range(2):
        times = (1 + step) * 10_000_000 + np.arange(rows)
        batch = {
            "k": pa.array(np.arange(rows) % keys),
            "t": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "v": pa.array(np.arange(rows) / 7),
        }
        begin = time.process_time()
        trial.step({"rows": pa.record_batch(batch)}, end=step == 1)
    return 1_000 * (time.process_time() - begin) / rows


def measure_functions(rows: int) -> None:
    pa.set_cpu_count(1)
    cases = [
        (function, calls, per_key)
        for function in (summed, Summed)
        for per_key in (1, 10, 100)
        for calls in ("row", "group")
    ]
    found = [[milliseconds(*case, rows) for case in cases] for _ in range(5)]
    for (function, calls, per_key), spent in zip(cases, zip(*found, strict=True), strict=True):
        name = "DataFrames" if function is summed else "rows"
        print(f"{name:10} {per_key:3} rows per key and step, calls={calls:5} {sorted(spent)[2]:8.4f} ms/row")


JOINED = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("v", pa.float64())])


def rows_from(rng: np.random.Generator, first: int, count: int, keys: int) -> pa.RecordBatch:
    """Return rows of random keys, one each microsecond."""
    columns = [rng.integers(0, keys, count), np.arange(first, first + count), rng.random(count)]
    batch = pa.record_batch(list(map(pa.array, columns)), names=JOINED.names).cast(JOINED)
    return batch.append_column(HASH_COLUMN, pa.array(hash_keys([batch.column("k")])))


def measure_joins(kept: int, *, fresh: int = 1_000, steps: int = 100) -> None:
    """Measure with as many keys as kept rows, so that a new row has about one partner."""
    pa.set_cpu_count(1)
    rng = np.random.default_rng(7)
    spec = JoinSpec((("k",), ("k",)), ("t", "t"), timedelta(microseconds=kept))
    join = JoinOperator(spec, [JOINED, JOINED], spec.output_schema([JOINED, JOINED]))
    ours, beside, pairs, size = [], [], 0, kept // 10
    for first in [*range(0, kept, size), *range(kept, kept + fresh * steps, fresh)]:
        sides = [rows_from(rng, first, fresh if first >= kept else size, kept) for _ in range(2)]
        begin = time.process_time()
        for index, side in enumerate(sides):
            join.process_of(index, side)
        made = sum(batch.num_rows for batch in join.end_step())
        for index in range(2):
            join.on_punctuation(first - 1, index)
        if first >= kept:
            ours.append(time.process_time() - begin)
            pairs += made
    held = pa.Table.from_batches([rows_from(rng, 0, kept, kept)]).rename_columns(["k", "t", "v", "h"])
    for _ in range(5):
        begin = time.process_time()
        for _ in range(2):
            pa.Table.from_batches([sides[0]]).join(held, "k", join_type="inner", use_threads=False)
        beside.append(time.process_time() - begin)
    per_row = join.counters()["state_bytes"] / join.counters()["rows"]
    print(
        f"{kept:>9,} rows kept on each side, {pairs / steps:5.0f} pairs:"
        f" {1e3 * sum(ours) / steps:6.1f} ms a step, at most {1e3 * max(ours):6.1f}; Arrow, of all rows"
        f" {1e3 * sorted(beside)[2]:6.1f} ms; {per_row:.0f} bytes a row",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--touches", type=int, default=200_000)
    parser.add_argument("--place", action="append", choices=["memory", "disk"], help="default: both of them")
    parser.add_argument("--functions", action="store_true", help="measure functions written for Spark")
    parser.add_argument("--joins", action="store_true", help="measure a step beside kept rows")
    given = parser.parse_args()
    if given.joins:
        for kept in (10_000, 100_000, 1_000_000):
            measure_joins(kept)
        return
    if given.functions:
        measure_functions(2_000)
        return
    for place in given.place or ["memory", "disk"]:
        child = multiprocessing.get_context("spawn").Process(
            target=measure, args=(place, given.keys, given.touches)
        )
        child.start()
        child.join()


if __name__ == "__main__":
    main()
