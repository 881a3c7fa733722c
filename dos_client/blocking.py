"""The client for plain threads: Spark tasks, notebooks, scripts.

Every call runs in a trio thread and waits for the result. Nothing is decided here. Names and errors are those
of the trio client. Objects of this module may be used from several threads at once, except from the portal's
own.

An interrupted call (KeyboardInterrupt) continues in the background and may still take effect. Check the state
before you repeat it.

    with open_store("dos://h1,h2,h3") as store, store.claim("app.w0000", epoch, writer_id) as claim:
        writer = claim.open_object("greetings")
        writer.wait_synced(writer.append(b"hello"))
"""

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar, TypeVarTuple

import trio

from dos_client import store as trio_store
from dos_client.live_store import Store
from dos_client.reading.streaming import Bookmark
from dos_client.sessions.directory_view import DirectoryView
from dos_client.sessions.members import MemberStatus
from dos_client.status.claim_status import ClaimStatus
from dos_client.urls import DosUrl
from dos_client.writing.claim import Claim
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.digests import Buffer
from dos_protocol.errors import ClosedError, FencedError
from dos_protocol.messages import ObjectInfo, StatResult
from dos_protocol.store_record import StoreRecord

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Portal:
    """A thread that runs trio, and calls into it. A context manager; `close` ends the thread and everything
    that is held open in it.
    """

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
        """Run an async function in the trio thread and return its result. Raises its error, or ClosedError
        after `close`.
        """
        self._check()
        try:
            return trio.from_thread.run(function, *args, trio_token=self._token)
        except trio.RunFinishedError as error:
            raise ClosedError("the portal is closed") from error

    def call_sync(self, function: "Callable[[*Args], T]", *args: *Args) -> T:
        """Run a plain function in the trio thread and return its result."""
        self._check()
        try:
            return trio.from_thread.run_sync(function, *args, trio_token=self._token)
        except trio.RunFinishedError as error:
            raise ClosedError("the portal is closed") from error

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
        """End the thread. Raises the error of the thread if it ended earlier."""
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
    """An async context manager that is open in a task: its value, and how to close it."""

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
    """Enter the manager, pass its value, and leave it on request. An error on entry reaches the caller
    unchanged.
    """
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


class BlockingObjectWriter:
    """An `ObjectWriter` for plain threads."""

    def __init__(self, portal: Portal, writer: ObjectWriter) -> None:
        self._portal = portal
        self._writer = writer

    @property
    def name(self) -> str:
        return self._writer.name

    @property
    def size(self) -> int:
        return self._writer.size

    @property
    def synced(self) -> int:
        return self._writer.synced

    @property
    def received(self) -> int:
        return self._writer.received

    @property
    def digest(self) -> int:
        return self._portal.call_sync(lambda: self._writer.digest)

    def append(self, data: Buffer) -> int:
        return self._portal.call_sync(self._writer.append, data)

    def wait_synced(self, size: int) -> None:
        self._portal.call(self._writer.wait_synced, size)

    def wait_received(self, size: int) -> None:
        self._portal.call(self._writer.wait_received, size)

    def wait_room(self) -> None:
        self._portal.call(self._writer.wait_room)

    def seal(self) -> None:
        self._portal.call_sync(self._writer.seal)


class BlockingClaim:
    """A `Claim` for plain threads. A context manager that closes it."""

    def __init__(self, portal: Portal, claim: Claim) -> None:
        self.portal = portal
        self.claim = claim

    @property
    def directory(self) -> str:
        return self.claim.directory

    @property
    def epoch(self) -> int:
        return self.claim.epoch

    @property
    def writer_id(self) -> bytes:
        return self.claim.writer_id

    @property
    def epoch_seen(self) -> int:
        return self.claim.epoch_seen

    @property
    def answers(self) -> dict[bytes, dict[str, ObjectInfo]]:
        return self.portal.call_sync(lambda: dict(self.claim.answers))

    @property
    def lost(self) -> FencedError | None:
        return self.claim.lost

    @property
    def waiting(self) -> bool:
        return self.portal.call_sync(lambda: self.claim.waiting)

    def status(self) -> ClaimStatus:
        return self.portal.call_sync(self.claim.status)

    def wait_quorum(self) -> None:
        self.portal.call(self.claim.wait_quorum)

    def wait_all(self, timeout_s: float) -> bool:
        return self.portal.call(self.claim.wait_all, timeout_s)

    def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes:
        return self.portal.call(self.claim.read, name, offset, max_bytes, member)

    def settle(self, name: str, size: int, digest: int) -> None:
        self.portal.call(self.claim.settle, name, size, digest)

    def delete(self, name: str) -> None:
        self.portal.call(self.claim.delete, name)

    def open_object(self, name: str) -> BlockingObjectWriter:
        return BlockingObjectWriter(self.portal, self.portal.call_sync(self.claim.open_object, name))

    def close(self) -> None:
        self.portal.call(self.claim.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Over:
    """Marks the end of an async generator."""


_OVER = _Over()


class BlockingStore:
    """A `Store` for plain threads, made by `open_store` and `connect` of this module."""

    def __init__(self, portal: Portal, store: Store) -> None:
        self.portal = portal
        self.store = store

    @property
    def record(self) -> StoreRecord:
        return self.store.record

    def members(self) -> list[MemberStatus]:
        return self.portal.call_sync(self.store.members)

    def claim(self, directory: str, epoch: int, writer_id: bytes) -> BlockingClaim:
        return BlockingClaim(self.portal, self.portal.call(self.store.claim, directory, epoch, writer_id))

    def unclaimed(self, directory: str) -> BlockingClaim:
        return BlockingClaim(self.portal, self.portal.call(self.store.unclaimed, directory))

    def inspect(self, directory: str) -> DirectoryView:
        return self.portal.call(self.store.inspect, directory)

    def list_directories(self, prefix: str = "") -> list[str]:
        return self.portal.call(self.store.list_directories, prefix)

    def read(
        self, directory: str, name: str, offset: int, max_bytes: int, *, committed: bool = False
    ) -> bytes:
        read = partial(self.store.read, committed=committed)
        return self.portal.call(read, directory, name, offset, max_bytes)

    def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> Iterator[bytes]:
        return self.iterate(self.store.stream(directory, name, offset, end, seen))

    def follow(self, directory: str, name: str, offset: int = 0) -> Iterator[bytes]:
        return self.iterate(self.store.follow(directory, name, offset))

    def iterate(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """Yield the items of an async generator of the trio thread. It ends with the iterator, or with the
        store.
        """
        try:
            while not isinstance(item := self.portal.call(anext, items, _OVER), _Over):
                yield item
        finally:
            with suppress(ClosedError):
                self.portal.call(items.aclose)

    def stat(self, directory: str, name: str, digest_at: int | None = None) -> dict[bytes, StatResult]:
        return self.portal.call(self.store.stat, directory, name, digest_at)

    def ping(self) -> dict[str, float | str]:
        return self.portal.call(self.store.ping)


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
