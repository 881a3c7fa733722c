"""Figures of a run: latencies, the share of late rows, cost and bandwidth."""

from typing import Any, Final

import numpy as np

from tests.sites.simulation.engine import Run

LATE_S: Final = 1.0


def figures(run: Run) -> dict[str, Any]:
    """Return the figures of a run, with names as in JSON. `lost`: rows that arrived at no time."""
    found = run.latencies_s[np.isfinite(run.latencies_s)]
    return {
        "kmax": run.description.kmax,
        "replicas": sum(map(len, run.replicas.values())),
        "leftOut": run.left_out,
        "rows": int(run.latencies_s.size),
        "lost": int(run.latencies_s.size - found.size),
        "meanS": float(found.mean()),
        "deviationS": float(found.std()),
        "p50S": float(np.quantile(found, 0.5)),
        "p99S": float(np.quantile(found, 0.99)),
        "maxS": float(found.max()),
        "late": float((run.latencies_s > LATE_S).mean()),
        "cost": run.cost,
        "meanCost": run.mean_cost,
        "bytesPerS": run.bytes_per_s,
        "collected": run.collected,
        "revived": run.revived,
    }


def tail(run: Run, points: int = 200) -> tuple[list[float], list[float]]:
    """Return (latency, the share of rows that were later), for a plot on logarithmic axes."""
    found = np.sort(run.latencies_s.ravel())
    shares = np.geomspace(1.0, 1 / len(found), points)
    places = np.minimum((len(found) * (1 - shares)).astype(int), len(found) - 1)
    return found[places].tolist(), shares.tolist()
