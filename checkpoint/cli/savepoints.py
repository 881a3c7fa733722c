"""`dos region savepoint`: create or drop a named checkpoint that stays restorable until a person drops it.
`dos region savepoints`: list them.

Arguments in, text or JSON out. The rules of savepoints are in `core/savepoints.py`.
"""

from typing import Annotated, Any, Final

import typer

from checkpoint import limits
from checkpoint.chains.manifest_reading import read_manifest
from checkpoint.cli.arguments import (
    RegionName,
    Stopped,
    Timeout,
    Wait,
    Why,
    complete_checkpoint,
    complete_savepoint,
    in_store,
)
from checkpoint.cli.requests import as_driver_of_stopped, end, send_to_running
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.checkpoint_views import savepoint_row
from checkpoint.core.manifest import (
    NO_NOTE,
    SavepointNote,
    savepoint_name_problem,
    savepoint_why_problem,
)
from checkpoint.maintenance.forking import fork_needs
from checkpoint.maintenance.garbage import held_by_savepoints
from checkpoint.maintenance.stopped_region import savepoint_stopped
from checkpoint.requests.client import Reply, RequestClient, requester
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from dos_client.cli.kit import (
    REFUSED,
    AsJson,
    StoreUrl,
    TokenFile,
    clock_text,
    count_text,
    fail,
    print_json,
    print_result,
    print_table,
)

UNKNOWN: Final = "unknown"
"""Shown where an older version did not record who created a savepoint."""


def savepoint(
    url: StoreUrl,
    name: RegionName,
    savepoint_name: Annotated[
        str,
        typer.Argument(
            help="Name of the savepoint: letters, digits, '.', '_' and '-'.",
            autocompletion=complete_savepoint,
            metavar="SAVEPOINT",
        ),
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
    why: Why = "",
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
    the next driver deletes it. `dos region savepoints` lists savepoints, and who made them, when and why. A
    savepoint that exists keeps its note.

    Example: dos region savepoint dos://h1,h2,h3 wordcount before-the-migration --why "ticket 17"

    Example: dos region savepoint dos://h1,h2,h3 wordcount good --checkpoint 41

    Example: dos region savepoint dos://h1,h2,h3 wordcount the-end --stopped

    Example: dos region savepoint dos://h1,h2,h3 wordcount good --drop

    Exit codes: 0 created or dropped, and committed; 1 refused, or not done in time; 2 usage; 3 the store
    cannot be reached.
    """
    if problem := savepoint_name_problem(savepoint_name, reserved=drop) or savepoint_why_problem(why):
        fail(problem, REFUSED)
    if drop and (checkpoint or why):
        fail("--drop takes the name of the savepoint alone, without --checkpoint and --why", REFUSED)

    def text(result: dict[str, Any]) -> str:
        which = f"savepoint {savepoint_name} of checkpoint {result.get('checkpoint')}"
        return f"{which} is {'dropped' if drop else 'created'}"

    async def send(store: Store) -> Reply:
        await read_manifest(store, name)  # raises NoRegionError before anything is written
        return await send_to_running(
            RequestClient(store, name),
            "drop_savepoint" if drop else "savepoint",
            timeout=timeout,
            wait=wait,
            as_json=as_json,
            name=savepoint_name,
            checkpoint=checkpoint,
            why=why,
        )

    if not stopped:
        end(in_store(url, token_file, send), as_json, text)
        return

    async def act_as_driver(store: Store) -> int:
        note = SavepointNote(by=requester(), wall_time_ms=wall_time_ms(), why=why)
        return await _savepoint_stopped(store, name, savepoint_name, checkpoint, None if drop else note, wait)

    done = in_store(url, token_file, act_as_driver)
    found = {"name": name, "savepoint": savepoint_name, "checkpoint": done, "stopped": True}
    print_result(found, text(found), as_json=as_json)


async def _savepoint_stopped(
    store: Store, name: str, savepoint_name: str, checkpoint: int, note: SavepointNote | None, wait_s: float
) -> int:
    """Act as the driver of a stopped region, without a note to drop; return the savepoint's checkpoint."""
    await read_manifest(store, name)
    host, on = StoreHost(store), note is not None
    with as_driver_of_stopped(wait_s, "`dos region savepoints` lists the savepoints"):
        return await savepoint_stopped(host, name, savepoint_name, checkpoint, on=on, note=note or NO_NOTE)


def list_savepoints(
    url: StoreUrl, name: RegionName, as_json: AsJson = False, token_file: TokenFile = None
) -> None:
    """List the savepoints of a region, running or stopped: checkpoint, maker, note and sizes.

    "committed" is when the checkpoint was committed, "made" and "by" are when and by whom the savepoint was
    created: "unknown" if an older version created it. "state" is how much a restore of the checkpoint reads
    from the state chains of all workers. "only here" is how much no other savepoint and no other retained
    checkpoint needs, on each member of the store: it is deleted after the savepoint is dropped, as soon as
    the checkpoint is not one of the last ones (`retain`) either.

    A savepoint fork-HEX was made for a fork (`dos region fork`), and is dropped automatically once the fork
    needs it no more. "missing": there is no such region; if none is being made, drop the savepoint.

    Example: dos region savepoints dos://h1,h2,h3 wordcount

    Example: dos region savepoints dos://h1,h2,h3 wordcount --json | jq .savepoints[].heldBytes

    Exit codes: 0 shown, 1 no such region, 2 usage, 3 the store cannot be reached.
    """

    async def work(store: Store) -> dict[str, Any]:
        view = await read_manifest(store, name)
        held = await held_by_savepoints(store, view)
        notes = view.last.notes if view.last is not None else {}
        savepoints = view.last.savepoints if view.last is not None else {}
        checkpoints = {checkpoint.number: checkpoint for checkpoint in view.checkpoints}
        rows = [
            savepoint_row(
                one,
                checkpoints[number],
                note,
                sum(found.bytes for found in held[one]),
                await fork_needs(store, name, one, note) if note.fork else None,
            )
            for one, number in savepoints.items()
            for note in (notes.get(one, NO_NOTE),)
        ]
        rows.sort(key=lambda row: (row["checkpoint"], row["savepoint"]))
        return {"name": name, "savepoints": rows, "unproved": view.unproved}

    found = in_store(url, token_file, work)
    if as_json:
        print_json(found)
        return
    if found["savepoints"]:
        _print_list(found["savepoints"])
    else:
        print(f"region {name} has no savepoints")
    if found["unproved"]:
        print(found["unproved"])


def _print_list(rows: list[dict[str, Any]]) -> None:
    print_table(
        (
            "savepoint",
            "#checkpoint",
            "#step",
            "committed",
            "made",
            "by",
            "#state",
            "#only here",
            "fork",
            "why",
        ),
        [
            (
                row["savepoint"],
                row["checkpoint"],
                row["step"],
                clock_text(row["timeMs"]),
                clock_text(row["madeMs"]) if row["madeMs"] else UNKNOWN,
                row["madeBy"] or UNKNOWN,
                count_text(row["restoreBytes"]),
                count_text(row["heldBytes"]),
                f"{row['fork']} ({row['forkState']})" if row["fork"] else "",
                row["why"],
            )
            for row in rows
        ],
    )
