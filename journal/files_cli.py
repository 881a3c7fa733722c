"""The commands on journaled files: `dos journal replay | files | cat | diff | trim | archive`, `dos files
mirror`, and what all commands of `journal` share: their target and their exit codes.

| exit code | meaning |
|---|---|
| 0 | done: everything that was read is sound |
| 1 | a fault was found |
| 2 | wrong usage, or no such journal |
| 3 | the store or the bucket cannot be reached |
| 4 | nothing matches (`dos journal grep`) |
| 130 | interrupted |
"""

import functools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import trio
import typer
from typer.core import TyperCommand

from dos_client import randomness
from dos_client.cli import kit
from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    UNREACHABLE,
    Call,
    Ends,
    Report,
    command,
    fail,
    parsed_url,
    print_json,
    run_interruptible,
    warn,
)
from dos_client.live_store import Store
from dos_client.store import open_store
from dos_client.urls import DosUrl
from dos_protocol.errors import LocalProtocolError
from journal.archive.archiving import Archived, archive_chain, trim_archive
from journal.archive.bucket import SCHEME as S3_SCHEME
from journal.archive.bucket import Bucket, parse_s3_url
from journal.archive.reading import in_thread
from journal.core.chain import parse_segment_name
from journal.core.errors import (
    ArchiveUnavailableError,
    FileConflictError,
    HistoryTrimmedError,
    TornRecordError,
    UnsafePathError,
)
from journal.core.file_ops import FileSizes, FilesReplay, Paths, ReplayStop
from journal.core.inspection import Located, fault_text
from journal.files.damage import OnDamaged, WholeState, newest_whole
from journal.files.history import (
    AGO,
    TrimPlan,
    complete_moment,
    moment_here,
    plan_trim,
    stop_at,
    trim_stopped,
)
from journal.files.mirroring import ChainMirror, Mirror, MirrorProgress, verify_copy
from journal.files.restoring import check_target, replay_chain
from journal.files.tree import FileChange, Rebuilding, changes_between
from journal.inspecting import (
    DAMAGE,
    InspectionOutcome,
    in_data_directory,
    inspect_object,
    is_url,
    local_chain,
    open_chain,
    open_target,
    replay_file,
)
from journal.limits import file_copy_bytes_max, mirror_poll_s, trim_wait_s
from journal.local_store import LocalClaim, LocalStore, journal_beside
from journal.ports import Progress

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE|URL",
        help="A journal file, or dos://HOST[,HOST2..]/DIRECTORY/NAME, where NAME is a segment, "
        "another journal object, or a chain; s3://BUCKET/PREFIX/DIRECTORY/CHAIN, its archive; or both, "
        "dos://...+s3://BUCKET/PREFIX. For a server that does not run, a path in its data directory: "
        "DATA/DIRECTORY/NAME.",
    ),
]


def _exit_code(error: Exception) -> int:
    if isinstance(error, DAMAGE):
        return NEGATIVE
    if isinstance(error, ArchiveUnavailableError) or kit.exit_code(error) == UNREACHABLE:
        return UNREACHABLE
    return REFUSED


ENDS: Final = Ends(refused=(ValueError,), code_of=_exit_code)


def journal_file(target: str) -> Path:
    """Return the path of a journal file. End the command if it is a directory."""
    path = Path(target)
    if path.is_dir() and (path / "identity").is_file():
        fail(
            f"{target} is a server's data directory: name the server, as dos://HOST/DIRECTORY/NAME; if the"
            f" server does not run, name {target}/DIRECTORY/NAME",
            REFUSED,
        )
    if path.is_dir():
        fail(f"{target} is a directory: pass a journal file, or a URL dos://HOST/DIRECTORY/NAME", REFUSED)
    return path


def replay_target(
    target: str, replay: FilesReplay, token: bytes, progress: Progress, *, on_damaged: OnDamaged = "fail"
) -> InspectionOutcome:
    """Pass the records of a FILE or URL to `replay`, up to its stop. on_damaged: as of `restore`. Raises
    OSError, NotFoundError, LocalProtocolError; the errors of `replay`, of the client and of reading a chain.
    """
    if not is_url(target):
        found = replay_file(journal_file(target), replay.take, progress)
        return _finished(found, replay, on_damaged)
    return run_interruptible(functools.partial(_replay_url, target, replay, token, progress, on_damaged))


