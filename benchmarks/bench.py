"""`./run bench`: measure everything, and write docs/benchmarks.md with a description of the machine.

    bench.py [server] [store] [replay] [journal] [wordcount] [memory] [checkpoint] [recovery] [local] [scale]
             [autoscale] [dadstorm] [backup] [restore] [replication] [tls] [fairness]
             [--pairs N] [--quick] [--long]
    bench.py dataflow --help
    bench.py spark --help

Without names, everything is measured and the file is written. With names, the figures are only printed.
`server`, `checkpoint`, `recovery`, `local`, `journal`, `scale`, `autoscale`, `dadstorm`, `backup`, `restore`,
`tls` and `fairness` are exceptions: each has a section of the file, which is written in any case.
`replication` has a page of its own, docs/benchmarks/replication.md.

Systems that are compared run alternately (A B A B), and medians are reported. Such figures vary by tens of
percent on a shared machine, so the ratio is more reliable than the figure.

`--quick` measures less of each, to test the harness. `--long` lets an object grow to 10 GB instead of 1, and
simulates 30 days instead of 7.

Duration: `server`, one server compared with a plain copy and Redis, takes a few minutes. `journal`, which
measures records, replays, restores and archives of journaled files, takes about five. `dadstorm`, the
delivery of single tuples beside that of steps, takes two, `replication` ten. `dataflow` takes about two hours
and `spark` ten minutes; each of the two has its own options and its own section of the file.
"""

import argparse
import json
import os
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

from autoscale_page import PLACE as AUTOSCALE  # noqa: E402
from autoscale_page import draw as draw_autoscale  # noqa: E402
from autoscale_page import measure_autoscale  # noqa: E402
from autoscale_page import section_of as autoscale_section  # noqa: E402
from backup_rows import measure_backup  # noqa: E402
from bench_page import write_page  # noqa: E402
from checkpoint_page import PLACE as CHECKPOINT  # noqa: E402
from checkpoint_page import section_of  # noqa: E402
from checkpoint_rows import measure_checkpoint  # noqa: E402
from dadstorm_page import PLACE as DADSTORM  # noqa: E402
from dadstorm_page import draw as draw_dadstorm  # noqa: E402
from dadstorm_page import section_of as dadstorm_section  # noqa: E402
from dadstorm_rows import measure_dadstorm  # noqa: E402
from dataflow_bench import main as measure_dataflow  # noqa: E402
from fairness_page import PLACE as FAIRNESS  # noqa: E402
from fairness_page import measure_fairness  # noqa: E402
from fairness_page import section_of as fairness_section  # noqa: E402
from journal_page import PLACE as JOURNAL  # noqa: E402
from journal_page import section_of as journal_section  # noqa: E402
from journal_rows import measure_journal, rounds_of  # noqa: E402
from local_recovery_page import PLACE as LOCAL_RECOVERY  # noqa: E402
from local_recovery_page import section_of as local_recovery_section  # noqa: E402
from local_recovery_rows import measure_local_recovery  # noqa: E402
from recovery_page import PLACE as RECOVERY  # noqa: E402
from recovery_page import section_of as recovery_section  # noqa: E402
from recovery_rows import measure_recovery  # noqa: E402
from replication_page import PLACE as REPLICATION  # noqa: E402
from replication_page import draw as draw_replication  # noqa: E402
from replication_page import section_of as replication_section  # noqa: E402
from replication_rows import measure_replication  # noqa: E402
from restore_page import BACKUP, RESTORE  # noqa: E402
from restore_page import section_of as restore_section  # noqa: E402
from restore_rows import measure_restore  # noqa: E402
from rows import Effort, Row, run_json, say  # noqa: E402
from scale_page import PLACE as SCALE  # noqa: E402
from scale_page import draw as draw_scale  # noqa: E402
from scale_page import measure_scale  # noqa: E402
from scale_page import section_of as scale_section  # noqa: E402
from server_page import PLACE as SERVER  # noqa: E402
from server_page import section_of as server_section  # noqa: E402
from server_rows import measure_server  # noqa: E402
from spark_bench import main as measure_spark  # noqa: E402
from store_rows import measure_store  # noqa: E402
from tls_page import PLACE as TLS  # noqa: E402
from tls_page import measure_tls  # noqa: E402
from tls_page import section_of as tls_section  # noqa: E402

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
    checkpoint_s = statistics.median(report["checkpoint_s_median"] for report in reports)
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
    "recovery": measure_recovery,
    "local": measure_local_recovery,
    "scale": measure_scale,
    "autoscale": measure_autoscale,
    "dadstorm": measure_dadstorm,
    "backup": measure_backup,
    "restore": measure_restore,
    "replication": measure_replication,
    "tls": measure_tls,
    "fairness": measure_fairness,
}


