"""The rows of `./run bench backup`: `backup_speed.py` measures them."""

from rows import Effort, Row, run_json


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
