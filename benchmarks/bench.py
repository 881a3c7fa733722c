"""`./run bench`: measure everything, and write docs/benchmarks.md with a description of the machine.

    bench.py [server] [store] [replay] [journal] [wordcount] [memory] [checkpoint] [--pairs N] [--quick]
             [--long]
    bench.py dataflow --help
    bench.py spark --help

Without names, everything is measured and the file is written. With names, the figures are only printed.
`checkpoint` and `journal` are exceptions: each has a section of the file, which is written in any case.

Systems that are compared run alternately (A B A B), and medians are reported. Such figures vary by tens of
percent on a shared machine, so the ratio is more reliable than the figure.

`--quick` measures less of each, to test the harness. `--long` lets an object grow to 10 GB instead of 1.

Duration: `server`, one server compared with a plain copy and Redis, takes a few minutes. `journal`, which
measures records, replays, restores and archives of journaled files, takes about five. `dataflow` takes about
two hours and `spark` ten minutes; each of the two has its own options and its own section of the file.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from checkpoint_page import PLACE as CHECKPOINT  # noqa: E402
from checkpoint_page import section_of  # noqa: E402
from checkpoint_rows import measure_checkpoint  # noqa: E402
from dataflow_bench import main as measure_dataflow  # noqa: E402
from dataflow_page import PLACE as DATAFLOW  # noqa: E402
from journal_page import PLACE as JOURNAL  # noqa: E402
from journal_page import section_of as journal_section  # noqa: E402
from journal_rows import measure_journal, rounds_of  # noqa: E402
from rows import Effort, Row, run_json, say  # noqa: E402
from server_rows import measure_server  # noqa: E402
from spark_bench import main as measure_spark  # noqa: E402
from spark_page import PLACE as SPARK  # noqa: E402
from store_rows import measure_store  # noqa: E402

from examples.demo.corpus import make_corpus  # noqa: E402
from examples.demo.memory import peak_memory_mb  # noqa: E402

BASELINE_FILES = 64
"""Micro-batches of the baseline: half a megabyte each, so that several are complete in a minute."""


def measure_replay(effort: Effort) -> list[Row]:
    """Measure the replay of a journal of 4 KiB records, from disk to records in one process."""
    median = run_json("benchmarks/replay.py", "--json", "--pairs", str(effort.pairs))["median"]
    beside = f"from a server, as during a reset: {median['restore_mb_per_s']:.0f} MB/s"
    return [
        Row(
            "replay of a 200 MB journal of 4 KiB records, one process",
            f"{median['mb_per_s']:.0f} MB/s",
            beside,
            "100 MB/s",
        )
    ]


def measure_wordcount(effort: Effort) -> list[Row]:
    """Measure the demo without faults, and Spark's own Python state on the same words."""
    ours, theirs, reports = [], [], []
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as directory:
        make_corpus(Path(directory, "corpus"), BASELINE_FILES)
        for number in range(effort.pairs):
            report = run_demo(Path(directory, f"report-{number}.json"), effort.passes)
            reports.append(report)
            ours.append(report["words_per_s"])
            baseline = run_json(
                "benchmarks/spark_baseline.py", Path(directory, "corpus"), str(effort.baseline_s)
            )
            theirs.append(baseline["words_per_s"])
            say(f"word count: {ours[-1]:,} words/s, applyInPandasWithState {theirs[-1]:,} words/s")
    rate, other = statistics.median(ours), statistics.median(theirs)
    ratio = f", ratio {rate / other:,.0f}" if other else ""
    checkpoint_s = statistics.median(report["cut_s_median"] for report in reports)
    return [
        Row(
            "word count on Spark, 2 workers, 3 servers, a checkpoint every second",
            f"{rate / 1e6:.2f} million words/s",
            f"applyInPandasWithState, stopped at {effort.baseline_s:.0f} s: {other:,.0f} words/s{ratio}",
            "2 million words/s",
        ),
        Row(
            "a checkpoint of that word count, from request to commit",
            f"{checkpoint_s * 1000:.0f} ms",
            "",
            "",
        ),
        *peak_rows(reports),
    ]


