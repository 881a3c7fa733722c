"""The figures of the replication paper, from the simulation of sites and from real operators.

`./run bench replication` writes them to docs/benchmarks/replication.md. Figures 2 to 5 are simulated
(`tests/sites/simulation`); table I is measured (`replication_operators.py`).
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from replication_operators import BATCHES, DEGREES, OPERATORS
from rows import Effort, Row, run_json, say

from sites.errors import PlanRefusedError
from tests.sites.simulation.engine import Options, Run, simulate
from tests.sites.simulation.generator import Generator
from tests.sites.simulation.network import Network
from tests.sites.simulation.query import describe
from tests.sites.simulation.report import figures, tail
from tests.sites.simulation.techniques import FAILS_S, SPIKE_S, compare
from tests.sites.simulation.trace import Trace, write_trace

SEED: Final = 1
PAPER_TABLE: Final = {
    "union": (0.7, 1.0, 1.8, 2.7, 3.5),
    "filter": (0.8, 1.1, 1.9, 2.8, 3.6),
    "aggregate": (2.3, 2.7, 3.6, 4.4, 5.2),
    "join": (9.5, 10.3, 10.8, 11.6, 12.3),
}
"""Percent of a processor for 1,000 rows/s on each input: none, k = 1 to 4."""
INPUTS: Final = {"union": 2, "filter": 1, "aggregate": 1, "join": 2}
PAPER_BANDWIDTH: Final = (1.0, 3.22, 6.67, 11.37, 17.18)
PAPER_COST: Final = {
    "min-cost": (1.0, 4.78, 10.99, 18.32, 26.71),
    "random": (1.0, 5.98, 13.39, 22.10, 47.68),
}
SHARES: Final = (0.6, 0.4)
"""Of the cost of the plan: what collection aims at. The lowest is taken that is not later."""
DISTANCES_MS: Final = (0.0, 15.0, 30.0)
LATER: Final = 0.0005
"""So large a share of rows may be later than 1 s, in addition, before a run counts as later."""


@dataclass(frozen=True, slots=True)
class ReplicationRow(Row):
    """table: where the row belongs. drawn: what is drawn of it."""

    table: str = ""
    drawn: dict[str, Any] = field(default_factory=dict)


def measure_replication(effort: Effort) -> list[Row]:
    """Return the rows of all tables. Simulates `effort.trace_days` days."""
    with tempfile.TemporaryDirectory(prefix="dos-bench-") as directory:
        path = Path(directory, "trace")
        generator = Generator(SEED, 30, effort.trace_days)
        say(f"generating a trace of {effort.trace_days} days")
        write_trace(path, generator.header, generator.delays())
        network = Network(Trace(path))
        return [
            *figure_2(),
            *figure_3(network),
            *figure_4(network),
            *distances(network),
            *figure_5(network, effort.managed_h),
            *table_1(effort.pairs),
        ]


def figure_2() -> list[Row]:
    rows: list[Row] = []
    middle = 1.0  # the spike rises and falls in its first and last second
    spans = ((10.0, SPIKE_S[0] - 1), (SPIKE_S[0] + middle, SPIKE_S[1] - middle), (FAILS_S + 3, FAILS_S + 18))
    for name, outputs in compare(SEED).items():
        before, spike, after = (_ms(outputs.mean_ms(*span)) for span in spans)
        times = np.arange(40.0, 76.0)
        means = [outputs.mean_ms(time, time + 1) / 1000 for time in times]
        slowest = np.isfinite(outputs.latencies_s)
        around = slowest & (outputs.times_s > FAILS_S - 1) & (outputs.times_s < FAILS_S + 2)
        worst = outputs.latencies_s[around].max() * 1000
        drawn = {"times": times.tolist(), "means": means}
        rows.append(ReplicationRow(name, f"{before} | {spike}", after, _ms(worst), "figure 2", drawn))
    return rows


def _ms(value: float) -> str:
    return "no output" if np.isnan(value) else f"{value:,.0f}"


def _simulated(network: Network, kmax: int, options: Options) -> Run | None:
    """Return a run; None if the planner refuses it, which counts a replica that fits nowhere."""
    try:
        run = simulate(network, describe(network, SEED, kmax), options)
    except PlanRefusedError as error:
        say(f"k = {kmax}: {error}")
        return None
    say(f"k = {kmax}, {'random' if options.random else 'min-cost'}: late {figures(run)['late']:.4%}")
    return run


def figure_3(network: Network) -> list[Row]:
    rows: list[Row] = []
    for kmax in (1, 2, 3):
        run = _simulated(network, kmax, Options(SEED, hours=3.0))
        assert run is not None
        rounds = run.latencies_s[:, : run.latencies_s.shape[1] // 10]  # the first application
        hours = run.rounds_s / 3600
        averages = rounds.reshape(-1, 60 * rounds.shape[1]).mean(axis=1)  # 60 rounds are 10 minutes
        drawn = {
            "hours": hours[::3].tolist(),
            "latencies": rounds.max(axis=1)[: len(hours) // 3 * 3].reshape(-1, 3).max(axis=1).tolist(),
            "averageHours": (np.arange(len(averages)) / 6).tolist(),
            "averages": averages.tolist(),
        }
        mean, deviation = rounds.mean() * 1000, rounds.std() * 1000
        rows.append(
            ReplicationRow(
                str(kmax), f"{mean:,.0f}", f"{deviation:,.0f}", f"{rounds.max():,.1f}", "figure 3", drawn
            )
        )
    return rows


def figure_4(network: Network) -> list[Row]:
    rows: list[Row] = []
    base: dict[str, Any] = {}
    for way in ("random", "min-cost"):
        for kmax in (1, 2, 3, 4, 5):
            run = _simulated(network, kmax, Options(SEED, random=way == "random"))
            if run is None:
                continue
            found = figures(run)
            base = base or found
            bandwidth, cost = found["bytesPerS"] / base["bytesPerS"], found["cost"] / base["cost"]
            latencies, shares = tail(run)
            name = f"k={kmax} ({bandwidth:.2f}x, {cost:.2f}x)"
            drawn = {"way": way, "name": name, "latencies": latencies, "shares": shares}
            left = f" ({found['leftOut']} left out)" if found["leftOut"] else ""
            rows.append(
                ReplicationRow(
                    f"{way}, k = {kmax}{left}",
                    f"{bandwidth:.2f} | {PAPER_BANDWIDTH[kmax - 1]:.2f} | {cost:.2f}",
                    f"{PAPER_COST[way][kmax - 1]:.2f} | {found['meanS'] * 1000:,.0f}",
                    f"{found['late']:.4%} | {found['maxS']:,.1f}",
                    "figure 4",
                    drawn,
                )
            )
    return rows


def distances(network: Network) -> list[Row]:
    """Return the share of rows later than 1 s by the minimum distance of the replicas of a region."""
    rows: list[Row] = []
    for kmax in (2, 3, 4):
        cells = []
        for distance in DISTANCES_MS:
            run = simulate(network, describe(network, SEED, kmax, distance_ms=distance), Options(SEED))
            cells.append(f"{figures(run)['late']:.4%} | {run.cost:,.0f}")
            say(f"k = {kmax}, {distance:g} ms: {cells[-1]}")
        rows.append(ReplicationRow(str(kmax), cells[0], cells[1], cells[2], "distances"))
    return rows


def figure_5(network: Network, hours: float) -> list[Row]:
    """Return the cost without collection, and the lowest that is not later, with and without revival."""
    rows: list[Row] = []
    base = 0.0
    for kmax in (1, 2, 3, 4):
        static = _simulated(network, kmax, Options(SEED, hours=hours))
        assert static is not None
        base = base or static.cost
        late = figures(static)["late"]
        parts = [("static", static.cost, late, 0, 0)]
        for name, revive in (("collected", False), ("collected and revived", True)):
            best = (name, static.cost, late, 0, 0)
            for share in SHARES if kmax > 1 else ():
                run = _simulated(network, kmax, Options(SEED, hours, collect=share, revive=revive))
                assert run is not None
                end = float(np.mean(run.costs[-120:]))  # of the last hour
                found = figures(run)
                if found["late"] <= late + LATER and end < best[1]:
                    best = (name, end, found["late"], run.collected, run.revived)
            parts.append(best)
        drawn = {name: cost / base for name, cost, *_ in parts}
        cells = [f"{cost / base:.1f}, {share:.3%}" for _, cost, share, *_ in parts]
        counts = f"{parts[1][3]} | {parts[2][3]}, {parts[2][4]}"
        rows.append(ReplicationRow(str(kmax), cells[0], " | ".join(cells[1:]), counts, "figure 5", drawn))
    return rows


def table_1(rounds: int) -> list[Row]:
    """Return microseconds per row by operator and degree."""
    found = run_json("benchmarks/replication_operators.py", str(rounds), timeout_s=1800)
    rows: list[Row] = []
    for size in BATCHES:
        for operator in OPERATORS:
            totals = [sum(found[f"{operator}/{size}/{degree}"]) for degree in DEGREES]
            filters = [found[f"{operator}/{size}/{degree}"][0] for degree in DEGREES]
            added = (filters[4] - filters[1]) / 3
            paper = [percent * 10 / INPUTS[operator] for percent in PAPER_TABLE[operator]]
            rows.append(
                ReplicationRow(
                    f"{operator}, {size:,} rows",
                    " | ".join(f"{total:.2f}" for total in totals),
                    f"{added:.2f}",
                    f"{(paper[4] - paper[1]) / 3:.1f}",
                    "table I",
                    {"operator": operator, "size": size, "filters": filters},
                )
            )
    return rows
