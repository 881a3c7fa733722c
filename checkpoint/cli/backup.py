"""`dos region backup`, `backups` and `restore-backup`: copies of regions in a bucket or another store."""

import math
from collections.abc import Awaitable, Callable
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
    RegionFencedError,
    SavepointRefusedError,
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
from checkpoint.maintenance.stopped_region import maker_of
from dos_client import Store, open_store
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    UNREACHABLE,
    AsJson,
    StoreUrl,
    TokenFile,
    bar_of,
    clock_text,
    count_text,
    errors_end_command,
    exit_code,
    fail,
    parsed_url,
    print_json,
    print_result,
    print_table,
    read_token,
    run_interruptible,
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
_ANSWERS: Final = (
    *NEGATIVE_ANSWERS,
    BackupRefusedError,
    BackupDamagedError,
    SavepointRefusedError,
    RegionFencedError,
)


def backup(
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
    timeout: Timeout = limits.request_patience_s,
    as_json: AsJson = False,
    token_file: TokenFile = None,
    target_token_file: TargetTokenFile = None,
) -> None:
    """Copy a region to another store or to a bucket, from which it can be restored without this store.

    A backup has the last checkpoint: state, steps, files of operators, output logs, and the input in the
    store that the checkpoint has not read, with what its producers need to continue. A savepoint holds the
    checkpoint meanwhile. Everything is verified by digest. What the target has already is not copied again.
    There is no backup until the last record is written, so an interrupted run does no harm: run it again.

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
    if parsed_url(url).directory is not None:
        fail(f"{url} names a directory; pass the servers alone, as dos://HOST:PORT,HOST2:PORT", REFUSED)

    async def once(store: Store, place_of: BackupTarget, progress: Progress) -> BackupDone:
        region = maker_of(store, name, stopped=stopped, patience_s=timeout)
        async with place_of.place(name) as place:
            return await back_up(store, name, place, region, keep=keep, progress=progress)

    def show(status: BackupStatus) -> None:
        if as_json:
            print_json(asdict(status))
        else:
            print(_status_text(status), flush=True)

    async def work(progress: Progress) -> BackupDone | None:
        token, other = read_token(token_file), read_token(target_token_file or token_file)
        async with (
            open_store(url, token=token, client="dos region backup") as store,
            open_target(target, token=other, endpoint=endpoint) as opened,
        ):
            if every is None:
                return await once(store, opened, progress)
            async with aclosing(
                keep_backing_up(partial(once, store, opened, lambda _done, _total: None), every)
            ) as rounds:
                async for status in rounds:
                    show(status)
            return None

    if every is not None:
        run_backup(lambda: work(lambda _done, _total: None))
        return
    with bar_of(f"{name} to {target}", quiet=as_json) as progress:
        done = run_backup(lambda: work(progress))
    assert done is not None, "one backup has a result"
    print_result({"name": name, "target": target, **asdict(done)}, _done_text(done), as_json=as_json)


def backups(
    target: TargetUrl,
    name: Annotated[
        str | None, typer.Argument(help="Only of this region.", metavar="NAME", show_default=False)
    ] = None,
    endpoint: Endpoint = None,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """List the backups of a target, the oldest first, of one region or of all. The store is not needed.

    "bytes" is what a restore reads, "copied" what the backup added to the target.

    Example: dos region backups s3://backups/dos

    Example: dos region backups dos://far1,far2,far3/backups wordcount --json

    Exit codes: 0 listed; 1 a record is damaged; 2 usage; 3 the target cannot be reached.
    """

    async def work() -> list[BackupRecord]:
        found: list[BackupRecord] = []
        async with open_target(target, token=read_token(token_file), endpoint=endpoint) as opened:
            for region in await opened.regions():
                if name in (None, region):
                    async with opened.place(region) as place:
                        found += await backups_of(place)
        return found

    rows = [backup_row(record) for record in run_backup(work)]
    if as_json:
        print_json({"target": target, "backups": rows})
    elif rows:
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
    else:
        print(f"{target} has no backup" + (f" of region {name}" if name else ""))


def run_backup(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run an async function. Errors end the command."""

    def code_of(error: Exception) -> int:
        if isinstance(error, ArchiveUnavailableError):
            return UNREACHABLE
        return NEGATIVE if isinstance(error, _ANSWERS) else exit_code(error)

    with errors_end_command(code_of):
        return run_interruptible(work)


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


def restore_from_backup(
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
    as_json: AsJson = False,
    token_file: TokenFile = None,
    source_token_file: Annotated[
        Path | None,
        typer.Option(
            "--source-token-file",
            help="File with the token of a SOURCE that is a store. Default: that of --token-file.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Restore a region from a backup into a store that has nothing of it. The next `run` of its name
    continues.

    Only the target of the backups is needed, no server of the original store. Everything is verified by
    digest. Until the last step there is no region, and the same command continues an interrupted one. A
    directory that is not empty is refused by name, and nothing is changed.

    What was made after the backup is lost: input of producers is needed again from the batch that the backup
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
    if parsed_url(url).directory is not None:
        fail(f"{url} names a directory; pass the servers alone, as dos://HOST:PORT,HOST2:PORT", REFUSED)

    async def work(progress: Progress) -> tuple[BackupRecord, RestoredBackup | None]:
        token, other = read_token(token_file), read_token(source_token_file or token_file)
        async with open_target(source, token=other, endpoint=endpoint) as opened:
            region = name or await _only_region(opened)
            async with opened.place(region) as place:
                known = await backups_of(place)
                record = _chosen(source, region, number, known)
                if dry_run:
                    return record, None
                async with open_store(url, token=token, client="dos region restore-backup") as store:
                    options = {"old_is_gone": old_is_gone, "allow_republish": allow_republish}
                    return record, await restore_backup(place, record, store, progress=progress, **options)

    with bar_of(f"{source} to {url}", quiet=as_json) as progress:
        record, done = run_backup(lambda: work(progress))
    if done is None:
        row = backup_row(record)
        text = (
            f"backup {row['backup']} of region {row['region']}: checkpoint {row['checkpoint']}, committed"
            f" {clock_text(row['checkpointMs'])}; {count_text(row['bytes'])}; what followed is lost"
        )
        print_result(row, text, as_json=as_json)
        return
    print_result({**asdict(done), "oldIsGone": old_is_gone}, _restored_text(done), as_json=as_json)


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
