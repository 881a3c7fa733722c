"""`dos region delete`: delete a region that is not needed any more. See `maintenance/deleting.py`."""

from typing import Annotated, Any

import typer

from checkpoint import limits
from checkpoint.cli.arguments import DeletionWait, RegionName, Timeout, in_store
from checkpoint.errors import DeletionRefusedError, ForkRefusedError, RegionFencedError
from checkpoint.maintenance.deleting import Deletion, delete_region, plan_deletion
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    AsJson,
    StoreUrl,
    TokenFile,
    count_text,
    fail,
    print_json,
    print_table,
)


def delete(
    url: StoreUrl,
    name: RegionName,
    apply: Annotated[bool, typer.Option("--apply", help="Delete it; otherwise only list.")] = False,
    breaks: Annotated[
        list[str] | None,
        typer.Option("--break", help="A fork or a reader of its output that may break.", metavar="NAME"),
    ] = None,
    stopped: Annotated[
        bool,
        typer.Option(
            "--stopped",
            help="The original of a fork does not run: act as its driver for a moment. A driver that still"
            " runs is fenced and ends.",
        ),
    ] = False,
    timeout: Timeout = limits.request_patience_s,
    wait: DeletionWait = limits.trim_wait_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """List what a region has in the store, and what depends on it; with --apply, delete it permanently.

    Its journals, checkpoints, savepoints and output logs are deleted, and it is no consumer of its inputs any
    more. The inputs stay, and so does output outside of the store. A region is not deleted while it runs,
    while a member of the store is unavailable, or while a fork has its state here or another region or query
    reads its output: --break names those that may break.

    A fork that was deleted frees what only it needed of the original. The driver of the original is asked; if
    none runs, pass --stopped.

    Example: dos region delete dos://h1,h2,h3 wordcount-test

    Example: dos region delete dos://h1,h2,h3 wordcount-test --apply

    Exit codes: 0 listed, or deleted on all members; 1 refused, or not done in time; 2 usage; 3 the store
    cannot be reached.
    """

    async def work(store: Store) -> tuple[Deletion, bool | None]:
        found = await plan_deletion(store, name)
        if not apply:
            return found, None
        broken = breaks or ()
        return found, await delete_region(
            store, name, broken=broken, stopped=stopped, patience_s=timeout, wait_s=wait
        )

    try:
        found, done = in_store(url, token_file, work)
    except (DeletionRefusedError, ForkRefusedError, RegionFencedError) as error:
        fail(str(error), NEGATIVE)
    if as_json:
        print_json(_json(found, done))
    else:
        _print(found, done)
    if done is False:
        fail("a member has not deleted everything yet: repeat the command", NEGATIVE)


def _of_directories(found: Deletion) -> dict[str, tuple[int, int]]:
    """Return directory -> its objects, and their bytes on all members."""
    sizes: dict[str, tuple[int, int]] = {}
    for one in found.objects:
        count, size = sizes.get(one.directory, (0, 0))
        sizes[one.directory] = count + 1, size + one.bytes * one.copies
    return sizes


def _json(found: Deletion, done: bool | None) -> dict[str, Any]:
    original, savepoint = found.savepoint or (None, None)
    return {
        "name": found.region,
        "directories": [
            {"directory": name, "objects": count, "bytes": size}
            for name, (count, size) in _of_directories(found).items()
        ],
        "bytes": sum(one.bytes * one.copies for one in found.objects),
        "dependents": [one._asdict() for one in found.dependents],
        "original": original,
        "savepoint": savepoint,
        "deleted": done,
    }


def _print(found: Deletion, done: bool | None) -> None:
    print_table(
        ("directory", "#objects", "#bytes"),
        [(name, count, count_text(size)) for name, (count, size) in _of_directories(found).items()],
    )
    total = count_text(sum(one.bytes * one.copies for one in found.objects))
    if done is not None:
        print(f"region {found.region}: {'deleted' if done else 'partly deleted'}, {total} on all members")
        return
    for one in found.dependents:
        print(f"{one.name} depends on it: {one.what}")
    if found.savepoint is not None:
        print(f"it is a fork: savepoint {found.savepoint[1]} of {found.savepoint[0]} is dropped with it")
    print(f"{len(found.objects)} objects, {total} on all members; --apply deletes them")
