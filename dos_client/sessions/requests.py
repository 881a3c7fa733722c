"""What can be asked of a server on a session: one method for each request, with its answer's class.

Rules of this file: requests and answers, and whether the one fits the other. How they travel is the
session's matter (`connection`).
"""

from abc import ABC, abstractmethod
from typing import TypeVar

import trio

from dos_client.limits import answer_timeout_s, delete_timeout_s, repair_timeout_s
from dos_protocol.errors import DosError, RemoteProtocolError
from dos_protocol.store_record import StoreRecord, encode_store_record
from dos_protocol.vocabulary import (
    NO_DIGEST,
    ChangeDirectory,
    Configure,
    Configured,
    Data,
    Delete,
    Deleted,
    DirectoryOpened,
    Get,
    List,
    Listing,
    Message,
    ObjectInfo,
    Ping,
    Pong,
    RepairAck,
    RepairChunk,
    Stat,
    StatResult,
)

Answer = TypeVar("Answer")


class Requests(ABC):
    """The requests of a session, on top of `request`. An answer that does not fit its request ends the
    session."""

    address: str

    @abstractmethod
    async def request(self, message: Message, timeout_s: float = answer_timeout_s) -> Message:
        """Send a request and wait for its answer."""

    @abstractmethod
    def fail(self, error: DosError) -> None:
        """End the session."""

    async def ask(
        self, message: Message, expected: type[Answer], timeout_s: float = answer_timeout_s
    ) -> Answer:
        """`request`, for an answer of one class."""
        answer = await self.request(message, timeout_s)
        if not isinstance(answer, expected):
            error = RemoteProtocolError(
                f"{self.address} answered {type(message).__name__} with {type(answer).__name__}"
            )
            self.fail(error)
            raise error
        return answer

    async def open_directory(self, directory: str) -> DirectoryOpened:
        """Read in a directory, without a claim. Raises NotFoundError where the server says so."""
        return await self.ask(ChangeDirectory(directory), DirectoryOpened)

    async def claim(self, directory: str, epoch: int, writer_id: bytes) -> DirectoryOpened:
        """Become the directory's writer on this server. Raises FencedError with the epoch it holds."""
        return await self.ask(
            ChangeDirectory(directory, claim=True, epoch=epoch, writer_id=writer_id), DirectoryOpened
        )

    async def list_names(self, prefix: str = "", after: str = "", entries_max: int = 1_000) -> Listing:
        """One page of directories, or in a directory of objects."""
        return await self.ask(List(prefix, after, entries_max), Listing)

    async def list_all(self, prefix: str = "") -> list[ObjectInfo]:
        """All pages."""
        found: list[ObjectInfo] = []
        while True:
            page = await self.list_names(prefix, found[-1].name if found else "")
            found += page.entries
            if not page.more or not page.entries:
                return found

    async def stat(self, name: str, digest_at: int = NO_DIGEST) -> StatResult:
        """Sizes of an object, and the prefix digest at `digest_at` if given."""
        return await self.ask(Stat(name, digest_at), StatResult)

    async def get(self, name: str, offset: int, max_bytes: int, wait_ms: int = 0) -> bytes:
        """Durable bytes from `offset`, empty at the synced end."""
        return bytes((await self.get_data(name, offset, max_bytes, wait_ms)).payload)

    async def get_data(self, name: str, offset: int, max_bytes: int, wait_ms: int = 0) -> Data:
        """`get`, with the synced size."""
        data = await self.ask(Get(name, offset, max_bytes, wait_ms), Data, answer_timeout_s + wait_ms / 1_000)
        if data.offset != offset or len(data.payload) > max_bytes or data.name != name:
            error = RemoteProtocolError(f"{self.address} answered GET with bytes that were not asked for")
            self.fail(error)
            raise error
        return data

    async def delete(self, name: str) -> None:
        """Take a whole object away, for ever; returns when it is gone from stable storage.

        The session must be one that may append there. Raises FencedError, NotClaimedError, NotFoundError,
        BeingAppendedError, BusyError, and UnsupportedError by a server that is in a store: nothing was
        removed. After PoisonedError its STAT says what is there, after BrokenConnectionError nobody
        knows: look."""
        answer = await self.ask(Delete(name), Deleted, delete_timeout_s)
        if answer.name != name:
            error = RemoteProtocolError(f"{self.address} deleted {answer.name}, {name} was asked for")
            self.fail(error)
            raise error

    async def repair(self, request: RepairChunk) -> RepairAck:
        """Bring a piece of a new copy. Raises WouldLoseError and others, see protocol.md."""
        return await self.ask(request, RepairAck, repair_timeout_s)

    async def configure(self, record: StoreRecord) -> int:
        """Give the server a newer store record; returns the generation it keeps then."""
        return (await self.ask(Configure(encode_store_record(record)), Configured)).generation

    async def ping(self, payload: bytes = b"", timeout_s: float = answer_timeout_s) -> float:
        """Seconds of one round trip."""
        begin = trio.current_time()
        answer = await self.ask(Ping(payload), Pong, timeout_s)
        if bytes(answer.payload) != payload:
            raise RemoteProtocolError(f"{self.address} answered PING with other bytes")
        return trio.current_time() - begin
