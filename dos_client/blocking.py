"""The client for plain threads: Spark tasks, notebooks, scripts.

Every call runs in a trio thread and waits for the result. Objects of this module may be used from several
threads at once. An interrupted call (KeyboardInterrupt) continues in the background and may still take
effect.

    with open_store("dos://h1,h2,h3") as store, store.claim("app.w0000", epoch, writer_id) as claim:
        writer = claim.open_object("greetings")
        writer.wait_synced(writer.append(b"hello"))
"""

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, TypeVarTuple

import trio

from dos_client import store as trio_store
from dos_client.live_store import Store
from dos_client.urls import DosUrl
from dos_client.writing.claim import Claim
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.errors import ClosedError, FencedError
from dos_protocol.messages import ObjectInfo
from dos_protocol.store_record import StoreRecord

T = TypeVar("T")
W = TypeVar("W")
P = ParamSpec("P")
Args = TypeVarTuple("Args")


class Portal:
    """A thread that runs trio, and calls into it. A context manager; `close` ends what is held open in it."""

    def __init__(self, name: str = "dos-client") -> None:
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._nursery = nursery
            self._started.set()
            await trio.sleep_forever()

    def call(self, function: "Callable[[*Args], Awaitable[T]]", *args: *Args) -> T:
        """Run an async function in the trio thread. Raises its error, or ClosedError after `close`."""
        self._check()
        try:
            return trio.from_thread.run(function, *args, trio_token=self._token)
        except trio.RunFinishedError as error:
            raise ClosedError("the portal is closed") from error

    def call_sync(self, function: "Callable[[*Args], T]", *args: *Args) -> T:
        self._check()
        try:
            return trio.from_thread.run_sync(function, *args, trio_token=self._token)
        except trio.RunFinishedError as error:
            raise ClosedError("the portal is closed") from error

    def soon(self, function: "Callable[[*Args], object]", *args: *Args) -> None:
        """Have the trio thread call a function that raises nothing. Does not wait for it."""
        self._check()
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *args)

    @contextmanager
    def hold(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Keep an async context manager open in a task of the trio thread during the `with` block."""
        manager_open = self.call(self._nursery.start, _keep_open, manager)
        try:
            yield manager_open.value
        finally:
            if not self._closed:
                self.call(manager_open.end)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._thread.is_alive():
            with suppress(trio.RunFinishedError):
                trio.from_thread.run_sync(self._nursery.cancel_scope.cancel, trio_token=self._token)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _check(self) -> None:
        if self._closed or not self._thread.is_alive():
            raise ClosedError("the portal is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _OpenManager(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value
        self.wanted = trio.Event()
        self.ended = trio.Event()
        self.failure: Exception | None = None

    async def end(self) -> None:
        self.wanted.set()
        await self.ended.wait()
        if self.failure is not None:
            raise self.failure


async def _keep_open(
    manager: AbstractAsyncContextManager[T],
    task_status: trio.TaskStatus[_OpenManager[T]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Enter the manager, pass its value, and leave it on request. An error on entry is raised as it is."""
    manager_open: _OpenManager[T] | None = None
    try:
        async with manager as value:
            manager_open = _OpenManager(value)
            task_status.started(manager_open)
            await manager_open.wanted.wait()
    except Exception as error:
        if manager_open is None:
            raise
        manager_open.failure = error  # raised by `end`, in the thread that holds it open
    finally:
        if manager_open is not None:
            manager_open.ended.set()


class Facade(Generic[W]):
    """An object of the trio thread, for plain threads. Each method that a subclass names runs in the trio
    thread, under the same name, with the same arguments, result and errors.
    """

    def __init__(self, portal: Portal, wrapped: W) -> None:
        self.portal = portal
        self.wrapped = wrapped


class _Method(Generic[P, T]):
    """A method of a facade: type checkers know its signature, `help` its docstring."""

    def __init__(self, method: Callable[..., Any], run: Callable[[Portal, Callable[[], Any]], T]) -> None:
        self._method = method
        self._run = run
        self.__doc__ = method.__doc__

    def __call__(self, facade: Facade[Any], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(facade.portal, partial(self._method, facade.wrapped, *args, **kwargs))

    def __get__(self, facade: Facade[Any], _: type) -> "Callable[P, T]":
        return partial(self, facade)


def calls(method: "Callable[Concatenate[Any, P], Awaitable[T]]") -> _Method[P, T]:
    return _Method(method, Portal.call)


def calls_plain(method: "Callable[Concatenate[Any, P], T]") -> _Method[P, T]:
    return _Method(method, Portal.call_sync)


def iterates(method: "Callable[Concatenate[Any, P], AsyncGenerator[T]]") -> _Method[P, Iterator[T]]:
    """Return the form of a method that returns an async generator: it returns an iterator."""
    return _Method(method, lambda portal, bound: iterate(portal, bound()))


class Attribute(Generic[T]):
    """An attribute that may be read in any thread; `in_run`: one that is computed in the trio thread."""

    def __init__(self, *, in_run: bool = False) -> None:
        self._in_run = in_run

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, facade: Facade[Any], _: type) -> T:
        if self._in_run:
            value: T = facade.portal.call_sync(getattr, facade.wrapped, self._name)
        else:
            value = getattr(facade.wrapped, self._name)
        return value


class _Over:
    """Marks the end of an async generator."""


_OVER = _Over()


def iterate(portal: Portal, items: AsyncGenerator[T]) -> Iterator[T]:
    """Yield the items of an async generator of the trio thread. It ends with the iterator, or the portal."""
    try:
        while not isinstance(item := portal.call(anext, items, _OVER), _Over):
            yield item
    finally:
        with suppress(ClosedError):
            portal.call(items.aclose)


class BlockingObjectWriter(Facade[ObjectWriter]):
    name = Attribute[str]()
    size = Attribute[int]()
    synced = Attribute[int]()
    received = Attribute[int]()
    digest = Attribute[int](in_run=True)
    append = calls_plain(ObjectWriter.append)
    wait_synced = calls(ObjectWriter.wait_synced)
    wait_received = calls(ObjectWriter.wait_received)
    wait_room = calls(ObjectWriter.wait_room)
    seal = calls_plain(ObjectWriter.seal)


class BlockingClaim(Facade[Claim]):
    directory = Attribute[str]()
    epoch = Attribute[int]()
    writer_id = Attribute[bytes]()
    epoch_seen = Attribute[int]()
    lost = Attribute[FencedError | None]()
    waiting = Attribute[bool](in_run=True)
    status = calls_plain(Claim.status)
    wait_quorum = calls(Claim.wait_quorum)
    wait_all = calls(Claim.wait_all)
    read = calls(Claim.read)
    settle = calls(Claim.settle)
    delete = calls(Claim.delete)
    close = calls(Claim.aclose)

    @property
    def claim(self) -> Claim:
        return self.wrapped

    @property
    def answers(self) -> dict[bytes, dict[str, ObjectInfo]]:
        return self.portal.call_sync(lambda: dict(self.wrapped.answers))

    def open_object(self, name: str) -> BlockingObjectWriter:
        return BlockingObjectWriter(self.portal, self.portal.call_sync(self.wrapped.open_object, name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingStore(Facade[Store]):
    """A `Store` for plain threads, made by `open_store` and `connect` of this module."""

    record = Attribute[StoreRecord]()
    members = calls_plain(Store.members)
    inspect = calls(Store.inspect)
    list_directories = calls(Store.list_directories)
    read = calls(Store.read)
    stream = iterates(Store.stream)
    follow = iterates(Store.follow)
    stat = calls(Store.stat)
    ping = calls(Store.ping)

    @property
    def store(self) -> Store:
        return self.wrapped

    def claim(self, directory: str, epoch: int, writer_id: bytes) -> BlockingClaim:
        return BlockingClaim(self.portal, self.portal.call(self.wrapped.claim, directory, epoch, writer_id))

    def unclaimed(self, directory: str) -> BlockingClaim:
        return BlockingClaim(self.portal, self.portal.call(self.wrapped.unclaimed, directory))

    def iterate(self, items: AsyncGenerator[T]) -> Iterator[T]:
        return iterate(self.portal, items)


@contextmanager
def open_store(url: str | DosUrl, *, token: bytes = b"", client: str = "") -> Iterator[BlockingStore]:
    """Open a store as `dos_client.open_store` does, from a plain thread."""
    with Portal() as portal, portal.hold(trio_store.open_store(url, token=token, client=client)) as store:
        yield BlockingStore(portal, store)


@contextmanager
def connect(url: str | DosUrl, *, token: bytes = b"", client: str = "") -> Iterator[BlockingStore]:
    """Connect to one server as `dos_client.connect` does, from a plain thread."""
    with Portal() as portal, portal.hold(trio_store.connect(url, token=token, client=client)) as store:
        yield BlockingStore(portal, store)
