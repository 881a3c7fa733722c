"""The target of the journal commands, and their exit codes.

| exit code | meaning |
|---|---|
| 0 | done: everything that was read is sound |
| 1 | a fault was found |
| 2 | wrong usage, or no such journal |
| 3 | the store or the bucket cannot be reached |
| 4 | nothing matches (`dos journal grep`) |
| 130 | interrupted |
"""

from pathlib import Path
from typing import Annotated, Final

import typer

from dos_client.cli import kit
from dos_client.cli.kit import NEGATIVE, REFUSED, UNREACHABLE, Ends, fail
from journal.core.errors import ArchiveUnavailableError
from journal.inspecting import DAMAGE

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
