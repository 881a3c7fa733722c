"""`dos journal archive`: copy the sealed segments of a chain to a bucket. The work is in `archiving.py`."""

import functools
from dataclasses import asdict
from typing import Annotated

import typer

from dos_client.cli.kit import AsJson, TokenFile, bar_of, print_result, read_token, run_interruptible
from journal.archive.archiving import Archived, Progress, archive_chain
from journal.archive.bucket import Bucket
from journal.archive.reading import in_thread
from journal.archive.url import SCHEME, parse_s3_url
from journal.cli_arguments import journal_errors
from journal.data_directories import in_data_directory
from journal.inspecting import open_chain


def archive(
    url: Annotated[str, typer.Argument(metavar="URL", help="dos://HOST[,HOST2..]/DIRECTORY/CHAIN")],
    bucket: Annotated[str, typer.Argument(metavar="BUCKET", help="s3://BUCKET/PREFIX")],
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Endpoint of a service other than AWS. Default: the configuration of boto3"
            " (AWS_ENDPOINT_URL).",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be copied; copy nothing.")
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Copy the sealed segments of a chain to an S3 bucket, from which the chain can be read without a server.

    A segment counts as archived once it was read back with the right length and SHA-256. Archived segments
    are not copied again, so an interrupted run can be repeated. The newest segment, which its writer still
    extends, is not copied. Nothing is deleted.

    Examples:

        dos journal archive dos://h1,h2,h3/ledger/files s3://backups/dos

        dos journal archive dos://h1,h2,h3/ledger/files s3://backups/dos --dry-run --json

        dos journal replay s3://backups/dos/ledger/files --at -1d --into yesterday

    Exit codes: 0 done, 1 a fault was found in the chain or the bucket, 2 usage, or no such chain or bucket,
    or no permission, 3 the store or the bucket's service cannot be reached.
    """
    with journal_errors(), bar_of(url) as progress:
        token = read_token(token_file)
        work = functools.partial(_archive, url, bucket, endpoint, token, dry_run, progress)
        done = run_interruptible(work)
    print_result({**asdict(done), "dry_run": dry_run}, _text(done, dry_run=dry_run), as_json=as_json)


async def _archive(
    url: str,
    bucket: str,
    endpoint: str | None,
    token: bytes,
    dry_run: bool,
    progress: Progress,
) -> Archived:
    target = parse_s3_url(bucket, endpoint)
    if url.startswith(SCHEME):
        raise ValueError(f"{url} is an archive already; pass the chain on its servers, dos://...")
    if in_data_directory(url) is not None:
        raise ValueError(
            f"{url} is one disk, and only a store knows what is committed; pass the chain as dos://..."
        )
    async with open_chain(url, token) as (store, directory, state):
        opened = await in_thread(Bucket, target)
        return await archive_chain(store, directory, state.chain, opened, dry_run=dry_run, progress=progress)


def _text(done: Archived, *, dry_run: bool) -> str:
    verb = "would be copied" if dry_run else "copied and verified"
    return (
        f"{done.copied_segments} segments, {done.copied_bytes:,} bytes {verb}; "
        f"{done.found_segments} segments, {done.found_bytes:,} bytes were archived before; "
        f"the archive {'would hold' if dry_run else 'holds'} offsets {done.begins_at:,} to {done.end:,}"
    )
