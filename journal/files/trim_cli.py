"""`dos journal trim`: delete the oldest history of journaled files, on servers or in an archive.

`trimming.py` decides which segments can be deleted.
"""

import functools
from typing import Annotated, Any

import typer

from dos_client import randomness
from dos_client.cli.kit import (
    REFUSED,
    UNREACHABLE,
    AsJson,
    TokenFile,
    fail,
    print_result,
    read_token,
    run_interruptible,
)
from dos_client.live_store import Store
from dos_protocol.errors import LocalProtocolError
from journal.archive.bucket import Bucket
from journal.archive.reading import in_thread
from journal.archive.trimming import trim_archive
from journal.archive.url import SCHEME as S3_SCHEME
from journal.archive.url import parse_s3_url
from journal.cli_arguments import journal_errors
from journal.core.errors import HistoryTrimmedError
from journal.core.file_ops import ReplayStop
from journal.core.segment import parse_segment_name
from journal.files.moments import complete_moment, moment_here, stop_at
from journal.files.trimming import TrimPlan, plan_trim, trim_stopped
from journal.inspecting import local_chain, open_target
from journal.limits import trim_wait_s
from journal.local_store import LocalClaim, LocalStore


def trim(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="dos://HOST[,HOST2..]/DIRECTORY/CHAIN, a journal on the local disk, or an archive:"
            " s3://BUCKET/PREFIX/DIRECTORY/CHAIN",
        ),
    ],
    before: Annotated[
        str | None,
        typer.Option(
            metavar="X",
            autocompletion=complete_moment,
            help="The earliest moment that stays restorable: an offset (4096), a time"
            " (time:2026-11-22T03:00),"
            " how long ago (-30d), checkpoint:N or step:N.",
            show_default=False,
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="BYTES",
            help="Of an archive, instead of --before: keep the newest BYTES, rounded up.",
            show_default=False,
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete the segments; otherwise only list them.")
    ] = False,
    stopped: Annotated[
        bool,
        typer.Option(
            "--stopped",
            help="No program writes the directory: claim it. A writer that still runs is fenced; if it writes"
            " on the local disk, the command is refused.",
        ),
    ] = False,
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """List the segments that hold only history before a moment; with --apply --stopped, delete them. Of an
    archive, --apply deletes them.

    The state at that moment and at every later one stays restorable. The segment with the snapshot that this
    needs is kept, so some earlier history stays too. To keep the deleted history, run `dos journal archive`
    first. A program that writes the directory can trim it with `Directory.trim`. Directories of regions are
    refused.

    Examples:

        dos journal trim --before -30d dos://h1,h2,h3/ledger/files

        dos journal trim --before time:2026-11-01T00:00 --apply --stopped dos://h1,h2,h3/ledger/files

        dos journal trim --before -1d --apply --stopped notes.journal

        dos journal trim --before -365d --apply s3://backups/dos/ledger/files

    Exit codes: 0 listed, or deleted on all available members, 1 a fault was found, 2 usage, refused, or no
    such chain, 3 the store cannot be reached, some members did not delete within a minute, or a mirror needs
    what is released.
    """
    archived = url.startswith(S3_SCHEME)
    if (before is None) == (max_bytes is None) or (max_bytes is not None and not archived):
        fail("pass --before, or --max-bytes for an archive", REFUSED)
    if archived and stopped:
        fail("--stopped has no meaning for an archive: it has no writer", REFUSED)
    if apply != stopped and not archived:
        fail("pass --apply and --stopped together: only the writer of a directory can delete in it", REFUSED)
    with journal_errors():
        stop = stop_at(moment_here(before)) if before is not None else max_bytes or 0
        if archived:
            work = functools.partial(_in_bucket, url, stop, apply=apply)
        else:
            assert isinstance(stop, ReplayStop), "--max-bytes is for archives"
            work = functools.partial(_work, url, stop, read_token(token_file), apply=apply)
        try:
            plan, clean = run_interruptible(work)
        except HistoryTrimmedError as error:
            fail(str(error), REFUSED)
    print_result(_json(plan, apply), _text(plan, apply, archived=archived), as_json=as_json)
    if not clean:
        local = "a mirror needs some of it; a later trim, or the writer, deletes it once that has copied it"
        members = "some members have not deleted everything yet and will when they are reached"
        fail(f"released; {members if local_chain(url) is None else local}", UNREACHABLE)


async def _work(url: str, before: ReplayStop, token: bytes, *, apply: bool) -> tuple[TrimPlan, bool]:
    async with open_target(url, token) as (store, directory, name, size):
        if S3_SCHEME in url or not isinstance(store, Store | LocalStore):
            raise LocalProtocolError(f"{url} is not a chain of a running store, and cannot be trimmed")
        if size is not None:
            raise LocalProtocolError(f"{directory}/{name} is an object, not a chain")
        if not apply:
            return await plan_trim(store, directory, name, before), True
        await plan_trim(store, directory, name, before)  # raises what is refused, before the claim
        if isinstance(store, LocalStore):
            with LocalClaim(store.path) as local:
                plan, writer = await trim_stopped(store, directory, local, name, before)
                await writer.aclose()
            return plan, not any((store.path / segment).exists() for segment, _ in plan.segments)
        view = await store.inspect(directory)
        names = (parse_segment_name(one) for objects in view.answers.values() for one in objects)
        epoch = max([view.epoch_seen, *(one.epoch for one in names if one is not None)]) + 1
        async with await store.claim(directory, epoch, randomness.fresh_id()) as claim:
            plan, writer = await trim_stopped(store, directory, claim, name, before)
            try:
                return plan, await claim.wait_collected(trim_wait_s)
            finally:
                await writer.aclose()


async def _in_bucket(url: str, before: ReplayStop | int, *, apply: bool) -> tuple[TrimPlan, bool]:
    root, directory, chain = parse_s3_url(url).chain()
    bucket = await in_thread(Bucket, root)
    return await trim_archive(bucket, directory, chain, before, apply=apply), True


def _json(plan: TrimPlan, applied: bool) -> dict[str, Any]:
    return {
        "chain": plan.chain,
        "keepsFrom": plan.keeps_from,
        "bytes": plan.bytes,
        "segments": [{"name": name, "bytes": size} for name, size in plan.segments],
        "applied": applied,
    }


def _text(plan: TrimPlan, applied: bool, *, archived: bool) -> str:
    lines = [f"{size:>14,} {name}" for name, size in plan.segments]
    what = f"{len(plan.segments)} segments, {plan.bytes:,} bytes"
    kept = f"everything from offset {plan.keeps_from:,} on stays restorable"
    if applied:
        return "\n".join([*lines, f"deleted {what}; {kept}"])
    flags = "--apply" if archived else "--apply --stopped"
    tail = f"; {flags} deletes them" if plan.segments else ""
    return "\n".join([*lines, f"{what} can be deleted; {kept}{tail}"])