async def _replay_url(
    url: str, replay: FilesReplay, token: bytes, progress: Progress, on_damaged: OnDamaged
) -> InspectionOutcome:
    async with open_target(url, token) as (store, directory, name, size):
        if size is not None:
            found = await inspect_object(store, directory, name, size, _taking(replay), progress)
            return _finished(found, replay, on_damaged)
        whole = WholeState(None)
        if on_damaged == "previous":
            whole = await newest_whole(store, directory, name, generation=store.record.generation)
        await replay_chain(replay, store, directory, name, at=whole.position, progress=progress)
        return InspectionOutcome(url, "chain", left_out=whole.damage)


def _finished(outcome: InspectionOutcome, replay: FilesReplay, on_damaged: OnDamaged) -> InspectionOutcome:
    if outcome.fault is None:
        replay.finish()
    elif on_damaged == "previous":
        outcome.left_out = f"the bytes from offset {replay.end} on are left out because of damage"
    return outcome


def _taking(replay: FilesReplay) -> Callable[[list[Located]], bool]:
    return lambda located: replay.take((one.end, one.record) for one in located)


At = Annotated[
    str | None,
    typer.Option(
        metavar="X",
        autocompletion=complete_moment,
        help="The moment: a logical offset (4096), a time (time:2026-11-22T03:00, local unless it has a"
        " zone), how long ago (-90s, -10m, -1h, -2d), or a checkpoint (checkpoint:7, or step:41 for the"
        " checkpoint of that step). Default: the journal's end.",
        show_default=False,
    ),
]
Strip = Annotated[
    bool,
    typer.Option(
        "--strip",
        help="Accept absolute paths and paths with '..': place them below the directory.",
    ),
]


def replay(
    call: Call,
    target: Target,
    into: Annotated[Path, typer.Option(help="Directory to create; it must not exist, or be empty.")],
    at: At = None,
    only: Annotated[
        str | None, typer.Option(metavar="PATH", help="Restore this file only.", show_default=False)
    ] = None,
    on_damaged: Annotated[
        OnDamaged,
        typer.Option(help="If the journal is damaged: fail, or restore the newest whole state before that."),
    ] = "fail",
    strip: Strip = False,
) -> Report:
    """Restore the files of a journal, as of any moment, into a new directory.

    The directory appears once all files are complete and everything read is verified; if anything is wrong,
    nothing appears. If the last record of a journal file is cut off, the replay ends before it and reports
    it. With --on-damaged previous, the newest whole state before the damage is restored, and the message
    names what is left out. Of a store this is refused while a member is missing: its copy may be good.

    Examples:

        dos journal replay my_app-worker3.journal --strip --into worker3

        dos journal replay notes.journal --on-damaged previous --into what-is-whole

        dos journal replay dos://h1,h2,h3/ledger/files --at -1h --into an-hour-ago

        dos journal replay dos://h1,h2,h3/ledger/files --at time:2027-01-01 --only totals --into new-year

    Exit codes: 0 done, 1 a fault was found and nothing was restored, 2 usage or no such journal, 3 the store
    cannot be reached.
    """
    if on_damaged == "previous" and at is not None:
        fail("--on-damaged previous chooses the moment itself: leave --at out", REFUSED)
    check_target(into)
    with Rebuilding(into, stop=_stop(at), only=only, paths=_paths(strip)) as rebuilding:
        left_out = _read(call, target, rebuilding.replay, on_damaged)
        if only is not None and not rebuilding.has_file(only):
            raise FileNotFoundError(f"{target} has no file {only} as of {_as_of(rebuilding.replay)}")
        rebuilding.put()
    made = [path for path in into.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in made)
    found = {"into": str(into), "files": len(made), "bytes": size, "leftOut": left_out}
    text = f"{len(made)} files, {size:,} bytes in {into}, as of {_as_of(rebuilding.replay)}"
    return Report({**found, **_replayed(rebuilding.replay)}, text)


def files(call: Call, target: Target, at: At = None, strip: Strip = False) -> Report:
    """List the files that exist at a moment, with their lengths. Restores nothing.

    Examples:

        dos journal files dos://h1,h2,h3/ledger/files

        dos journal files dos://h1,h2,h3/ledger/files --at -1h

        dos journal files --at 4096 --strip my_app-worker3.journal

    Exit codes: 0 done, 1 a fault was found, 2 usage or no such journal, 3 the store cannot be reached.
    """
    sizes = FileSizes()
    taken = FilesReplay(sizes, stop=_stop(at), paths=_paths(strip))
    _read(call, target, taken)
    listed = sorted(sizes.sizes.items())
    lines = [f"{size:>14,} {_printable(path)}" for path, size in listed]
    found = {"files": [{"path": path, "bytes": size} for path, size in listed], **_replayed(taken)}
    return Report(found, "\n".join([*lines, f"{len(listed)} files as of {_as_of(taken)}"]))


