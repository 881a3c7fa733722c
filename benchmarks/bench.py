"""`./run bench`: measure everything, and write docs/benchmarks.md with a description of the machine.

bench.py [server] [writers] [store] [replay] [journal] [wordcount] [memory] [checkpoint] [recovery]
[local] [scale] [autoscale] [dadstorm] [backup] [restore] [replication] [tls] [fairness]
[--pairs N] [--quick] [--long]
bench.py dataflow --help bench.py spark --help bench.py port --help bench.py gateway --help

Without names, everything is measured and the file is written. With names, the figures are only printed.
`server`, `writers`, `checkpoint`, `recovery`, `local`, `journal`, `scale`, `autoscale`, `dadstorm`, `backup`,
`restore`, `tls` and `fairness` are exceptions: each has a section of the file, which is written in any
case. `replication` has a page of its own, docs/benchmarks/replication.md.

Systems that are compared run alternately (A B A B), and medians are reported. Such figures vary by tens of
percent on a shared machine, so the ratio is more reliable than the figure.

`--quick` measures less of each, to test the harness. `--long` lets an object grow to 10 GB instead of 1,
and simulates 30 days instead of 7.

Duration: `server`, one server compared with a plain copy and Redis, takes a few minutes. `journal`, which
measures records, replays, restores and archives of journaled files, takes about five. `dadstorm`, the
delivery of single tuples beside that of steps, takes two, `replication` ten. `dataflow` takes about two
hours, `spark` ten minutes, `port` half an hour and `gateway` an hour; each of the four has its own options
and its own section of the file.
"""

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import autoscale_page
import benches
import dadstorm
import dataflow_bench
import gateway_bench
import port
import replication
import scale
import spark_bench
from checkpoint_rows import measure_checkpoint
from rows import PAGE, Effort, Row, Section, say, table_lines


class Bench(NamedTuple):
    """A bench of the command. Without a section its rows are of the first table of the page.

    `rounds`: how often each figure is measured. `written`: the text of a section that is not one table; the
    function also draws its pictures.
    """

    measure: Callable[[Effort], list[Row]]
    section: Section | None = None
    rounds: Callable[[Effort], int] = lambda effort: effort.recoveries
    written: Callable[[list[Row], Effort], str] | None = None

    def text(self, rows: list[Row], effort: Effort) -> str:
        """Return the text of the section."""
        assert self.section is not None
        if self.written is not None:
            return self.written(rows, effort)
        return self.section.table(rows, self.rounds(effort))


def pairs_of(effort: Effort) -> int:
    return effort.pairs


