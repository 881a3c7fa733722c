"""Run the models by hand: `./run python -m tests.models --help`.

Exit codes: 0 as it should be (safe with all rules, a loss without one); 1 not so; 2 wrong usage.
"""

import json
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tests.models.configurations import CONFIGURATIONS, EXPLORED, LOSSES, Configuration, switches, without
from tests.models.explore import Result, explore, explore_by_hash

STATES_MAX = 20_000_000
HELP = """Explore the models of take-over, checkpoints, replacement, local recovery and gateways: every state,
or until a loss.

Without names: all configurations that CI runs, with all rules on; or, with --without, the one in which
that rule's loss is found.

Examples:

    ./run python -m tests.models contenders late

    ./run python -m tests.models --without R5

    ./run python -m tests.models --by-hash replace-start

Exit codes: 0 safe with all rules, or a loss without one, as it should be; 1 not so; 2 wrong usage.
"""
_LINES = [
    f"{one.name + ('*' if one.by_hand or one.long else ''):20} {one.about}" for one in CONFIGURATIONS.values()
]
EPILOG = "\n".join(
    ["\b", "Configurations (* not in CI: larger, or only a place to lose something in):", *_LINES]
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=HELP, epilog=EPILOG)
def main(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIGURATION]...", show_default=False)
    ] = None,
    rule: Annotated[
        str,
        typer.Option("--without", help="Switch a rule off: R5, or one of its switches.", metavar="RULE"),
    ] = "",
    states_max: Annotated[int, typer.Option(min=1, help="Stop after so many states.")] = STATES_MAX,
    by_hash: Annotated[
        bool, typer.Option("--by-hash", help="Remember hashes only: less memory, and no story.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    off = switches(rule) if rule else []
    if rule and not off:
        _refuse(f"no rule {rule}; there are {', '.join(LOSSES)}")
    runs = [(name, switch) for switch in off for name in names or [LOSSES[switch]]]
    runs = runs or [(name, "") for name in names or EXPLORED]
    rows = []
    for name, switch in runs:
        if name not in CONFIGURATIONS:
            _refuse(f"no configuration {name}; --help lists them")
        if switch and switch not in CONFIGURATIONS[name].rules._fields:
            _refuse(f"{name} has no rule {switch}: try {LOSSES[switch]}")
        rows.append(_run(CONFIGURATIONS[name], switch, states_max, by_hash=by_hash))
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        _print(rows)
    if any(row["verdict"] == ("loss" if not row["without"] else "complete, safe") for row in rows):
        raise typer.Exit(1)


def _run(configuration: Configuration, switch: str, states_max: int, *, by_hash: bool) -> dict[str, Any]:
    model = without(configuration, switch) if switch else configuration.make(configuration.rules)
    began, used = time.monotonic(), time.process_time()
    progress = _Progress(configuration.name, began)
    explored: Result = (explore_by_hash if by_hash else explore)(model, states_max, progress.level)
    progress.end()
    return {
        "configuration": configuration.name,
        "about": configuration.about,
        "without": switch,
        "states": explored.states,
        "depth": explored.depth,
        "verdict": explored.verdict,
        "loss": explored.loss,
        "story": list(explored.story),
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }


class _Progress:
    """A line on standard error: rewritten on a terminal, else one each ten seconds."""

    def __init__(self, name: str, began: float) -> None:
        self._name, self._began, self._reported_at = name, began, began

    def level(self, depth: int, states: int) -> None:
        now = time.monotonic()
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{self._name}: {states:,} states, {depth} steps, {now - self._began:.0f} s ")
        elif now - self._reported_at > 10:
            self._reported_at = now
            sys.stderr.write(f"{self._name}: {states:,} states, {depth} steps, {now - self._began:.0f} s\n")

    def end(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")


def _print(rows: list[dict[str, Any]]) -> None:
    console = Console()
    table = Table()
    for column in ("configuration", "without", "states", "steps", "result", "seconds", "cpu"):
        table.add_column(
            column, justify="right" if column in ("states", "steps", "seconds", "cpu") else "left"
        )
    for row in rows:
        numbers = (f"{row['states']:,}", str(row["depth"]))
        times = (str(row["seconds"]), str(row["cpu_seconds"]))
        table.add_row(row["configuration"], row["without"], *numbers, row["verdict"], *times)
    console.print(table)
    for row in rows:
        if row["loss"]:
            console.print(f"{row['configuration']} without {row['without'] or 'nothing'}:", highlight=False)
            for number, line in enumerate(row["story"], 1):
                console.print(f"  {number:2}. {line}", highlight=False, soft_wrap=True)
            console.print(f"  and then {row['loss']}", highlight=False, soft_wrap=True)


def _refuse(text: str) -> None:
    sys.stderr.write(f"models: {text}\n")
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