def run_demo(report: Path, passes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "examples.demo", "--no-faults", "--plain", "--report", str(report)]
    done = subprocess.run(
        [*command, "--passes", str(passes)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the demo ended with {done.returncode}:\n{done.stdout}")
    result: dict[str, Any] = json.loads(report.read_text())
    return result


def peak_rows(reports: list[dict[str, Any]]) -> list[Row]:
    """Return the peak resident memory in the word count: the maximum of each kind of process."""
    rows = []
    for kind, aim in (("server", "under 150 MB"), ("worker", "")):
        peaks = [
            max(size for name, size in report["peak_memory_mb"].items() if name.startswith(kind))
            for report in reports
        ]
        rows.append(
            Row(
                f"peak memory of a {kind} during that word count",
                f"{statistics.median(peaks):.0f} MB",
                "",
                aim,
            )
        )
    return rows


def measure_memory(effort: Effort) -> list[Row]:
    """Measure a server's peak memory after it stored and returned a small and a large object."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as directory:
        for size_mb in (10, effort.large_object_mb):
            peak = server_peak_mb(Path(directory, f"{size_mb}"), size_mb)
            say(f"server memory with an object of {size_mb} MB: {peak:.0f} MB")
            rows.append(
                Row(
                    f"peak memory of a server, one object of {size_mb} MB written and read",
                    f"{peak:.0f} MB",
                    "",
                    "under 150 MB",
                )
            )
    return rows


def server_peak_mb(directory: Path, size_mb: int) -> float:
    directory.mkdir()
    content = directory / "content"
    with content.open("wb") as file:
        for _ in range(size_mb):
            file.write(os.urandom(1_000_000))
    dos = [sys.executable, "-m", "dos_cli"]
    command = [*dos, "serve", "--data", str(directory / "data"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            serving = re.search(r" at (\S+),", server.stdout.readline())
            assert serving is not None, "the server did not start"
            url = f"dos://{serving[1]}/bench/object"
            subprocess.run(
                [*dos, "append", url, str(content)], check=True, stdout=subprocess.DEVNULL, cwd=ROOT
            )
            subprocess.run([*dos, "get", url], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
            return peak_memory_mb(server.pid)
        finally:
            server.terminate()


MEASURES: dict[str, Callable[[Effort], list[Row]]] = {
    "server": measure_server,
    "store": measure_store,
    "replay": measure_replay,
    "journal": measure_journal,
    "wordcount": measure_wordcount,
    "memory": measure_memory,
    "checkpoint": measure_checkpoint,
}


def machine() -> str:
    """Describe the machine without naming the host."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    cores, processor = len(os.sched_getaffinity(0)), model[1] if model else platform.machine()
    return (
        f"{cores} cores ({processor}), {memory:.0f} GB of memory, Linux {platform.release()},"
        f" Python {platform.python_version()}"
    )


PAGE = """\
# Benchmarks

`./run bench` wrote this page on {date}. Figures are medians of {pairs} runs. Systems that are compared ran
alternately (A B A B). On a shared machine such figures vary by tens of percent, so the ratios are more
reliable than the figures. A *ratio* is the measured figure divided by the figure that it is compared with. It
is the median over the runs, so it may differ from the quotient of the two medians.
[What is measured](#what-is-measured) describes each row.

Machine: {machine}.
Everything ran on it: clients, servers and Spark.

| what | measured | compared with | aim |
|---|---|---|---|
{rows}

{section}

{journal}

{dataflow}

{spark}

## What is measured

- **One server**: the load generator, the server and the system it is compared with run on one machine, over
  loopback. Requests are built before the clock starts. Answers are counted, not verified, so that the figures
  measure the server.
  - *Stream*: one object, at most 16 MiB not yet synced. The clock stops when the last byte is acknowledged
    as synced. It is compared with a plain copy of as many bytes from a socket to a file, with `fdatasync`
    every 64 MB and at the end.
  - *Redis*: `appendonly yes`, `appendfsync always`, on the same disk. The same generator sends `APPEND` of
    the same bytes to a string, with the same number of requests in flight. All strings share one log, and
    one sync covers everything that arrived in one iteration of its event loop. In DOS, each object has a file
    and a sync of its own.
  - *One at a time*: compared with a process that writes 100 B, syncs and replies.
  - *GET*: eight requests of 1 MiB in flight; compared with `sendfile`, which verifies nothing.
- **Store of three**: three servers on one disk.
  - *Stream*: as above, acknowledged by two servers; compared with three plain copies at the same time that
    are complete when two have replied.
  - *Stopped*: a member receives SIGSTOP and does not answer any more.
  - *Restore*: `store.stream`, which verifies every byte against the digest that a quorum holds.
  - *Without hedging*: a second member is asked only after the first one has not answered for 5 s.
  - *Follower*: from an append until a follower in the same process has received and verified it.
  - *Take-over*: from a writer's SIGKILL to the first acknowledged record of the next writer. The next writer
    knows at once that the first one died, and the state is not replayed.
- **Replay**: a journal on disk; every record's checksum is verified and its fields are read, in one process.
- **Journaled files** (`./run bench journal`; without figures if its section has no date):
  - *Encoding*: from records to bytes in memory.
  - *Replay* also writes the files (`dos journal replay FILE --into DIR`) and verifies every checksum.
  - *Restore*: a directory of 32 MB was overwritten, in writes of 4,000 B, until its journal had the stated
    size. A separate process restores it over loopback. With snapshots it reads what `recovery_bytes_max`
    allows. Peak memory is that of the whole process.
  - *Archive*: to moto over HTTP. moto is a Python program on the same cores, so the figure says little about
    S3, and the ratio is more reliable. boto3 alone stores and reads as many bytes in objects of the same
    64 MiB, and verifies nothing. DOS verifies and decodes what it reads, and writes the files.
- **Word count**: `./run demo --no-faults --passes {passes}`: every word of Python's standard library
  {passes} times, from the moment that all workers run to the region's end. The output is verified after that.
  It is compared with the same words through Spark's `groupBy().applyInPandasWithState()` with RocksDB on two
  slots, one file per micro-batch, stopped at {baseline_s:.0f} s: the words of the micro-batches that were
  committed by then, divided by the time to the last commit.
- **Checkpoint**: regions of two worker processes over three servers, with a checkpoint every second. Two
  producers write keys into the store, and a reader follows the output log by step. Input and output of DOS
  are on two of three disks, synced. Input of the others is a socket, their output has no sink, and their
  state is one copy on the local disk, not synced. A compared system that returns no figures within five
  minutes is not measured.
  - *Checkpoint*: from its request to its commit, while no input is sent. For PyFlink, as its REST interface
    reports it (end to end, RocksDB, incremental).
  - *Recovery*: from the SIGKILL of one of two processes with state until output is visible that contains
    input sent after the kill; for PyFlink, until such output after it went back to a checkpoint. Meanwhile
    5,000 rows/s arrive. The killed process is a worker, while a standby process is ready; Spark's executor in
    `local-cluster[2,1,1024]`; or one of two TaskManagers, which is started again at once.
  - *Phases* of a recovery, one after the other: `notice` the loss; take over the `manifest`; `gather` the
    workers; in the slowest worker `claim` its directory, `open` its chains, `load` the state; `start` all;
    wait for the `first output`.
  - *Latency*: from before a batch is sent until the reader has the output of its step, or until the
    checkpoint is committed. For Spark, until `foreachBatch` has the result, after forty small batches as a
    warm-up.
- **Dataflow library** (`./run bench dataflow`, with no other benchmark running; without figures if its
  section has no date): every system reads the same text files of lines `key,number` with uniformly drawn
  keys. Each has two workers or slots, takes a checkpoint every second (Spark: one per micro-batch), and
  discards its results. The rate excludes the warm-up (5 s, or a fifth of the input). A measurement ends with
  the input, or 60 s after its first rows. DOS uses three servers, and a checkpoint counts after it is synced
  on two of them. Spark and PyFlink use RocksDB with one copy on the local disk; Bytewax uses SQLite, also
  with one copy. PyFlink has no vectorized function with state on a stream without windows, so a vectorized
  scalar function before its SQL is measured.
- **The store on Spark** (`./run bench spark`, with no other benchmark running; without figures if its section
  has no date): a session on `local[2]`. Input, state and output of DOS are on two of three disks.
  - *Micro-batch*: a step of 100 rows from each of two workers; compared with a source with as many tasks that
    yields nothing. The time excludes `walCommit` and `commitOffsets`, which Spark writes in the same way for
    every source.
  - *Batch*: from `load` to the last row, columns `key string, number long`, in steps of 50,000 rows, which is
    also the size of a prebuilt batch. Both JSON readers are given the schema.
  - *Journal*: all columns of all records, a segment of 64 MiB per task, every digest verified.
  - *Sink*: rows that Spark generates on both slots, from `save` to the commit. DOS has them on two of three
    disks, synced. A Parquet file is renamed at its commit and not synced.
  - *Through*: a region of one worker, on the two slots. First a backlog of Parquet files, counted by key,
    from the first output to the last; then rows that are passed on as they arrive.
- **Memory**: the high-water mark of resident memory. With idle connections, which have sent HELLO and
  entered their directory: the current resident memory. While an object grows: the increase per GB in its
  second half.
"""


def write_checkpoint(rows: list[Row], _effort: Effort) -> None:
    """Write the section on checkpoints only."""
    CHECKPOINT.write(section_of(rows, date=time.strftime("%Y-%m-%d"), load=os.getloadavg()[1]))


def write_journal(rows: list[Row], effort: Effort) -> None:
    """Write the section on journaled files only."""
    JOURNAL.write(journal_section(rows, rounds_of(effort)))


SECTIONS: dict[str, Callable[[list[Row], Effort], None]] = {
    "checkpoint": write_checkpoint,
    "journal": write_journal,
}
"""Measure -> the function that writes its section. Measures that are not here are rows of the first table."""


def write_page(rows: list[Row], effort: Effort) -> None:
    lines = "\n".join(f"| {row.what} | {row.figure} | {row.beside} | {row.aim} |" for row in rows)
    place = ROOT / "docs" / "benchmarks.md"
    page = PAGE.format(
        section=CHECKPOINT.found_in(place.read_text()),
        journal=JOURNAL.found_in(place.read_text()),
        dataflow=DATAFLOW.found_in(place.read_text()),
        spark=SPARK.found_in(place.read_text()),
        date=time.strftime("%Y-%m-%d"),
        pairs=effort.pairs,
        machine=machine(),
        rows=lines,
        passes=effort.passes,
        baseline_s=effort.baseline_s,
    )
    place.write_text(page)


def main() -> int:
    if sys.argv[1:2] == ["dataflow"]:
        return measure_dataflow(sys.argv[2:])
    if sys.argv[1:2] == ["spark"]:
        return measure_spark(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="measure less; nothing is written")
    parser.add_argument("--long", action="store_true", help="let an object grow to 10 GB instead of 1")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"unknown measure {', '.join(sorted(unknown))}; choose from {', '.join(MEASURES)}")
    effort = Effort(
        options.pairs,
        stream_mb=512,
        server_scale=1.0,
        growth_gb=10.0 if options.long else 1.0,
        passes=12,
        baseline_s=60.0,
        large_object_mb=1000,
        chain_mb=200,
        checkpoint_scale=1.0,
        recoveries=3,
        latency_s=10.0,
    )
    if options.quick:
        effort = Effort(
            1,
            stream_mb=128,
            server_scale=0.25,
            growth_gb=0.2,
            passes=4,
            baseline_s=20.0,
            large_object_mb=100,
            chain_mb=50,
            checkpoint_scale=0.05,
            recoveries=2,
            latency_s=5.0,
        )
    rows: list[Row] = []
    measured: list[Row] = []
    for name in options.names or MEASURES:
        say(f"measuring {name}")
        found = MEASURES[name](effort)
        if name not in SECTIONS:
            rows += found
        elif not options.quick:
            SECTIONS[name](found, effort)
            say(f"wrote the section of {name} in docs/benchmarks.md")
        measured += found
    for row in measured:
        print(f"{row.what}: {row.figure}" + (f" ({row.beside})" if row.beside else ""), flush=True)
    if not options.names and not options.quick:
        write_page(rows, effort)
        say("wrote docs/benchmarks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
