"""What the commands of `dos sites` share: their arguments, and the description that they read."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from dos_client import Store
from dos_client.cli.kit import REFUSED, fail, in_store
from sites.core.deployment import RegionReplica
from sites.core.description import Description, decode_description, decode_measured, with_measured
from sites.errors import CannotReviveError, DescriptionError, NotDeployedError, PlanRefusedError

T = TypeVar("T")
File = Annotated[
    Path,
    typer.Argument(help="The description of the application, with entry_store.", metavar="FILE.toml"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show it, and change nothing.")]
Every = Annotated[
    float | None, typer.Option(min=1.0, help="Continue until interrupted, with so many seconds between.")
]
MeasuredFile = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        help="Use these latencies, rates and loads, and not what the sites report."
        " An empty file: use those in FILE.",
        metavar="FILE.toml",
    ),
]
_ERROR_CHARS_MAX: Final = 1_000
"""An error quotes the file, which may have a name of any length."""
_NEGATIVE = (CannotReviveError, NotDeployedError, PlanRefusedError)


def read_file(file: Path, decode: Callable[[str], T]) -> T:
    """Return the content of a file; end the command if it is not valid."""
    try:
        return decode(file.read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{file}: {error.strerror}", REFUSED)
    except UnicodeDecodeError as error:
        fail(f"{file} is not UTF-8: {error.reason} at byte {error.start}", REFUSED)
    except DescriptionError as error:
        fail(f"{file}: {str(error)[:_ERROR_CHARS_MAX]}", REFUSED)


def described(file: Path, measured: Path | None) -> Description:
    """Return a description, with what was measured. End the command if a file is not valid."""
    description = read_file(file, decode_description)
    if measured is None:
        return description
    values = read_file(measured, decode_measured)
    try:
        return with_measured(description, values)
    except DescriptionError as error:
        fail(f"{measured}: {error}", REFUSED)


def deployable(file: Path, measured: Path | None = None) -> tuple[Description, str]:
    """Return the description of an application that can be deployed, and the URL of its entry store. End the
    command otherwise.
    """
    description = described(file, measured)
    if description.entry_store is None:
        fail(f"{file}: `entry_store` is missing: add the URL of the store that holds the deployment", REFUSED)
    return description, description.entry_store


def in_entry_store(
    file: Path,
    token: Path | None,
    work: Callable[[Store, Description], Awaitable[T]],
    measured: Path | None = None,
) -> T:
    """Run `work` with the entry store and the description, and return its result. Errors end the command."""
    description, url = deployable(file, measured)
    return in_store(url, token, lambda store: work(store, description), negative=_NEGATIVE)


def parsed_replica(text: str) -> RegionReplica:
    """Return the replica that `REGION@SITE` names; end the command if it names none."""
    node, _, site = text.partition("@")
    if not node or not site:
        fail(f"{text!r} names no replica: write REGION@SITE, for example joined@wisc", REFUSED)
    return RegionReplica(node, site)
