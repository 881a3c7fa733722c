"""`dos region trim`: show and delete the objects that no retained checkpoint of a region needs.

`maintenance/trimming.py` decides which objects those are. While the region runs, only its workers can delete
them, because they hold the claims; a checkpoint sends them the floors. So --apply requests a checkpoint.
"""

from typing import Annotated, Any

import trio
import typer

from checkpoint import limits
from checkpoint.chains.manifest_reading import ManifestView, read_manifest
from checkpoint.cli.arguments import DeletionWait, RegionName, Stopped, Timeout, in_store
from checkpoint.cli.requests import fail_unless_done, send_to_running
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.maintenance.garbage import UnneededObject, collect_stopped, garbage_of
from checkpoint.requests.client import RequestClient
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    AsJson,
    StoreUrl,
    TokenFile,
    count_text,
    fail,
    print_json,
    print_table,
)
from dos_protocol.errors import FencedError


def trim(
    url: StoreUrl,
    name: RegionName,
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete the objects; otherwise only list them.")
    ] = False,
    stopped: Stopped = False,
    timeout: Timeout = limits.request_patience_s,
    wait: DeletionWait = limits.trim_wait_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """List the segments of the region's journals that neither a retained checkpoint nor a savepoint needs;
    with --apply, delete them.

    A running region deletes them automatically, with every checkpoint. --apply then requests a checkpoint and
    waits until the workers have deleted the segments. A segment is deleted only if the manifest proves that
    nothing needs it: it lies below the floor of the oldest checkpoint that is retained or held by a
    savepoint. Whole segments are deleted.

    Example: dos region trim dos://h1,h2,h3 wordcount

    Example: dos region trim dos://h1,h2,h3 wordcount --apply --stopped

    Exit codes: 0 listed, or deleted on all available members; 1 no such region, no answer, or not done in
    time; 2 usage; 3 the store cannot be reached.
    """
    if stopped and not apply:
        fail("--stopped needs --apply", REFUSED)

    async def work(store: Store) -> tuple[ManifestView, list[UnneededObject], list[UnneededObject] | None]:
        view = await read_manifest(store, name)
        garbage = await garbage_of(store, view)
        if not apply:
            return view, garbage, None
        if stopped:
            await _collect_stopped(store, name, wait)
        else:
            client = RequestClient(store, name)
            reply = await send_to_running(client, "checkpoint", timeout=timeout, wait=wait, as_json=as_json)
            fail_unless_done(reply.answer)
        return view, garbage, await _left(store, view, garbage, wait)

    view, garbage, left = in_store(url, token_file, work)
    if as_json:
        print_json(_json(view, garbage, left))
    else:
        _print(view, garbage, left)
    if left:
        fail(
            f"{len(left)} of {len(garbage)} objects are not deleted yet: a member may be unavailable or slow",
            NEGATIVE,
        )


async def _left(
    store: Store, view: ManifestView, garbage: list[UnneededObject], wait: float
) -> list[UnneededObject]:
    """Wait at most `wait` seconds until the garbage is deleted. Return the part that is left."""
    deadline = trio.current_time() + wait
    left = garbage
    while left and trio.current_time() < deadline:
        names = {(one.directory, one.name) for one in await garbage_of(store, view)}
        left = [one for one in garbage if (one.directory, one.name) in names]
        await trio.sleep(limits.answers_poll_s)
    return left


async def _collect_stopped(store: Store, name: str, wait: float) -> None:
    try:
        await collect_stopped(StoreHost(store), name, wait_s=wait)
    except FencedError as error:
        fail(f"a newer driver has taken over the region: {error}", NEGATIVE)


def _json(
    view: ManifestView, garbage: list[UnneededObject], left: list[UnneededObject] | None
) -> dict[str, Any]:
    savepoints = view.last.savepoints if view.last is not None else {}
    return {
        "name": view.region,
        "retained": list(view.retained),
        "savepoints": savepoints,
        "garbage": [
            {"directory": one.directory, "object": one.name, "bytes": one.bytes, "copies": one.copies}
            for one in garbage
        ],
        "bytes": sum(one.bytes * one.copies for one in garbage),
        "deleted": None if left is None else len(garbage) - len(left),
    }


def _print(view: ManifestView, garbage: list[UnneededObject], left: list[UnneededObject] | None) -> None:
    kept = view.kept
    numbers = ", ".join(str(checkpoint.number) for checkpoint in kept) or "none"
    savepoints = view.last.savepoints if view.last is not None else {}
    named = ", ".join(f"{name} (checkpoint {checkpoint})" for name, checkpoint in sorted(savepoints.items()))
    print(f"region {view.region} retains checkpoints {numbers}" + (f"; savepoints: {named}" if named else ""))
    print_table(
        ("directory", "object", "#bytes", "#copies"),
        [(one.directory, one.name, count_text(one.bytes), one.copies) for one in garbage],
    )
    held = count_text(sum(one.bytes * one.copies for one in garbage))
    if left is None:
        what = "nothing to delete" if not garbage else f"{len(garbage)} objects, {held} on all members"
        print(f"{what}{'; --apply deletes them' if garbage else ''}")
    elif not left:
        print(f"deleted {len(garbage)} objects, {held} on all members")
