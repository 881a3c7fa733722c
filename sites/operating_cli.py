"""The commands of `dos sites` that change or show what is deployed. `cli.py` has the exit codes.

A decision is made in `deploying.py`; this file prints it.
"""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import trio
import typer

from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    AsJson,
    LogJson,
    TokenFile,
    begin_command_log,
    fail,
    print_json,
    print_table,
    read_token,
    warn,
)
from dos_client.cli.kit import run as run_command
from sites import deploying
from sites.cli_kit import DryRun, Every, File, MeasuredFile, deployable, in_entry_store, parsed_replica
from sites.core.applying import DeploymentChange
from sites.core.collection import Collected, Kept
from sites.core.deployment import StreamReplica
from sites.core.description import Description
from sites.core.measuring import toml_of
from sites.core.revival import Revival
from sites.core.status import status_of


async def _repeat(every: float | None, once: Callable[[], Awaitable[None]]) -> None:
    while True:
        await once()
        if every is None:
            return
        await trio.sleep(every)


def apply(
    file: File,
    measured: MeasuredFile = None,
    dry_run: DryRun = False,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Deploy the plan of FILE: record which replicas run where, and which streams they read.

    Prints the difference to what is deployed, with its cost. What is new is added at once. A replica that is
    not planned any more stays until enough of the others are alive and have all rows; run the command again
    then. Streams that were collected stay collected. `dos sites run` at each site acts on the record.

    Example: dos sites apply application.toml --dry-run

    Exit codes: 0 deployed, or nothing to change; 1 the plan is refused; 2 usage, or an invalid description;
    3 too few servers of the entry store answer.
    """
    change = in_entry_store(
        file,
        token_file,
        lambda store, one: deploying.apply(store, one, dry_run=dry_run, measure=measured is None),
        measured,
    )
    if as_json:
        print_json(
            {
                "number": change.deployed.number,
                "added": _texts(change.added),
                "removed": _texts(change.removed),
                "kept": _texts(change.kept),
                "keptBecause": change.why or None,
                "costBefore": change.cost_before,
                "cost": change.cost,
            }
        )
        return
    _print_change(change)


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


def status(
    file: File, measured: MeasuredFile = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Show the replicas that are deployed, and what their readers report.

    For each replica: whether it runs or was collected, whether it is alive (its mark moved within 30 s), how
    late its rows are at its readers, the share of rows that it gave first, whether it has given all rows, and
    what its streams cost. Reports are up to 30 s old.

    Example: dos sites status application.toml --json

    Exit codes: 0 shown; 1 the application is not deployed; 2 usage, or an invalid description; 3 too few
    servers of the entry store answer.
    """
    now, readers, sites = in_entry_store(
        file,
        token_file,
        lambda store, one: deploying.look(store, one, measure=measured is None),
        measured,
    )
    found = status_of(now, readers, sites)
    if as_json:
        print_json(found)
        return
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


def measured(file: File, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Print the latencies, rates and loads that the sites and readers have measured in the last 5 minutes.

    They are what `apply`, `gc`, `revive` and `status` use in place of the numbers in FILE. The output is
    TOML, for `--measured` of `dos sites plan`. What nobody has measured is left out.

    Example: dos sites measured application.toml > measured.toml

    Exit codes: 0 printed; 1 the application is not deployed; 2 usage, or an invalid description; 3 too few
    servers of the entry store answer.
    """
    found = in_entry_store(file, token_file, deploying.look_at_measured)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    print(toml_of(found), end="")


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


def gc(
    file: File,
    measured: MeasuredFile = None,
    dry_run: DryRun = False,
    every: Every = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove the streams that are least useful for their cost, if the cost is above theta. One group per run.

    A stream goes together with the replicas that are of no use without it. Nothing is removed that is needed
    to survive the loss of any kmin - 1 sites, and nothing for 10 minutes after a revival.

    Example: dos sites gc application.toml --dry-run

    Example: dos sites gc application.toml --every 300

    Exit codes: 0 done, also if there is nothing to collect; 1 the application is not deployed; 2 usage, or an
    invalid description; 3 too few servers of the entry store answer.
    """

    async def work(store: Store, description: Description) -> None:
        async def once() -> None:
            found = await deploying.collect(store, description, dry_run=dry_run, measure=measured is None)
            _print_collection(found, as_json)

        await _repeat(every, once)

    in_entry_store(file, token_file, work, measured)


def _print_collection(found: Collected | Kept, as_json: bool) -> None:
    if isinstance(found, Kept):
        if as_json:
            print_json({"removed": [], "stopped": [], "cost": 0.0, "utility": 0.0, "why": found.why})
        else:
            print(f"nothing is collected: {found.why}", flush=True)
    elif as_json:
        print_json(
            {
                "removed": _texts(found.streams),
                "stopped": [str(one) for one in found.replicas],
                "cost": found.cost,
                "utility": found.utility,
                "why": None,
            }
        )
    else:
        for one in found.streams:
            print(f"- {one}")
        for replica in found.replicas:
            print(f"stops {replica}")
        print(f"cost {found.cost:,.0f} bytes under way less; utility {found.utility:.3f}", flush=True)


def revive(
    file: File,
    replica: Annotated[
        str | None,
        typer.Argument(help="Repair what it reads; start it if it was collected.", metavar="REGION@SITE"),
    ] = None,
    measured: MeasuredFile = None,
    dry_run: DryRun = False,
    every: Every = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
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

    async def work(store: Store, description: Description) -> None:
        async def once() -> None:
            found = await deploying.revive(
                store, description, named, dry_run=dry_run, measure=measured is None
            )
            _print_revivals(found, as_json)
            failed[:] = [one for one in found if not one.way]

        await _repeat(every, once)

    in_entry_store(file, token_file, work, measured)
    if failed:
        raise typer.Exit(NEGATIVE)


def _print_revivals(found: list[Revival], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "reader": str(one.reader),
                    "port": one.node,
                    "way": one.way,
                    "added": _texts(one.added),
                    "removed": _texts(one.removed),
                    "started": [
                        {
                            "replica": str(start.replica),
                            "checkpointOf": start.checkpoint and str(start.checkpoint),
                        }
                        for start in one.started
                    ],
                }
                for one in found
            ]
        )
        return
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


def forget(
    file: File,
    site: Annotated[str, typer.Argument(help="A site that is gone for good.", metavar="SITE")],
    undo: Annotated[
        bool, typer.Option("--undo", help="The site is back: replicas may be placed there.")
    ] = False,
    dry_run: DryRun = False,
    token_file: TokenFile = None,
) -> None:
    """Remove the replicas of a site that is gone for good, and place no more there.

    A site that is only cut off needs no command: results come by other ways, and it continues afterwards.

    Example: dos sites forget application.toml wisc

    Exit codes: 0 done; 1 not deployed, or no such site; 2 usage, or an invalid description; 3 too few servers
    of the entry store answer.
    """
    if undo:
        in_entry_store(file, token_file, lambda store, one: deploying.remember(store, one, site))
        return
    found = in_entry_store(
        file, token_file, lambda store, one: deploying.forget(store, one, site, dry_run=dry_run)
    )
    for one in found.removed:
        print(f"- {one}")
    for name in found.starving:
        warn(f"exit {name} gets no rows now: run `dos sites apply {file}`")


def run(
    file: File,
    site: Annotated[str, typer.Option(help="The site at which this command runs.")],
    log_json: LogJson = False,
    token_file: TokenFile = None,
) -> None:
    """Run the replicas that the deployment places at a site, until interrupted.

    Starts and stops regions as `apply`, `gc`, `revive` and `forget` decide, each from its last checkpoint.
    The functions of the graphs are imported from the current directory too. While the entry store does not
    answer, everything continues as it was.

    Example: dos sites run application.toml --site wisc

    Exit codes: 130 interrupted, and all regions are stopped (SIGTERM does the same, and ends the process);
    2 usage, or an invalid description; 3 too few servers of the entry store answer.
    """
    if log_json:
        begin_command_log(as_json=True)
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

    run_command(partial(run_site, description, site, token=read_token(token_file), changed=show))


def _texts(streams: tuple[StreamReplica, ...]) -> list[str]:
    return [str(one) for one in streams]
