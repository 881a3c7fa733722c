"""`./run bench local`: the gap of output after the loss of a worker, with local recovery and without, and
what local recovery costs while nothing fails.
"""

import statistics
from typing import Any, Final

from rows import Effort, Row, run_json, say

PROGRAM: Final = "benchmarks/local_recovery_region.py"
KEYS: Final = 1_000_000
WORKERS: Final = (2, 4, 8)
RECOVERIES: Final = ("local", "global")
PART_S_MAX: Final = 900.0


def measure_local_recovery(effort: Effort) -> list[Row]:
    """Measure each number of workers with both recoveries, one after the other."""
    keys = max(int(KEYS * effort.checkpoint_scale), 10_000)
    rows = [_gap_row(keys, workers, effort.recoveries) for workers in WORKERS]
    return [*rows, _rate_row(keys, effort.pairs)]


def _run(keys: int, workers: int, recovery: str, rounds: int, *more: str) -> dict[str, Any]:
    arguments = (str(keys), str(workers), recovery, str(rounds), *more)
    found: dict[str, Any] = run_json(PROGRAM, *arguments, timeout_s=PART_S_MAX)
    say(f"local recovery, {arguments}: {found}")
    return found


def _gap_row(keys: int, workers: int, rounds: int) -> Row:
    local, others = (_run(keys, workers, recovery, rounds)["rounds"] for recovery in RECOVERIES)
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
            rates.append(_run(keys, 2, recovery, 1, "--rate")["rows_per_s"])
    local, others = (statistics.median(found[recovery]) for recovery in RECOVERIES)
    ratio = statistics.median(a / b for a, b in zip(found["local"], found["global"], strict=True))
    return Row(
        f"count without failures, 2 workers, {keys:,} keys",
        f"{local / 1e6:.2f} M rows/s",
        f"global recovery: {others / 1e6:.2f} M rows/s; ratio of pairs {ratio:.2f}",
        "at least 0.95",
    )
