"""`dos region restore`: a region goes back to an older checkpoint. `core/lines.py` has the rules."""

from typing import Annotated, Any

import typer

from checkpoint import limits
from checkpoint.chains.manifest_reading import read_manifest
from checkpoint.chains.whole_checkpoints import damage_of
from checkpoint.cli.arguments import RegionName, Stopped, Timeout, Wait, complete_target, in_store
from checkpoint.cli.requests import as_driver_of_stopped, end, send_to_running
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.core.lines import find_target
from checkpoint.core.rewind_report import damaged_text, report_text, rewind_report, trimmed_text
from checkpoint.errors import RestoreRefusedError
from checkpoint.maintenance.retention import trimmed_since
from checkpoint.maintenance.stopped_region import restore_stopped
from checkpoint.requests.client import Reply, RequestClient
from checkpoint.runtime import checkpoint_named
from dos_client import Store
from dos_client.cli.kit import NEGATIVE, AsJson, StoreUrl, TokenFile, fail, print_result


def restore(
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
    timeout: Timeout = limits.request_patience_s,
    wait: Wait = limits.start_timeout_s + limits.reset_timeout_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Restore a region to an older checkpoint: state, input positions, and output that can be taken back.

    What follows the checkpoint no longer counts, and its input is read again. Files are cut back, output logs
    branch off, and their readers notice. Rows that a sink cannot take back come again: it must be said that
    this is wanted. Everything retained stays retained, but a checkpoint whose output was taken back can no
    longer be restored.

    The driver of a running region resets it. For a stopped region, --stopped records the restore, and the
    next driver begins there. --dry-run shows what a restore takes back, and changes nothing. With --verify,
    all state of the checkpoint is read first.

    Example: dos region restore dos://h1,h2,h3 wordcount --to savepoint:good --dry-run --verify

    Example: dos region restore dos://h1,h2,h3 wordcount --to checkpoint:41

    Example: dos region restore dos://h1,h2,h3 wordcount --to 2026-01-31T12:00:00+00:00 --stopped

    Exit codes: 0 restored, or shown; 1 refused, or not done in time; 2 usage; 3 the store cannot be reached.
    """
    named = checkpoint_named(to)
    try:
        report = in_store(url, token_file, lambda store: _report(store, name, named, verify=verify))
    except RestoreRefusedError as error:
        fail(str(error), NEGATIVE)
    shown = {"name": name, "to": to, **report}
    if dry_run:
        print_result(shown, "\n".join(report_text(report)), as_json=as_json)
        if report["damaged"]:
            raise typer.Exit(NEGATIVE)
        return

    if report["trimmed"] or report["damaged"]:
        rows = [trimmed_text(**row) for row in report["trimmed"]]
        fail("; ".join(rows + [damaged_text(row) for row in report["damaged"] or ()]), NEGATIVE)

    def text(result: dict[str, Any]) -> str:
        at = f"checkpoint {result.get('checkpoint')}, step {result.get('step')}"
        return f"region {name} is restored to {at}"

    async def send(store: Store) -> Reply:
        client = RequestClient(store, name)
        return await send_to_running(
            client,
            "restore",
            timeout=timeout,
            wait=wait,
            as_json=as_json,
            name=named,
            allow_republish=allow_republish,
        )

    if not stopped:
        end(in_store(url, token_file, send), as_json, text)
        return

    async def act_as_driver(store: Store) -> dict[str, Any]:
        return await _restore_stopped(store, name, named, allow_republish=allow_republish, wait_s=wait)

    done = in_store(url, token_file, act_as_driver)
    print_result(done, text(done), as_json=as_json)


async def _report(store: Store, name: str, to: str, *, verify: bool) -> dict[str, Any]:
    view = await read_manifest(store, name)
    kept = view.kept
    target = find_target(kept, to, region=name)
    trimmed = [row._asdict() for row in await trimmed_since(store, name, target)]
    found = await damage_of(store, name, target, rewound=True) if verify else None
    damaged = () if found is None else found.chains
    return rewind_report(kept[-1], target, trimmed=trimmed, damaged=damaged if verify else None)


async def _restore_stopped(
    store: Store, name: str, to: str, *, allow_republish: bool, wait_s: float
) -> dict[str, Any]:
    with as_driver_of_stopped(wait_s, "`dos checkpoint ls` shows it"):
        checkpoint = await restore_stopped(StoreHost(store), name, to, allow_republish=allow_republish)
    return {"name": name, "checkpoint": checkpoint.rolled_back_to, "step": checkpoint.step, "stopped": True}
