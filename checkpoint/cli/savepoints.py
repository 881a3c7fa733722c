"""`dos region savepoint`, `savepoints`, `restore` and `fork`: checkpoints with names, and what begins again
at one.

The rules are in `core/records/lines.py`.
"""

from typing import Annotated, Any, Final

import typer

from checkpoint.chains.manifest_log import read_manifest
from checkpoint.chains.whole_checkpoints import damage_of
from checkpoint.cli.arguments import (
    RegionName,
    Stopped,
    Why,
    complete_checkpoint,
    complete_savepoint,
    complete_target,
    request_or_act,
)
from checkpoint.core.records.lines import find_target
from checkpoint.core.records.manifest import (
    NO_NOTE,
    savepoint_name_problem,
    savepoint_why_problem,
)
from checkpoint.core.records.views import (
    damaged_text,
    report_text,
    rewind_report,
    savepoint_row,
    trimmed_text,
)
from checkpoint.maintenance.forking import Forked, Forking, fork_needs, fork_region, plan_fork
from checkpoint.maintenance.garbage import held_by_savepoints
from checkpoint.maintenance.retention import trimmed_since
from checkpoint.runtime import checkpoint_named
from dos_client import Store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    Call,
    Report,
    StoreUrl,
    clock_text,
    count_text,
    fail,
    print_table,
)

UNKNOWN: Final = "unknown"
"""Shown of a savepoint whose note does not say who created it."""


