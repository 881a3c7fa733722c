"""`./run sites-sim`: applications over sites, with network delays from a trace. See docs/sites.md."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dos_client.cli.kit import NEGATIVE, REFUSED, print_table
from dos_protocol.errors import DosError
from sites.errors import PlanRefusedError
from tests.sites.simulation.engine import Options, Run, simulate
from tests.sites.simulation.generator import POPULATION, Generator
from tests.sites.simulation.network import Network
from tests.sites.simulation.query import describe
from tests.sites.simulation.report import LATE_S, figures
from tests.sites.simulation.trace import Trace, write_trace

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
errors = Console(stderr=True)


@app.command()
def main(
    trace: Annotated[
        Path, typer.Option(help="The trace of network delays; with --generate, the file that is written.")
    ],
    generate: Annotated[
        bool, typer.Option("--generate", help="Make up a trace, with the properties of the paper's.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the trace that is generated, and of the application.")] = 1,
    servers: Annotated[
        int, typer.Option(min=10, max=POPULATION, help="Servers of a trace that is generated.")
    ] = 30,
    days: Annotated[int, typer.Option(min=1, help="Days of a trace that is generated.")] = 30,
    hours: Annotated[float | None, typer.Option(min=0.1, help="Simulate so much of the trace.")] = None,
    kmax: Annotated[str, typer.Option(help="Replicas of each region: one run for each number.")] = "1,2,3",
    kmin: Annotated[int, typer.Option(min=1, help="Fewer replicas are refused, and never collected.")] = 1,
    distance_ms: Annotated[
        float, typer.Option(min=0, help="Replicas of a region are farther apart than that.")
    ] = 30.0,
    random: Annotated[
        bool, typer.Option("--random/--min-cost", help="Random places for all replicas but the first.")
    ] = False,
    collect: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Collect streams until the cost is that share of the plan's.",
            metavar="SHARE",
        ),
    ] = None,
    revive: Annotated[
        bool, typer.Option("--revive", help="Revive collected streams where inputs are late.")
    ] = False,
    filter_minutes: Annotated[
        float, typer.Option(min=0, help="So long, real filters decide which rows are passed.")
    ] = 5.0,
    entry_servers: Annotated[
        int,
        typer.Option(min=0, max=9, help="Servers of an entry store for the sources; 0: none."),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each run.")] = False,
) -> None:
    """Simulate the paper's application over the network of a trace, and print latencies and costs.

    The replicas are placed by the planner of `dos sites plan`, with the delays of the first day as its
    measurements. Rows pass the real filters in the first minutes, and as these would pass them afterwards.
    Collection and revival are decided by the code that decides them for real replicas. With --entry-servers,
    entry points give times and marks with their own code, and readers see what a majority of servers has.

    Example: ./run sites-sim --trace month.trace --generate --days 30

    Example: ./run sites-sim --trace month.trace --kmax 1,2,3,4 --hours 24

    Example: ./run sites-sim --trace month.trace --kmax 3 --collect 0.5 --revive --json

    Example: ./run sites-sim --trace month.trace --hours 24 --entry-servers 3

    Exit codes: 0 done; 1 the planner refused a run; 2 usage, or a trace that is invalid.
    """
    counts = _counts(kmax)
    try:
        if generate:
            _generate(trace, Generator(seed, servers, days))
        network = Network(Trace(trace))
        options = Options(
            seed,
            hours,
            random=random,
            collect=collect,
            revive=revive,
            filter_s=filter_minutes * 60,
            entry_servers=entry_servers,
        )
        found = [_run(network, options, count, min(kmin, count), distance_ms) for count in counts]
    except PlanRefusedError as error:
        errors.print(f"{error}; {error.remedy}", highlight=False, soft_wrap=True)
        sys.exit(NEGATIVE)
    except (DosError, OSError) as error:
        remedy = f"; {error.remedy}" if isinstance(error, DosError) else ""
        errors.print(f"{error}{remedy}", highlight=False, soft_wrap=True)
        sys.exit(REFUSED)
    if as_json:
        for run in found:
            print(json.dumps(figures(run)))
        return
    _print([figures(run) for run in found])


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise typer.BadParameter(f"numbers from 1 on, as in 1,2,3: {text!r}", param_hint="--kmax")
    return counts


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=errors, transient=True)


def _generate(path: Path, generator: Generator) -> None:
    with _progress() as progress:
        task = progress.add_task("generating", total=generator.days)
        write_trace(path, generator.header, generator.delays(), lambda _day: progress.advance(task))


def _run(network: Network, options: Options, kmax: int, kmin: int, distance_ms: float) -> Run:
    description = describe(network, options.seed, kmax, kmin, distance_ms)
    with _progress() as progress:
        task = progress.add_task(f"kmax {kmax}", total=1.0)
        return simulate(network, description, options, lambda done: progress.update(task, completed=done))


def _print(found: list[dict[str, Any]]) -> None:
    base = found[0]
    print_table(
        (
            "kmax",
            "#replicas",
            "#mean ms",
            "#p50",
            "#p99",
            "#max s",
            f"#> {LATE_S:g} s",
            "#cost",
            "#bandwidth",
            "#lost",
        ),
        [
            (
                str(one["kmax"]),
                str(one["replicas"]) + (f" (-{one['leftOut']})" if one["leftOut"] else ""),
                f"{one['meanS'] * 1000:,.0f}",
                f"{one['p50S'] * 1000:,.0f}",
                f"{one['p99S'] * 1000:,.0f}",
                f"{one['maxS']:,.1f}",
                f"{one['late']:.4%}",
                f"{one['meanCost']:,.0f} ({one['meanCost'] / base['meanCost']:.2f}x)",
                f"{one['bytesPerS']:,.0f} ({one['bytesPerS'] / base['bytesPerS']:.2f}x)",
                str(one["lost"]),
            )
            for one in found
        ],
    )
    for one in found:
        if one["collected"]:
            print(f"kmax {one['kmax']}: {one['collected']} streams collected, {one['revived']} revived")


if __name__ == "__main__":
    app()
