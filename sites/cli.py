"""`dos sites`: one application at several sites. What is deployed is decided in `deploying.py`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused: some region cannot have kmin replicas, or the application is not deployed |
| 2 | usage, or an invalid description |
| 3 | too few servers of the entry store answer |
"""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import trio
import typer

from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    Ends,
    Report,
    command,
    fail,
    finish,
    print_table,
    warn,
)
from sites import deploying
from sites.core.collection import Collected, Kept
from sites.core.deployed import DeploymentChange, status_of
from sites.core.deployment import Plan, RegionReplica, StreamReplica, make_plan
from sites.core.description import (
    Description,
    check,
    decode_description,
    decode_measured,
    with_measured,
)
from sites.core.observed import toml_of
from sites.core.revival import Revival
from sites.errors import CannotReviveError, DescriptionError, NotDeployedError, PlanRefusedError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan, deploy and watch the replicas of an application's regions, over several sites."
    "\n\nExample: dos sites plan application.toml",
)
T = TypeVar("T")
File = Annotated[
    Path,
    typer.Argument(help="The description of the application, with entry_store.", metavar="FILE.toml"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show it, and change nothing.")]
Every = Annotated[
    float | None, typer.Option(min=1.0, help="Continue until interrupted, with so many seconds between.")
]
MeasuredFile = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        help="Use these latencies, rates and loads, and not what the sites report."
        " An empty file: use those in FILE.",
        metavar="FILE.toml",
    ),
]
_ERROR_CHARS_MAX: Final = 1_000
"""An error quotes the file, which may have a name of any length."""
ENDS: Final = Ends((CannotReviveError, NotDeployedError, PlanRefusedError))


def read_file(file: Path, decode: Callable[[str], T]) -> T:
    """Return the content of a file; end the command if it is not valid."""
    try:
        return decode(file.read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{file}: {error.strerror}", REFUSED)
    except UnicodeDecodeError as error:
        fail(f"{file} is not UTF-8: {error.reason} at byte {error.start}", REFUSED)
    except DescriptionError as error:
        fail(f"{file}: {str(error)[:_ERROR_CHARS_MAX]}", REFUSED)


def described(file: Path, measured: Path | None) -> Description:
    """Return a description, with what was measured. End the command if a file is not valid."""
    description = read_file(file, decode_description)
    if measured is None:
        return description
    values = read_file(measured, decode_measured)
    try:
        return with_measured(description, values)
    except DescriptionError as error:
        fail(f"{measured}: {error}", REFUSED)


def deployable(file: Path, measured: Path | None = None) -> tuple[Description, str]:
    """Return the description of an application that can be deployed, and the URL of its entry store. End the
    command otherwise.
    """
    description = described(file, measured)
    if description.entry_store is None:
        fail(f"{file}: `entry_store` is missing: add the URL of the store that holds the deployment", REFUSED)
    return description, description.entry_store


@asynccontextmanager
async def entry_store(
    call: Call, file: Path, measured: Path | None = None
) -> AsyncGenerator[tuple[Store, Description]]:
    """Open the entry store of the description. Ends the command if a file is not valid."""
    description, url = deployable(file, measured)
    async with call.store(url) as store:
        yield store, description


def parsed_replica(text: str) -> RegionReplica:
    """Return the replica that `REGION@SITE` names; end the command if it names none."""
    node, _, site = text.partition("@")
    if not node or not site:
        fail(f"{text!r} names no replica: write REGION@SITE, for example joined@wisc", REFUSED)
    return RegionReplica(node, site)


@command(app, "plan", token=False, ends=ENDS)
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
) -> Report:
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
    asked = {name: value for name, value in (("kmax", kmax), ("kmin", kmin)) if value is not None}
    description = msgspec.structs.replace(description, **asked)
    try:
        check(description)
        alone = make_plan(msgspec.structs.replace(description, kmax=1, kmin=1))
        made = make_plan(description)
    except DescriptionError as error:
        fail(f"{file}: {error}", REFUSED)
    return Report(_plan_json(description, made, alone), lambda: _print_plan(description, made, alone))


