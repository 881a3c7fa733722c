"""Tasks that end with a block, or with a consumer."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from dos_protocol.errors import ClosedError, DosError

T = TypeVar("T")
U = TypeVar("U")
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


async def run_both(first: Callable[[], Awaitable[T]], second: Callable[[], Awaitable[U]]) -> tuple[T, U]:
    """Run both at once. The first DosError ends the other and is raised as it is, not in a group."""
    errors: list[DosError] = []
    results: list[U] = []

    async def run_second() -> None:
        try:
            results.append(await second())
        except DosError as error:
            errors.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_second)
        try:
            result = await first()
        except DosError as error:
            errors.append(error)
            nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return result, results[0]


class _Begun(Generic[T]):
    def __init__(self) -> None:
        self.scope, self.ended = trio.CancelScope(), trio.Event()
        self.results = list[T]()
        self.error: Exception = ClosedError("the read was cancelled")

    async def run(self, read: Callable[[], Awaitable[T]], kept_s: float) -> None:
        with self.scope:
            try:
                self.results.append(await read())
            except Exception as error:  # raised by `Ahead.next`
                self.error = error
            finally:
                self.ended.set()
            if kept_s:
                await trio.sleep(kept_s)
                self.results.clear()  # not requested in time: free the memory
                self.error = ClosedError("the result was not requested in time")


class Ahead(Generic[T]):
    """Reads that begin before their results are requested, in order. `start`: runs a task that outlives its
    caller. `kept_s`: how long a result is kept that nobody requests; 0: until `drop`.
    """

    def __init__(self, start: Callable[[Callable[[], Awaitable[None]]], object], kept_s: float = 0.0) -> None:
        self._start, self._kept_s = start, kept_s
        self._begun: deque[_Begun[T]] = deque()

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, read: Callable[[], Awaitable[T]]) -> None:
        self._begun.append(_Begun())
        self._start(partial(self._begun[-1].run, read, self._kept_s))

    async def next(self) -> T:
        """Wait for the oldest read and return its result. Raises its error; ClosedError if it was dropped."""
        one = self._begun.popleft()
        try:
            await one.ended.wait()
        finally:
            one.scope.cancel()
        if not one.results:
            raise one.error
        return one.results[0]

    def drop(self) -> None:
        for one in self._begun:
            one.scope.cancel()
        self._begun.clear()
