"""The journal commands of `dos`: dump and verify.

Rules of this file: arguments, exit codes, progress, and what happens when a pipe is closed. The work is in
`inspecting.py`, `dump.py` and `verify.py`.

Exit codes, the same for both: 0 sound (all that was asked for was read), 1 a fault was found, 2 wrong usage
or no such journal, 3 the store cannot be reached.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import trio
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from dos_client.errors import BadUrlError, QuorumUnavailableError, StoreNotReadyError
from dos_protocol.errors import BrokenConnectionError, DosError
from journal.core.rendering import fault_text
from journal.dump import dumper
from journal.inspecting import Consumer, Outcome, inspect_file, inspect_url, is_url
from journal.verify import accept, verdict_json, verdict_text

SOUND, FAULT, USAGE, UNREACHABLE = 0, 1, 2, 3

app = typer.Typer(name="journal", no_args_is_help=True, help="Look into journals: files, objects and chains.")

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE|URL",
        help="A journal file, or dos://HOST[,HOST2..]/DIRECTORY/NAME, where NAME is a segment, "
        "another journal object, or a chain.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File whose first line is the token that the servers want.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


@app.command()
def dump(
    target: Target,
    full: Annotated[bool, typer.Option("--full", help="Show strings whole, however long.")] = False,
    as_json: AsJson = False,
    begin: Annotated[
        int, typer.Option("--from", min=0, help="Logical offset of the first record shown.")
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option("--to", min=0, help="Show only records that begin before this logical offset."),
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Print a journal's records, one line each: logical offset, name, and the fields as the original showed
    them.

    A chain is shown as a reader may see it: committed records only, from its newest finished snapshot on. A
    segment, named as an object, is shown as members have it: its end may never have been committed.

    Examples:

        dos journal dump my_app-worker3.journal

        dos journal dump --json --from 4096 dos://h1,h2,h3/wordcount.w0000/state | head

    Exit codes: 0 all was shown, 1 a fault was found (on standard error, after all that is good), 2 usage or
    no such journal, 3 the store cannot be reached.
    """
    consume = dumper(sys.stdout.write, full=full, json=as_json, begin=begin, end=end)
    with _quiet_when_the_pipe_closes():
        outcome = _inspect(target, consume, token_file, quiet=sys.stdout.isatty())
        sys.stdout.flush()
        if not outcome.committed_only:
            sys.stderr.write(f"{outcome.target}: as members have it; not all of it need be committed\n")
        if outcome.fault is not None:
            sys.stderr.write(f"fault in {outcome.target}\n{fault_text(outcome.fault, outcome.base)}\n")
            raise typer.Exit(FAULT)


@app.command()
def verify(target: Target, as_json: AsJson = False, token_file: TokenFile = None) -> None:
    """Read a journal whole: every checksum, length, back pointer and digest. Says "sound", or the first
    fault.

    A fault is shown with its segment, offset, what was expected, what was found, and a hint. A chain is read
    as a reader may see it, a segment named as an object as members have it; a record cut off at the end of a
    file is a fault (kind "torn"), what precedes it is good.

    Examples:

        dos journal verify my_app-worker3.journal

        dos journal verify --json dos://h1,h2,h3/wordcount.coord/manifest

    Exit codes: 0 sound, 1 a fault was found, 2 usage or no such journal, 3 the store cannot be reached.
    """
    with _quiet_when_the_pipe_closes():
        outcome = _inspect(target, accept, token_file)
        sys.stdout.write((verdict_json(outcome) if as_json else verdict_text(outcome)) + "\n")
        sys.stdout.flush()
        if outcome.fault is not None:
            raise typer.Exit(FAULT)


def _inspect(target: str, consume: Consumer, token_file: Path | None, *, quiet: bool = False) -> Outcome:
    """Read the target, with progress on a terminal. Ends the command if it cannot be read at all."""
    try:
        with _progress(target, quiet=quiet) as progress:
            if not is_url(target):
                return inspect_file(_journal_file(target), consume, progress)
            token = token_file.read_bytes().split(b"\n")[0].strip() if token_file is not None else b""
            return trio.run(functools.partial(inspect_url, target, token, consume, progress))
    except BrokenPipeError:
        raise
    except (StoreNotReadyError, QuorumUnavailableError, BrokenConnectionError) as error:
        _refuse(str(error), UNREACHABLE)
    except (BadUrlError, DosError, OSError) as error:
        _refuse(str(error), USAGE)
    except KeyboardInterrupt:
        _refuse("interrupted", 130)


def _journal_file(target: str) -> Path:
    path = Path(target)
    if path.is_dir():
        _refuse(f"{target} is a directory: give a journal file, or a URL dos://HOST/DIRECTORY/NAME", USAGE)
    return path


def _refuse(words: str, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(f"dos journal: {words}\n")
    raise typer.Exit(code)


@contextmanager
def _progress(target: str, *, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, if that is a terminal that is not taken by the output itself."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(target, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _quiet_when_the_pipe_closes() -> Iterator[None]:
    """Whoever reads our output had enough (`| head`): that is an end like any other, without a traceback."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(SOUND) from None
