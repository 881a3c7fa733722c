"""`./run sim`: whole clusters from seeds. See docs/simulation.md."""

import logging
import sys
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tests.sim.campaign import (
    MISSES_MAX,
    Totals,
    as_json,
    keep,
    line_of,
    run_campaign,
    show,
    shrink,
    wanted_seeds,
)
from tests.sim.nemesis import Fault
from tests.sim.soak.command import soak as run_soak
from tests.sim.sometimes import ENOUGH_RUNS
from tests.sim.tiers import CORES, SHELLS, tier_of
from tests.stories.replay import retell
from tests.stories.script import StoryError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
console = Console()
errors = Console(stderr=True)
KINDS = ", ".join(tier_of(CORES).kinds)
SHRUNK_MAX = 5
"""Failing seeds of a campaign whose plan of faults is reduced; the others are only named."""


class Exit(IntEnum):
    """The exit codes of `./run sim`; 2 is for arguments that are not valid."""

    FINE = 0
    VIOLATION = 1
    """Or a story whose text has changed."""
    NEVER_SEEN = 3
    DIFFERENT = 4


def _one(tier: str, seed: int, only: str | None, *, trace: bool, digest: bool) -> None:
    """Run one seed and print it."""
    faults = None if only is None else _chosen(tier, seed, only)
    logging.disable(logging.NOTSET if trace else logging.CRITICAL)
    result = tier_of(tier).run_seed(seed, keep=trace, faults=faults)
    if digest:
        print(result.digest)
        return
    for line in result.lines:
        print(line)
    if result.violation:
        errors.print(f"seed {seed}: {result.violation}", highlight=False, soft_wrap=True)
        errors.print(f"  {line_of(seed, faults, tier)}", highlight=False, soft_wrap=True)
        sys.exit(Exit.VIOLATION)
    console.print(
        f"seed {seed}: {len(result.faults)} faults, {result.steps:,} steps, {result.seconds:.0f} s of virtual"
        f" time, no violation; digest {result.digest}"
    )


def _chosen(tier: str, seed: int, only: str) -> list[Fault]:
    """Return the faults of the plan by their numbers, "3,7"; "-1" names none."""
    try:
        wanted = {int(number) for number in only.split(",") if number}
    except ValueError:
        raise typer.BadParameter(f"numbers of faults, as in 3,7: {only!r}", param_hint="--faults") from None
    return [fault for fault in tier_of(tier).plan_of(seed) if fault.number in wanted]


def _story(path: Path) -> None:
    """Print a story as the current code produces it."""
    try:
        before = path.read_text(encoding="utf-8")
        after = retell(path, before)
    except (OSError, StoryError) as error:
        errors.print(f"{error}", highlight=False, soft_wrap=True)
        sys.exit(Exit.VIOLATION)
    print(after, end="")
    if after != before:
        errors.print(f"{path} differs; ./run test tests/stories --rewrite updates it", highlight=False)
        sys.exit(Exit.VIOLATION)


def _shrunk(tier: str, seed: int, folder: Path | None) -> None:
    """Reduce the faults of a failing run, print the command that repeats it, and write it to `folder`."""
    run_seed = tier_of(tier).run_seed
    result = run_seed(seed)
    errors.print(f"\nseed {seed}: {result.violation}", highlight=False, soft_wrap=True)
    errors.print(f"shrinking {len(result.faults)} faults ...", highlight=False)
    left = shrink(seed, result.faults, result.oracle, tier=tier)
    errors.print(f"{len(left)} are enough: {', '.join(map(str, left)) or 'none'}", highlight=False)
    errors.print(f"  {line_of(seed, left, tier)}", highlight=False, soft_wrap=True)
    if folder is not None:
        path = keep(folder, run_seed(seed, keep=True, faults=left), left, tier)
        errors.print(f"  kept in {path}", highlight=False, soft_wrap=True)


def _check_wanted(first: int, kinds: list[str], faults: list[str], tier: str) -> None:
    """Check the names of kinds and faults, and that there are such seeds."""
    for given, known, option in (
        (kinds, tier_of(tier).kinds, "--kind"),
        (faults, tier_of(tier).faults, "--with"),
    ):
        for name in given:
            if name not in known:
                text = f"{name!r} is none of {', '.join(sorted(known))}"
                raise typer.BadParameter(text, param_hint=option)
    if next(wanted_seeds(first, kinds, faults, tier), None) is None:
        text = f"none of the {MISSES_MAX:,} seeds from {first} on is of all these kinds with all these faults"
        raise typer.BadParameter(text, param_hint="--kind, --with")


