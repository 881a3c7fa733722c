"""`./run bench`: measures everything in one go and writes docs/benchmarks.md with the machine it came from.

    bench.py [server] [store] [replay] [journal] [wordcount] [memory] [checkpoint] [--pairs N] [--quick]
             [--long]
    bench.py dataflow --help
    bench.py spark --help

Without names all are measured and the file is written; with names the figures are only printed, but those of
`checkpoint` and `journal` have each a section of the file for itself, which is written in any case. What is
compared is measured in turn (A B A B) and given as medians, because such figures drift by tens of per cent on
a shared machine; so the ratio counts, not the figure. `--quick` measures less of each, to try the harness;
`--long` lets an object grow to 10 GB instead of 1. `server` takes a few minutes: one server beside the bare
copy and Redis. `journal` takes about five: records, replays, restores and archives of journals of files.
`dataflow` takes about two hours on its own and `spark` ten minutes; each has options of its own, and a
section of the file too.
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
"""Micro-batches of the baseline: half a megabyte each, so that several are through in a minute."""


def measure_replay(effort: Effort) -> list[Row]:
    """A journal of 4 KiB records, from disk to records in one process."""
    median = run_json("benchmarks/replay.py", "--json", "--pairs", str(effort.pairs))["median"]
    beside = f"through a server, as at a reset: {median['restore_mb_per_s']:.0f} MB/s"
    return [
        Row(
            "replay of a 200 MB journal of 4 KiB records, one process",
            f"{median['mb_per_s']:.0f} MB/s",
            beside,
            "100 MB/s",
        )
    ]


def measure_wordcount(effort: Effort) -> list[Row]:
    """The demo without faults, and Spark's own Python state on the same words."""
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
    cut_s = statistics.median(report["cut_s_median"] for report in reports)
    return [
        Row(
            "word count on Spark, 2 workers, 3 servers, a cut each second",
            f"{rate / 1e6:.2f} million words/s",
            f"applyInPandasWithState, stopped at {effort.baseline_s:.0f} s: {other:,.0f} words/s{ratio}",
            "2 million words/s",
        ),
        Row("a cut of that word count, from the request to the commit", f"{cut_s * 1000:.0f} ms", "", ""),
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
    """Peak resident memory in the word count, the largest of each kind of process."""
    rows = []
    for kind, aim in (("server", "under 150 MB"), ("worker", "")):
        peaks = [
            max(size for name, size in report["peak_memory_mb"].items() if name.startswith(kind))
            for report in reports
        ]
        rows.append(
            Row(f"peak memory of a {kind} in that word count", f"{statistics.median(peaks):.0f} MB", "", aim)
        )
    return rows


def measure_memory(effort: Effort) -> list[Row]:
    """A server's peak memory after taking in and giving back a small and a large object."""
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
    """The machine in words that name no host."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    cores, processor = len(os.sched_getaffinity(0)), model[1] if model else platform.machine()
    return (
        f"{cores} cores ({processor}), {memory:.0f} GB of memory, Linux {platform.release()},"
        f" Python {platform.python_version()}"
    )


PAGE = """\
# Benchmarks

Written by `./run bench` on {date}, not by hand. Medians of {pairs} runs; what is compared ran in turn
(A B A B). Such figures drift by tens of per cent on a shared machine: read the ratios.

Machine: {machine}.
Everything ran on it: clients, servers and Spark.

| what | measured | beside it | aim |
|---|---|---|---|
{rows}

{section}

{journal}

{dataflow}

{spark}

## What is measured

- **One server**: load generator, server and yardstick on one machine, over loopback; requests are made
  before the clock starts, and answers are counted, not checked, so that the server is what is measured.
  *Stream*: one object, at most 16 MiB not yet synced; the clock stops when the last byte is acknowledged as
  synced. Beside it a bare copy of as many bytes from a socket to a file, with `fdatasync` each 64 MB and at
  the end. *Redis*: `appendonly yes`, `appendfsync always`, on the same disk; `APPEND` of the same bytes to a
  string, by the same generator with the same number on their way; all its strings share one log, and one sync
  serves all that came in a turn of its loop, where each object here has a file and a sync of its own. *One at
  a time*: beside it a process that writes 100 B, syncs and answers. *GET*: eight requests of 1 MiB on their
  way; beside it `sendfile`, which checks nothing.
- **Store of three**: three servers on one disk. *Stream*: as above, acknowledged by two, beside three bare
  copies at once that are done when two have answered. *Stopped*: a member gets SIGSTOP and says nothing more.
  *Restore*: `store.stream`, which checks every byte against the digest that a quorum holds. *Stutters*: a
  member stopped for 50 ms in every 200. *Not hedged*: nobody else is asked before a member was silent for
  5 s. *Take-over*: from a writer's SIGKILL to the next writer's first acknowledged record; that the first one
  died is known at once, and the state is not replayed.
- **Replay**: a journal on disk, every record's checksum verified and its fields read, in one process.
- **Journals of files** (`./run bench journal`; no figures where its section has no date): *encoding*: records
  to bytes in memory. *Replay* makes the files too (`dos journal replay FILE --into DIR`), every checksum
  verified. *Restore*: a directory of 32 MB that was written over, in writes of 4,000 B, until its journal had
  that many MB; by a process of its own over loopback; with snapshots it reads what `recovery_bytes_max`
  allows; peak memory is that of the whole process. *Archive*: to moto over HTTP, a Python program itself, on
  the same cores, so it says little of S3: read the ratio. boto3 alone puts and gets as many bytes in objects
  of the same 64 MiB, and checks nothing; what we get is checked, decoded and made into files.
- **Word count**: `./run demo --no-faults --passes {passes}`: every word of Python's standard library
  {passes} times, from the moment that all workers run to the region's end; then the output is verified.
  Beside it the same words through Spark's `groupBy().applyInPandasWithState()` with RocksDB on two slots,
  one file a micro-batch, stopped at {baseline_s:.0f} s: the words of the micro-batches that were
  committed by then, over the time to the last commit.
- **Checkpoint**: regions of two worker processes over three servers, a cut each second; two producers
  write keys into the store, a reader follows the output log by step. *Cut*: from its request to its
  commit, while nothing else is sent; PyFlink's as its REST interface tells it (end to end, RocksDB,
  incremental). *Recovery*: from the SIGKILL of one of two processes with state (a worker, when a process
  stands by; Spark's executor in `local-cluster[2,1,1024]`; one of two TaskManagers, started again at once)
  until output is visible that holds input sent after the kill, or for PyFlink after it went back; 5,000
  rows/s come in meanwhile. *Where that time goes*, one after the other: `notice` the loss; take the
  `manifest` over; `gather` the workers; in the slowest of them `claim` its directory, `open` its chains,
  `load` the state; `start` all; until the `first output`. *Latency*: from before a batch is sent until the
  reader has the step's output, or the cut is committed; Spark's until `foreachBatch` has the result, after
  forty small batches to get warm. Our input and output are on two of three disks, synced; theirs is a
  socket, and output without any sink; their state is one copy on the local disk, not synced. A yardstick
  that gives no figures in five minutes is not measured.
- **Dataflow library** (`./run bench dataflow`, alone; no figures where its section has no date): every
  system reads the same text files, lines `key,number` with keys drawn evenly, with two workers or slots, a
  checkpoint each second (Spark: one each micro-batch), results let go of. The rate is that of what came after
  the warm-up (5 s, or a fifth of the input); a measurement ends with the input or 60 s after its first rows.
  Ours: three servers, and a cut counts when it is synced on two of them. Spark and PyFlink: RocksDB, one copy
  on the local disk; Bytewax: SQLite, likewise. PyFlink has no vectorised function with state on a stream
  without windows: what is measured is a vectorised scalar function before its SQL.
- **The store on Spark** (`./run bench spark`, alone; no figures where its section has no date): a session
  on `local[2]`. *Micro-batch*: a step of 100 rows of each of two workers, next to a source with as many
  tasks that yield nothing; what counts is a micro-batch without `walCommit` and `commitOffsets`, which Spark
  writes the same for every source. *Batch*: from `load` to the last row, columns `key string, number long`;
  steps of 50,000 rows, which is also the size of a prebuilt batch; the columns of JSON are said to both.
  *Journal*: all columns of all records, a segment of 64 MiB a task, every digest checked. *Sink*: rows that
  Spark makes on both slots, from `save` to the commit: on two of three disks, synced; a Parquet file is
  renamed at its commit and not synced. *Through*: a region of one worker, on the two slots; a backlog of
  Parquet files, counted by key, from the first output to the last; then rows that are handed on as they come.
  Input, state and output are on two of three disks.
- **Memory**: the high-water mark of resident memory; with idle connections, which have said HELLO and their
  directory, resident memory now; while an object grows, what is added for each GB in its second half.
"""


def write_checkpoint(rows: list[Row], _effort: Effort) -> None:
    """Its section alone."""
    CHECKPOINT.write(section_of(rows, date=time.strftime("%Y-%m-%d"), load=os.getloadavg()[1]))


def write_journal(rows: list[Row], effort: Effort) -> None:
    """Its section alone."""
    JOURNAL.write(journal_section(rows, rounds_of(effort)))


SECTIONS: dict[str, Callable[[list[Row], Effort], None]] = {
    "checkpoint": write_checkpoint,
    "journal": write_journal,
}
"""What writes the section of a measure that has one."""


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
    parser.add_argument("--long", action="store_true", help="an object grows to 10 GB, not to 1")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASURES):
        parser.error(f"no measure named {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
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
    told: list[Row] = []
    for name in options.names or MEASURES:
        say(f"measuring {name}")
        found = MEASURES[name](effort)
        if name not in SECTIONS:
            rows += found
        elif not options.quick:
            SECTIONS[name](found, effort)
            say(f"wrote the section of docs/benchmarks.md that {name} has")
        told += found
    for row in told:
        print(f"{row.what}: {row.figure}" + (f" ({row.beside})" if row.beside else ""), flush=True)
    if not options.names and not options.quick:
        write_page(rows, effort)
        say("wrote docs/benchmarks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
