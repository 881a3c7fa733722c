"""`dos region backup`, `backups` and `restore-backup`: copies of regions in a bucket or another store."""

import math
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from checkpoint import limits
from checkpoint.cli.arguments import NEGATIVE_ANSWERS, RegionName, Stopped, Timeout
from checkpoint.core.records.backups import BackupRecord, left_out_text
from checkpoint.errors import (
    BackupDamagedError,
    BackupRefusedError,
)
from checkpoint.maintenance.backup import (
    BackupDone,
    BackupStatus,
    Progress,
    back_up,
    backups_of,
    keep_backing_up,
)
from checkpoint.maintenance.backup_restoring import RestoredBackup, restore_backup
from checkpoint.maintenance.backup_target import BackupTarget, open_target
from checkpoint.maintenance.stopped_region import SavepointMaker
from dos_client.cli.kit import (
    REFUSED,
    UNREACHABLE,
    Call,
    Ends,
    Report,
    StoreUrl,
    check_store_url,
    clock_text,
    command,
    count_text,
    exit_code,
    fail,
    finish,
    print_table,
    read_token,
)
from journal import ArchiveUnavailableError

TargetUrl = Annotated[
    str,
    typer.Argument(
        help="s3://BUCKET/PREFIX, or a directory of a store: dos://HOST,HOST2/DIRECTORY", metavar="TARGET"
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Endpoint of a service of S3 other than AWS. Default: the configuration of boto3"
        " (AWS_ENDPOINT_URL).",
        show_default=False,
    ),
]
TargetTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--target-token-file",
        help="File with the token of a target that is a store. Default: that of --token-file.",
        metavar="FILE",
    ),
]
_ENDS: Final = Ends(
    (*NEGATIVE_ANSWERS, BackupRefusedError, BackupDamagedError),
    code_of=lambda error: UNREACHABLE if isinstance(error, ArchiveUnavailableError) else exit_code(error),
)


async def backup(
    call: Call,
    url: StoreUrl,
    name: RegionName,
    target: TargetUrl,
    every: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Go on until interrupted: begin a backup this many seconds after the last one has ended.",
            metavar="SECONDS",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            min=1,
            max=1_000,
            help="How many backups stay, this one included. What only older ones need is deleted.",
        ),
    ] = 2,
    stopped: Stopped = False,
    endpoint: Endpoint = None,
    target_token_file: TargetTokenFile = None,
) -> Report | None:
    """Copy a region to another store or to a bucket, from which it can be restored without this store.

    A backup has the last checkpoint: state, steps, files of operators, output logs, and the input in the
    store that the checkpoint has not read, with what its producers need to continue. A savepoint holds the
    checkpoint meanwhile. Everything is verified by digest. Objects that the target has already are not copied
    again. There is no backup until the last record is written, so an interrupted run does no harm: run it
    again.

    With --every, the loss window is printed after each backup: how old the newest backup can be when the next
    one is complete. That is the age of its checkpoint, the interval, and the time to copy. A failed backup is
    reported, and tried again after the interval.

    Outputs of other regions that this one reads, rows in files and databases, and the consumers of its
    output are not copied.

    Example: dos region backup dos://h1,h2,h3 wordcount s3://backups/dos

    Example: dos region backup dos://h1,h2,h3 wordcount s3://backups/dos --every 60 --keep 24 --json

    Example: dos region backup dos://h1,h2,h3 wordcount dos://far1,far2,far3/backups

    Exit codes: 0 done; 1 refused, damaged, or no answer; 2 usage; 3 the store or the target cannot be
    reached; 130 interrupted.
    """
    if stopped and every is not None:
        fail("--every is for a region that runs: a stopped region does not change", REFUSED)

    async with (
        call.store(url, client="dos region backup") as store,
        open_target(target, token=_token_of(target_token_file, call), endpoint=endpoint) as opened,
    ):

        async def once(progress: Progress) -> BackupDone:
            region = SavepointMaker(store, name, stopped=stopped, patience_s=call.timeout_s)
            async with opened.place(name) as place:
                return await back_up(store, name, place, region, keep=keep, progress=progress)

        if every is None:
            done = await once(call.bar(f"copies {name} to {target}"))
            return Report({"name": name, "target": target, **asdict(done)}, _done_text(done))
        call.display.hide()  # it prints a result again and again
        async with aclosing(keep_backing_up(partial(once, lambda _done, _total: None), every)) as rounds:
            async for status in rounds:
                finish(Report(asdict(status), _status_text(status)), as_json=call.as_json)
    return None