def cat(
    call: Call,
    target: Target,
    name: Annotated[str, typer.Argument(metavar="PATH", help="The file, as listed by `dos journal files`.")],
    at: At = None,
    strip: Strip = False,
) -> None:
    """Write the bytes of one file, as they were at a moment, to standard output.

    Examples:

        dos journal cat dos://h1,h2,h3/ledger/files totals --at -1h | xxd

        dos journal cat my_app-worker3.journal w/my_app-worker3.tcp-control --strip

    Exit codes: 0 done, 1 a fault was found, 2 usage, or no such journal or file, 3 the store
    cannot be reached.
    """
    with (
        tempfile.TemporaryDirectory(prefix="dos-journal-") as folder,
        Rebuilding(Path(folder, "files"), stop=_stop(at), only=name, paths=_paths(strip)) as rebuilding,
    ):
        _read(call, target, rebuilding.replay)
        call.display.hide()  # the bytes go where it is
        rebuilding.put()
        path = rebuilding.target / name
        if not path.is_file():
            raise FileNotFoundError(f"{target} has no file {name} as of {_as_of(rebuilding.replay)}")
        with path.open("rb") as file:
            while chunk := file.read(file_copy_bytes_max):
                sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def diff(
    call: Call,
    target: Target,
    before: Annotated[
        str,
        typer.Argument(
            metavar="X",
            autocompletion=complete_moment,
            help="The first moment: 4096, time:2026-11-22T03:00, -1h, checkpoint:7, step:41.",
        ),
    ],
    after: Annotated[
        str | None,
        typer.Argument(
            metavar="Y", autocompletion=complete_moment, help="The second moment. Default: the end."
        ),
    ] = None,
    strip: Strip = False,
) -> Report:
    """Show which files were added, removed or changed between two moments, and the first byte that differs.

    Examples:

        dos journal diff dos://h1,h2,h3/ledger/files time:2026-12-31T18:00 time:2027-01-01T00:00

        dos journal diff dos://h1,h2,h3/ledger/files -2d -1d

        dos journal diff --strip my_app-worker3.journal 4096

    Exit codes: 0 done, also if files differ, 1 a fault was found, 2 usage or no such journal, 3 the store
    cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="dos-journal-") as folder:
        roots = []
        for name, at in (("before", before), ("after", after)):
            with Rebuilding(Path(folder, name), stop=_stop(at), paths=_paths(strip)) as rebuilding:
                _read(call, target, rebuilding.replay)
                rebuilding.put()
                roots.append(rebuilding.target)
        changes = changes_between(*roots)
    return Report([asdict(change) for change in changes], "\n".join(map(_change_text, changes)))


class _AcceptsAges(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f" {one}" if AGO.fullmatch(one) else one for one in args])


def add_commands(app: typer.Typer) -> None:
    command(app, "replay", ends=ENDS)(replay)
    command(app, "files", ends=ENDS)(files)
    command(app, "cat", as_json=False, ends=ENDS)(cat)
    command(app, "diff", ends=ENDS, cls=_AcceptsAges)(diff)
    command(app, "trim", ends=ENDS)(trim)
    command(app, "archive", ends=ENDS)(archive)


def _printable(path: str) -> str:
    return path if path.isprintable() else repr(path)


def _change_text(change: FileChange) -> str:
    path = _printable(change.path)
    if change.before is None:
        return f"+ {path}  {change.after:,} bytes"
    if change.after is None:
        return f"- {path}  {change.before:,} bytes"
    return f"~ {path}  {change.before:,} -> {change.after:,} bytes, from byte {change.differs_at:,} on"


def _stop(at: str | None) -> Any:
    return stop_at(None if at is None else moment_here(at.strip()))


def _paths(strip: bool) -> Paths:
    return "re-rooted" if strip else "safe"


def _read(call: Call, target: str, taken: FilesReplay, on_damaged: OnDamaged = "fail") -> str:
    """Replay the target's records. A fault ends the command, unless it is a record that was cut off, or the
    state before it is requested. Return what is left out because of damage, "" if nothing is.
    """
    try:
        progress = call.bar(f"reads {target}")
        outcome = replay_target(target, taken, call.token, progress, on_damaged=on_damaged)
    except (*DAMAGE, UnsafePathError, FileConflictError) as error:
        fail(f"{target}: {error}", NEGATIVE)
    fault = None if taken.has_all else outcome.fault
    text = "" if fault is None else f"\n{fault_text(fault, outcome.base)}"
    if outcome.left_out:
        warn(f"{target}: {outcome.left_out}{text}")
    if fault is None or outcome.left_out:
        return outcome.left_out
    if not isinstance(fault, TornRecordError):
        fail(f"{target} is damaged; --at {taken.end} restores the state before the damage{text}", NEGATIVE)
    warn(f"the last record of {target} is cut off and was left out{text}")
    return ""


def _as_of(taken: FilesReplay) -> str:
    if taken.wall_ms is None:
        before = ", before the first time mark" if taken.stop.wall_ms is not None else ""
        return f"offset {taken.end}{before}"
    when = datetime.fromtimestamp(taken.wall_ms / 1000, UTC).astimezone()
    return f"offset {taken.end} ({when.isoformat(timespec='seconds')})"


def _replayed(taken: FilesReplay) -> dict[str, Any]:
    return {"end": taken.end, "records": taken.records, "wall_ms": taken.wall_ms, "as_of": _as_of(taken)}


async def trim(
    call: Call,
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
) -> Report:
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
    stop = stop_at(moment_here(before)) if before is not None else max_bytes or 0
    call.display.say(f"reads {url}" + (", and deletes on all members" if apply else ""))
    try:
        if archived:
            plan, clean = await _trim_in_bucket(url, stop, apply=apply)
        else:
            assert isinstance(stop, ReplayStop), "--max-bytes is for archives"
            plan, clean = await _trim_in_store(url, stop, call.token, apply=apply)
    except HistoryTrimmedError as error:
        fail(str(error), REFUSED)
    problem = ""
    if not clean:
        local = "a mirror needs some of it; a later trim, or the writer, deletes it once that has copied it"
        members = "some members have not deleted everything yet and will when they are reached"
        problem = f"released; {members if local_chain(url) is None else local}"
    text = _trim_text(plan, apply, archived=archived)
    return Report(_trim_json(plan, apply), text, UNREACHABLE if problem else 0, problem)


async def _trim_in_store(url: str, before: ReplayStop, token: bytes, *, apply: bool) -> tuple[TrimPlan, bool]:
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


async def _trim_in_bucket(url: str, before: ReplayStop | int, *, apply: bool) -> tuple[TrimPlan, bool]:
    root, directory, chain = parse_s3_url(url).chain()
    bucket = await in_thread(Bucket, root)
    return await trim_archive(bucket, directory, chain, before, apply=apply), True


def _trim_json(plan: TrimPlan, applied: bool) -> dict[str, Any]:
    return {
        "chain": plan.chain,
        "keepsFrom": plan.keeps_from,
        "bytes": plan.bytes,
        "segments": [{"name": name, "bytes": size} for name, size in plan.segments],
        "applied": applied,
    }


def _trim_text(plan: TrimPlan, applied: bool, *, archived: bool) -> str:
    lines = [f"{size:>14,} {name}" for name, size in plan.segments]
    what = f"{len(plan.segments)} segments, {plan.bytes:,} bytes"
    kept = f"everything from offset {plan.keeps_from:,} on stays restorable"
    if applied:
        return "\n".join([*lines, f"deleted {what}; {kept}"])
    flags = "--apply" if archived else "--apply --stopped"
    tail = f"; {flags} deletes them" if plan.segments else ""
    return "\n".join([*lines, f"{what} can be deleted; {kept}{tail}"])


async def archive(
    call: Call,
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
) -> Report:
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
    target = parse_s3_url(bucket, endpoint)
    if url.startswith(S3_SCHEME):
        raise ValueError(f"{url} is an archive already; pass the chain on its servers, dos://...")
    if in_data_directory(url) is not None:
        raise ValueError(
            f"{url} is one disk, and only a store knows what is committed; pass the chain as dos://..."
        )
    progress = call.bar(f"copies {url}")
    async with open_chain(url, call.token) as (store, directory, state):
        opened = await in_thread(Bucket, target)
        done = await archive_chain(store, directory, state.chain, opened, dry_run=dry_run, progress=progress)
    return Report({**asdict(done), "dry_run": dry_run}, _archive_text(done, dry_run=dry_run))


def _archive_text(done: Archived, *, dry_run: bool) -> str:
    verb = "would be copied" if dry_run else "copied and verified"
    return (
        f"{done.copied_segments} segments, {done.copied_bytes:,} bytes {verb}; "
        f"{done.found_segments} segments, {done.found_bytes:,} bytes were archived before; "
        f"the archive {'would hold' if dry_run else 'holds'} offsets {done.begins_at:,} to {done.end:,}"
    )


_Show = Callable[[MirrorProgress], None]

app = typer.Typer(
    name="files",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Mirror journaled files on the local disk to a store.",
    epilog="Example:  dos files mirror ledger dos://h1,h2,h3/ledger",
)


@app.callback()
def _group() -> None:
    """Keep `mirror` a command of a group."""


@command(app, "mirror", ends=ENDS)
async def mirror(
    call: Call,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The directory of the files, if its journal is DIR.journal; or the journal itself: a"
            " directory of segments, or a single file.",
        ),
    ],
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The directory of the store: dos://HOST,HOST2,HOST3/DIRECTORY"),
    ],
    once: Annotated[
        bool,
        typer.Option("--once", help="Copy what the journal has now, verify the whole copy, and end."),
    ] = False,
) -> Report:
    """Keep a directory of a store as the mirror of a journaled directory on this machine, until interrupted.

    The journal may be written meanwhile. The mirror is a journal of the store: `dos journal files`, `cat` and
    `replay` read it, and if this machine is lost, a program continues it elsewhere. The mirror may be ended
    and started again at any time, and servers may restart: it continues where the copy ends, after comparing
    digests. While it does not run, the journal keeps what is not copied yet.

    With --json, each line is the state after a step: the offset up to which the store has the journal
    (synced), and where the journal ends (end).

    Examples:

        dos files mirror ledger dos://h1,h2,h3/ledger

        dos files mirror --once --json ledger.journal dos://h1,h2,h3/ledger

    Exit codes: 0 copied and verified (--once), 1 the journal is damaged, 2 usage or refused: another journal
    or another writer has the directory, 3 the store cannot be reached, 130 interrupted.
    """
    parsed = parsed_url(url)
    if parsed.directory is None or parsed.object is not None:
        fail(f"{url} must name a directory of a store: dos://HOST,HOST2,HOST3/DIRECTORY", REFUSED)
    journal = _journal(directory)
    show = _progress(call, parsed, lines=not once)
    async with open_store(DosUrl(parsed.servers), token=call.token, client="dos files mirror") as store:
        copied = _mirror_file if journal.is_file() else _mirror_chain
        done = await copied(journal, store, parsed.directory, show, once=once)
    text = f"{done['segments']} segments, up to offset {done['synced']:,}: copied and verified on a quorum"
    return Report(done, text)


def _journal(directory: Path) -> Path:
    beside = journal_beside(directory)
    for one in (directory, beside):
        if one.is_file() or local_chain(str(one)) is not None:
            return one
    return fail(f"{directory} is no journal, and there is no journal {beside}", REFUSED)


async def _mirror_chain(
    journal: Path, store: Store, directory: str, show: _Show, *, once: bool
) -> dict[str, Any]:
    chain = local_chain(str(journal))
    assert chain is not None, "checked before"
    with ChainMirror.open(journal, store, directory, chain) as copy:
        if not once:
            await copy.run(show)
        try:
            await copy.pass_on(show)
            segments = await copy.verify()
        finally:
            await copy.aclose()
    return {"journal": str(journal), "segments": segments, **copy.progress._asdict()}


async def _mirror_file(
    journal: Path, store: Store, directory: str, show: _Show, *, once: bool
) -> dict[str, Any]:
    epoch = (await store.inspect(directory)).epoch_seen + 1
    async with await store.claim(directory, epoch, randomness.fresh_id()) as claim:
        copy = await Mirror.open(journal, store, claim, journal.name)
        while True:
            grown = await copy.pass_on()
            await copy.wait_synced(copy.size)
            if grown:
                show(MirrorProgress(copy.synced, copy.size))
            if once:
                break
            if not grown:
                await trio.sleep(mirror_poll_s)
    await verify_copy(store, directory, journal.name, copy.size, copy.digest)
    return {"journal": str(journal), "segments": 1, "synced": copy.synced, "end": copy.size}


def _progress(call: Call, url: DosUrl, *, lines: bool) -> _Show:
    display = call.progress()

    def show(progress: MirrorProgress) -> None:
        if call.as_json and lines:
            print_json(progress._asdict())
        display.show(f"{url} has", progress.synced, progress.end)

    return show
