"""Measure three jobs of Spark as they are, and with the changed line: `dos.frame(...)`.

sessions   clicks of users, a StatefulProcessor with a timer (`transformWithStateInPandas`)
fraud      a score of each payment, arrays in rows (`applyInPandasWithState`)
totals     windows of JSON lines, joined with a table (`groupBy(window(...))`)

Both variants of a job read the same files, one for each micro-batch, and write Parquet. In the middle of a
micro-batch the program is killed, with all its processes except the servers of the store, and started again.
The outputs of the two must have the same rows in each round.

rows/s and processor time are measured from the commit of the first micro-batch to the last one before the
kill. Processor time and memory are those of all processes: JVM, Python workers, workers of the region, and
servers of the store. A recovery is the time from the start of the killed program to its first commit.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from dataflow_bench import listed
from dataflow_meter import cpu_seconds, memory_mb, tree
from rows import ROOT, Row, Section, printed_at_the_end, say
from spark_stored import running_store
from yardsticks import raise_at_sigterm

PLACE: Final = Section(
    "port",
    "Jobs that are ported",
    """\
Three jobs of Spark as they are, and with the changed line `dos.frame(...)`. Both read the same files, one for
each micro-batch, and wrote the same rows in each round. Spark's state is in RocksDB, its checkpoint on the
local disk; the state of the region is in a store of three servers, synced on two. Measured on {date},
{rounds}. The load average at the end was {load:.1f}, including the benchmark itself. A ratio is the median of
those of the rounds.""",
    ("what", "with the changed line", "Spark's own", "aim"),
)
EXAMPLES: Final = """\
examples:
  ./run bench port                                      everything, and the section of the page
  ./run bench port --only totals --rounds 1             one job, once; the figures are only printed
  ./run bench port --keys 100 --rows 600 --rounds 1     a quick look
