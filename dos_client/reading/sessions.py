"""Sessions without a claim, for reads, kept open while they are used.

This module handles one member at a time. `member_queries` decides which members to query, and in what order.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from dos_client.arguments import check_run
from dos_client.limits import read_bytes_max, reader_sessions_max
from dos_client.sessions.connection import Connection
from dos_client.sessions.witnesses import WitnessedStore, open_member_session
from dos_protocol.errors import BrokenConnectionError, DosError, StaleGenerationError
from dos_protocol.limits import payload_bytes_max
from dos_protocol.messages import DirectoryOpened
from dos_protocol.names import check_name
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")


async def read_one(connection: Connection, name: str, offset: int, max_bytes: int) -> bytes:
    """Read durable bytes from one member, short only at its synced end. Raises the errors of
    `Connection.get`.
    """
    wanted = min(max_bytes, read_bytes_max)
    parts: list[bytes] = []
    while wanted > 0:
        part = await connection.get(name, offset, min(wanted, payload_bytes_max))
        parts.append(part)
        if not part:
            break
        offset += len(part)
        wanted -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class ReaderSession:
    """A session in one directory of one member, without a claim. A task of the store runs it."""

    def __init__(self, store: WitnessedStore, member: Member, directory: str) -> None:
        self.member = member
        self.scope = trio.CancelScope()
        self._store = store
        self._directory = directory
        self._connection: Connection | None = None
        self._opened: DirectoryOpened | None = None
        self._error: DosError | None = None
        self._ready = trio.Event()

    @property
    def over(self) -> bool:
        return self._error is not None

    @property
    def owed(self) -> int:
        """The `Connection.owed` of the session, 0 without one."""
        return 0 if self._connection is None else self._connection.owed

    async def run(self) -> None:
        """Run the session until it breaks or the pool ends it."""
        store = self._store
        try:
            with self.scope:
                async with open_member_session(store, self.member) as connection:
                    self._opened = await connection.open_directory(self._directory)
                    self._connection = connection
                    self._ready.set()
                    raise await connection.wait_broken()
        except StaleGenerationError as error:
            store.reread_membership()
            self._error = error
        except DosError as error:
            self._error = error
        finally:
            self._connection = None
            self._error = self._error or BrokenConnectionError(
                f"the session with {self.member.address} ended"
            )
            self._ready.set()

    async def connection(self) -> Connection:
        """Return the live session. Raises BrokenConnectionError with the reason if there is none."""
        await self._ready.wait()
        if self._connection is None:
            assert self._error is not None
            raise BrokenConnectionError(str(self._error.args[0])) from self._error
        return self._connection

    async def opened(self) -> DirectoryOpened:
        """Return the current content of the directory: the answer to a CWD that follows the call."""
        is_new = not self._ready.is_set()
        connection = await self.connection()
        opened, self._opened = self._opened, None
        if is_new and opened is not None:
            return opened  # of the CWD with which the session began, after the call
        return await connection.open_directory(self._directory)


class Readers:
    """The reader sessions of a store. Sessions in held directories stay. Of the others, the least recently
    used end when there are more than `reader_sessions_max`.
    """

    def __init__(self, store: WitnessedStore) -> None:
        self._store = store
        self._sessions: OrderedDict[tuple[bytes, str], ReaderSession] = OrderedDict()
        self._held_directories: Counter[str] = Counter()

    def session(self, member: Member, directory: str) -> ReaderSession:
        """Return the session for that member and directory. Starts one if there is none."""
        check_run(self._store.run_token)
        key = (member.server_id, check_name(directory))
        session = self._sessions.get(key)
        if session is None or session.over:
            session = self._sessions[key] = ReaderSession(self._store, member, directory)
            self._store.start(session.run)
        self._sessions.move_to_end(key)
        free = [key for key in self._sessions if not self._held_directories[key[1]]]
        for oldest in free[: max(len(free) - reader_sessions_max, 0)]:
            self._sessions.pop(oldest).scope.cancel()
        return session

    @contextmanager
    def hold(self, directory: str) -> Iterator[None]:
        """Keep the sessions in that directory open during the block, however many others there are."""
        self._held_directories[directory] += 1
        try:
            yield
        finally:
            self._held_directories -= Counter([directory])  # removes the entry when its count is 0

    def owed(self, member: Member, directory: str) -> int:
        """Return how many answers to abandoned requests the session still has outstanding."""
        session = self._sessions.get((member.server_id, directory))
        return 0 if session is None else session.owed

    def end_all(self) -> None:
        """End all sessions, because another record is in use. They are reopened when needed."""
        for session in self._sessions.values():
            session.scope.cancel()
        self._sessions.clear()


class ReadableStore(WitnessedStore, Protocol):
    """A store with reader sessions."""

    readers: Readers

    def unavailable(self, error: DosError) -> DosError:
        """Return what to raise instead of an error that reports too few members."""
        ...

    async def reader(self, member: Member, directory: str) -> Connection:
        """Return a session without a claim in a directory of one member. Raises BrokenConnectionError."""
        ...

    def owed(self, member: Member, directory: str) -> int:
        """Return how many answers to abandoned requests a reader session still has outstanding."""
        ...

    def is_connected(self, server_id: bytes) -> bool:
        """Return whether the idle session with the member is connected."""
        ...