CHECKPOINT_TEXT: Final = """\
Measured on {date} with no other benchmark running. The load average at the end was {load:.1f}, including the
benchmark itself."""
JOURNAL_TEXT: Final = """\
Measured on {date} with no other benchmark running, {rounds}. The load average at the end was {load:.1f},
including the benchmark itself. A *CPU second* is a second of processor time of the measured process. For a
restore, this is the process that restores, without its server."""
RECOVERY_TEXT: Final = """\
Measured on {date} with no other benchmark running, medians of {kills} kills. The load average at the end was
{load:.1f}, including the benchmark itself."""
LOCAL_TEXT: Final = """\
Measured on {date} with no other benchmark running, medians of {kills} kills. The load average at the end was
{load:.1f}, including the benchmark itself. The gap is the longest time around the SIGKILL of a worker in
which nothing new is in a part of the output, while 1,000 generated rows per second pass an exchange by key.
A stand-by is ready. The parts of other workers stop as well: the workers run in step.
[Spark and PyFlink](#checkpoints-recovery-latency) with 2 workers and as many keys need several seconds.
PyFlink has its default failover strategy there, `region`; an exchange by key makes the job one region."""
TLS_TEXT: Final = """\
The same work over TLS 1.3 with certificates at both ends, and over plain text. Measured on {date}, {rounds}.
A ratio is the median of those of two runs, one after the other. The load average at the end was {load:.1f},
including the benchmark itself; both ends of each connection share the processor of this machine."""
FAIRNESS_TEXT: Final = """\
Eight clients append 4 KiB each, twenty times a second, to one server, and wait until each append is durable:
alone, beside a greedy client of the same server, and beside the same client of another server on this
machine. Measured on {date}, {rounds}. The load average at the end was {load:.1f}, including the benchmark
itself."""
BESIDE_IT: Final = ("what", "measured", "beside it", "aim")
LOCAL_COLUMNS: Final = ("what", "local recovery", "beside", "aim")
RECOVERY_COLUMNS: Final = ("state and output", "measured", "predicted", "aim")
TLS_COLUMNS: Final = ("what", "TLS", "plain text", "aim")
FAIRNESS_COLUMNS: Final = ("the greedy client", "p99 of the others", "compared with", "aim")
BENCHES: Final[dict[str, Bench]] = {
    "server": Bench(benches.measure_server, Section("server", "One server"), pairs_of),
    "writers": Bench(benches.measure_writers, Section("writers", "Many small writes to a store"), pairs_of),
    "store": Bench(benches.measure_store),
    "replay": Bench(benches.measure_replay),
    "journal": Bench(
        benches.measure_journal, Section("journal", "Journaled files", JOURNAL_TEXT), benches.rounds_of
    ),
    "wordcount": Bench(benches.measure_wordcount),
    "memory": Bench(benches.measure_memory),
    "checkpoint": Bench(
        measure_checkpoint, Section("checkpoint", "Checkpoints, recovery, latency", CHECKPOINT_TEXT)
    ),
    "recovery": Bench(
        benches.measure_recovery,
        Section("recovery", "Predicted and measured recoveries", RECOVERY_TEXT, RECOVERY_COLUMNS),
    ),
    "local": Bench(
        benches.measure_local_recovery, Section("local", "Local recovery", LOCAL_TEXT, LOCAL_COLUMNS)
    ),
    "scale": Bench(scale.measure_scale, scale.PLACE, written=scale.written),
    "autoscale": Bench(
        autoscale_page.measure_autoscale, autoscale_page.PLACE, written=autoscale_page.written
    ),
    "dadstorm": Bench(dadstorm.measure_dadstorm, dadstorm.PLACE, written=dadstorm.written),
    "backup": Bench(benches.measure_backup, Section("backup", "Backups", columns=BESIDE_IT), pairs_of),
    "restore": Bench(benches.measure_restore, Section("restore", "Restores and forks", columns=BESIDE_IT)),
    "replication": Bench(replication.measure_replication, replication.PLACE, written=replication.written),
    "tls": Bench(benches.measure_tls, Section("tls", "TLS", TLS_TEXT, TLS_COLUMNS)),
    "fairness": Bench(
        benches.measure_fairness,
        Section("fairness", "One greedy client among others", FAIRNESS_TEXT, FAIRNESS_COLUMNS),
        pairs_of,
    ),
}
SECTIONS: Final = (
    *("server", "writers", "checkpoint", "recovery", "local", "scale", "autoscale", "dadstorm"),
    *("restore", "backup", "tls", "fairness", "journal", "dataflow", "spark", "port", "gateway"),
)
"""The sections of the page that benches write, in their order."""
TEXT = """\
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

{sections}

## What is measured

`./run bench NAME` measures one section. A section without a date has no figures.

- **One server**: everything shares one machine, over loopback. Answers are counted, not verified.
  - *Stream*: at most 16 MiB unsynced; compared with a copy from a socket to a file, `fdatasync` every 64 MB.
  - *Redis*: `APPEND` of the same bytes, with as many requests in flight. All strings share one log; in DOS
    each object has a file, and without a group log (`dos serve --group-log 0`) a sync of its own.
  - *Claims*: 100 connections; a step is a claim of a directory, or the append of its first record.
  - *One at a time*: compared with a process that writes 100 B, syncs and replies.
  - *GET*: eight requests of 1 MiB in flight; compared with `sendfile`, which verifies nothing.
- **Many small writes**: the writers are one process, and each waits for its append. The cluster of three etcd
  has Debian's settings; its client is a plain loop over the sockets of the leader's JSON gateway, which costs
  less than ours. Processor time is that of all processes.
- **Store of three**: three servers on one disk, two of which acknowledge; compared with three plain copies,
  complete when two have replied.
  - *Stopped*: SIGSTOP. *Without hedging*: a second member is asked only after 5 s.
  - *Restore*: `store.stream`, which verifies every byte against the digest of a quorum.
  - *Take-over*: from a writer's SIGKILL, which the next writer learns at once, to its first acknowledged
    record. No state is replayed.
- **Replay**: every record of a journal on disk is verified and its fields are read, in one process.
- **Journaled files**: *replay* also writes the files. *Restore*: a directory of 32 MB, overwritten in writes
  of 4,000 B until its journal had the stated size, by a separate process; with snapshots it reads what
  `recovery_bytes_max` allows. *Archive*: to moto, a Python program on the same cores; boto3 alone moves as
  many bytes in objects of 64 MiB, and verifies nothing.
- **Word count**: `./run demo --no-faults --passes {passes}`: the words of Python's standard library {passes}
  times, from when all workers run to the end. Spark counts them with `applyInPandasWithState` and RocksDB on
  two slots, one file per micro-batch, stopped at {baseline_s:.0f} s.
- **Checkpoint** (`./run bench checkpoint`): two workers, three servers, a checkpoint every second; two
  producers write keys, and a reader follows the output log by step. The other systems read a socket and have
  no sink.
  - *Checkpoint*: from request to commit, without input; of PyFlink as its REST interface reports it.
  - *Recovery*: from the SIGKILL of one of two processes with state until output is visible that contains
    later input, at 5,000 rows/s. The process is a worker, while a stand-by is ready; Spark's executor in
    `local-cluster[2,1,1024]`; or a TaskManager, started again at once.
  - *Latency*: from before a batch is sent until its step is visible, or its checkpoint committed; of Spark,
    until `foreachBatch` has it.
- **Predicted recoveries**: two workers count keys, copy lines to files of the stated size, and write rows. A
  worker is killed while a stand-by is ready. *Measured*: until the rows are written as far as before.
- **Dataflow library**: keys are drawn uniformly. A measurement ends with the input, or 60 s after its first
  rows. PyFlink has no vectorized function with state on a stream without windows, so a vectorized scalar
  function before its SQL is measured.
- **Fairness**: the greedy client has a low priority. Times count from when an append was due.
- **The store on Spark**: a session on `local[2]`.
  - *Micro-batch*: steps of 100 rows of two workers; compared with a source of as many tasks that yields
    nothing, without `walCommit` and `commitOffsets`.
  - *Batch*: columns `key string, number long`, steps of 50,000 rows. Both JSON readers are given the schema.
  - *Journal*: all columns, a segment of 64 MiB per task, every digest verified.
  - *Sink*: from `save` to the commit. A Parquet file is renamed at its commit and not synced.
  - *Through*: one worker; first a backlog of Parquet files, counted by key, then rows that are passed on as
    they arrive. *Frame*: the same backlog, beside the graph that counts it; start: from the first call until
    the query has started.
- **Jobs that are ported** (`./run bench port`): keys are drawn uniformly, so most calls get one row. Rates
  and processor time exclude the first micro-batch. Processor time and memory are those of all processes: JVM,
  Python workers, workers of the region, servers.
  - *Sessions*: a timer for each user. *Fraud*: arrays of eight doubles in rows (in the state of
    `applyInPandasWithState`, PySpark 4.3 fails on arrays). *Totals*: JSON, joined with a table; no Python.
  - *Recovery*: the driver and all that it started are killed in a micro-batch; from the start of the program
    again to the commit of that micro-batch.
- **Gateway** (`./run bench gateway`): one session on `local[2]`, 2 partitions of state, steps of 100 rows of
  50 keys; Parquet files of a sink are in the same place as its checkpoint. State commit: the sum over the
  partitions. Processor time is that of the gateway process as the kernel counts it.
  - *Take-over*: a client writes one file after the other; from its last answer by the gateway that is killed
    to its first one by the other, which has seen no take-over before.
  - *Soak* (`--batches 10000`): micro-batches through Spark, or with `--raw` the same requests without it;
    figures by tenth of the run, and whether latency, memory and space are flat. The command shows the rules.
- **Memory**: the high-water mark of resident memory; with idle connections the current one. Growth: the
  increase per GB in the second half.
"""


