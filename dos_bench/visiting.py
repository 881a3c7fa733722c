"""A store of the user, for one bench: when it is in use, and how what a bench wrote is deleted.

A bench writes only in the directories of `directory_of`, whose claims have the writer ids of the command
`dos bench`. So another run knows what is a bench's. At the end the objects are deleted on every member. The
directories stay, empty, because a store never forgets who has claimed a directory; the next bench uses them
again, with new names of objects (an older copy may return with a member that was away).
"""

import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from dos_bench import BenchRefusedError
from dos_client import Claim, DirectoryView, DosUrl, Store, connect, open_store
from dos_client.cli.kit import is_tool, leaves, tool_writer_id
from dos_protocol.errors import DosError, ForbiddenError, RefusedError
from dos_protocol.names import check_name

logger: Final = logging.getLogger("dos.bench")
PREFIX: Final = "dos-bench"
JOURNAL: Final = "journal"
LOOK_S: Final = 1.0
"""The store is watched for this long: objects that grow meanwhile are written by a program."""
CLEANED_S: Final = 60.0
AT_ONCE: Final = 16
"""Directories that are read or claimed at the same time: fewer than the sessions that a store keeps."""
NAMED_MAX: Final = 3
_TOOL: Final = b"bench"
_WRITER: Final = b"dos-bench"
"""First bytes of the writer ids of benches."""


def directory_of(prefix: str, number: int | None) -> str:
    """Return the directory of a writer; None: of the journal. Raises BadNameError."""
    return check_name(f"{prefix}.{JOURNAL if number is None else f'w{number:04d}'}")


def is_directory_of(prefix: str, name: str) -> bool:
    return re.fullmatch(rf"{re.escape(prefix)}\.(?:{JOURNAL}|w\d{{4}})", name) is not None


@asynccontextmanager
async def visited(url: DosUrl, token: bytes) -> AsyncIterator[Store]:
    """Open the store of the URL; a server that is in no store as itself."""
    if len(url.servers) == 1:
        async with connect(url, token=token, client="dos bench") as alone:
            if alone.server_record is None:
                yield alone
                return
    async with open_store(url, token=token, client="dos bench") as store:
        yield store


async def refuse_without_rights(store: Store, prefix: str) -> None:
    """Raise BenchRefusedError if the token may not write and delete in the directories of a bench: what
    cannot be deleted must not be written.
    """
    directory = directory_of(prefix, None)
    try:
        async with await claimed(store, directory):
            for member in store.record.members:
                connection = await store.reader(member, directory)
                # A right is checked before the object, which never exists.
                for request in (connection.stat, connection.delete):
                    try:
                        await request("rights")
                    except ForbiddenError:
                        raise
                    except RefusedError as error:
                        logger.debug("the token may be used on %s: %s", member.address, error)
    except ForbiddenError as error:
        raise BenchRefusedError(
            str(error.args[0]),
            remedy="use a token with read, append and delete in the directories of the bench, or let it use"
            " others: --prefix NAME",
        ) from error


async def claimed(store: Store, directory: str, *, to_empty: bool = False) -> Claim:
    """Claim a directory of a bench. Raises BenchRefusedError if anything else has been there. to_empty: also
    if copies are damaged, as they are only deleted.
    """
    view = await store.inspect(directory, sound=True)
    if problem := _others(view):
        raise BenchRefusedError(
            f"directory {directory} {problem}", remedy="choose other directories: --prefix NAME"
        )
    # A member with a damaged copy would not count (R4), and too few may be left without it.
    disregard = {name for damaged in view.damaged.values() for name in damaged} if to_empty else ()
    return await store.claim(directory, view.epoch_seen + 1, tool_writer_id(_TOOL), disregard=disregard)


def _others(view: DirectoryView) -> str:
    """Return what shows that a directory is not of benches alone, "" if nothing does. No other is written."""
    writers = [writer for epoch, writer in view.epochs.values() if epoch]
    if any(not writer.startswith(_WRITER) for writer in writers):
        return f"is claimed by another program or command (epoch {view.epoch_seen})"
    return "holds objects and no bench has claimed it" if _objects(view) and not writers else ""


def _objects(view: DirectoryView) -> dict[tuple[bytes, str], int]:
    copies = [*view.answers.items(), *view.filled.items()]
    return {(member, name): info.received for member, held in copies for name, info in held.items()}


