"""`dos input sweep`: rows that Spark's writers put down in the store and never recorded.

Rules of this file: arguments in, text or JSON out. What is garbage is decided in `core/staged.py`, how it
goes in `sweeping.py`.
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
    apply: Annotated[bool, typer.Option("--apply", help="Delete it. Without, it is only shown.")] = False,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--undecided-older-than",
            min=0,
            max=_AGE_S_MAX,
            help="Give up, too, what is not recorded and was begun so long ago, by the clocks of its"
            " writer and of this machine. A query or write that is alive after all is fenced, and fails by"
            " name.",
            metavar="SECONDS",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=1, max=86_400, help="Seconds to wait for the deletion in a directory.", metavar="SECONDS"
        ),
    ] = limits.trim_wait_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Show the rows that Spark's writers put down for an input and that wait to be recorded, or to go; with
    --apply, delete what nobody will record any more.

    A query does this by itself, with its commits. This is for one that was killed and never begins again.
    Its rows go at once where its batch, or a later one, is recorded, or the input is closed. What is
    undecided may be committed yet by a driver that lives, or by the query that is started again: it is kept,
    with all that lies beside it, unless --undecided-older-than gives it up. Nothing that was recorded is
    touched. A query that finds its rows gone fails, and writes them again when it is started again; a batch
    write that does fails and recorded nothing.

    Example: dos input sweep dos://h1,h2,h3 shop orders

    Example: dos input sweep dos://h1,h2,h3 shop orders --undecided-older-than 604800 --apply

    Exit codes: 0 shown, or deleted on all members that are there; 1 no such input, or something was left, for
    a writer is at work or a member was not done in time; 2 usage; 3 the store cannot be reached.
    """
    check_input_names(application, handle)

    async def work(store: Store) -> tuple[list[StagedObject], list[StagedObject] | None]:
        sweeping = Sweep(store, application, handle, older_than)
        found = await sweeping.look()
        if not apply:
            return found, None
        await sweeping.apply(found, wait)
        there = {(one.directory, one.name) for one in await sweeping.look()}
        return found, [one for one in found if one.swept and (one.directory, one.name) in there]

    found, left = in_store(url, token_file, work)
    if as_json:
        print_json(_json(application, handle, found, left))
    else:
        _print(found, left)
    if left:
        fail(
            f"{len(left)} of {_swept(found)} are there still, in {left[0].directory} to begin with: a writer"
            " is at work there, or a member is slow",
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
                "batch": None if (told := parse_staged(one.name)) is None else told.number,
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
                "garbage" if one.swept else "stays",
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
    if undecided := sum(one.staged_state is StagedState.OPEN for one in found):
        print(
            f"{undecided} undecided: a writer may record them yet; --undecided-older-than SECONDS gives up"
            " those that are older"
        )


def _unit(name: str) -> str:
    told = parse_staged(name)
    if told is None:
        return name
    return f"write {told.key}" if told.number is None else f"batch {told.number}"
