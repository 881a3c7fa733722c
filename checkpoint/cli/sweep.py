"""`dos input sweep`: show and delete rows that Spark's writers staged in the store and never recorded.

`core/staged.py` decides which rows are garbage; `maintenance/sweeping.py` deletes them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from checkpoint import limits
from checkpoint.cli.arguments import Application, Handle, check_input_names, in_store
from checkpoint.core.staged import StagedState, parse_staged
from checkpoint.maintenance.sweeping import StagedObject, Sweep
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    AsJson,
    StoreUrl,
    TokenFile,
    ago_text,
    count_text,
    fail,
    print_json,
    print_table,
)

_AGE_S_MAX: Final = 10 * 366 * 86_400


def sweep(
    url: StoreUrl,
    application: Application,
    handle: Handle,
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete the garbage; otherwise only list it.")
    ] = False,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--undecided-older-than",
            min=0,
            max=_AGE_S_MAX,
            help="Also delete undecided rows that were begun longer ago than this, by the clocks of their"
            " writer and of this machine. A query or write that is still running is fenced, and fails with"
            " an error that names the reason.",
            metavar="SECONDS",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=1, max=86_400, help="Seconds to wait for the deletion in each directory.", metavar="SECONDS"
        ),
    ] = limits.trim_wait_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """List the rows that Spark's writers have staged for an input; with --apply, delete those that cannot be
    recorded any more.

    A query deletes such rows automatically, with its commits. This command is for a query that was killed and
    is never started again. Staged rows are garbage if their batch or a later one is recorded, or if the input
    is closed. Undecided rows may still be committed, by a driver that runs or by the query when it is started
    again: they are kept, with everything in their directory, unless --undecided-older-than gives them up.
    Recorded rows are never deleted. A query that finds its rows deleted fails, and writes them again when it
    is started again; a batch write fails without having recorded anything.

    Example: dos input sweep dos://h1,h2,h3 shop orders

    Example: dos input sweep dos://h1,h2,h3 shop orders --undecided-older-than 604800 --apply

    Exit codes: 0 listed, or deleted on all available members; 1 no such input, or some rows are left because
    a writer is running or a member was not done in time; 2 usage; 3 the store cannot be reached.
    """
    check_input_names(application, handle)

    async def work(store: Store) -> tuple[list[StagedObject], list[StagedObject] | None]:
        sweeping = Sweep(store, application, handle, older_than)
        found = await sweeping.inspect()
        if not apply:
            return found, None
        await sweeping.apply(found, wait)
        there = {(one.directory, one.name) for one in await sweeping.inspect()}
        return found, [one for one in found if one.swept and (one.directory, one.name) in there]

    found, left = in_store(url, token_file, work)
    if as_json:
        print_json(_json(application, handle, found, left))
    else:
        _print(found, left)
    if left:
        fail(
            f"{len(left)} of {_swept(found)} objects are not deleted yet, the first in {left[0].directory}:"
            " a writer is running there, or a member is slow",
            NEGATIVE,
        )


def _swept(found: Sequence[StagedObject]) -> int:
    return sum(one.swept for one in found)


def _json(
    application: str, handle: str, found: Sequence[StagedObject], left: Sequence[StagedObject] | None
) -> dict[str, Any]:
    return {
        "application": application,
        "handle": handle,
        "staged": [
            {
                "producer": one.producer,
                "directory": one.directory,
                "object": one.name,
                "batch": None if (unit := parse_staged(one.name)) is None else unit.number,
                "bytes": one.bytes,
                "copies": one.copies,
                "sinceMs": one.since_ms,
                "state": str(one.staged_state),
                "garbage": one.swept,
            }
            for one in found
        ],
        "bytes": sum(one.bytes * one.copies for one in found if one.swept),
        "deleted": None if left is None else _swept(found) - len(left),
    }


def _print(found: Sequence[StagedObject], left: Sequence[StagedObject] | None) -> None:
    now = wall_time_ms()
    print_table(
        ("directory", "rows of", "#bytes", "#copies", "begun", "state", ""),
        [
            (
                one.directory,
                _unit(one.name),
                count_text(one.bytes),
                one.copies,
                "" if one.since_ms is None else ago_text(one.since_ms, now),
                one.staged_state,
                "garbage" if one.swept else "kept",
            )
            for one in found
        ],
    )
    count = _swept(found)
    held = count_text(sum(one.bytes * one.copies for one in found if one.swept))
    if left is None:
        what = (
            f"{count} objects, {held} on all members; --apply deletes them" if count else "nothing to delete"
        )
        print(what)
    elif not left:
        print(f"deleted {count} objects, {held} on all members")
    if undecided := sum(one.staged_state is StagedState.PENDING for one in found):
        print(
            f"{undecided} undecided: a writer may still record them; --undecided-older-than SECONDS also"
            " deletes those that are older"
        )


def _unit(name: str) -> str:
    unit = parse_staged(name)
    if unit is None:
        return name
    return f"write {unit.key}" if unit.number is None else f"batch {unit.number}"