def machine() -> str:
    """Describe the machine without naming the host."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    cores, processor = len(os.sched_getaffinity(0)), model[1] if model else platform.machine()
    return (
        f"{cores} cores ({processor}), {memory:.0f} GB of memory, Linux {platform.release()},"
        f" Python {platform.python_version()}"
    )


def page_of(rows: list[Row], effort: Effort, before: str) -> str:
    """Return the page with these rows and the sections of the page before."""
    return TEXT.format(
        sections="\n\n".join(Section(name).found_in(before) for name in SECTIONS),
        date=time.strftime("%Y-%m-%d"),
        pairs=effort.pairs,
        machine=machine(),
        rows=table_lines(rows),
        passes=effort.passes,
        baseline_s=effort.baseline_s,
    )


def main() -> int:
    if sys.argv[1:2] == ["dataflow"]:
        return dataflow_bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["spark"]:
        return spark_bench.main(sys.argv[2:])
    if sys.argv[1:2] == ["port"]:
        return port.main(sys.argv[2:])
    if sys.argv[1:2] == ["gateway"]:
        return gateway_bench.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="measure less; nothing is written")
    parser.add_argument(
        "--long", action="store_true", help="objects of 10 GB instead of 1; traces of 30 days"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHES):
        parser.error(f"unknown measure {', '.join(sorted(unknown))}; choose from {', '.join(BENCHES)}")
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
        trace_days=30 if options.long else 7,
        managed_h=48.0 if options.long else 6.0,
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
            trace_days=1,
            managed_h=1.0,
        )
    rows: list[Row] = []
    measured: list[Row] = []
    for name in options.names or BENCHES:
        say(f"measuring {name}")
        bench = BENCHES[name]
        found = bench.measure(effort)
        if bench.section is None:
            rows += found
        elif not options.quick:
            bench.section.write(bench.text(found, effort))
            say(f"wrote the section of {name} in docs/benchmarks.md")
        measured += found
    for row in measured:
        print(f"{row.what}: {row.figure}" + (f" ({row.beside})" if row.beside else ""), flush=True)
    if not options.names and not options.quick:
        PAGE.write_text(page_of(rows, effort, PAGE.read_text()))
        say("wrote docs/benchmarks.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