"""
BATCHES: Final = 6
"""Files with rows. The first is the warm-up."""
KILLED: Final = BATCHES - 2
"""The micro-batch in which the program is killed."""
CLOSING: Final = 2
"""Files with one row each, whose time ends what is open: a watermark moves at the end of a micro-batch."""
CLOSES: Final = "closing"
"""The key of these rows, which are not compared: their own session or window stays open."""
BEGIN_MS: Final = 1_767_225_600_000
SPAN_MS: Final = 3_600_000
"""The time that the rows of a file span."""
LATE_MS: Final = 5_000
"""Rows are out of order by less than this, which is less than the delay of the watermarks."""
FEATURES: Final = 8
PRODUCTS: Final = 1_000
PROGRAM: Final = "benchmarks/port_program.py"
STEP_S_MAX: Final = 1_800.0
"""A micro-batch, or the end of the program, that takes longer is taken for failed."""
POLL_S: Final = 0.05
WEIGH_S: Final = 1.0
VARIANTS: Final = ("spark", "dos")
Record = dict[str, Any]


class Job(NamedTuple):
    """A job. `api`: Spark's own; `key`: the column with the key; `rows_in`: how many rows of the input are in
    an output; `aim`: of the ratio of rows/s; `times`: how many times the rows of other jobs it has.
    """

    api: str
    make: Callable[[np.random.Generator, int, int, int], pa.Table]
    key: str
    rows_in: Callable[[pa.Table], int]
    aim: str = ""
    times: int = 1


# --- the input ----------------------------------------------------------------------------------------------


def times(rng: np.random.Generator, number: int, rows: int) -> np.ndarray[Any, Any]:
    """Return different times of a file in milliseconds, out of order by less than LATE_MS."""
    own = np.sort(rng.choice(SPAN_MS - LATE_MS, rows, replace=False))
    order = np.argsort(own + rng.integers(0, LATE_MS, rows), kind="stable")
    found: np.ndarray[Any, Any] = BEGIN_MS + number * SPAN_MS + own[order]
    return found


def timestamps(ms: Any) -> pa.Array:
    return pa.array(np.asarray(ms) * 1_000).cast(pa.timestamp("us", "UTC"))


def names(prefix: str, numbers: Any) -> pa.Array:
    return pa.array([f"{prefix}{one:07}" for one in numbers])


def clicks(rng: np.random.Generator, number: int, rows: int, keys: int) -> pa.Table:
    ms = times(rng, number, rows)
    return pa.table({"user": names("u", rng.integers(0, keys, rows)), "at": timestamps(ms), "ms": ms})


def payments(rng: np.random.Generator, number: int, rows: int, keys: int) -> pa.Table:
    features = pa.FixedSizeListArray.from_arrays(rng.random(rows * FEATURES), FEATURES)
    return pa.table(
        {
            "card": names("c", rng.integers(0, keys, rows)),
            "ms": times(rng, number, rows),
            "amount": rng.integers(1, 100_000, rows) / 100,
            "features": features.cast(pa.list_(pa.float64())),
        }
    )


def sales(rng: np.random.Generator, number: int, rows: int, keys: int) -> pa.Table:
    # Several rows may have one time: here no order matters.
    ms = BEGIN_MS + number * SPAN_MS + np.sort(rng.integers(0, SPAN_MS - LATE_MS, rows))
    order = np.argsort(ms + rng.integers(0, LATE_MS, rows), kind="stable")
    return pa.table(
        {
            "shop": names("s", rng.integers(0, keys, rows)),
            "product": pa.array(rng.integers(0, PRODUCTS, rows), pa.int32()),
            "at": timestamps(ms[order]),
            "cents": rng.integers(1, 100_000, rows),
        }
    )


def products() -> pa.Table:
    """Return the table that is joined."""
    numbers = np.arange(PRODUCTS)
    columns = {"category": names("category", numbers % 50), "weight": pa.array(numbers % 7 + 1)}
    return pa.table({"product": pa.array(numbers, pa.int32()), **columns})


def write_input(folder: Path, job: str, rows: int, keys: int) -> None:
    """Write the files of a job. Their order in time is that of their names and of their modification."""
    one, rng = JOBS[job], np.random.default_rng(7)
    (folder / "input").mkdir(parents=True)
    tables = [one.make(rng, number, rows // BATCHES, keys) for number in range(BATCHES)]
    for number in range(BATCHES, BATCHES + CLOSING):
        closing = one.make(rng, number * 10, 1, 1)
        at = closing.schema.get_field_index(one.key)
        tables.append(closing.set_column(at, one.key, pa.array([CLOSES])))
    for number, table in enumerate(tables):
        path = folder / "input" / f"part-{number:05}"
        if job == "totals":
            frame = table.to_pandas()
            frame["at"] = frame["at"].dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            frame.to_json(path, orient="records", lines=True)
        else:
            pq.write_table(table, path)
        os.utime(path, (number, number))
    if job == "totals":
        (folder / "products").mkdir()
        pq.write_table(products(), folder / "products" / "part-00000.parquet")


JOBS: Final = {
    "sessions": Job(
        "transformWithStateInPandas", clicks, "user", lambda out: total(out, "clicks"), "ratio 10"
    ),
    "fraud": Job("applyInPandasWithState", payments, "card", lambda out: out.num_rows),
    "totals": Job("groupBy(window)", sales, "shop", lambda out: total(out, "sales"), times=10),
}


def total(table: pa.Table, column: str) -> int:
    return int(pc.sum(table.column(column)).as_py() or 0)


# --- a run --------------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """A time, and the processor seconds up to then."""

    at: float
    cpu_s: float


class Program:
    """A variant of a job, which is started, watched, killed and started again."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._weighed = 0.0
        self.peak_mb = 0.0

    def start(self) -> float:
        """Start it, and return when."""
        (self._folder / "session").unlink(missing_ok=True)
        begun = time.perf_counter()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)
        return begun

    def wait_for(self, path: Path) -> Moment:
        """Wait until it has written this file. Raises RuntimeError if it ends before, or takes too long."""
        self._wait(path.exists)
        return Moment(time.perf_counter(), cpu_seconds(processes()))

    def wait(self) -> None:
        """Wait for its end. Raises RuntimeError unless it succeeds."""
        self._wait(lambda: self._running().poll() is not None)

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        if self._process is not None and self._process.poll() is None:
            for pid in tree(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()

    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "it was started"
        return self._process

    def _wait(self, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + STEP_S_MAX
        while not is_over():
            if time.monotonic() > self._weighed + WEIGH_S:
                self._weighed = time.monotonic()
                self.peak_mb = max(self.peak_mb, memory_mb(processes()))
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing has happened for {STEP_S_MAX:.0f} s: {self._end_of_log()}")
            if self._running().poll() is not None and not is_over():
                break
            time.sleep(POLL_S)  # a poll: other programs write the files
        if self._running().poll() or not is_over():
            raise RuntimeError(f"the program ended with {self._running().returncode}: {self._end_of_log()}")

    def _end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:]


def processes() -> list[int]:
    """Return the processes of a run: those of the program and the servers, not this one."""
    return tree(os.getpid())[1:]


def run(job: str, variant: str, folder: Path, rows: int, workers: int) -> tuple[Record, pa.Table]:
    """Run a variant with a kill. Returns the figures and the output. Raises RuntimeError if it fails."""
    command = [sys.executable, PROGRAM, job, variant, str(folder), "--workers", str(workers)]
    commits = folder / "checkpoint" / "commits"
    with contextlib.ExitStack() as stack:
        if variant == "dos":
            (folder / "store").mkdir()
            command += ["--store", stack.enter_context(running_store(folder / "store"))]
        program = Program(command, folder)
        stack.callback(program.kill)
        program.start()
        begun = program.wait_for(commits / "0")
        ended = program.wait_for(commits / str(KILLED - 1))
        program.wait_for(folder / "checkpoint" / "offsets" / str(KILLED))
        program.kill()
        # A fast program may have gone on until the kill.
        next_batch = next(n for n in itertools.count(KILLED) if not (commits / str(n)).exists())
        if next_batch >= BATCHES:
            raise RuntimeError(f"{job}: micro-batches are too short for a kill in one: use more --rows")
        restarted = program.start()
        session = program.wait_for(folder / "session")
        recovered = program.wait_for(commits / str(next_batch))
        program.wait()
    measured = rows // BATCHES * (KILLED - 1)
    figures = {
        "rows_per_s": round(measured / (ended.at - begun.at), 1),
        "cpu_s_per_million": round((ended.cpu_s - begun.cpu_s) / measured * 1e6, 1),
        "peak_mb": round(program.peak_mb),
        "recovery_s": round(recovered.at - restarted, 2),
        "session_s": round(session.at - restarted, 2),
    }
    return figures, output_of(folder, JOBS[job].key)


def output_of(folder: Path, key: str) -> pa.Table:
    """Return the rows that Spark has committed to its output, sorted."""
    paths: set[str] = set()
    for entry in (folder / "output" / "_spark_metadata").glob("[0-9]*"):
        paths |= {json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]}
    table = pa.concat_tables(pq.read_table(path.removeprefix("file://")) for path in sorted(paths))
    table = table.filter(pc.not_equal(table.column(key), CLOSES))
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