def _plan_json(description: Description, made: Plan, alone: Plan) -> dict[str, Any]:
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


def _print_plan(description: Description, made: Plan, alone: Plan) -> None:
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


async def _repeat(call: Call, every: float | None, once: Callable[[], Awaitable[None]]) -> None:
    if every is not None:
        call.display.hide()  # it prints a result again and again
    while True:
        await once()
        if every is None:
            return
        await trio.sleep(every)


@command(app, "apply", ends=ENDS)
async def apply(call: Call, file: File, measured: MeasuredFile = None, dry_run: DryRun = False) -> Report:
    """Deploy the plan of FILE: record which replicas run where, and which streams they read.

    Prints the difference to what is deployed, with its cost. What is new is added at once. A replica that is
    not planned any more stays until enough of the others are alive and have all rows; run the command again
    then. Streams that were collected stay collected. `dos sites run` at each site acts on the record.

    Example: dos sites apply application.toml --dry-run

    Exit codes: 0 deployed, or nothing to change; 1 the plan is refused; 2 usage, or an invalid description;
    3 too few servers of the entry store answer.
    """
    async with entry_store(call, file, measured) as (store, description):
        change = await deploying.apply(store, description, dry_run=dry_run, measure=measured is None)
    value = {
        "number": change.deployed.number,
        "added": _texts(change.added),
        "removed": _texts(change.removed),
        "kept": _texts(change.kept),
        "keptBecause": change.why or None,
        "costBefore": change.cost_before,
        "cost": change.cost,
    }
    return Report(value, lambda: _print_change(change))


def _print_change(change: DeploymentChange) -> None:
    for sign, streams in (("+", change.added), ("-", change.removed)):
        for one in streams:
            print(f"{sign} {one}")
    if not change.changes:
        print("nothing to change")
    print(f"cost {change.cost:,.0f} bytes under way, before {change.cost_before:,.0f}")
    if change.kept:
        text = ", ".join(_texts(change.kept))
        warn(f"not planned any more, but needed until it is replaced ({change.why}): {text}")


@command(app, "status", ends=ENDS)
async def status(call: Call, file: File, measured: MeasuredFile = None) -> Report:
    """Show the replicas that are deployed, and what their readers report.

    For each replica: whether it runs or was collected, whether it is alive (its mark moved within 30 s), how
    late its rows are at its readers, the share of rows that it gave first, whether it has given all rows, and
    what its streams cost. Reports are up to 30 s old.

    Example: dos sites status application.toml --json

    Exit codes: 0 shown; 1 the application is not deployed; 2 usage, or an invalid description; 3 too few
    servers of the entry store answer.
    """
    async with entry_store(call, file, measured) as (store, description):
        now, readers, sites = await deploying.look(store, description, measure=measured is None)
    found = status_of(now, readers, sites)
    return Report(found, lambda: _print_status(found))


def _print_status(found: dict[str, Any]) -> None:
    columns = ("replica", "state", "alive", "#late s", "#first", "whole", "#cost", "at the site")
    print_table(columns, [_row(one) for one in found["replicas"]])
    aim = "" if found["theta"] is None else f", the aim is {found['theta']:,.0f}"
    print(f"deployment {found['number']}: cost {found['cost']:,.0f} bytes under way{aim}")
    for exit_ in found["exits"]:
        late = "no report" if exit_["lateS"] is None else f"{exit_['lateS']:.1f} s late"
        print(f"exit {exit_['name']}: {late}")
    if found["decisions"]:
        print(f"last decision: {found['decisions'][-1]['text']}")
    for site in found["forgotten"]:
        warn(f"site {site} was forgotten: no replica is placed there")
    for one in [*found["replicas"], *found["exits"]]:
        if one["reason"]:
            warn(f"{one.get('region', one.get('name'))}@{one['site']} is {one['atSite']}: {one['reason']}")


