"""What the commands on regions share: arguments with completion, the store, tables.

Exit codes are those of every `dos` command: 0 done; 1 a negative answer (no such region or checkpoint,
refused, nobody answered); 2 usage; 3 the store cannot be reached, or too few of its members.
"""

import functools
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import trio
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from checkpoint.chains.manifest_reading import ManifestView, read_manifest, regions_of
from checkpoint.core.manifest import Cut
from checkpoint.errors import (
    CheckpointReleasedError,
    ManifestError,
    NoAnswerError,
    NoInputError,
    NoRegionError,
)
from dos_client import BadUrlError, Store, open_store, parse_url
from dos_client.cli.support import NEGATIVE, REFUSED, count_text, fail, read_token, run
from dos_protocol.errors import DosError

T = TypeVar("T")
_COMPLETION_S: Final = 2.0
_WIDTH_WITHOUT_TERMINAL: Final = 160


def _completed(ctx: typer.Context, read: Callable[[Store], Awaitable[list[str]]], begun: str) -> list[str]:
    """Names for the shell, or none: completion says nothing of what went wrong."""
    url = ctx.params.get("url")
    if not isinstance(url, str):
        return []

    async def work() -> list[str]:
        with trio.move_on_after(_COMPLETION_S):
            async with open_store(url, token=read_token(_path(ctx.params.get("token_file")))) as store:
                return await read(store)
        return []

    try:
        return [name for name in trio.run(work) if name.startswith(begun)]
    except (DosError, OSError, typer.Exit):
        return []


def _path(value: Any) -> Path | None:
    return Path(value) if value else None


def complete_region(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the store's regions."""
    return _completed(ctx, regions_of, incomplete)


def complete_cut(ctx: typer.Context, incomplete: str) -> list[str]:
    """Numbers of the region's checkpoints."""

    async def cuts(store: Store) -> list[str]:
        return [str(cut.cut) for cut in (await read_manifest(store, str(ctx.params.get("name")))).cuts]

    return _completed(ctx, cuts, incomplete)


StoreUrl = Annotated[
    str, typer.Argument(help="The store: dos://HOST:PORT,HOST2:PORT,HOST3:PORT", metavar="STORE-URL")
]
RegionName = Annotated[
    str,
    typer.Argument(
        help="The region's name, as `run` was given it.", autocompletion=complete_region, metavar="NAME"
    ),
]


def in_store(url: str, token_file: Path | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Run an async function with the store open. Errors end the program with their words and exit code."""

    async def opened() -> T:
        async with open_store(url, token=read_token(token_file), client="dos") as store:
            return await work(store)

    try:
        if parse_url(url).directory is not None:
            fail(f"{url} names a directory: give the store alone, and the region's name after it", REFUSED)
    except BadUrlError as error:
        fail(str(error), REFUSED)
    return run(functools.partial(_told_as_answers, opened))


async def _told_as_answers(work: Callable[[], Awaitable[T]]) -> T:
    """What is no trouble of the store is a negative answer."""
    try:
        return await work()
    except (NoRegionError, NoInputError, NoAnswerError, ManifestError, CheckpointReleasedError) as error:
        fail(str(error), NEGATIVE)


async def view_of(store: Store, name: str) -> ManifestView:
    """The manifest of the region. Raises NoRegionError, also for a name that can be none."""
    return await read_manifest(store, name)


def cut_of(view: ManifestView, number: int | None, *, back: int = 0) -> Cut:
    """The checkpoint of that number, or the last but `back`. Ends the program if there is none; raises
    CutReleasedError.
    """
    numbers = [cut.cut for cut in view.cuts]
    if number is None:
        if len(numbers) <= back:
            fail(
                f"the manifest of region {view.region} shows {len(numbers)} checkpoints, {back + 1}"
                " are needed",
                NEGATIVE,
            )
        return view.cuts[-1 - back]
    if view.last is not None and 0 < number < view.last.cut and number not in numbers:
        return view.restorable(number)  # which raises: it was released, and the manifest has forgotten it
    if number not in numbers:
        known = f"it shows {_ranges(numbers)}" if numbers else "it shows none"
        fail(f"the manifest of region {view.region} has no checkpoint {number}: {known}", NEGATIVE)
    return view.cuts[numbers.index(number)]


def _ranges(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def clock_text(wall_ms: int) -> str:
    """A time on the wall, here."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def ago_text(wall_ms: int, now_ms: int) -> str:
    """How long ago, in the unit that suits it. By two clocks, which may differ."""
    seconds = (now_ms - wall_ms) / 1000
    for unit, length in (("days", 86_400), ("hours", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.1f} s ago"


def seconds_text(phases: dict[str, float]) -> str:
    """Phases and their milliseconds."""
    return ", ".join(f"{phase} {1000 * seconds:.0f} ms" for phase, seconds in phases.items()) or "-"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> None:
    """A table as wide as the terminal; without one, no cell is truncated. Columns named `#...` are
    numbers.
    """
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        number = column.startswith("#")
        table.add_column(
            column.removeprefix("#"), justify="right" if number else "left", overflow="fold", no_wrap=number
        )
    for row in rows:
        table.add_row(*("-" if cell is None or cell == "" else str(cell) for cell in row))
    width = None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    Console(width=width, highlight=False, markup=False, soft_wrap=False).print(table)


__all__ = [
    "NEGATIVE",
    "RegionName",
    "StoreUrl",
    "ago_text",
    "clock_text",
    "complete_cut",
    "count_text",
    "cut_of",
    "in_store",
    "print_table",
    "seconds_text",
    "view_of",
]