def _token_of(other: Path | None, call: Call) -> bytes:
    return call.token if other is None else read_token(other)


async def backups(
    call: Call,
    target: TargetUrl,
    name: Annotated[
        str | None, typer.Argument(help="Only of this region.", metavar="NAME", show_default=False)
    ] = None,
    endpoint: Endpoint = None,
) -> Report:
    """List the backups of a target, the oldest first, of one region or of all. The store is not needed.

    "bytes" is what a restore reads, "copied" what the backup added to the target.

    Example: dos region backups s3://backups/dos

    Example: dos region backups dos://far1,far2,far3/backups wordcount --json

    Exit codes: 0 listed; 1 a record is damaged; 2 usage; 3 the target cannot be reached.
    """

    found: list[BackupRecord] = []
    async with open_target(target, token=call.token, endpoint=endpoint) as opened:
        for region in await opened.regions():
            if name in (None, region):
                async with opened.place(region) as place:
                    found += await backups_of(place)
    rows = [backup_row(record) for record in found]
    value = {"target": target, "backups": rows}
    if not rows:
        return Report(value, f"{target} has no backup" + (f" of region {name}" if name else ""))
    return Report(value, lambda: _print_list(rows))


def _print_list(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("region", "#backup", "#checkpoint", "#step", "committed", "copied at", "#bytes", "#copied"),
        [
            (
                row["region"],
                row["backup"],
                row["checkpoint"],
                row["step"],
                clock_text(row["checkpointMs"]),
                clock_text(row["timeMs"]),
                count_text(row["bytes"]),
                count_text(row["copiedBytes"]),
            )
            for row in rows
        ],
    )


def backup_row(record: BackupRecord) -> dict[str, Any]:
    checkpoint = record.checkpoint
    return {
        "region": record.region,
        "store": record.store,
        "backup": record.number,
        "checkpoint": checkpoint.number,
        "step": checkpoint.step,
        "checkpointMs": checkpoint.wall_time_ms,
        "timeMs": record.wall_time_ms,
        "bytes": record.bytes,
        "copiedBytes": record.copied_bytes,
        "readsOutputsOf": list(record.reads_outputs),
        "leftOut": list(record.left_out),
    }


def _done_text(done: BackupDone) -> str:
    text = (
        f"backup {done.number} of checkpoint {done.checkpoint}, step {done.step}, committed"
        f" {clock_text(done.checkpoint_ms)}: {count_text(done.copied_bytes)} copied and verified in"
        f" {done.seconds:.1f} s, {count_text(done.bytes)} in all"
    )
    lines = [text]
    if done.released:
        lines.append(f"deleted: backup {', '.join(map(str, done.released))}")
    if done.left_out:
        lines.append(left_out_text(done.left_out))
    return "\n".join(lines)


def _status_text(status: BackupStatus) -> str:
    if status.done is None:
        return f"no backup: {status.error}; the next try is in {status.every_s:g} s"
    window = f"loss window {status.loss_window_s:.1f} s" if math.isfinite(status.loss_window_s) else ""
    return f"{_done_text(status.done)}; {window}"