@command(app, "measured", ends=ENDS)
async def show_measured(call: Call, file: File) -> Report:
    """Print the latencies, rates and loads that the sites and readers have measured in the last 5 minutes.

    They are what `apply`, `gc`, `revive` and `status` use in place of the numbers in FILE. The output is
    TOML, for `--measured` of `dos sites plan`. What nobody has measured is left out.

    Example: dos sites measured application.toml > measured.toml

    Exit codes: 0 printed; 1 the application is not deployed; 2 usage, or an invalid description; 3 too few
    servers of the entry store answer.
    """
    async with entry_store(call, file) as (store, description):
        found = await deploying.look_at_measured(store, description)
    return Report(msgspec.to_builtins(found), toml_of(found).rstrip("\n"))


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    late, first = one["lateS"], one["first"]
    return (
        f"{one['region']}@{one['site']}",
        one["state"],
        "yes" if one["alive"] else "no",
        None if late is None else f"{late:.1f}",
        None if first is None else f"{first:.0%}",
        "yes" if one["whole"] else "no",
        f"{one['cost']:,.0f}",
        one["atSite"],
    )


@command(app, "gc", ends=ENDS)
async def gc(
    call: Call, file: File, measured: MeasuredFile = None, dry_run: DryRun = False, every: Every = None
) -> None:
    """Remove the streams that are least useful for their cost, if the cost is above theta. One group per run.

    A stream goes together with the replicas that are of no use without it. Nothing is removed that is needed
    to survive the loss of any kmin - 1 sites, and nothing for 10 minutes after a revival.

    Example: dos sites gc application.toml --dry-run

    Example: dos sites gc application.toml --every 300

    Exit codes: 0 done, also if there is nothing to collect; 1 the application is not deployed; 2 usage, or an
    invalid description; 3 too few servers of the entry store answer.
    """
    async with entry_store(call, file, measured) as (store, description):

        async def once() -> None:
            found = await deploying.collect(store, description, dry_run=dry_run, measure=measured is None)
            finish(_collected(found), as_json=call.as_json)

        await _repeat(call, every, once)


def _collected(found: Collected | Kept) -> Report:
    if isinstance(found, Kept):
        value = {"removed": [], "stopped": [], "cost": 0.0, "utility": 0.0, "why": found.why}
        return Report(value, f"nothing is collected: {found.why}")
    value = {
        "removed": _texts(found.streams),
        "stopped": [str(one) for one in found.replicas],
        "cost": found.cost,
        "utility": found.utility,
        "why": None,
    }
    lines = [f"- {one}" for one in found.streams] + [f"stops {one}" for one in found.replicas]
    cost = f"cost {found.cost:,.0f} bytes under way less; utility {found.utility:.3f}"
    return Report(value, "\n".join([*lines, cost]))


@command(app, "revive", ends=ENDS)
async def revive(
    call: Call,
    file: File,
    replica: Annotated[
        str | None,
        typer.Argument(help="Repair what it reads; start it if it was collected.", metavar="REGION@SITE"),
    ] = None,
    measured: MeasuredFile = None,
    dry_run: DryRun = False,
    every: Every = None,
) -> None:
    """Repair what is late: all streams from one region later than late_s at one reader.

    Tries in this order: a collected stream, a collected replica, one more replica, and to stop the late
    reader. With REGION@SITE, only what that replica (or exit) reads; a collected replica is started.

    Example: dos sites revive application.toml

    Example: dos sites revive application.toml joined@wisc

    Exit codes: 0 done, also if nothing is late; 1 not deployed, or something late cannot be repaired; 2
    usage, or an invalid description; 3 too few servers of the entry store answer.
    """
    named = None if replica is None else parsed_replica(replica)
    failed = list[Revival]()
    async with entry_store(call, file, measured) as (store, description):

        async def once() -> None:
            found = await deploying.revive(
                store, description, named, dry_run=dry_run, measure=measured is None
            )
            finish(Report(_revivals_json(found), lambda: _print_revivals(found)), as_json=call.as_json)
            failed[:] = [one for one in found if not one.way]

        await _repeat(call, every, once)
    if failed:
        raise typer.Exit(NEGATIVE)


