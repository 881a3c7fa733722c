"""Arguments and options of the commands on regions and inputs, with completion by the shell.

Exit codes are those of `dos_client.cli.kit`. An error of `NEGATIVE_ANSWERS` is an answer, with exit code 1.
"""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import trio
import typer

from checkpoint import limits
from checkpoint.chains.manifest_reading import ManifestView, read_manifest, regions_of
from checkpoint.core.inputs import check_input_name
from checkpoint.core.manifest import Checkpoint
from checkpoint.errors import (
    CheckpointReleasedError,
    ConsumerRefusedError,
    ManifestError,
    NoAnswerError,
    NoInputError,
    NoRegionError,
    NoSinkError,
)
from dos_client import Store, open_store
from dos_client.cli import kit
from dos_client.cli.kit import NEGATIVE, REFUSED, fail, read_token
from dos_protocol.errors import BadNameError, DosError
from dos_protocol.names import check_name

T = TypeVar("T")
NEGATIVE_ANSWERS: Final = (
    NoRegionError,
    NoInputError,
    NoAnswerError,
    ManifestError,
    CheckpointReleasedError,
    ConsumerRefusedError,
    NoSinkError,
)
_COMPLETION_S: Final = 2.0


def _completed(ctx: typer.Context, read: Callable[[Store], Awaitable[list[str]]], begun: str) -> list[str]:
    """Return the names that begin so, or none within two seconds. Completion reports no errors."""
    url, token_file = ctx.params.get("url"), ctx.params.get("token_file")
    if not isinstance(url, str):
        return []

    async def work() -> list[str]:
        with trio.move_on_after(_COMPLETION_S):
            async with open_store(url, token=read_token(Path(token_file) if token_file else None)) as store:
                return await read(store)
        return []

    logged = logging.root.manager.disable
    logging.disable()  # a warning would be printed into the line that the user types
    try:
        return [name for name in trio.run(work) if name.startswith(begun)]
    except (DosError, OSError, typer.Exit):
        return []
    finally:
        logging.disable(logged)


def complete_region(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of the store's regions."""
    return _completed(ctx, regions_of, incomplete)


def complete_checkpoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return numbers of the region's checkpoints."""

    async def numbers(store: Store) -> list[str]:
        return [
            str(checkpoint.number)
            for checkpoint in (await read_manifest(store, str(ctx.params.get("name")))).checkpoints
        ]

    return _completed(ctx, numbers, incomplete)


def complete_savepoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of the region's savepoints."""

    async def names(store: Store) -> list[str]:
        last = (await read_manifest(store, str(ctx.params.get("name")))).last
        return sorted(last.savepoints) if last is not None else []

    return _completed(ctx, names, incomplete)


def complete_target(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the checkpoints that the region can be restored to, by name or number."""

    async def targets(store: Store) -> list[str]:
        view = await read_manifest(store, str(ctx.params.get("name")))
        savepoints = sorted(view.last.savepoints) if view.last is not None else []
        return [*(f"savepoint:{name}" for name in savepoints), *(f"checkpoint:{n}" for n in view.retained)]

    return _completed(ctx, targets, incomplete)


RegionName = Annotated[
    str,
    typer.Argument(
        help="The region's name, as passed to `run`.", autocompletion=complete_region, metavar="NAME"
    ),
]
Application = Annotated[
    str, typer.Argument(help="The application's name, as passed to `run`.", metavar="APPLICATION")
]
Handle = Annotated[
    str,
    typer.Argument(
        help="The input's name, as in InputSource(HANDLE, ...) or the option `input` of a Spark sink.",
        metavar="HANDLE",
    ),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, max=86_400, help="Seconds to wait for a first answer.", metavar="SECONDS")
]
DeletionWait = Annotated[
    float, typer.Option(min=1, max=86_400, help="Seconds to wait for the deletion.", metavar="SECONDS")
]
Why = Annotated[
    str,
    typer.Option(
        help=f"A note for people: one line, at most {limits.savepoint_why_chars_max} characters.",
        metavar="TEXT",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=604_800,
        help="Seconds to wait until an accepted request is done.",
        metavar="SECONDS",
    ),
]
Incarnation = Annotated[
    int,
    typer.Option(
        min=0,
        help="Refuse unless this incarnation is running, as `status` shows it; 0: any.",
        metavar="NUMBER",
    ),
]
Stopped = Annotated[
    bool,
    typer.Option(
        "--stopped",
        help="The region does not run: act as its driver for a moment. A driver that still runs is fenced"
        " and ends.",
    ),
]


def in_store(url: str, token_file: Path | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store, run `work` with it and return the result. Errors end the command."""
    return kit.in_store(url, token_file, work, negative=NEGATIVE_ANSWERS)


def check_input_names(application: str, handle: str, producer: str = "") -> None:
    """End the command if a name is not valid."""
    try:
        check_name(application)
        check_input_name("an input handle", handle)
        if producer:
            check_input_name("an entry point", producer)
    except BadNameError as error:
        fail(str(error), REFUSED)


def checkpoint_of(view: ManifestView, number: int | None, *, back: int = 0) -> Checkpoint:
    """Return the checkpoint of that number, or the newest but `back`. End the command if there is none.

    Raises CheckpointReleasedError for a checkpoint that the manifest no longer lists.
    """
    numbers = [checkpoint.number for checkpoint in view.checkpoints]
    if number is None:
        if len(numbers) <= back:
            fail(
                f"the manifest of region {view.region} shows {len(numbers)} checkpoints, {back + 1} are"
                " needed",
                NEGATIVE,
            )
        return view.checkpoints[-1 - back]
    if view.last is not None and 0 < number < view.last.number and number not in numbers:
        return view.restorable(number)  # raises: a number below the last one was released and forgotten
    if number not in numbers:
        known = f"it shows {_range_text(numbers)}" if numbers else "it shows none"
        fail(f"the manifest of region {view.region} has no checkpoint {number}: {known}", NEGATIVE)
    return view.checkpoints[numbers.index(number)]


def _range_text(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
