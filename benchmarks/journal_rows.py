"""The lines of the table that are about journals of files.

Rules of this file: figures of `journal_speed.py`, in words.
"""

from rows import Effort, Row, run_json

SMALL, LARGE = "100 B", "4 KiB"


def measure_journal(effort: Effort) -> list[Row]:
    """Encoding, replay, restore with and without snapshots, the archive, and memory."""
    megabytes = str(effort.large_object_mb)
    options = ["--json", "--megabytes", megabytes, "--s3-megabytes", str(effort.chain_mb)]
    found = run_json("benchmarks/journal_speed.py", *options, "--pairs", str(effort.pairs))
    whole, quarter, snapshots = found["restore_all"], found["restore_quarter"], found["restore_snapshots"]
    return [
        _rate(f"encoding records of {LARGE}, one process", found["encode_4096"], "200 MB/s"),
        _rate(
            f"encoding records of {SMALL}, one process", found["encode_100"], "300,000 records/s", small=True
        ),
        _rate(f"replay of a journal file of {LARGE} records to files", found["replay_4096"], "200 MB/s"),
        _rate(
            f"replay of a journal file of {SMALL} records to files",
            found["replay_100"],
            "300,000 records/s",
            small=True,
        ),
        Row(
            f"restore of a directory of 32 MB from a journal of {whole['journal_mb']:.0f} MB, one server",
            f"{whole['seconds']:.1f} s, {whole['mb_per_s']:.0f} MB/s",
            f"with snapshots: {snapshots['seconds']:.1f} s, {snapshots['read_mb']:.0f} MB read",
            "200 MB/s",
        ),
        Row(
            "peak memory of that restore",
            f"{whole['peak_mb']:.0f} MB",
            f"of a journal of {quarter['journal_mb']:.0f} MB: {quarter['peak_mb']:.0f} MB",
            "flat",
        ),
        Row(
            f"archive of {effort.chain_mb} MB to a bucket (moto), each segment read back",
            f"{found['archive']['mb_per_s']:.0f} MB/s",
            f"restore from the bucket alone: {found['restore_s3']['mb_per_s']:.0f} MB/s",
            "",
        ),
    ]


def _rate(what: str, figures: dict[str, float], aim: str, *, small: bool = False) -> Row:
    rate, records = f"{figures['mb_per_s']:.0f} MB/s", f"{figures['records_per_s']:,.0f} records/s"
    return Row(what, records if small else rate, rate if small else records, aim)