class _Seen(NamedTuple):
    views: dict[str, DirectoryView]
    problems: list[str]


async def _look(store: Store) -> _Seen:
    """Read all directories, several at once."""
    seen, limit = _Seen({}, []), trio.CapacityLimiter(AT_ONCE)

    async def look(name: str) -> None:
        async with limit:
            try:
                seen.views[name] = await store.inspect(name, sound=True)
            except DosError as error:
                seen.problems.append(f"{name} cannot be read: {error.args[0]}")

    async with trio.open_nursery() as nursery:
        for name in await store.list_directories():
            nursery.start_soon(look, name)
    return seen


async def refuse_if_in_use(store: Store) -> None:
    """Raise BenchRefusedError if bytes move in the store, a member is being filled, or a program has claimed
    a directory that holds objects. A store does not know whether that program still runs.

    A token that shows only some directories hides the others.
    """
    before = await _look(store)
    await trio.sleep(LOOK_S)
    now = await _look(store)
    moving = [name for name, view in now.views.items() if _moves(before.views.get(name), view)]
    held = [
        name
        for name, view in now.views.items()
        if _objects(view) and any(epoch and not is_tool(writer) for epoch, writer in view.epochs.values())
    ]
    filled = [one.address for one in store.record.members if one.state != "in"]
    reasons = [
        *([f"bytes move in {_named(moving)}"] if moving else []),
        *([f"programs have claimed {_named(held)}"] if held else []),
        *([f"{', '.join(filled)} is being filled"] if filled else []),
        *now.problems[:NAMED_MAX],
    ]
    if reasons:
        raise BenchRefusedError(
            f"the store is in use: {'; '.join(reasons)}. The figures would include that work, and the bench"
            " would slow it down. Whether a program that has claimed a directory still runs, a store cannot"
            " tell",
            remedy="stop the programs, or pass --in-use to confirm",
        )


def _moves(before: DirectoryView | None, now: DirectoryView) -> bool:
    if any(info.appending for held in now.answers.values() for info in held.values()):
        return True
    if before is None:
        return bool(_objects(now))
    twice = before.answers.keys() & now.answers.keys()
    first, second = (
        {copy: size for copy, size in _objects(view).items() if copy[0] in twice} for view in (before, now)
    )
    return first != second


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(sorted(names)[:NAMED_MAX]) + (f" and {more} more directories" if more > 0 else "")


async def unavailable(store: Store) -> dict[str, str]:
    """Return the members that do not answer, with the reason."""
    return {address: found for address, found in (await store.ping()).items() if isinstance(found, str)}


async def clean(url: DosUrl, token: bytes, prefix: str) -> list[str]:
    """Delete all that benches wrote under this prefix, on every member. Return what could not be deleted, and
    why; nothing is raised but a cancellation.
    """
    left: list[str] = []
    with trio.move_on_after(CLEANED_S) as scope:
        try:
            async with visited(url, token) as store:
                await _clean(store, prefix, left)
        except DosError as error:
            left.append(str(error))
        except BaseExceptionGroup as group:
            errors, others = group.split(DosError)
            if others is not None or errors is None:
                raise
            left += [str(error) for error in leaves(errors)]
    if scope.cancelled_caught:
        left.append(f"deleting did not end within {CLEANED_S:g} s")
    return left


async def _clean(store: Store, prefix: str, left: list[str]) -> None:
    away, limit = await unavailable(store), trio.CapacityLimiter(AT_ONCE)
    names = [one for one in await store.list_directories(f"{prefix}.") if is_directory_of(prefix, one)]

    async def empty(name: str) -> None:
        async with limit:
            view = await store.inspect(name, sound=True)
            if problem := _others(view):
                left.append(f"{name} {problem}")
                return
            if not away and not _objects(view) and not any(view.damaged.values()):
                return
            async with await claimed(store, name, to_empty=True) as claim:
                await claim.wait_all(0 if away else CLEANED_S)
                # No record is needed that releases them (R14): a bench is their only reader.
                claim.collect(lambda _: True)
                if not await claim.wait_collected(CLEANED_S):
                    left.append(f"{name} is not empty")

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(empty, name)
    if names:
        left += [f"{address} may still hold copies in {prefix}.*: {why}" for address, why in away.items()]
