"""Write docs/benchmarks.md: the table of `./run bench`, the sections of other benchmarks, and the description
of what is measured.
"""

import os
import platform
import re
import time
from pathlib import Path

from autoscale_page import PLACE as AUTOSCALE
from checkpoint_page import PLACE as CHECKPOINT
from dadstorm_page import PLACE as DADSTORM
from dataflow_page import PLACE as DATAFLOW
from fairness_page import PLACE as FAIRNESS
from journal_page import PLACE as JOURNAL
from local_recovery_page import PLACE as LOCAL_RECOVERY
from page_section import PAGE as FILE
from recovery_page import PLACE as RECOVERY
from restore_page import BACKUP, RESTORE
from rows import Effort, Row, table_lines
from scale_page import PLACE as SCALE
from server_page import PLACE as SERVER
from spark_page import PLACE as SPARK
from tls_page import PLACE as TLS

SECTIONS = (
    *(SERVER, CHECKPOINT, RECOVERY, LOCAL_RECOVERY, SCALE, AUTOSCALE, DADSTORM),
    *(RESTORE, BACKUP, TLS, FAIRNESS, JOURNAL, DATAFLOW, SPARK),
)
"""What other benchmarks write, in the order of the page."""

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

{sections}

## What is measured

Sections of `./run bench NAME` have no figures if they have no date.

- **One server**: load generator, server and the system it is compared with run on one machine, over
  loopback. Requests are built before the clock starts. Answers are counted, not verified.
  - *Stream*: one object, at most 16 MiB not yet synced, until the last byte is acknowledged as synced. It
    is compared with a plain copy of as many bytes from a socket to a file, with `fdatasync` every 64 MB and
    at the end.
  - *Redis*: `appendonly yes`, `appendfsync always`, on the same disk. The same generator sends `APPEND` of
    the same bytes to a string, with as many requests in flight. All strings share one log. In DOS, each
    object has a file, and one sync of the group log covers all of them.
  - *Without a group log* (`dos serve --group-log 0`): each object has a sync of its own, too.
  - *Claims*: 100 connections claim a directory each, and append its first record. A step is one of the two.
  - *One at a time*: compared with a process that writes 100 B, syncs and replies.
  - *GET*: eight requests of 1 MiB in flight; compared with `sendfile`, which verifies nothing.
- **Store of three**: three servers on one disk.
  - *Stream*: as above, acknowledged by two servers; compared with three plain copies that are complete when
    two have replied.
  - *Stopped*: a member receives SIGSTOP.
  - *Restore*: `store.stream`, which verifies every byte against the digest that a quorum holds.
  - *Without hedging*: a second member is asked only after 5 s.
  - *Follower*: until a follower in the same process has received and verified the append.
  - *Take-over*: from a writer's SIGKILL to the first acknowledged record of the next writer, which learns
    of it at once. The state is not replayed.
- **Replay**: a journal on disk; every record's checksum is verified and its fields are read, in one
  process.
- **Journaled files** (`./run bench journal`):
  - *Encoding*: from records to bytes in memory.
  - *Replay* also writes the files (`dos journal replay FILE --into DIR`).
  - *Restore*: of a directory of 32 MB that was overwritten in writes of 4,000 B until its journal had the
    stated size, by a separate process, over loopback. With snapshots it reads what `recovery_bytes_max`
    allows.
  - *Archive*: to moto over HTTP, a Python program on the same cores: the ratio is more reliable than the
    figure. boto3 alone stores and reads as many bytes in objects of the same 64 MiB, and verifies nothing.
- **Word count**: `./run demo --no-faults --passes {passes}`: every word of Python's standard library
  {passes} times, from the moment that all workers run to the region's end. It is compared with the same
  words through Spark's `groupBy().applyInPandasWithState()` with RocksDB on two slots, one file per
  micro-batch, stopped at {baseline_s:.0f} s: the words of the micro-batches that were committed by then,
  divided by the time to the last commit.