def write_checkpoint(rows: list[Row], _effort: Effort) -> None:
    """Write the section on checkpoints only."""
    CHECKPOINT.write(section_of(rows, date=time.strftime("%Y-%m-%d"), load=os.getloadavg()[1]))


def write_recovery(rows: list[Row], effort: Effort) -> None:
    """Write the section on predicted recoveries only."""
    RECOVERY.write(recovery_section(rows, effort.recoveries))


def write_local_recovery(rows: list[Row], effort: Effort) -> None:
    """Write the section on local recovery only."""
    LOCAL_RECOVERY.write(local_recovery_section(rows, effort.recoveries))


def write_restore(rows: list[Row], effort: Effort) -> None:
    """Write the section on restores and forks only."""
    RESTORE.write(restore_section(RESTORE, "Restores and forks", rows, effort.recoveries))


def write_backup(rows: list[Row], effort: Effort) -> None:
    """Write the section on backups only."""
    BACKUP.write(restore_section(BACKUP, "Backups", rows, effort.pairs))


def write_server(rows: list[Row], effort: Effort) -> None:
    """Write the section on one server only."""
    SERVER.write(server_section(rows, effort.pairs))


def write_journal(rows: list[Row], effort: Effort) -> None:
    """Write the section on journaled files only."""
    JOURNAL.write(journal_section(rows, rounds_of(effort)))


def write_scale(rows: list[Row], effort: Effort) -> None:
    """Write the section on layouts only, with its pictures."""
    draw_scale(rows)
    SCALE.write(scale_section(rows, effort.recoveries))


def write_autoscale(rows: list[Row], _effort: Effort) -> None:
    """Write the section on autoscale only, with its picture."""
    draw_autoscale()
    AUTOSCALE.write(autoscale_section(rows))


def write_dadstorm(rows: list[Row], effort: Effort) -> None:
    """Write the section on the delivery of single tuples only, with its pictures."""
    draw_dadstorm(rows)
    DADSTORM.write(dadstorm_section(rows, effort.recoveries))


def write_replication(rows: list[Row], effort: Effort) -> None:
    """Write the page on replication over sites, with its pictures."""
    draw_replication(rows)
    text = replication_section(rows, effort.trace_days, effort.managed_h, effort.pairs)
    REPLICATION.write(text)


def write_tls(rows: list[Row], effort: Effort) -> None:
    """Write the section on the cost of TLS only."""
    TLS.write(tls_section(rows, effort.recoveries))


def write_fairness(rows: list[Row], effort: Effort) -> None:
    """Write the section on a greedy client only."""
    FAIRNESS.write(fairness_section(rows, effort.pairs))


SECTIONS: dict[str, Callable[[list[Row], Effort], None]] = {
    "checkpoint": write_checkpoint,
    "recovery": write_recovery,
    "local": write_local_recovery,
    "journal": write_journal,
    "server": write_server,
    "scale": write_scale,
    "autoscale": write_autoscale,
    "dadstorm": write_dadstorm,
    "backup": write_backup,
    "restore": write_restore,
    "replication": write_replication,
    "tls": write_tls,
    "fairness": write_fairness,
}
"""Measure -> the function that writes its section. Measures that are not here are rows of the first table."""


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
    parser.add_argument(
        "--long", action="store_true", help="objects of 10 GB instead of 1; traces of 30 days"
    )
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
