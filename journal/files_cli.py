"""`dos journal replay | files | cat | diff`: journaled files as of any moment.

`sources.py` reads the records of the target, `moments.py` parses moments.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dos_client.cli.kit import (
    NEGATIVE,
    REFUSED,
    AsJson,
    TokenFile,
    bar_of,
    fail,
    print_json,
    print_result,
    read_token,
    warn,
)
from journal.cli_arguments import Target, journal_errors
from journal.core.errors import FileConflictError, TornRecordError, UnsafePathError
from journal.core.file_ops import Paths
from journal.core.rendering import fault_text
from journal.files.comparing import FileChange, changes_between
from journal.files.damage import OnDamaged
from journal.files.moments import AGO, complete_moment, moment_here, stop_at
from journal.files.rebuilding import Rebuilding
from journal.files.replaying import FileSizes, FilesReplay
from journal.files.restoring import check_target
from journal.files.sources import replay_target
from journal.files.trim_cli import trim
from journal.inspecting import DAMAGE
from journal.limits import file_copy_bytes_max

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
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
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
    with journal_errors():
        check_target(into)
        with Rebuilding(into, stop=_stop(at), only=only, paths=_paths(strip)) as rebuilding:
            left_out = _read(target, rebuilding.replay, token_file, on_damaged)
            if only is not None and not rebuilding.has_file(only):
                raise FileNotFoundError(f"{target} has no file {only} as of {_as_of(rebuilding.replay)}")
            rebuilding.put()
        made = [path for path in into.rglob("*") if path.is_file()]
    _report(
        rebuilding.replay,
        as_json,
        {
            "into": str(into),
            "files": len(made),
            "bytes": sum(path.stat().st_size for path in made),
            "leftOut": left_out,
        },
        lambda result: (
            f"{result['files']} files, {result['bytes']:,} bytes in {into}, as of {result['as_of']}"
        ),
    )


def files(
    target: Target, at: At = None, strip: Strip = False, as_json: AsJson = False, token_file: TokenFile = None
) -> None:
    """List the files that exist at a moment, with their lengths. Restores nothing.

    Examples:

        dos journal files dos://h1,h2,h3/ledger/files

        dos journal files dos://h1,h2,h3/ledger/files --at -1h

        dos journal files --at 4096 --strip my_app-worker3.journal

    Exit codes: 0 done, 1 a fault was found, 2 usage or no such journal, 3 the store cannot be reached.
    """
    sizes = FileSizes()
    with journal_errors():
        taken = FilesReplay(sizes, stop=_stop(at), paths=_paths(strip))
        _read(target, taken, token_file)
    listed = sorted(sizes.sizes.items())
    _report(
        taken,
        as_json,
        {"files": [{"path": path, "bytes": size} for path, size in listed]},
        lambda result: "".join(
            [
                *(f"{size:>14,} {_printable(path)}\n" for path, size in listed),
                f"{len(listed)} files as of {result['as_of']}",
            ]
        ),
    )


def cat(
    target: Target,
    name: Annotated[str, typer.Argument(metavar="PATH", help="The file, as listed by `dos journal files`.")],
    at: At = None,
    strip: Strip = False,
    token_file: TokenFile = None,
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
        journal_errors(),
        Rebuilding(Path(folder, "files"), stop=_stop(at), only=name, paths=_paths(strip)) as rebuilding,
    ):
        _read(target, rebuilding.replay, token_file)
        rebuilding.put()
        path = rebuilding.target / name
        if not path.is_file():
            raise FileNotFoundError(f"{target} has no file {name} as of {_as_of(rebuilding.replay)}")
        with path.open("rb") as file:
            while chunk := file.read(file_copy_bytes_max):
                sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def diff(
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
    as_json: AsJson = False,
    token_file: TokenFile = None,
) -> None:
    """Show which files were added, removed or changed between two moments, and the first byte that differs.

    Examples:

        dos journal diff dos://h1,h2,h3/ledger/files time:2026-12-31T18:00 time:2027-01-01T00:00

        dos journal diff dos://h1,h2,h3/ledger/files -2d -1d

        dos journal diff --strip my_app-worker3.journal 4096

    Exit codes: 0 done, also if files differ, 1 a fault was found, 2 usage or no such journal, 3 the store
    cannot be reached.
    """
    with (
        tempfile.TemporaryDirectory(prefix="dos-journal-") as folder,
        journal_errors(),
    ):
        roots = []
        for name, at in (("before", before), ("after", after)):
            with Rebuilding(Path(folder, name), stop=_stop(at), paths=_paths(strip)) as rebuilding:
                _read(target, rebuilding.replay, token_file)
                rebuilding.put()
                roots.append(rebuilding.target)
        changes = changes_between(*roots)
        if as_json:
            print_json([asdict(change) for change in changes])
        for change in changes if not as_json else []:
            print(_change_text(change))


class _AcceptsAges(TyperCommand):
    """A command whose arguments can be ages such as -1h.

    A blank is put before them, because the parser would take them for options.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f" {one}" if AGO.fullmatch(one) else one for one in args])


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this file to the app."""
    for command in (replay, files, cat):
        app.command()(command)
    app.command(cls=_AcceptsAges)(diff)
    app.command()(trim)


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


def _read(target: str, taken: FilesReplay, token_file: Path | None, on_damaged: OnDamaged = "fail") -> str:
    """Replay the target's records. A fault ends the command, unless it is a record that was cut off, or the
    state before it is requested. Return what is left out because of damage, "" if nothing is.
    """
    try:
        with bar_of(target) as progress:
            outcome = replay_target(target, taken, read_token(token_file), progress, on_damaged=on_damaged)
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


def _report(
    taken: FilesReplay, as_json: bool, result: dict[str, Any], text: Callable[[dict[str, Any]], str]
) -> None:
    replayed = {"end": taken.end, "records": taken.records, "wall_ms": taken.wall_ms, "as_of": _as_of(taken)}
    result = {**result, **replayed}
    print_result(result, text(result), as_json=as_json)
