"""Follow an object as it grows: return its committed bytes as they are committed, without end.

Every member gets a request that it answers when it has more (GET with a wait). When Qa of them have more, the
bytes are read and verified as for any other reader. A member that fails is polled until it is back. The
position of the follower is known by size and digest, so no failure causes a repeat or a gap.

Members are polled only for bytes that the follower does not have yet, so a slow follower costs them nothing.
"""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from functools import partial
from types import TracebackType
from typing import Self

import trio

from dos_client.core.agreement import reading_quorums
from dos_client.core.backoff import backoff_s
from dos_client.limits import follow_pause_s, follow_wait_ms
from dos_client.reading.committed import CommittedReads
from dos_client.reading.damage import CopyFault
from dos_client.reading.sessions import ReadableStore
from dos_client.reading.streaming import committed_stream
from dos_protocol.errors import CorruptError, DosError, NotFoundError, PastEndError
from dos_protocol.store_record import Member


async def follow(store: ReadableStore, directory: str, name: str, offset: int) -> AsyncGenerator[bytes]:
    """Read committed bytes as they are committed. Implements `Store.follow`."""
    committed = CommittedReads(store, directory, name)
    with Growth(store, committed) as sizes:
        stream = committed_stream(store, committed, sizes, offset, without_limit=True)
        async with aclosing(stream):
            async for data in stream:
                yield data


class Growth:
    """What each member has of the object beyond the requested position, watched while this is entered.

    An `Extent` without end. Invariants: `_sizes` has what members reported under the record in use; a member
    is not polled while its size is above `_position`.
    """

    def __init__(self, store: ReadableStore, committed: CommittedReads, position: int = 0) -> None:
        self._store = store
        self._committed = committed
        self._record = store.record
        self._sizes: dict[bytes, int] = {}
        self._position = position
        self._session_hold = ExitStack()
        self._grown = trio.Event()
        self._wanted = trio.Event()
        self._scope = trio.CancelScope()

    async def beyond(self, size: int) -> int:
        """Implement `Extent`. Waits without limit."""
        if size > self._position:
            self._position = size
            self._wanted.set()
            self._wanted = trio.Event()
        while True:
            if self._store.record != self._record:
                self._end()
                self._begin()  # sizes reported under another record do not count in this one
            gone_back = self._store.witnesses.rolled_back
            sizes = {one: size for one, size in self._sizes.items() if one not in gone_back}
            reached = reading_quorums(self._record).watermark(sizes)
            if reached > size:
                return reached
            with trio.move_on_after(1.0):  # a new record does not wake this task
                await self._grown.wait()

    def _begin(self) -> None:
        self._record = self._store.record
        self._sizes = {}
        self._scope = trio.CancelScope()
        self._store.start(partial(self._watch_all, self._scope, self._sizes))

    def _end(self) -> None:
        self._scope.cancel()

    async def _watch_all(self, scope: trio.CancelScope, sizes: dict[bytes, int]) -> None:
        """Watch all members of one record, until the scope is cancelled."""
        members = reading_quorums(self._record).members
        with scope:
            async with trio.open_nursery() as nursery:
                for member in self._record.members:
                    if member.server_id in members:
                        nursery.start_soon(self._watch, member, sizes)

    async def _watch(self, member: Member, sizes: dict[bytes, int]) -> None:
        attempt = 0
        while True:
            while sizes.get(member.server_id, 0) > self._position:
                await self._wanted.wait()
            try:
                grew = await self._poll(member, sizes)
                attempt = 0
                if not grew:
                    await trio.sleep(follow_pause_s)
            except DosError:
                attempt += 1
                await trio.sleep(backoff_s(attempt, self._store.rng.random()))

    async def _poll(self, member: Member, sizes: dict[bytes, int]) -> bool:
        """Poll one member for its size, to be answered when it is above the known one. Returns whether it
        is.
        """
        known = sizes.get(member.server_id, self._position)
        connection = await self._store.reader(member, self._committed.directory)
        try:
            data = await connection.get_data(self._committed.name, known, 1, follow_wait_ms)
        except PastEndError as error:
            size = error.actual
        except NotFoundError:
            size = 0
        except CorruptError as error:
            size = error.actual
            path = (self._committed.directory, self._committed.name)
            self._store.damage.note(member.server_id, *path, size, CopyFault.DAMAGED)
        else:
            size = data.synced
        before = sizes.get(member.server_id)
        sizes[member.server_id] = size
        if before is None or size > before:
            self._grown.set()
            self._grown = trio.Event()
            return True
        return False

    def __enter__(self) -> Self:
        self._session_hold.enter_context(self._store.readers.hold(self._committed.directory))
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._session_hold.close()
