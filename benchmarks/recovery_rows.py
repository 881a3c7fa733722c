"""`./run bench recovery`: the predicted time of a recovery beside the measured one, for several sizes of
state, and for outputs of several sizes, which must make no difference.
"""

import statistics
from typing import Any

from rows import Effort, Row, run_json, say

CASES = ((10_000, 10), (10_000, 1_000), (300_000, 10), (1_000_000, 10), (1_000_000, 1_000))
"""Keys in the state, MB in the output."""
PART_S_MAX = 600.0
PARTS = {
    "launch": "launchSeconds",
    "claim": "claimSeconds",
    "state": "stateSeconds",
    "replay": "replaySeconds",
}


def measure_recovery(effort: Effort) -> list[Row]:
    """Measure every case once; each repeats its rounds."""
    rows = []
    for keys, output_mb in CASES:
        keys, output_mb = max(int(keys * effort.checkpoint_scale), 1_000), output_mb * effort.checkpoint_scale
        arguments = (str(keys), str(output_mb), str(effort.recoveries))
        found = run_json("benchmarks/recovery_region.py", *arguments, timeout_s=PART_S_MAX)
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
        for name, key in PARTS.items()
    )
    state_mb = statistics.median(one["predicted"]["stateBytes"] for one in rounds) / 1e6
    return Row(
        f"{found['keys']:,} keys, {state_mb:.0f} MB to restore by the larger worker;"
        f" {found['output_mb']:,.0f} MB of output",
        f"{1000 * measured:,.0f} ms",
        f"{1000 * predicted:,.0f} ms ({parts}), {predicted / measured:.2f} times the measured time",
        "0.7 to 1.4 times",
    )
