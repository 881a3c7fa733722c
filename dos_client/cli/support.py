"""What the commands of this package share: options, running trio, errors to exit codes, text and JSON.

Exit codes: 0 done; 1 a negative answer (not there, damaged, something is missing); 2 usage, or refused; 3 a
server or a quorum cannot be reached."""

import inspect
import json
import secrets
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import trio
import typer

from dos_client.errors import (
    LossError,
    MissingDataError,
    NotEmptyError,
    QuorumUnavailableError,
    StoreNotReadyError,
)
from dos_client.live_store import Store
from dos_client.store import connect, open_store
from dos_client.urls import DosUrl, parse_url
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptDataError,
    CorruptError,
    DosError,
    NotFoundError,
    PoisonedError,
)
from dos_protocol.limits import id_bytes
from dos_protocol.tokens import token_in

T = TypeVar("T")

NEGATIVE: Final = 1
REFUSED: Final = 2
UNREACHABLE: Final = 3

_TOOLS: Final = b"dos-"
"""Writer ids of commands begin so: they may take over from each other without being told to."""

Url = Annotated[
    str,
    typer.Argument(
        help="dos://HOST:PORT,HOST2:PORT/DIRECTORY/OBJECT, as much of it as is meant.", metavar="URL"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File whose first line is the servers' token.", exists=True, dir_okay=False, readable=True
    ),
]


def fill_help(app: typer.Typer) -> None:
    """Let the help of an app's commands fill the terminal: paragraphs are not broken where the source breaks
    them."""
    for command in app.registered_commands:
        text = inspect.cleandoc((command.callback and command.callback.__doc__) or "")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def read_token(path: Path | None) -> bytes:
    """Return the token in the file; none without a file. A file that holds none ends the program."""
    if path is None:
        return b""
    try:
        return token_in(path.read_bytes(), str(path))
    except OSError as error:
        fail(f"token file {path} cannot be read: {error.strerror}", REFUSED)
    except DosError as error:
        fail(str(error), REFUSED)


def opened(url: DosUrl, token: bytes) -> AbstractAsyncContextManager[Store]:
    """One server by itself, or the store that several are."""
    if len(url.servers) == 1:
        return connect(url, token=token, client="dos")
    return open_store(url, token=token, client="dos")


def parsed_url(url: str, *, needs: str = "") -> DosUrl:
    """The URL, or the end of the program with words about it."""
    try:
        parsed = parse_url(url)
    except DosError as error:
        fail(str(error), REFUSED)
    if needs == "object" and parsed.object is None:
        fail(f"the URL must name an object: {url}/directory/object", REFUSED)
    return parsed


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run an async command; its errors end the program with their words and their exit code."""
    try:
        return trio.run(function)
    except DosError as error:
        for line in error.lines if isinstance(error, LossError) else ():
            print(line, file=sys.stderr)
        fail(str(error), exit_code(error))
    except OSError as error:
        fail(str(error), REFUSED)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
        raise typer.Exit(130) from None


def exit_code(error: DosError) -> int:
    """See the module."""
    if isinstance(error, NotFoundError | CorruptError | PoisonedError | CorruptDataError | MissingDataError):
        return NEGATIVE
    if isinstance(error, NotEmptyError):
        return REFUSED
    if isinstance(error, BrokenConnectionError | StoreNotReadyError | QuorumUnavailableError):
        return UNREACHABLE
    return REFUSED


def fail(text: str, code: int) -> NoReturn:
    """End with words on standard error."""
    print(f"dos: {text}", file=sys.stderr)
    raise typer.Exit(code)


def print_json(value: Any) -> None:
    """One line of JSON on standard output."""
    print(json.dumps(value), flush=True)


def count_text(count: int) -> str:
    """A number of bytes as people read it."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def tool_writer_id(tool: bytes) -> bytes:
    """A writer id for one run of a command. It tells that no program holds the claim any more."""
    return _TOOLS + tool + secrets.token_bytes(id_bytes - len(_TOOLS + tool))


def is_tool(writer_id: bytes) -> bool:
    """Whether a claim is a command's, which is done by now or may be fenced."""
    return writer_id.startswith(_TOOLS)
