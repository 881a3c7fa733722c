"""`./run sim`: whole clusters from seeds. See docs/simulation.md."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.sim.campaign import Totals, run_campaign
from tests.sim.nemesis import plan_of
from tests.sim.run import Result, run_seed
from tests.sim.shrink import numbers, shrink
from tests.stories.replay import retell
from tests.stories.script import StoryError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
console = Console()
errors = Console(stderr=True)


def _one(seed: int, only: str | None, *, trace: bool, digest: bool) -> None:
    """A single run, shown."""
    faults = None
    if only is not None:
        wanted = {int(number) for number in only.split(",") if number}
        faults = [fault for fault in plan_of(seed) if fault.number in wanted]
    logging.disable(logging.NOTSET if trace else logging.CRITICAL)
    result = run_seed(seed, keep=trace, faults=faults)
    if digest:
        print(result.digest)
        return
    for line in result.lines:
        print(line)
    if result.violation:
        _tell(result, only)
        sys.exit(1)
    console.print(
        f"seed {seed}: {len(result.faults)} faults, {result.steps:,} steps, {result.seconds:.0f} s of virtual"
        f" time, nothing wrong; digest {result.digest}"
    )


def _story(path: Path) -> None:
    """A story, told as it happens now."""
    try:
        before = path.read_text(encoding="utf-8")
        after = retell(path, before)
    except (OSError, StoryError) as error:
        errors.print(f"{error}", highlight=False, soft_wrap=True)
        sys.exit(1)
    print(after, end="")
    if after != before:
        errors.print(f"{path} has it otherwise: ./run test tests/stories --rewrite", highlight=False)
        sys.exit(1)


def _tell(result: Result, only: str | None) -> None:
    again = f"./run sim --seed {result.seed} --trace" + (f" --faults {only}" if only is not None else "")
    errors.print(f"seed {result.seed}: {result.violation}\n  {again}", highlight=False)


def _shrunk(seed: int) -> None:
    """Make a failing run small and say how to see it."""
    result = run_seed(seed)
    errors.print(f"seed {seed}: {result.violation}", highlight=False)
    errors.print(f"shrinking {len(result.faults)} faults ...")
    left = shrink(seed, result.faults, result.oracle)
    errors.print(f"{len(left)} are enough: {', '.join(map(str, left)) or 'none'}", highlight=False)
    errors.print(f"  ./run sim --seed {seed} --trace --faults {numbers(left) or '-1'}", highlight=False)


def _summary(totals: Totals) -> None:
    faults = sorted(totals.faults)
    console.print(
        f"{totals.runs:,} runs, {totals.steps:,} steps, {len(totals.failed)} failed; "
        f"{totals.runs / totals.wall_s:.1f} runs/s, "
        f"{totals.virtual_s / totals.wall_s:.0f} virtual seconds a second; "
        f"median {faults[len(faults) // 2]} faults a run",
        highlight=False,
    )
    for what, number in sorted(totals.sometimes.items()):
        console.print(f"{number:10,} {what}", highlight=False)


@app.command()
def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 100,
    seed: Annotated[
        int | None, typer.Option(help="The first seed; alone, or with --trace, the only one.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Run seeds for so long instead.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print everything that happens.")] = False,
    faults: Annotated[str | None, typer.Option(help="Only these faults of the plan, by number.")] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Print only the digest of the run.")] = False,
    story: Annotated[Path | None, typer.Option(help="Tell this story of tests/stories.")] = None,
) -> None:
    """Run whole simulated clusters, one from each seed, and stop at the first that breaks a promise.

    [dim]./run sim --seeds 2000[/dim]               two thousand runs
    [dim]./run sim --seed 42 --trace[/dim]          one run, told line by line
    [dim]./run sim --story tests/stories/zombie.txt[/dim]  a story, told as it happens now
    [dim]./run sim --minutes 60 --seed 100000[/dim] for an hour, from that seed on

    Exit: 0 nothing wrong, 1 a promise is broken (the line that shows it again is printed) or a story goes
    otherwise, 2 a run is not the same a second time.
    """
    if story is not None:
        _story(story)
        return
    logging.disable(logging.CRITICAL)
    if seed is not None and (trace or digest or faults is not None):
        _one(seed, faults, trace=trace, digest=digest)
        return
    first = 1 if seed is None else seed
    many = None if minutes is not None else seeds
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as bar:
        task = bar.add_task("seeds", total=many, said="")
        totals = run_campaign(
            first,
            many,
            seconds=None if minutes is None else 60 * minutes,
            progress=lambda now: bar.update(
                task, completed=now.runs, said=f"{now.virtual_s / max(now.wall_s, 1e-9):.0f} x real time"
            ),
        )
    _summary(totals)
    for outcome in totals.failed:
        _shrunk(outcome.seed)
    if totals.differed:
        errors.print(f"not the same a second time: seeds {totals.differed}")
    sys.exit(1 if totals.failed else 2 if totals.differed else 0)


if __name__ == "__main__":
    app()
