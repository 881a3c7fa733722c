"""`dos region restore-backup`: a region in a store that has nothing of it, from a backup alone.

Arguments in, text or JSON out. `maintenance/backup_restoring.py` does the work.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from checkpoint.cli.backup import Endpoint, backup_row, run_backup
from checkpoint.core.backup_record import BackupRecord
from checkpoint.core.backups import left_out_text
from checkpoint.errors import BackupRefusedError
from checkpoint.maintenance.backup import Progress, backups_of
from checkpoint.maintenance.backup_restoring import RestoredBackup, restore_backup
from checkpoint.maintenance.backup_target import BackupTarget, open_target
from dos_client import open_store
from dos_client.cli.kit import (
    REFUSED,
    AsJson,
    StoreUrl,
    TokenFile,
    bar_of,
    clock_text,
    count_text,
    fail,
    parsed_url,
    print_result,
    read_token,
)


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
