"""`dos region savepoint`: create or drop a named checkpoint that stays restorable until a person drops it.

Arguments in, text or JSON out. The rules of savepoints are in `core/savepoints.py`.
"""

from typing import Annotated, Any

import trio
import typer

from checkpoint import limits
from checkpoint.chains.manifest_reading import read_manifest
from checkpoint.cli.arguments import RegionName, Stopped, Timeout, Wait, complete_checkpoint, in_store
from checkpoint.cli.requests import end, send_to_running
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.manifest import savepoint_name_problem
from checkpoint.errors import RegionFencedError, SavepointRefusedError
from checkpoint.maintenance.stopped_region import savepoint_stopped
from checkpoint.requests.client import Reply, RequestClient
from dos_client import Store
from dos_client.cli.kit import NEGATIVE, REFUSED, AsJson, StoreUrl, TokenFile, fail, print_result
from dos_protocol.errors import FencedError


def savepoint(
    url: StoreUrl,
    name: RegionName,
    savepoint_name: Annotated[
        str,
        typer.Argument(help="Name of the savepoint: letters, digits, '.', '_' and '-'.", metavar="SAVEPOINT"),
    ],
    checkpoint: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of the checkpoint; 0: the last one. It must be retained: see `dos checkpoint ls`.",
            autocompletion=complete_checkpoint,
            metavar="CHECKPOINT",
        ),
    ] = 0,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the savepoint instead of creating it.")] = False,
    stopped: Stopped = False,
    timeout: Timeout = limits.request_patience_s,
    wait: Wait = limits.drain_timeout_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Create a savepoint: keep a checkpoint restorable under a name until the savepoint is dropped.

    A savepoint outlives later checkpoints and drivers: the store keeps what its checkpoint needs. The driver
    of a running region commits a checkpoint that records the savepoint. For a stopped region, --stopped
    commits its last checkpoint once more with the savepoint; the region continues from it as from the
    original.

    With --drop, the checkpoint of the savepoint is released, unless it is retained as one of the last ones
    or by another savepoint. What only that checkpoint needed is deleted, permanently; in a stopped region
    the next driver deletes it. `dos checkpoint ls` lists savepoints.

    Example: dos region savepoint dos://h1,h2,h3 wordcount before-the-migration

    Example: dos region savepoint dos://h1,h2,h3 wordcount good --checkpoint 41

    Example: dos region savepoint dos://h1,h2,h3 wordcount the-end --stopped

    Example: dos region savepoint dos://h1,h2,h3 wordcount good --drop

    Exit codes: 0 created or dropped, and committed; 1 refused, or not done in time; 2 usage; 3 the store
    cannot be reached.
    """
    if problem := savepoint_name_problem(savepoint_name):
        fail(problem, REFUSED)
    if drop and checkpoint:
        fail("--drop takes the name of the savepoint alone, without --checkpoint", REFUSED)

    def text(result: dict[str, Any]) -> str:
        which = f"savepoint {savepoint_name} of checkpoint {result.get('checkpoint')}"
        return f"{which} is {'dropped' if drop else 'created'}"

    async def send(store: Store) -> Reply:
        await read_manifest(store, name)  # raises NoRegionError before anything is written
        return await send_to_running(
            RequestClient(store, name),
            "unpin" if drop else "pin",  # the names in stored requests
            timeout=timeout,
            wait=wait,
            as_json=as_json,
            name=savepoint_name,
            cut=checkpoint,
        )

    if not stopped:
        end(in_store(url, token_file, send), as_json, text)
        return

    async def act_as_driver(store: Store) -> int:
        return await _savepoint_stopped(store, name, savepoint_name, checkpoint, drop=drop, wait_s=wait)

    done = in_store(url, token_file, act_as_driver)
    found = {"name": name, "savepoint": savepoint_name, "checkpoint": done, "stopped": True}
    print_result(found, text(found), as_json=as_json)


async def _savepoint_stopped(
    store: Store, name: str, savepoint_name: str, checkpoint: int, *, drop: bool, wait_s: float
) -> int:
    """Act as the driver of a stopped region; return the number of the savepoint's checkpoint."""
    await read_manifest(store, name)
    try:
        with trio.fail_after(wait_s):
            return await savepoint_stopped(StoreHost(store), name, savepoint_name, checkpoint, on=not drop)
    except (SavepointRefusedError, RegionFencedError, FencedError) as error:
        fail(str(error), NEGATIVE)
    except trio.TooSlowError:
        fail(
            f"not done within {wait_s:g} s, but it may have been done since: `dos checkpoint ls` lists the"
            " savepoints, `dos store status` the members that are unavailable",
            NEGATIVE,
        )