def _campaign(
    first: int,
    many: int | None,
    *,
    seconds: float | None,
    failures_max: int,
    processes: int | None,
    kinds: list[str],
    faults: list[str],
    tier: str,
) -> Totals:
    """Run the seeds, with their progress on the terminal: how many, how fast, how much time is left."""
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as bar:
        task = bar.add_task("seeds", total=many, rate="")

        def report_progress(now: Totals) -> None:
            rate = now.runs / max(now.wall_s, 1e-9)
            bar.update(task, completed=now.runs, rate=f"{rate:.1f}/s, {len(now.failed)} failed")

        return run_campaign(
            first,
            many,
            seconds=seconds,
            failures_max=failures_max,
            processes=processes,
            progress=report_progress,
            kinds=kinds,
            faults=faults,
            tier=tier,
        )


@app.command()
def main(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 100,
    seed: Annotated[
        int | None, typer.Option(help="The first seed; with --trace, --faults or --digest the only one.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Run seeds for that time instead.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print a line for each event.")] = False,
    faults: Annotated[str | None, typer.Option(help="Only these faults of the plan: 3,7.")] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", help=f"Only seeds of this kind: {', '.join(tier_of(CORES).kinds)}."),
    ] = None,
    planned: Annotated[
        list[str] | None, typer.Option("--with", help="Only seeds that have this fault in their plan.")
    ] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Print only the digest of the run.")] = False,
    story: Annotated[Path | None, typer.Option(help="Print this story of tests/stories.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; default: all cores.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Run all seeds, also after failures; shrink the first five.")
    ] = False,
    keep_in: Annotated[
        Path | None, typer.Option("--keep", help="Write each failing seed to a file in this directory.")
    ] = None,
    in_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    soak: Annotated[
        int | None, typer.Option(min=1, help="Regions that commit so many checkpoints: does anything grow?")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=4, help="Workers of that region.")] = 1,
    shells: Annotated[
        bool, typer.Option("--shells", help="The second tier: the real shells, in one run of trio.")
    ] = False,
) -> None:
    """Run whole simulated clusters, one from each seed, and stop at the first that breaks a promise.

    [dim]./run sim --seeds 2000[/dim]                      two thousand runs
    [dim]./run sim --seed 42 --trace[/dim]                 one run, line by line
    [dim]./run sim --seed 42 --faults 3,7 --trace[/dim]    the same run with two of its faults
    [dim]./run sim --minutes 60 --seed 100000[/dim]        for an hour, from seed 100000 on
    [dim]./run sim --kind region --seeds 200[/dim]         two hundred runs with a region
    [dim]./run sim --kind store --with flip --with wipe[/dim]  stores with both of these faults in their plans
    [dim]./run sim --shells --seed 42 --trace[/dim]        one run of the second tier, line by line
    [dim]./run sim --seeds 9999 --keep-going --keep out[/dim]  every failing seed in a file in out/
    [dim]./run sim --story tests/stories/zombie.txt[/dim]  a story, as the current code produces it
    [dim]./run sim --soak 100000 --keep out[/dim]          regions for very long; figures and plots in out/

    A soak that receives SIGTERM ends with what it has.

    Exit: 0 no violation, 1 a promise is broken (the command that repeats the run is printed), a story
    differs from its file, or something grows in a soak, 3 in 10,000 runs or more an event that must happen
    sometimes was never seen, 4 a run differs when it is repeated.
    """
    if story is not None:
        _story(story)
        return
    logging.disable(logging.CRITICAL)
    if soak is not None:
        flat = run_soak(
            soak,
            seed=1 if seed is None else seed,
            workers=workers,
            as_json=in_json,
            folder=keep_in,
            console=console,
            errors=errors,
        )
        sys.exit(Exit.FINE if flat else Exit.VIOLATION)
    tier = SHELLS if shells else CORES
    if trace or digest or faults is not None:
        _one(tier, 1 if seed is None else seed, faults, trace=trace, digest=digest)
        return
    many, first = None if minutes is not None else seeds, 1 if seed is None else seed
    wanted: dict[str, Any] = {"kinds": kinds or [], "faults": planned or [], "tier": tier}
    _check_wanted(first, **wanted)
    totals = _campaign(
        first,
        many,
        seconds=None if minutes is None else 60 * minutes,
        failures_max=sys.maxsize if keep_going else 1,
        processes=processes,
        **wanted,
    )
    if in_json:
        print(as_json(totals))
    else:
        show(totals, console)
    for outcome in totals.failed[:SHRUNK_MAX]:
        _shrunk(tier, outcome.seed, keep_in)
    for outcome in totals.failed[SHRUNK_MAX:]:
        errors.print(f"seed {outcome.seed}: {outcome.violation}", highlight=False, soft_wrap=True)
    if totals.differed:
        errors.print(f"different when repeated: seeds {totals.differed}", highlight=False)
    sys.exit(_exit_of(totals))


def _exit_of(totals: Totals) -> Exit:
    if totals.failed:
        return Exit.VIOLATION
    if totals.differed:
        return Exit.DIFFERENT
    return Exit.NEVER_SEEN if totals.runs >= ENOUGH_RUNS and totals.missing else Exit.FINE


if __name__ == "__main__":
    app()
