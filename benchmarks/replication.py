"""The evaluation of the replication paper (`./run bench replication`), as docs/benchmarks/replication.md.
Figures 2 to 5 are simulated (`tests/sites/simulation`); table I is measured (`replication_operators.py`).
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from dataflow_page import plain_numbers
from replication_operators import BATCHES, DEGREES, OPERATORS
from rows import DOCS, Effort, Row, Section, run_json, say, table_lines

from journal.pictures import HEAD_PX, INK, drawn, points
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
PAPER_COST: Final = {"min-cost": (1.0, 4.78, 10.99, 18.32, 26.71), "random": (1.0, 5.98, 13.39, 22.10, 47.68)}
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


# --- the page ---------------------------------------------------------------------------------------------


PLACE = Section("replication", page=DOCS / "benchmarks" / "replication.md")
SECTION = """\
{begin}
The evaluation of Hwang, Cetintemel and Zdonik, "Fast and Highly-Available Stream Processing over Wide Area
Networks", section VI, in kind. Figures 2 to 5 are simulated over a trace of {days} days, which is made up
because the paper's is not published: 30 of 100 servers, delays every 10 s, outages of minutes, congestion
([sites.md](../sites.md#the-simulation)). Table I is measured. Written on {date}.

## Figure 2: four techniques, a load spike and a failure

Mean latency at the output of the join, in ms. The union of latencies is at WISC and that of loads at
Purdue, their copies at the other of the two, the join at OSU. WISC is slow from second 45 to 50, and fails
at second 60. With replication, real filters pass the rows.

| technique | before | load spike at WISC | after the failure | worst row within 2 s of the failure |
|---|---|---|---|---|
{figure_2}

![latency of four techniques](replication-techniques.svg)

As the paper states: replication has the lowest latency and continues after the failure; synchronization adds
a round trip between the replicas; the slowest input determines the latency of deterministic processing. The
previous techniques are interrupted until the failure is noticed, here assumed to take 1 s. Sources are out of
phase here, so that deterministic processing waits for up to 0.5 s, and its latency is higher than in the
paper.

## Figure 3: latency by the degree of replication

Of one application, over the first 3 hours, in ms.

| k | mean | standard deviation | largest, in s |
|---|---|---|---|
{figure_3}

![latency over three hours](replication-latency.svg)

The paper states that mean and variance fall as k rises.

## Figure 4: random and min-cost placement

Ten applications, all days. Ratios are to k = 1. A replica that fits at no server is left out.

| placement | bandwidth | paper | network cost | paper | mean, ms | later than 1 s | largest, in s |
|---|---|---|---|---|---|---|---|
{figure_4}

![share of rows that are later](replication-placement.svg)

As the paper states, bandwidth grows by less than k squared (with its ratios), and random placement has later
rows than min-cost; at a higher cost only for k = 2 and 3. Not as it states, some rows are later than 1 s with
min-cost from k = 3 on: a partition of the trace can separate a source or an application from all replicas of
a region. Both cost ratios are higher than in the paper, because the servers of one replica are next to each
other here.

What the minimum distance is worth, with min-cost: the share of rows later than 1 s, and the cost in bytes
under way.

| k | 0 ms: later | cost | 15 ms: later | cost | 30 ms: later | cost |
|---|---|---|---|---|---|---|
{distances}

Near servers are cut off from the same others at the same time, so near replicas help little.

## Figure 5: collection and revival

Cost relative to k = 1 without collection, and the share of rows later than 1 s, over {hours:g} hours.
Collection removes one group of streams every 5 minutes, until the cost is 60 % or 40 % of that of the plan;
the cost is that of the last hour. Of these two runs, the table has the one with the lower cost of which at
most 0.05 % more rows are later than without collection.

| k | static | collected | collected and revived | streams collected | streams collected, revived |
|---|---|---|---|---|---|
{figure_5}

![cost after collection and revival](replication-collection.svg)

As the paper states, collection saves cost without later rows, and with k = 3 and 4 more can be collected if
it can be revived. That the share of useful streams falls as k rises was not seen: the runs end with the cost
at their aim, or with the time. A revived replica has its state at once here.

## Table I: processor time by operator and degree

Microseconds per input row, with a row each millisecond: without a filter, and with k = 1 to 4 streams for
each input. *Added* is what one more stream costs in the filter. The paper's percents of a processor (an AMD
Sempron 2800+) include sending and receiving, and are converted here. Our join finds partners by key; the
paper's compares each row with 100. Least of {count} measurements.

| operator, rows of a batch | none | k = 1 | k = 2 | k = 3 | k = 4 | added | added, paper |
|---|---|---|---|---|---|---|---|
{table_1}

The paper states that the cost per replica, relative to that of the operator, increases with k, least for the
join; here least for the operator that costs most, the aggregate.
{end}"""
COLOURS: Final = ("#c8553d", "#1b6ca8", "#588157", "#7b2d8b", "#b8860b")


def draw(rows: Sequence[Row], folder: Path = DOCS / "benchmarks") -> None:
    """Draw the four figures. Raises as `drawn`."""
    ours = [row for row in rows if isinstance(row, ReplicationRow)]
    draw_techniques(folder / "replication-techniques.svg", _of(ours, "figure 2"))
    draw_latency(folder / "replication-latency.svg", _of(ours, "figure 3"))
    draw_placement(folder / "replication-placement.svg", _of(ours, "figure 4"))
    draw_collection(folder / "replication-collection.svg", _of(ours, "figure 5"))


def _of(rows: Sequence[ReplicationRow], table: str) -> list[ReplicationRow]:
    return [row for row in rows if row.table == table]


def _titled(axes: Any, title: str) -> None:
    axes.grid(visible=True)
    axes.set_title(title, loc="left", size=points(HEAD_PX), color=INK)


def draw_techniques(path: Path, rows: Sequence[ReplicationRow]) -> None:
    with drawn(path, "latency of four techniques", 800, 400) as picture:
        axes = picture.figure.add_axes((0.09, 0.14, 0.63, 0.74))
        for row, colour in zip(rows, COLOURS, strict=False):
            (line,) = axes.plot(row.drawn["times"], row.drawn["means"], color=colour, label=row.what)
            picture.describe(line, "line", row.what)
        axes.set_ylim(0)
        axes.set_xlabel("seconds; WISC is slow from 45 to 50 and fails at 60")
        axes.set_ylabel("seconds")
        _titled(axes, "mean latency of the rows of a second")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def draw_latency(path: Path, rows: Sequence[ReplicationRow]) -> None:
    with drawn(path, "latency by the degree of replication", 960, 360) as picture:
        highest = max(max(row.drawn["latencies"]) for row in rows)
        for column, row in enumerate(rows):
            axes = picture.figure.add_axes((0.08 + 0.31 * column, 0.16, 0.26, 0.7))
            axes.set_yscale("log")
            plain_numbers(axes)
            axes.xaxis.set_major_formatter("{x:g}")
            for name, xs, ys, width in (
                ("largest of half a minute", "hours", "latencies", 0.7),
                ("mean of 10 minutes", "averageHours", "averages", 2.0),
            ):
                (line,) = axes.plot(
                    row.drawn[xs], row.drawn[ys], color=COLOURS[width < 1], lw=width, label=name
                )
                picture.describe(line, "line", f"k = {row.what}, {name}")
            axes.set_ylim(0.01, max(10.0, highest * 5))
            axes.set_xlabel("hours")
            axes.set_xticks([0, 1, 2, 3])
            _titled(axes, f"k = {row.what}")
            if column == 0:
                axes.set_ylabel("seconds")
            if column == 2:
                axes.legend(loc="upper right", frameon=False)


def draw_placement(path: Path, rows: Sequence[ReplicationRow]) -> None:
    with drawn(path, "share of rows that are later", 960, 500) as picture:
        for column, way in enumerate(("random", "min-cost")):
            axes = picture.figure.add_axes((0.09 + 0.49 * column, 0.31, 0.39, 0.61))
            axes.set_xscale("log")
            axes.set_yscale("log")
            for row, colour in zip((row for row in rows if row.drawn["way"] == way), COLOURS, strict=False):
                name = row.drawn["name"]
                (line,) = axes.plot(row.drawn["latencies"], row.drawn["shares"], color=colour, label=name)
                picture.describe(line, "line", f"{way}, {name}")
            axes.set_xlim(0.02, 10_000)
            axes.set_ylim(1e-7, 1)
            axes.set_xticks([0.1, 1, 10, 100, 1000])
            axes.set_yticks([1, 1e-2, 1e-4, 1e-6], ["100 %", "1 %", "0.01 %", "0.0001 %"])
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_xlabel("latency x, in seconds")
            _titled(axes, f"{way}: share of rows later than x")
            axes.legend(loc="upper left", bbox_to_anchor=(-0.15, -0.19), ncols=2, frameon=False)


def draw_collection(path: Path, rows: Sequence[ReplicationRow]) -> None:
    with drawn(path, "cost after collection and revival", 720, 380) as picture:
        axes = picture.figure.add_axes((0.09, 0.14, 0.6, 0.74))
        names = list(rows[0].drawn)
        for number, name in enumerate(names):
            places = [at + 0.27 * (number - 1) for at, _ in enumerate(rows)]
            values = [row.drawn[name] for row in rows]
            found = axes.bar(places, values, 0.25, color=COLOURS[number], label=name)
            axes.bar_label(found, [f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in values])
        axes.margins(y=0.1)
        axes.set_xticks(range(len(rows)), [f"k = {row.what}" for row in rows])
        _titled(axes, "network cost, relative to k = 1")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def written(rows: list[Row], effort: Effort) -> str:
    """Draw the pictures, and return the text of the page."""
    draw(rows)
    return section_of(rows, effort.trace_days, effort.managed_h, effort.pairs)


def section_of(rows: Sequence[Row], days: int, hours: float, rounds: int) -> str:
    """Return the text of the page's section."""
    ours = [row for row in rows if isinstance(row, ReplicationRow)]
    names = ("figure 2", "figure 3", "figure 4", "distances", "figure 5", "table I")
    tables = {name.replace(" ", "_").replace("I", "1"): table_lines(_of(ours, name)) for name in names}
    return PLACE.filled(SECTION, rounds, **tables, days=days, hours=hours, count=rounds)
