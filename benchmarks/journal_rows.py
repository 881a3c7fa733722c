"""The table rows about journaled files, from the results of `journal_speed.py`."""

from typing import Any

from rows import Effort, Row, run_json

SMALL, LARGE = "100 B", "4 KiB"
RATE_AIM, RECORDS_AIM = "200 MB/s", "300,000 records/s"
ROUNDS_MAX = 3
"""Maximum number of rounds: all of them take about four minutes on an idle machine."""
S3_MB_MIN = 140
"""Two segments of 64 MiB and a part of a third one: the newest segment is not archived."""
Figures = dict[str, float]


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


def _large(what: str, one: Figures) -> Row:
    return Row(what, f"{one['mb_per_s']:.0f} MB/s", f"{one['mb_per_cpu_s']:.0f} MB per CPU second", RATE_AIM)


def _small(what: str, one: Figures) -> Row:
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
            _beside("puts and gets them", archive["mb_per_s"], alone["put_get_mb_per_s"]),
            "",
        ),
        Row(
            "restore from the bucket alone",
            f"{_in_time(restored)}, peak memory {restored['peak_mb']:.0f} MB",
            _beside("gets them, one request after the other", restored["mb_per_s"], alone["get_mb_per_s"]),
            "",
        ),
    ]


def _beside(does: str, ours: float, other: float) -> str:
    return f"boto3 alone {does}: {other:.0f} MB/s, ratio {ours / other:.2f}"


def _in_time(one: Figures) -> str:
    return f"{one['seconds']:.1f} s, {one['mb_per_s']:.0f} MB/s"