def _revivals_json(found: list[Revival]) -> list[dict[str, Any]]:
    return [
        {
            "reader": str(one.reader),
            "port": one.node,
            "way": one.way,
            "added": _texts(one.added),
            "removed": _texts(one.removed),
            "started": [
                {"replica": str(start.replica), "checkpointOf": start.checkpoint and str(start.checkpoint)}
                for start in one.started
            ],
        }
        for one in found
    ]


def _print_revivals(found: list[Revival]) -> None:
    if not found:
        print("nothing is late", flush=True)
    for one in found:
        if not one.way:
            warn(f"{one.node} at {one.reader} is late, and nothing can replace it")
            continue
        print(f"{one.node} at {one.reader} is late (way {one.way}):")
        for sign, streams in (("+", one.added), ("-", one.removed)):
            for stream in streams:
                print(f"{sign} {stream}")
        for start in one.started:
            other = "its inputs" if start.checkpoint is None else f"a checkpoint of {start.checkpoint}"
            print(f"starts {start.replica}; if it cannot continue, with {other}", flush=True)


@command(app, "forget", as_json=False, ends=ENDS)
async def forget(
    call: Call,
    file: File,
    site: Annotated[str, typer.Argument(help="A site that is gone for good.", metavar="SITE")],
    undo: Annotated[
        bool, typer.Option("--undo", help="The site is back: replicas may be placed there.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove the replicas of a site that is gone for good, and place no more there.

    A site that is only cut off needs no command: results come by other ways, and it continues afterwards.

    Example: dos sites forget application.toml wisc

    Exit codes: 0 done; 1 not deployed, or no such site; 2 usage, or an invalid description; 3 too few servers
    of the entry store answer.
    """
    async with entry_store(call, file) as (store, description):
        if undo:
            await deploying.remember(store, description, site)
            return
        found = await deploying.forget(store, description, site, dry_run=dry_run)
    for one in found.removed:
        print(f"- {one}")
    for name in found.starving:
        warn(f"exit {name} gets no rows now: run `dos sites apply {file}`")


@command(app, "run", as_json=False, log_json=True, progress=False, ends=ENDS)
async def run(
    call: Call,
    file: File,
    site: Annotated[str, typer.Option(help="The site at which this command runs.")],
) -> None:
    """Run the replicas that the deployment places at a site, until interrupted.

    Starts and stops regions as `apply`, `gc`, `revive` and `forget` decide, each from its last checkpoint.
    The functions of the graphs are imported from the current directory too. While the entry store does not
    answer, everything continues as it was.

    Example: dos sites run application.toml --site wisc

    Exit codes: 130 interrupted, and all regions are stopped (SIGTERM does the same, and ends the process);
    2 usage, or an invalid description; 3 too few servers of the entry store answer.
    """
    from sites.runner import run_site  # imports pyarrow

    description, _ = deployable(file)
    for one in description.sites:
        if one.name == site and one.runs == "spark":
            text = "call sites.runner.run_site(..., start=partial(dos.run, spark)) in a Spark driver"
            fail(f"site {site!r} runs regions on Spark, which this command does not start: {text}", REFUSED)
    sys.path.insert(0, str(Path.cwd()))

    def show(states: dict[str, str]) -> None:
        print(
            ", ".join(f"{region} {state}" for region, state in states.items()) or "nothing runs here",
            flush=True,
        )

    await run_site(description, site, token=call.token, changed=show)


def _texts(streams: tuple[StreamReplica, ...]) -> list[str]:
    return [str(one) for one in streams]
