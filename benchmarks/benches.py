"""The measures of `./run bench`: each runs programs of this directory and returns the rows of its table.

`scale.py`, `autoscale_page.py`, `dadstorm.py`, `replication.py` and `checkpoint_rows.py` have the measures
that draw, or that are compared with other systems.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fairness import CASES as FAIRNESS_CASES
from rows import ROOT, Effort, Row, run_json, say
from server_speed import CASES as SERVER_CASES
from server_speed import REDIS, WITHOUT_LOG, Case

from examples.demo.corpus import make_corpus
from examples.demo.memory import peak_memory_mb

# --- one server -------------------------------------------------------------------------------------------


Found = Mapping[str, Any]

_YARDSTICKS = {
    "file": "plain copy with a sync every 64 MB",
    "socket": "plain copy from the page cache",
    "ping": "plain write, sync and reply",
    REDIS: "Redis, `appendfsync always`",
    WITHOUT_LOG: "the same without a group log",
}


def measure_server(effort: Effort) -> list[Row]:
    """Measure the speed, then the memory."""
    options = ["--json", "--pairs", str(effort.pairs), "--scale", str(effort.server_scale)]
    found = run_json("benchmarks/server_speed.py", *options)["cases"]
    return [*(_speed_row(case, found[name]) for name, case in SERVER_CASES.items()), *_memory_rows(effort)]


def _speed_row(case: Case, found: Found) -> Row:
    if "not_measured" in found:
        say(f"{case.what}: not measured: {found['not_measured']}")
        return Row(case.what, f"not measured: {found['not_measured']}", "", "")
    beside = f"{_YARDSTICKS[case.yardstick]}: {_figure(case, found['theirs'])}, ratio {found['ratio']:.2f}"
    return Row(case.what, _figure(case, found["ours"]), beside, f"ratio {case.aim}")


def _figure(case: Case, figures: Found) -> str:
    text = f"{figures['rate']:,.0f} {case.unit}"
    if "p99_ms" in figures:
        text += f", p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms"
    return text


def _memory_rows(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/server_memory.py", "--json", "--gigabytes", str(effort.growth_gb))
    idle, growth = found["idle"], found["growth"]
    what = f"growth of a server's memory while an object grows to {growth['gigabytes']:.1f} GB"
    if growth["gigabytes"] < 0.99 * growth["wanted_gigabytes"]:
        what += f" (not {growth['wanted_gigabytes']:.0f} GB: the disk has not enough space)"
    return [
        Row(
            f"memory of a server with {idle['connections']:,} idle connections",
            f"{idle['resident_mb']:.0f} MB",
            f"without connections: {idle['before_mb']:.0f} MB",
            "under 100 MB",
        ),
        Row(what, f"{growth['mb_per_gb']:+.2f} MB per GB", f"peak {growth['peak_mb']:.0f} MB", "flat"),
    ]


# --- a store of three -------------------------------------------------------------------------------------


Times = Mapping[str, float]


def measure_store(effort: Effort) -> list[Row]:
    """Measure appends, reads and take-over."""
    return [*_stream(effort), *_stopped(effort), *_reads(effort), *_take_over(effort)]


def _stream(effort: Effort) -> list[Row]:
    options = ["--json", "--members", "3", "--pairs", str(effort.pairs), "--megabytes", str(effort.stream_mb)]
    what = "durable stream of 64 KiB appends, store of three, acknowledged by two"
    try:
        median = run_json("benchmarks/store_stream.py", *options)["median"]
    except RuntimeError as error:
        say(f"{what}: not measured ({error}; does the program bare_copy.py exist?)")
        return [Row(what, "not measured", "plain copy: program not found", "")]
    beside = f"three plain copies, complete when two are: {median['bare']:.0f} MB/s"
    return [
        Row(what, f"{median['ours']:.0f} MB/s", f"{beside}, ratio {median['ratio']:.2f}", "ratio 0.7"),
        Row("peak memory of a server during that stream", f"{median['server_mb']:.0f} MB", "", "flat"),
    ]


def measure_writers(effort: Effort) -> list[Row]:
    """Measure many small durable writes to a store of three, beside three etcd."""
    found = run_json("benchmarks/store_writers.py", "--json", "--pairs", str(effort.pairs))
    log, without, etcd = found["log"], found["without"], found.get("etcd")
    what = "1 KiB appends by 64 writers, each with its own directory"
    rows = [Row(what, _rate(log), f"without group logs: {_rate(without)}", "")]
    if etcd is None:
        say("writers: etcd is not measured: there is no such program")
        rows.append(Row("the same", "not measured: no etcd", "", ""))
    else:
        ratios = {name: log[name] / etcd[name] for name in ("rate", "p99_ms", "cpu_us")}
        rows += [
            Row("the same", _rate(log), f"etcd: {_rate(etcd)}, ratio {ratios['rate']:.2f}", "ratio 1.3"),
            Row(
                "the slowest 1 % of them",
                f"{log['p99_ms']:.1f} ms",
                f"etcd: {etcd['p99_ms']:.1f} ms, ratio {ratios['p99_ms']:.2f}",
                "ratio at most 1",
            ),
            Row(
                "processor time of an append, servers and client",
                f"{log['cpu_us']:.0f} us",
                f"etcd: {etcd['cpu_us']:.0f} us, ratio {ratios['cpu_us']:.2f}",
                "",
            ),
        ]
    for count, aim in ((2, ""), (100, "12 ms")):
        key = f"checkpoint_{count}_ms"
        what = f"sync phase of a checkpoint: records of {count} workers at once, until all are durable"
        rows.append(Row(what, f"{log[key]:.1f} ms", f"without group logs: {without[key]:.1f} ms", aim))
    return rows


def _rate(found: Times) -> str:
    return f"{found['rate']:,.0f} appends/s, p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms"


def _stopped(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/store_latency.py", "--json", "--rounds", str(effort.pairs))
    running, stopped = found["all_running"], found["one_stopped"]
    return [
        Row(
            "p99 of appends of 100 bytes, one at a time, with one of three members stopped",
            f"{stopped['p99_ms']:.2f} ms",
            f"all members running: {running['p99_ms']:.2f} ms, ratio {found['ratio']:.2f}",
            "ratio 1.5",
        )
    ]


def _reads(effort: Effort) -> list[Row]:
    found = run_json("benchmarks/store_reads.py", "--json", "--megabytes", str(effort.large_object_mb))
    rows = [
        Row(
            f"verified restore of {effort.large_object_mb} MB from {members}",
            f"{one['mb_per_s']:.0f} MB/s",
            f"memory: client {one['client_mb']:.0f} MB, a server {one['server_mb']:.0f} MB",
            "memory flat",
        )
        for members, one in found["restore"].items()
    ]
    gets = found["gets"]
    all_running = gets["all running"]
    rows.append(Row("GET of 64 KiB, all members running", _times(all_running), _hedged(all_running), ""))
    for case, state in (("paused", "paused for 50 ms in every 200 ms"), ("stopped", "stopped")):
        without = f"without hedging: {_times(gets[f'{case}, not hedged'])}"
        what = f"GET of 64 KiB, one member {state}"
        rows.append(Row(what, _times(gets[case]), f"{without}; {_hedged(gets[case])}", ""))
    follow = found["follow"]
    rows.append(
        Row(
            "from an append until a follower has verified it",
            _times(follow["followed"]),
            f"until the writer receives the acknowledgement of the quorum: {_times(follow['acknowledged'])}",
            "",
        )
    )
    return rows


def _times(found: Times) -> str:
    return f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms, max {found['max_ms']:.0f} ms"


def _hedged(found: Times) -> str:
    return f"{found['hedged_percent']:.1f} % sent to a second member"


def _take_over(effort: Effort) -> list[Row]:
    lengths = f"10,{effort.chain_mb}"
    found = run_json("benchmarks/take_over.py", "--json", "--megabytes", lengths, "--rounds", "5")
    rows = []
    for one in found["results"]:
        total = {name: case["total_ms"] for name, case in one["cases"].items()}
        others = [f"{name}: {_middle(times)}" for name, times in total.items() if name != "all running"]
        rows.append(
            Row(
                f"take-over of a chain of {one['megabytes']} MB in segments of {one['segment_mb']} MB",
                _middle(total["all running"]),
                "; ".join(others),
                "",
            )
        )
    return rows


def _middle(times: Times) -> str:
    return f"p50 {times['p50']:.0f} ms, max {times['max']:.0f} ms"


# --- journaled files --------------------------------------------------------------------------------------


SMALL, LARGE = "100 B", "4 KiB"
RATE_AIM, RECORDS_AIM = "200 MB/s", "300,000 records/s"
ROUNDS_MAX = 3
"""Maximum number of rounds: all of them take about four minutes on an idle machine."""
S3_MB_MIN = 140
"""Two segments of 64 MiB and a part of a third one: the newest segment is not archived."""
JournalFigures = dict[str, float]


def rounds_of(effort: Effort) -> int:
    return min(effort.pairs, ROUNDS_MAX)


def measure_journal(effort: Effort) -> list[Row]:
    """Measure encoding, replay, restore with and without snapshots, the archive, and memory."""
    megabytes = effort.large_object_mb
    s3_megabytes = max(megabytes * 35 // 100, S3_MB_MIN)
    sizes = ["--megabytes", megabytes, "--s3-megabytes", s3_megabytes, "--pairs", rounds_of(effort)]
    found = run_json("benchmarks/journal_speed.py", "--json", *map(str, sizes))
    return [
        _large(f"encoding records of {LARGE}, one process", found["encode_4096"]),
        _small(f"encoding records of {SMALL}, one process", found["encode_100"]),
        _large(f"replay of a journal file of {LARGE} records to files", found["replay_4096"]),
        _small(f"replay of a journal file of {SMALL} records to files", found["replay_100"]),
        *_restores(found),
        *_archive(found),
    ]


def _large(what: str, one: JournalFigures) -> Row:
    return Row(what, f"{one['mb_per_s']:.0f} MB/s", f"{one['mb_per_cpu_s']:.0f} MB per CPU second", RATE_AIM)


def _small(what: str, one: JournalFigures) -> Row:
    return Row(
        what,
        f"{one['records_per_s']:,.0f} records/s",
        f"{one['records_per_cpu_s']:,.0f} records per CPU second",
        RECORDS_AIM,
    )


def _restores(found: dict[str, Any]) -> list[Row]:
    whole, snapshots = found["restore_all"], found["restore_snapshots"]
    sizes = [found[f"restore_{name}"] for name in ("quarter", "half", "all")]
    peaks = ", ".join(f"{one['peak_mb']:.0f}" for one in sizes)
    journals = ", ".join(f"{one['journal_mb']:.0f}" for one in sizes)
    return [
        Row(
            f"restore of a directory of 32 MB from a journal of {whole['journal_mb']:.0f} MB, one server",
            _in_time(whole),
            f"{whole['mb_per_cpu_s']:.0f} MB per CPU second",
            RATE_AIM,
        ),
        Row(
            "the same with snapshots",
            _in_time(snapshots),
            f"{snapshots['read_mb']:.0f} MB of {snapshots['journal_mb']:.0f} read",
            "",
        ),
        Row("peak memory of a restore", f"{peaks} MB", f"of journals of {journals} MB", "flat"),
    ]


def _archive(found: dict[str, Any]) -> list[Row]:
    alone, archive, restored = found["alone"], found["archive"], found["restore_s3"]
    return [
        Row(
            f"archive of {restored['read_mb']:.0f} MB to a bucket (moto), each segment read back",
            f"{archive['mb_per_s']:.0f} MB/s",
            _boto3("puts and gets them", archive["mb_per_s"], alone["put_get_mb_per_s"]),
            "",
        ),
        Row(
            "restore from the bucket alone",
            f"{_in_time(restored)}, peak memory {restored['peak_mb']:.0f} MB",
            _boto3("gets them, one request after the other", restored["mb_per_s"], alone["get_mb_per_s"]),
            "",
        ),
    ]


def _boto3(does: str, ours: float, other: float) -> str:
    return f"boto3 alone {does}: {other:.0f} MB/s, ratio {ours / other:.2f}"


def _in_time(one: JournalFigures) -> str:
    return f"{one['seconds']:.1f} s, {one['mb_per_s']:.0f} MB/s"


# --- predicted recoveries ---------------------------------------------------------------------------------


RECOVERY_CASES = ((10_000, 10), (10_000, 1_000), (300_000, 10), (1_000_000, 10), (1_000_000, 1_000))
"""Keys in the state, MB in the output."""
RECOVERY_S_MAX = 600.0
RECOVERY_PARTS = {
    "launch": "launchSeconds",
    "claim": "claimSeconds",
    "state": "stateSeconds",
    "replay": "replaySeconds",
}


def measure_recovery(effort: Effort) -> list[Row]:
    """Measure every case once; each repeats its rounds."""
    rows = []
    for keys, output_mb in RECOVERY_CASES:
        keys, output_mb = max(int(keys * effort.checkpoint_scale), 1_000), output_mb * effort.checkpoint_scale
        arguments = (str(keys), str(output_mb), str(effort.recoveries))
        found = run_json("benchmarks/recovery_region.py", *arguments, timeout_s=RECOVERY_S_MAX)
        say(f"recovery, {arguments}: {found}")
        rows.append(recovery_row(found))
    return rows


def recovery_row(found: dict[str, Any]) -> Row:
    """Return the row of one case: the medians of its rounds."""
    rounds = found["rounds"]
    measured = statistics.median(one["seconds"] for one in rounds)
    predicted = statistics.median(one["predicted"]["seconds"] for one in rounds)
    parts = ", ".join(
        f"{name} {1000 * statistics.median(one['predicted'][key] for one in rounds):,.0f}"
        for name, key in RECOVERY_PARTS.items()
    )
    state_mb = statistics.median(one["predicted"]["stateBytes"] for one in rounds) / 1e6
    return Row(
        f"{found['keys']:,} keys, {state_mb:.0f} MB to restore by the larger worker;"
        f" {found['output_mb']:,.0f} MB of output",
        f"{1000 * measured:,.0f} ms",
        f"{1000 * predicted:,.0f} ms ({parts}), {predicted / measured:.2f} times the measured time",
        "0.7 to 1.4 times",
    )


# --- local recovery ---------------------------------------------------------------------------------------


LOCAL_PROGRAM: Final = "benchmarks/local_recovery_region.py"
KEYS: Final = 1_000_000
WORKERS: Final = (2, 4, 8)
RECOVERIES: Final = ("local", "global")
LOCAL_S_MAX: Final = 900.0


def measure_local_recovery(effort: Effort) -> list[Row]:
    """Measure each number of workers with both recoveries, one after the other."""
    keys = max(int(KEYS * effort.checkpoint_scale), 10_000)
    rows = [_gap_row(keys, workers, effort.recoveries) for workers in WORKERS]
    return [*rows, _rate_row(keys, effort.pairs)]


def _local(keys: int, workers: int, recovery: str, rounds: int, *more: str) -> dict[str, Any]:
    arguments = (str(keys), str(workers), recovery, str(rounds), *more)
    found: dict[str, Any] = run_json(LOCAL_PROGRAM, *arguments, timeout_s=LOCAL_S_MAX)
    say(f"local recovery, {arguments}: {found}")
    return found


def _gap_row(keys: int, workers: int, rounds: int) -> Row:
    local, others = (_local(keys, workers, recovery, rounds)["rounds"] for recovery in RECOVERIES)
    return Row(
        f"gap of output, {workers} workers, {keys:,} keys",
        f"lost shard {_median(local, 'lost_s')}, other shards {_median(local, 'others_s')}",
        f"global recovery: {_median(others, 'lost_s')}, {_median(others, 'others_s')}",
        "0.9 s with a stand-by",
    )


def _median(rounds: list[dict[str, Any]], name: str) -> str:
    return f"{statistics.median(one[name] for one in rounds):.2f} s"


def _rate_row(keys: int, pairs: int) -> Row:
    found: dict[str, list[float]] = {recovery: [] for recovery in RECOVERIES}
    for _ in range(pairs):
        for recovery, rates in found.items():
            rates.append(_local(keys, 2, recovery, 1, "--rate")["rows_per_s"])
    local, others = (statistics.median(found[recovery]) for recovery in RECOVERIES)
    ratio = statistics.median(a / b for a, b in zip(found["local"], found["global"], strict=True))
    return Row(
        f"count without failures, 2 workers, {keys:,} keys",
        f"{local / 1e6:.2f} M rows/s",
        f"global recovery: {others / 1e6:.2f} M rows/s; ratio of pairs {ratio:.2f}",
        "at least 0.95",
    )


# --- restores and forks -----------------------------------------------------------------------------------


RESTORE_CASES = (10_000, 1_000_000)
"""Keys in the state."""
RESTORE_S_MAX = 900.0


def measure_restore(effort: Effort) -> list[Row]:
    """Measure every case once; each repeats its rounds."""
    rows: list[Row] = []
    for keys in RESTORE_CASES:
        keys = max(int(keys * effort.checkpoint_scale), 1_000)
        arguments = (str(keys), str(effort.recoveries))
        found = run_json("benchmarks/restore_region.py", *arguments, timeout_s=RESTORE_S_MAX)
        say(f"restore, {arguments}: {found}")
        rows += restore_rows(found)
    return rows


def restore_rows(found: dict[str, Any]) -> list[Row]:
    """Return the rows of one case: the medians of its rounds."""
    keys = f"{found['keys']:,} keys"
    restore = statistics.median(one["seconds"] for one in found["restore"])
    reset = statistics.median(one["seconds"] for one in found["reset"])
    forks, first, start = (statistics.median(found[name]) for name in ("fork", "fork_start", "start"))
    return [
        Row(
            f"restore to a savepoint, until the first output; {keys}",
            f"{1000 * restore:,.0f} ms",
            f"a reset by hand: {1000 * reset:,.0f} ms; {restore / reset:.2f} times",
            "1.2 times at most",
        ),
        Row(f"fork of a running region; {keys}", f"{1000 * forks:,.0f} ms", "", "1 s at most, for any state"),
        Row(
            f"first start of the fork, until its first output; {keys}",
            f"{1000 * first:,.0f} ms",
            f"start of the original: {1000 * start:,.0f} ms; {first / start:.2f} times",
            "",
        ),
    ]


# --- backups ----------------------------------------------------------------------------------------------


def measure_backup(effort: Effort) -> list[Row]:
    """Measure a backup beside boto3 alone, and the next one after 1 % of the keys has changed."""
    keys = int(8_000_000 * effort.checkpoint_scale)
    large = run_json(
        "benchmarks/backup_speed.py", "--json", "--pairs", str(effort.pairs), "--keys", str(keys)
    )
    million = run_json("benchmarks/backup_speed.py", "--json", "--pairs", "1")
    return [
        Row(
            f"backup of {large['state_mb']:.0f} MB of state to a bucket",
            f"{large['backup_mb_per_s']:.0f} MB/s",
            f"boto3 alone, which verifies nothing: {large['boto3_mb_per_s']:.0f} MB/s, ratio"
            f" {large['ratio']:.2f}; with the same digests: {large['boto3_checked_mb_per_s']:.0f} MB/s, ratio"
            f" {large['ratio_checked']:.2f}",
            "ratio 0.8",
        ),
        Row(
            "backup after 1 % of 1 million keys has changed",
            f"{million['incremental_mb']:.2f} MB",
            f"the first one: {million['state_mb']:.0f} MB; it took {million['incremental_s']:.1f} s",
            "",
        ),
    ]


# --- TLS --------------------------------------------------------------------------------------------------


TLS_ROWS: Final = {
    "session": ("open a session and close it", "ms", 2),
    "stream": ("durable stream of 64 KiB appends, one server", "MB/s", 0),
    "processor": ("processor time of both ends for it", "s for each GB", 2),
    "read": ("read of a large object, one server", "MB/s", 0),
    "writers": ("64 writers, 1 KiB each, store of three", "appends/s", 0),
    "words": ("word count, two workers, store of three", "words/s", 0),
}
"""Key of a figure -> what it is, its unit, decimal places."""


def tls_rows(figures: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Return the rows for the figures of `tls_speed.py`."""
    rows = []
    for key, (what, unit, places) in TLS_ROWS.items():
        tls, plain = figures["tls"][key], figures["plain"][key]
        beside = f"{plain:,.{places}f} {unit}, ratio {figures['ratio'][key]:.2f}"
        rows.append(Row(what, f"{tls:,.{places}f} {unit}", beside, ""))
    return rows