- **Checkpoint** (`./run bench checkpoint`): regions of two worker processes over three servers, with a
  checkpoint every second. Two producers write keys into the store, and a reader follows the output log by
  step. Input and output of DOS are on two of three disks, synced. Input of the others is a socket, their
  output has no sink, and their state is one copy on the local disk, not synced. A compared system that
  returns no figures within five minutes is not measured.
  - *Checkpoint*: from its request to its commit, without input. For PyFlink, as its REST interface reports
    it (end to end, RocksDB, incremental).
  - *Recovery*: from the SIGKILL of one of two processes with state until output is visible that contains
    input sent after the kill; for PyFlink, until such output after it went back to a checkpoint. Meanwhile
    5,000 rows/s arrive. The killed process is a worker, while a stand-by is ready; Spark's executor in
    `local-cluster[2,1,1024]`; or one of two TaskManagers, which is started again at once.
  - *Phases* of a recovery: `notice` the loss; take over the `manifest`; `gather` the workers; in the
    slowest worker `claim` its directory, `open` its chains, `load` the state; `start` all; wait for the
    `first output`.
  - *Latency*: from before a batch is sent until the reader has the output of its step, or until the
    checkpoint is committed. For Spark, until `foreachBatch` has the result, after forty small batches as a
    warm-up.
- **Predicted recoveries** (`./run bench recovery`): a region of two workers over three servers counts keys,
  copies lines to files until they have the stated size, and writes 1,000 generated rows per second. A
  worker is killed while a stand-by is ready. *Measured* is the time from the detection of the loss until
  the generated rows are written again as far as before the kill. *Predicted* is what `status.recovery` said
  just before the kill, with its parts.
- **Local recovery** (`./run bench local`): a region of 2, 4 and 8 local workers over three servers has
  counted the keys, and writes 1,000 generated rows per second by key. *Count without failures*: the keys
  are counted twelve times from files, from the first checkpoint to the end.
- **Dataflow library** (`./run bench dataflow`, with no other benchmark running): keys are drawn uniformly.
  The rate excludes the warm-up (5 s, or a fifth of the input). A measurement ends with the input, or 60 s
  after its first rows. A checkpoint of DOS counts after it is synced on two of three servers. Spark and
  PyFlink use RocksDB with one copy on the local disk; Bytewax uses SQLite, also with one copy. PyFlink has
  no vectorized function with state on a stream without windows, so a vectorized scalar function before its
  SQL is measured.
- **Fairness** (`./run bench fairness`): clients on a schedule beside a greedy one, which has a low
  priority. The times count from when an append was due. *Of another server*: the same greedy client uses
  another server on this machine, so what remains is due to the processors and the disk.
- **TLS** (`./run bench tls`): the same work over TLS with certificates at both ends, and over plain text.
- **The store on Spark** (`./run bench spark`, with no other benchmark running): a session on `local[2]`.
  Input, state and output of DOS are on two of three disks.
  - *Micro-batch*: a step of 100 rows from each of two workers; compared with a source with as many tasks
    that yields nothing. The time excludes `walCommit` and `commitOffsets`, which are the same for every
    source.
  - *Batch*: from `load` to the last row, columns `key string, number long`, in steps of 50,000 rows, which
    is also the size of a prebuilt batch. Both JSON readers are given the schema.
  - *Journal*: all columns of all records, a segment of 64 MiB per task, every digest verified.
  - *Sink*: rows that Spark generates on both slots, from `save` to the commit. DOS has them on two of three
    disks, synced. A Parquet file is renamed at its commit and not synced.
  - *Through*: a region of one worker, on the two slots. First a backlog of Parquet files, counted by key,
    from the first output to the last; then rows that are passed on as they arrive.
- **Memory**: the high-water mark of resident memory. With idle connections, which have sent HELLO and
  entered their directory: the current resident memory. While an object grows: the increase per GB in its
  second half.
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


def write_page(rows: list[Row], effort: Effort) -> None:
    """Write the page. Sections of other benchmarks are kept."""
    FILE.write_text(page_of(rows, effort, FILE.read_text()))


def page_of(rows: list[Row], effort: Effort, before: str) -> str:
    """Return the page with these rows and the sections of the page before."""
    return PAGE.format(
        sections="\n\n".join(place.found_in(before) for place in SECTIONS),
        date=time.strftime("%Y-%m-%d"),
        pairs=effort.pairs,
        machine=machine(),
        rows=table_lines(rows),
        passes=effort.passes,
        baseline_s=effort.baseline_s,
    )
