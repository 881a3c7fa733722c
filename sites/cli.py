"""`dos sites`: one application at several sites.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused: some region cannot have kmin replicas, or the application is not deployed |
| 2 | usage, or an invalid description |
| 3 | too few servers of the entry store answer |
"""

from math import inf
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dos_client.cli.kit import NEGATIVE, REFUSED, AsJson, fail, fill_help, print_json, print_table, warn
from sites.cli_kit import MeasuredFile, described
from sites.core.description import Description, check
from sites.core.planning import Plan, make_plan
from sites.errors import DescriptionError, PlanRefusedError
from sites.operating_cli import apply, forget, gc, measured, revive, run, status

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan, deploy and watch the replicas of an application's regions, over several sites."
    "\n\nExample: dos sites plan application.toml",
)


@app.command()
def plan(
    file: Annotated[
        Path,
        typer.Argument(help="The description of sites, links, regions and streams.", metavar="FILE.toml"),
    ],
    kmax: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each region, instead of the number in FILE.")
    ] = None,
    kmin: Annotated[
        int | None, typer.Option(min=1, help="Refuse a plan with fewer, instead of the number in FILE.")
    ] = None,
    measured: MeasuredFile = None,
    as_json: AsJson = False,
) -> None:
    """Show where the replicas of each region go, what they cost, and how late results will be. Starts
    nothing.

    The cost of a stream is its rate times the latency of its link: the bytes that are under way. Each replica
    goes where it adds least, at a site that is not busy and not near another replica of the same region.
    Below the table is how long a row is on the network until it is at each exit, by the fastest way, and how
    many sites may be lost.

    docs/sites.md describes FILE.

    Example: dos sites plan application.toml

    Example: dos sites plan application.toml --kmax 3 --json

    Example: dos sites plan application.toml --measured measured.toml

    Exit codes: 0 planned; 1 refused, with the reason at each site; 2 usage, or an invalid description.
    """
    description = described(file, measured)
    try:
        asked = {name: value for name, value in (("kmax", kmax), ("kmin", kmin)) if value is not None}
        description = msgspec.structs.replace(description, **asked)
        check(description)
        alone = make_plan(msgspec.structs.replace(description, kmax=1, kmin=1))
        made = make_plan(description)
    except DescriptionError as error:
        fail(f"{file}: {error}", REFUSED)
    except PlanRefusedError as error:
        fail(str(error), NEGATIVE)
    if as_json:
        print_json(_json_of(description, made, alone))
        return
    _print(description, made, alone)


def _json_of(description: Description, made: Plan, alone: Plan) -> dict[str, Any]:
    return {
        "replicas": {region: list(sites) for region, sites in made.replicas.items()},
        "leftOut": [{"region": one.region, "replica": one.number, "why": one.why} for one in made.left_out],
        "cost": made.cost,
        "costUnreplicated": alone.cost,
        "bytesPerS": made.bytes_per_s,
        "bytesPerSUnreplicated": alone.bytes_per_s,
        "latencyMs": {name: None if late == inf else late for name, late in made.latencies_ms.items()},
        "loads": made.loads(description),
        "lossesSurvived": made.losses,
    }


def _print(description: Description, made: Plan, alone: Plan) -> None:
    print_table(
        ("region", "#replicas", "sites"),
        [(region, len(sites), ", ".join(sites)) for region, sites in sorted(made.replicas.items())],
    )
    loads = made.loads(description)
    print_table(
        ("site", "#load", "#capacity"),
        [(site.name, f"{loads[site.name]:g}", f"{site.capacity:g}") for site in description.sites],
    )
    print(
        f"cost {made.cost:,.0f} bytes under way, {_ratio(made.cost, alone.cost)} that of one replica each;"
        f" {made.bytes_per_s:,.0f} bytes/s, {_ratio(made.bytes_per_s, alone.bytes_per_s)}"
    )
    for name, late in sorted(made.latencies_ms.items()):
        print(f"exit {name}: a row is {late:,.0f} ms on the network")
    lost = "any one site is" if made.losses == 1 else f"any {made.losses} sites are"
    print(f"results continue if {lost} lost" if made.losses else _NO_LOSS)
    for one in made.left_out:
        warn(str(one))


_NO_LOSS = "there is a site whose loss stops some results"


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f} times" if base else "as against 0 for"


for command in (apply, status, measured, run, gc, revive, forget):
    app.command()(command)
fill_help(app)