async def restore_from_backup(
    call: Call,
    source: Annotated[
        str, typer.Argument(help="Where the backups are, as for `dos region backup`.", metavar="SOURCE")
    ],
    url: StoreUrl,
    name: Annotated[
        str | None,
        typer.Argument(
            help="The region. Not needed if the target has backups of one region only.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    number: Annotated[
        int, typer.Option("--backup", min=0, help="Number of the backup; 0: the newest.", metavar="NUMBER")
    ] = 0,
    old_is_gone: Annotated[
        bool,
        typer.Option(
            "--old-is-gone",
            help="The original never runs again: continue its output outside of the store in its name.",
        ),
    ] = False,
    allow_republish: Annotated[
        bool,
        typer.Option("--allow-republish", help="With --old-is-gone: although some sinks show rows again."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be restored, and from when.")
    ] = False,
    endpoint: Endpoint = None,
    source_token_file: Annotated[
        Path | None,
        typer.Option(
            "--source-token-file",
            help="File with the token of a SOURCE that is a store. Default: that of --token-file.",
            metavar="FILE",
        ),
    ] = None,
) -> Report:
    """Restore a region from a backup into a store that has nothing of it. The next `run` of its name
    continues.

    Only the target of the backups is needed, no server of the original store. Everything is verified by
    digest. Until the last step there is no region, and the same command continues an interrupted one. A
    directory that is not empty is refused by name, and nothing is changed.

    Everything after the backup is lost: input of producers is needed again from the batch that the backup
    has on, and readers of output logs get an error that names what was taken back.

    Output outside of the store (files, SQL, Parquet, S3) has an owner. Without --old-is-gone, the restored
    region is another owner, whose output begins anew in another place, and the original may run on. With
    --old-is-gone it continues where the original was at the backup: files are cut back to that, and rows that
    a sink cannot take back come again, which needs --allow-republish. Then the original must never run again.

    Example: dos region restore-backup s3://backups/dos dos://new1,new2,new3 --dry-run

    Example: dos region restore-backup s3://backups/dos dos://new1,new2,new3 wordcount --old-is-gone

    Exit codes: 0 restored, or shown; 1 refused or damaged; 2 usage; 3 the store or the target cannot be
    reached.
    """
    check_store_url(url)
    progress = call.bar(f"copies {source} to {url}")
    async with open_target(source, token=_token_of(source_token_file, call), endpoint=endpoint) as opened:
        region = name or await _only_region(opened)
        async with opened.place(region) as place:
            record = _chosen(source, region, number, await backups_of(place))
            if dry_run:
                text = (
                    f"backup {record.number} of region {record.region}: checkpoint"
                    f" {record.checkpoint.number}, committed {clock_text(record.checkpoint.wall_time_ms)};"
                    f" {count_text(record.bytes)}; what followed is lost"
                )
                return Report(backup_row(record), text)
            async with call.store(url, client="dos region restore-backup") as store:
                options = {"old_is_gone": old_is_gone, "allow_republish": allow_republish}
                done = await restore_backup(place, record, store, progress=progress, **options)
    return Report({**asdict(done), "oldIsGone": old_is_gone}, _restored_text(done))


async def _only_region(target: BackupTarget) -> str:
    regions = await target.regions()
    if len(regions) != 1:
        known = ", ".join(regions) or "none"
        raise BackupRefusedError(f"{target.url} has backups of these regions: {known}", remedy="name one")
    return regions[0]


def _chosen(source: str, region: str, number: int, known: list[BackupRecord]) -> BackupRecord:
    """Return the backup of that number, 0: the newest. Raises BackupRefusedError if there is none."""
    for record in reversed(known):
        if number in (0, record.number):
            return record
    numbers = ", ".join(str(one.number) for one in known) or "none"
    wanted = f"backup {number}" if number else "backup"
    raise BackupRefusedError(f"{source} has no {wanted} of region {region!r}; it has {numbers}")


def _restored_text(done: RestoredBackup) -> str:
    text = (
        f"region {done.region} is restored from backup {done.backup}, committed"
        f" {clock_text(done.checkpoint_ms)}: {count_text(done.bytes)} in {done.directories} directories"
        f"; run it to continue at step {done.step}"
    )
    lines = [text]
    if done.begins_anew:
        lines.append(f"the output of these sinks begins anew: {', '.join(done.begins_anew)}")
    if done.comes_again:
        lines.append(
            f"rows that these sinks showed after the backup come again: {', '.join(done.comes_again)}"
        )
    if done.left_out:
        lines.append(left_out_text(done.left_out))
    return "\n".join(lines)


def add_backup_commands(app: typer.Typer) -> None:
    """Add the commands of this file to the app."""
    command(app, "backup", timeout=(Timeout, limits.request_patience_s), ends=_ENDS)(backup)
    command(app, "backups", ends=_ENDS)(backups)
    command(app, "restore-backup", ends=_ENDS)(restore_from_backup)