# --- rounds -------------------------------------------------------------------------------------------------


def rounds_of(job: str, options: argparse.Namespace, folder: Path) -> Iterator[Record]:
    """Measure both variants of a job in each round. Raises RuntimeError if an output is wrong."""
    rows = options.rows // BATCHES * BATCHES * JOBS[job].times
    write_input(folder / "made", job, rows, options.keys)
    for number in range(options.rounds):
        figures: dict[str, Record] = {}
        outputs: dict[str, pa.Table] = {}
        for variant in VARIANTS if number % 2 == 0 else VARIANTS[::-1]:
            say(f"{job}, round {number + 1} of {options.rounds}, {variant} ...")
            own = folder / variant
            own.mkdir()
            for path in (folder / "made").iterdir():
                (own / path.name).symlink_to(path)
            figures[variant], outputs[variant] = run(job, variant, own, rows, options.workers)
            say(f"    {json.dumps(figures[variant])}")
            shutil.rmtree(own)
        check(job, rows, outputs)
        yield {"job": job, "rows": rows, "keys": options.keys, "round": number, **figures}


def check(job: str, rows: int, outputs: Mapping[str, pa.Table]) -> None:
    """Raise RuntimeError unless both outputs have all rows of the input, and the same rows."""
    for variant, output in outputs.items():
        if (found := JOBS[job].rows_in(output)) != rows:
            raise RuntimeError(f"{job}: the output of {variant} has {found:,} of {rows:,} rows of the input")
    ours, theirs = outputs["dos"], outputs["spark"]
    if not ours.equals(theirs):
        raise RuntimeError(
            f"{job}: the outputs differ: {ours.num_rows:,} rows of dos, {theirs.num_rows:,} of Spark"
        )


