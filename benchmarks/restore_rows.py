"""`./run bench restore`: a restore to an older checkpoint beside a reset, a fork beside a start."""

import statistics
from typing import Any

from rows import Effort, Row, run_json, say

CASES = (10_000, 1_000_000)
"""Keys in the state."""
PART_S_MAX = 900.0


def measure_restore(effort: Effort) -> list[Row]:
    """Measure every case once; each repeats its rounds."""
    rows: list[Row] = []
    for keys in CASES:
        keys = max(int(keys * effort.checkpoint_scale), 1_000)
        arguments = (str(keys), str(effort.recoveries))
        found = run_json("benchmarks/restore_region.py", *arguments, timeout_s=PART_S_MAX)
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
