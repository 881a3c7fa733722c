"""Tasks that end with a block."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from dos_protocol.errors import DosError

T = TypeVar("T")
AT_ONCE: Final = 8


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled at the end of the block. An exception of the block is raised as it
    is, not in a group.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:  # raised below, outside of the nursery
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def try_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> list[tuple[T, DosError]]:
    """Run `work` for all items at the same time. Returns the items of which it raised a DosError, with it."""
    failed = list[tuple[T, DosError]]()

    async def try_one(item: T) -> None:
        try:
            await work(item)
        except DosError as error:
            failed.append((item, error))

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(try_one, item)
    return failed


async def read_each(names: Iterable[str], read: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Return what `read` returns for each name, by name in order; `AT_ONCE` at the same time. The first
    DosError ends the others.
    """
    found, failures, limit = dict[str, T](), list[DosError](), trio.CapacityLimiter(AT_ONCE)

    async def read_one(name: str) -> None:
        async with limit:
            try:
                found[name] = await read(name)
            except DosError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(read_one, name)
    if failures:
        raise failures[0]
    return {name: found[name] for name in sorted(found)}
