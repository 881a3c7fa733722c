"""Crash states of many runs, for longer than the tests take."""

import json
import logging
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.power.crash_states import record, violations
from tests.power.mount import what_is_missing
from tests.power.restarts import many_runs

HELP = """Cut the power of recorded runs of a real server, thousands of times.

Each run is recorded on a file system that loses what was not synced, with another seed; disks that a power
cut may leave at any moment of it are made, and a server is started on each. Of as many more the power goes
again in that start. Then lives in memory, ended by kills and power cuts between any two calls to the disk.
Exit 0 if all that was acknowledged was there each time, and nothing else; 1 if not; 2 where nothing can be
mounted.
"""
EPILOG = "Example: ./run python -m tests.power --seed 100 --runs 20 --states 1000 --lives 5000"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=HELP, epilog=EPILOG)
def main(
    seed: Annotated[int, typer.Option(help="Of the first run.")] = 100,
    runs: Annotated[int, typer.Option(min=0, help="Recorded runs, one seed after the other.")] = 5,
    states: Annotated[int, typer.Option(min=1, help="Disks of each run, and as many again.")] = 500,
    lives: Annotated[int, typer.Option(min=0, help="Sequences of eight lives.")] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    logging.disable(logging.CRITICAL)
    if runs and (why := what_is_missing()):
        typer.echo(f"python -m tests.power: {why}", err=True)
        raise typer.Exit(2)
    wrong: list[str] = []
    operations = acknowledged = 0
    for number in range(seed, seed + runs):
        with tempfile.TemporaryDirectory(prefix="dos-power-") as folder:
            run = record(Path(folder) / "disk", number)
        operations += len(run.operations)
        acknowledged += run.history.acknowledged_bytes
        for again in (False, True):
            found = violations(run, states, number, again=again)
            wrong += [f"seed {number}, {'cut in the start, ' * again}{one}" for one in found]
        typer.echo(
            f"seed {number}: {len(run.operations)} operations, {len(wrong)} violations so far", err=True
        )
    for number in range(seed, seed + lives):
        try:
            many_runs(number, 8)
        except AssertionError as error:
            wrong.append(f"lives of seed {number}: {error}")
    report = {
        "runs": runs,
        "operations": operations,
        "acknowledged_bytes": acknowledged,
        "crash_states": 2 * runs * states,
        "deaths": 8 * lives,
        "violations": wrong,
    }
    if as_json:
        typer.echo(json.dumps(report))
    else:
        counts = {**report, "violations": len(wrong)}
        typer.echo("\n".join([*wrong[:20], *(f"{name:20}{count:>14,}" for name, count in counts.items())]))
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    app()
