"""What the journal commands have in common: their arguments, exit codes, progress, and closed pipes.

Exit codes, the same for all: 0 sound (all that was asked for was done), 1 a fault was found, 2 wrong usage or
no such journal, 3 the store or the bucket cannot be reached, 4 nothing was found (grep), 130 interrupted.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

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
from dos_protocol.tokens import token_in
from journal.core.errors import ArchiveUnavailableError
from journal.inspecting import DAMAGE

FAULT, USAGE, UNREACHABLE, NOTHING_FOUND, INTERRUPTED = 1, 2, 3, 4, 130

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE|URL",
        help="A journal file, or dos://HOST[,HOST2..]/DIRECTORY/NAME, where NAME is a segment, "
        "another journal object, or a chain; s3://BUCKET/PREFIX/DIRECTORY/CHAIN, its archive; or both, "
        "dos://...+s3://BUCKET/PREFIX. Of a server that does not run, its data directory: "
        "DATA/DIRECTORY/NAME.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File whose first line is the token that the servers want.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


@contextmanager
def refusing() -> Iterator[None]:
    """What cannot be read at all ends the command, in one line and with its exit code."""
    try:
        yield
    except BrokenPipeError:
        raise
    except DAMAGE as error:
        refuse(str(error), FAULT)
    except (
        StoreNotReadyError,
        QuorumUnavailableError,
        BrokenConnectionError,
        ArchiveUnavailableError,
    ) as error:
        refuse(str(error), UNREACHABLE)
    except OSError as error:
        refuse(_told(error), USAGE)
    except (BadUrlError, DosError, ValueError) as error:
        refuse(str(error), USAGE)
    except KeyboardInterrupt:
        refuse("interrupted", INTERRUPTED)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        refuse("interrupted", INTERRUPTED)


def _told(error: OSError) -> str:
    """Without its number, where the system has words for it."""
    if error.strerror is None or error.filename is None:
        return error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def journal_file(target: str) -> Path:
    """The file of that name; a directory ends the command, also that of a server."""
    path = Path(target)
    if path.is_dir() and (path / "identity").is_file():
        refuse(
            f"{target} is a server's data directory: name its server, dos://HOST/DIRECTORY/NAME; or, if that"
            f" does not run, what is in it, {target}/DIRECTORY/NAME",
            USAGE,
        )
    if path.is_dir():
        refuse(f"{target} is a directory: give a journal file, or a URL dos://HOST/DIRECTORY/NAME", USAGE)
    return path


def token_of(token_file: Path | None) -> bytes:
    """Return the token in the file; none without a file. Raises OSError, LocalProtocolError."""
    return token_in(token_file.read_bytes(), str(token_file)) if token_file is not None else b""


def refuse(words: str, code: int) -> NoReturn:
    """End the command with these words."""
    sys.stdout.flush()
    sys.stderr.write(f"dos journal: {words}\n")
    raise typer.Exit(code)


@contextmanager
def progress_of(target: str, *, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, if that is a terminal that is not taken by the output itself."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(target, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
