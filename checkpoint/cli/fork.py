"""`dos region fork`: a new region begins with a checkpoint of another. `core/forking.py` has the rules."""

from typing import Annotated, Any

import typer

from checkpoint import limits
from checkpoint.cli.arguments import RegionName, Stopped, Timeout, Why, complete_target, in_store
from checkpoint.errors import ForkRefusedError, RegionFencedError
from checkpoint.maintenance.forking import Forked, Forking, fork_region, plan_fork
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    AsJson,
    StoreUrl,
    TokenFile,
    count_text,
    fail,
    print_result,
)


def fork(
    url: StoreUrl,
    name: RegionName,
    new: Annotated[str, typer.Argument(help="Name of the new region.", metavar="NEW")],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            help="savepoint:NAME, checkpoint:N, or a time (ISO 8601): the newest retained checkpoint that is"
            " not later. By default the last checkpoint.",
            autocompletion=complete_target,
            metavar="CHECKPOINT",
        ),
    ] = "",
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Operator that the graph of NEW lacks: its state is dropped.", metavar="OPERATOR"),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            help="Operator that only the graph of NEW has: it begins without state.", metavar="OPERATOR"
        ),
    ] = None,
    same_place: Annotated[
        list[str] | None,
        typer.Option(
            help="Sink of NEW that may write where the original writes, although that is not checked.",
            metavar="SINK",
        ),
    ] = None,
    why: Why = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be forked.")] = False,
    stopped: Stopped = False,
    timeout: Timeout = limits.request_patience_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Fork a region: a new region begins with its state and input positions, and copies nothing.

    The first `run` of a graph with the name NEW begins with that checkpoint, with any number of workers. Both
    regions run independently. NEW reads the same inputs, from there on. Its output is its own: its logs begin
    anew, and a sink that would write to the place of the original is refused, so give its sinks another
    place. Its graph follows the rules of an upgrade: operators are matched by name, migrations are applied,
    and operators that were dropped or are new are named here.

    A savepoint of the original, fork-HEX, keeps the checkpoint until NEW has committed so many checkpoints
    that it retains only its own; the driver of the original then drops it. The driver of a running region is
    asked for the savepoint; for a stopped one, pass --stopped.

    Example: dos region fork dos://h1,h2,h3 wordcount wordcount-test --at savepoint:good

    Example: dos region fork dos://h1,h2,h3 wordcount wordcount-v2 --add top --drop longest

    Exit codes: 0 forked, or shown; 1 refused; 2 usage; 3 the store cannot be reached.
    """
    wanted = Forking(
        region=name,
        new=new,
        at=at,
        dropped=drop or (),
        added=add or (),
        same_place=same_place or (),
        why=why,
        stopped=stopped,
        patience_s=timeout,
    )

    async def work(store: Store) -> Forked:
        return await (plan_fork if dry_run else fork_region)(store, wanted)

    try:
        made = in_store(url, token_file, work)
    except (ForkRefusedError, RegionFencedError) as error:
        fail(str(error), NEGATIVE)
    print_result(_json(made), _text(made), as_json=as_json)


def _json(made: Forked) -> dict[str, Any]:
    origin = made.origin
    return {
        "name": made.region,
        "original": origin.region,
        "checkpoint": origin.checkpoint,
        "step": origin.step,
        "workers": made.workers,
        "stateBytes": made.state_bytes,
        "savepoint": origin.savepoint or None,
        "application": origin.application or None,
        "logs": origin.logs,
        "dropped": list(origin.dropped),
        "added": list(origin.added),
    }


def _text(made: Forked) -> str:
    origin, size = made.origin, count_text(made.state_bytes)
    at = f"checkpoint {origin.checkpoint} of {origin.region}, step {origin.step}"
    if not origin.savepoint:
        return f"region {made.region} would begin at {at}; its first start would read {size} of state there"
    return (
        f"region {made.region} is a fork: it begins at {at}; its first start reads {size} of state there\n"
        f"savepoint {origin.savepoint} of {origin.region} keeps that until it is not needed"
    )
