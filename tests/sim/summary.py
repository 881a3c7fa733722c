"""The result of a campaign, for people and for programs.

`campaign` defines the figures, `sometimes` what is missing.
"""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.sim.campaign import Totals
from tests.sim.sometimes import ENOUGH_RUNS, EVENT_GROUPS, missing


def percentile(values: list[int], share: float) -> int:
    """Return the percentile of the values; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0


def as_json(totals: Totals) -> str:
    """Return the figures as one JSON object."""
    figures: dict[str, Any] = {
        "runs": totals.runs,
        "steps": totals.steps,
        "wall_s": round(totals.wall_s, 3),
        "cpu_s": round(totals.cpu_s, 3),
        "virtual_s": round(totals.virtual_s, 3),
        "faults_median": percentile(totals.faults, 0.5),
        "faults_p90": percentile(totals.faults, 0.9),
        "sometimes": dict(sorted(totals.sometimes.items())),
        "missing": missing(totals.sometimes),
        "failed": [{"seed": one.seed, "violation": one.violation} for one in totals.failed],
        "differed": totals.differed,
    }
    return json.dumps(figures, indent=2)


def show(totals: Totals, console: Console) -> None:
    """Print the figures, then each group of events."""
    wall_s, cpu_s = max(totals.wall_s, 1e-9), max(totals.cpu_s, 1e-9)
    figures = Table(show_header=False, box=None, pad_edge=False)
    figures.add_row("runs", f"{totals.runs:,} in {totals.wall_s:,.0f} s, {len(totals.failed)} failed")
    figures.add_row("speed", f"{totals.runs / wall_s:.1f} runs/s, {totals.runs / cpu_s:.1f} a second of CPU")
    figures.add_row("virtual time", f"{totals.virtual_s:,.0f} s, {totals.virtual_s / wall_s:.0f} x real time")
    figures.add_row(
        "faults of a run",
        f"median {percentile(totals.faults, 0.5)}, p90 {percentile(totals.faults, 0.9)}",
    )
    console.print(figures, highlight=False)
    for title in titles(totals):
        console.print(f"\n[bold]{title}[/bold]", highlight=False)
        console.print(_group_table(totals, title), highlight=False)
    lacking = missing(totals.sometimes)
    if lacking:
        console.print(f"\nnever seen in {totals.runs:,} runs: {', '.join(lacking)}", highlight=False)
        if totals.runs < ENOUGH_RUNS:
            console.print(f"this is an error from {ENOUGH_RUNS:,} runs on", highlight=False)


def titles(totals: Totals) -> list[str]:
    """Return the titles of the groups, then all others that were counted, by the text before the colon."""
    known = [group.title for group in EVENT_GROUPS]
    others = {name.partition(": ")[0] for name in totals.sometimes if ": " in name}
    return known + sorted(others - set(known))


def _group_table(totals: Totals, title: str) -> Table:
    """Return a table with three pairs of name and number in a line, in alphabetical order."""
    prefix = f"{title}: "
    counted = [
        (name.removeprefix(prefix), number)
        for name, number in sorted(totals.sometimes.items())
        if name.startswith(prefix) and number
    ]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column()
        table.add_column(justify="right")
    for at in range(0, len(counted), 3):
        cells = [cell for name, number in counted[at : at + 3] for cell in (name, f"{number:,}")]
        table.add_row(*cells)
    return table