async def savepoint(
    call: Call,
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
) -> Report:
    """Create a savepoint: keep a checkpoint restorable under a name until the savepoint is dropped.

    A savepoint outlives later checkpoints and drivers: the store keeps what its checkpoint needs. The driver
    of a running region commits a checkpoint that records the savepoint. For a stopped region, --stopped
    commits its last checkpoint once more with the savepoint; the region continues from it as from the
    original.

    With --drop, the checkpoint of the savepoint is released, unless it is retained as one of the last ones
    or by another savepoint. Data that only that checkpoint needed is deleted, permanently; in a stopped
    region the next driver deletes it. `dos region savepoints` lists savepoints, and who made them, when and
    why. A savepoint that exists keeps its note.

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

    fields = {"name": savepoint_name, "checkpoint": checkpoint, "why": why}
    async with call.store(url) as store:
        what = "drop_savepoint" if drop else "savepoint"
        return await request_or_act(call, store, name, what, fields, stopped=stopped)


async def list_savepoints(
    call: Call,
    url: StoreUrl,
    name: RegionName,
) -> Report:
    """List the savepoints of a region, running or stopped: checkpoint, maker, note and sizes.

    "committed" is when the checkpoint was committed, "made" and "by" are when and by whom the savepoint was
    created: "unknown" if its note does not say. "state" is how much a restore of the checkpoint reads
    from the state chains of all workers. "only here" is how much no other savepoint and no other retained
    checkpoint needs, on each member of the store: it is deleted after the savepoint is dropped, as soon as
    the checkpoint is not one of the last ones (`retain`) either.

    A savepoint fork-HEX was made for a fork (`dos region fork`), and is dropped automatically once the fork
    needs it no more. "missing": there is no such region; if none is being made, drop the savepoint.

    Example: dos region savepoints dos://h1,h2,h3 wordcount

    Example: dos region savepoints dos://h1,h2,h3 wordcount --json | jq .savepoints[].heldBytes

    Exit codes: 0 shown, 1 no such region, 2 usage, 3 the store cannot be reached.
    """
    async with call.store(url) as store:
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

    def show() -> None:
        if rows:
            _print_list(rows)
        else:
            print(f"region {name} has no savepoints")
        if view.unproved:
            print(view.unproved)

    return Report({"name": name, "savepoints": rows, "unproved": view.unproved}, show)


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


async def restore(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="savepoint:NAME, checkpoint:N, or a time (ISO 8601): the newest retained checkpoint that is"
            " not later.",
            autocompletion=complete_target,
            metavar="CHECKPOINT",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be taken back.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Also read the checkpoint, and refuse it if its chains are damaged."),
    ] = False,
    allow_republish: Annotated[
        bool,
        typer.Option("--allow-republish", help="Restore although some sinks show rows that come again."),
    ] = False,
    stopped: Stopped = False,
) -> Report:
    """Restore a region to an older checkpoint: state, input positions, and output that can be taken back.

    Everything after the checkpoint no longer counts, and its input is read again. Files are cut back, output
    logs branch off, and their readers notice. Rows that a sink cannot take back come again: it must be said
    that this is wanted. Everything retained stays retained, but a checkpoint whose output was taken back can
    no longer be restored.

    The driver of a running region resets it. For a stopped region, --stopped records the restore, and the
    next driver begins there. --dry-run shows what a restore takes back, and changes nothing. With --verify,
    all state of the checkpoint is read first.

    Example: dos region restore dos://h1,h2,h3 wordcount --to savepoint:good --dry-run --verify

    Example: dos region restore dos://h1,h2,h3 wordcount --to checkpoint:41

    Example: dos region restore dos://h1,h2,h3 wordcount --to 2026-01-31T12:00:00+00:00 --stopped

    Exit codes: 0 restored, or shown; 1 refused, or not done in time; 2 usage; 3 the store cannot be reached.
    """
    named = checkpoint_named(to)

    async with call.store(url) as store:
        call.display.say(f"reads {'all state of ' if verify else ''}{to}")
        report = await _report(store, name, named, verify=verify)
        if dry_run:
            code = NEGATIVE if report["damaged"] else 0
            return Report({"name": name, "to": to, **report}, "\n".join(report_text(report)), code)
        if report["trimmed"] or report["damaged"]:
            rows = [trimmed_text(**row) for row in report["trimmed"]]
            fail("; ".join(rows + [damaged_text(row) for row in report["damaged"] or ()]), NEGATIVE)
        fields = {"name": named, "allow_republish": allow_republish}
        return await request_or_act(call, store, name, "restore", fields, stopped=stopped)


async def _report(store: Store, name: str, to: str, *, verify: bool) -> dict[str, Any]:
    view = await read_manifest(store, name)
    kept = view.kept
    target = find_target(kept, to, region=name)
    trimmed = [row._asdict() for row in await trimmed_since(store, name, target)]
    found = await damage_of(store, name, target, rewound=True) if verify else None
    damaged = () if found is None else found.chains
    return rewind_report(kept[-1], target, trimmed=trimmed, damaged=damaged if verify else None)


async def fork(
    call: Call,
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
) -> Report:
    """Fork a region: a new region begins with its state and input positions, and copies nothing.

    The first `run` of a graph with the name NEW begins with that checkpoint, with any number of workers. Both
    regions run independently. NEW reads the same inputs, from there on. Its output is its own: its logs begin
    anew, and a sink that would write to the place of the original is refused, so give its sinks another
    place. Its graph may differ as that of the original may (docs/changing-regions.md).

    A savepoint of the original, fork-HEX, keeps the checkpoint until NEW has committed so many checkpoints
    that it retains only its own; the driver of the original then drops it. The driver of a running region is
    asked for the savepoint; for a stopped one, pass --stopped.

    Example: dos region fork dos://h1,h2,h3 wordcount wordcount-test --at savepoint:good

    Exit codes: 0 forked, or shown; 1 refused; 2 usage; 3 the store cannot be reached.
    """
    wanted = Forking(
        region=name,
        new=new,
        at=at,
        same_place=same_place or (),
        why=why,
        stopped=stopped,
        patience_s=call.timeout_s,
    )
    async with call.store(url) as store:
        made = await (plan_fork if dry_run else fork_region)(store, wanted)
    return Report(_fork_json(made), _fork_text(made))


def _fork_json(made: Forked) -> dict[str, Any]:
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
    }


def _fork_text(made: Forked) -> str:
    origin, size = made.origin, count_text(made.state_bytes)
    at = f"checkpoint {origin.checkpoint} of {origin.region}, step {origin.step}"
    if not origin.savepoint:
        return f"region {made.region} would begin at {at}; its first start would read {size} of state there"
    return (
        f"region {made.region} is a fork: it begins at {at}; its first start reads {size} of state there\n"
        f"savepoint {origin.savepoint} of {origin.region} keeps that until it is not needed"
    )