def measure_tls(effort: Effort) -> list[Row]:
    """Measure the cost of TLS."""
    megabytes = effort.stream_mb // 2
    command = ["benchmarks/tls_speed.py", "--json", "--pairs", str(effort.recoveries)]
    return tls_rows(run_json(*command, "--megabytes", str(megabytes), "--passes", str(effort.passes // 2)))


# --- a greedy client --------------------------------------------------------------------------------------


def fairness_rows(found: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Return the rows for the figures of `fairness.py`."""
    rows = []
    for case, figures in found.items():
        alone, other = figures["alone"], figures["other"]
        beside = (
            f"alone: {alone['p99_ms']:.1f} ms, ratio {figures['ratio']:.1f};"
            f" of another server: {other['p99_ms']:.1f} ms, ratio {figures['ratio_other']:.1f}"
        )
        same = figures["same"]
        text = f"{same['p99_ms']:.1f} ms, p50 {same['p50_ms']:.1f} ms (alone {alone['p50_ms']:.1f} ms)"
        rows.append(Row(FAIRNESS_CASES[case][0], text, beside, "ratio 3 to alone"))
    return rows


def measure_fairness(effort: Effort) -> list[Row]:
    """Measure every greedy client."""
    seconds = 6.0 * effort.server_scale
    command = ["benchmarks/fairness.py", "--json", "--pairs", str(effort.pairs), "--seconds", str(seconds)]
    return fairness_rows(run_json(*command))


# --- replay, word count, memory ----------------------------------------------------------------------


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
            "a checkpoint of that word count, from request to commit", f"{checkpoint_s * 1000:.0f} ms", "", ""
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