FIGURES: Final = {
    "rows_per_s": ("{job} (`{api}`), {rows:,} rows, {keys:,} keys", "{rows_per_s:,.0f} rows/s"),
    "cpu_s_per_million": ("{job}: processor time of a million rows", "{cpu_s_per_million:,.0f} s"),
    "peak_mb": ("{job}: peak memory", "{peak_mb:,.0f} MB"),
    "recovery_s": (
        "{job}: recovery after the kill of the driver",
        "{recovery_s:.1f} s, of which {session_s:.1f} s until there is a session",
    ),
}
"""Each row of a job: its name, and its figures."""


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Return the rows of the table: the medians of the rounds."""
    found: list[Row] = []
    for name in dict.fromkeys(record["job"] for record in records):
        job, rounds = JOBS[name], [record for record in records if record["job"] == name]
        ours, theirs = (medians([record[variant] for record in rounds]) for variant in ("dos", "spark"))
        aims = {"rows_per_s": job.aim, "recovery_s": "ratio 0.33"}
        for figure, (what, text) in FIGURES.items():
            title = what.format(**{**rounds[0], "api": job.api})
            ratio = statistics.median(record["dos"][figure] / record["spark"][figure] for record in rounds)
            beside = f"{text.format(**theirs)}, ratio {ratio:.2f}"
            found.append(Row(title, text.format(**ours), beside, aims.get(figure, "")))
    return found


def medians(figures: Sequence[Record]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in figures) for name in figures[0]}


# --- the command --------------------------------------------------------------------------------------------

SIZES: Final = {"rounds": 3, "keys": 100_000, "rows": 120_000, "workers": 1}


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="./run bench port",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=listed(list(JOBS)), default=list(JOBS), metavar=",".join(JOBS))
    helps = {
        "rounds": "rounds of each job; both variants in each, in changing order",
        "keys": "users, cards or shops, of which each row has a random one",
        "rows": "rows of a job; totals, which calls no function, has ten times as many",
        "workers": "workers of a region",
    }
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{helps[name]} ({value:,})")
    parser.add_argument("--page", action="store_true", help="write the section of the page for any sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write each round there")
    options = parser.parse_args(arguments)
    for name, least in {"rounds": 1, "keys": 1, "rows": BATCHES, "workers": 1}.items():
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, not {getattr(options, name)}")
    return options


def is_for_the_page(options: argparse.Namespace) -> bool:
    """Whether the section is written."""
    whole = set(options.only) == set(JOBS)
    return options.page or (whole and all(getattr(options, name) >= size for name, size in SIZES.items()))


def summary_lines(records: Sequence[Record]) -> list[str]:
    """Return the figures as lines."""
    return [f"{row.what}: {row.figure} (Spark: {row.beside})" for row in rows_of(records)]


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    raise_at_sigterm()
    found: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as name:
        try:
            with printed_at_the_end(lambda: summary_lines(found)):
                for job in options.only:
                    for record in rounds_of(job, options, Path(name) / job):
                        found.append(record)
                        if options.json is not None:
                            options.json.write_text(json.dumps(found, indent=1) + "\n")
        except KeyboardInterrupt:
            return 130
    if is_for_the_page(options):
        PLACE.write(PLACE.table(rows_of(found), options.rounds))
        say("wrote the section of docs/benchmarks.md on ported jobs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
