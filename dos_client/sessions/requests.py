"""The requests of a session: one method per request, with the class of its answer.

This module checks that the answer fits the request. The transport is in `connection`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeVar

import trio

from dos_client.limits import answer_timeout_s, delete_timeout_s, repair_timeout_s
from dos_protocol.errors import DosError, RemoteProtocolError
from dos_protocol.messages import (
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
    ScrubProgress,
    ScrubRequest,
    Stat,
    StatResult,
)
from dos_protocol.names import is_name
from dos_protocol.store_record import StoreRecord, encode_store_record

Answer = TypeVar("Answer")


class Requests(ABC):
    """The requests of a session, based on `request`. An answer that does not fit its request ends the
    session.
    """

    address: str
    answer_timeout_s: float = answer_timeout_s
    """How long a request waits for its answer, unless it needs longer."""

    @abstractmethod
    async def request(self, message: Message, timeout_s: float | None = None) -> Message:
        """Send a request and wait for its answer. `timeout_s`: None for `answer_timeout_s`."""

    @abstractmethod
    def fail(self, error: DosError) -> None:
        """End the session."""

    async def call(self, message: Message, expected: type[Answer], timeout_s: float | None = None) -> Answer:
        """Send a request and return an answer of the expected class."""
        answer = await self.request(message, timeout_s)
        if not isinstance(answer, expected):
            raise self.unfit(message, type(answer).__name__)
        return answer

    def unfit(self, message: Message, what: str) -> RemoteProtocolError:
        """End the session because an answer does not fit its request. Return the error."""
        error = RemoteProtocolError(f"{self.address} answered {type(message).__name__} with {what}")
        self.fail(error)
        return error

    async def open_directory(self, directory: str) -> DirectoryOpened:
        """Enter a directory for reading, without a claim. Raises NotFoundError if the server reports it."""
        request = ChangeDirectory(directory)
        answer = await self.call(request, DirectoryOpened)
        self._check_names(request, answer.entries)
        return answer

    async def claim(self, directory: str, epoch: int, writer_id: bytes) -> DirectoryOpened:
        """Become the directory's writer on this server. Raises FencedError with the epoch that the server
        holds.
        """
        request = ChangeDirectory(directory, claim=True, epoch=epoch, writer_id=writer_id)
        answer = await self.call(request, DirectoryOpened)
        if (answer.epoch, answer.writer_id) != (epoch, writer_id):
            raise self.unfit(request, f"the claim of epoch {answer.epoch}, or of another writer")
        self._check_names(request, answer.entries)
        return answer

    def _check_names(self, message: Message, entries: Iterable[ObjectInfo]) -> None:
        """End the session if a name does not match the grammar: names reach files, URLs and terminals."""
        for info in entries:
            if not is_name(info.name):
                raise self.unfit(message, f"a name that no object can have: {info.name[:40]!a}")

    async def list_names(self, prefix: str = "", after: str = "", entries_max: int = 1_000) -> Listing:
        """Return one page of directories, or of objects if a directory is open."""
        request = List(prefix, after, entries_max)
        answer = await self.call(request, Listing)
        self._check_names(request, answer.entries)
        return answer

    async def list_all(self, prefix: str = "") -> list[ObjectInfo]:
        """Return the entries of all pages."""
        found: list[ObjectInfo] = []
        while True:
            page = await self.list_names(prefix, found[-1].name if found else "")
            found += page.entries
            if not page.more or not page.entries:
                return found

    async def stat(self, name: str, digest_at: int = NO_DIGEST) -> StatResult:
        """Return the sizes of an object, and the prefix digest at `digest_at` if given."""
        request = Stat(name, digest_at)
        answer = await self.call(request, StatResult)
        if (answer.info.name, answer.digest_at) != (name, digest_at):
            raise self.unfit(request, "the sizes of another object, or a digest at another size")
        return answer

    async def get(self, name: str, offset: int, max_bytes: int, wait_ms: int = 0) -> bytes:
        """Return durable bytes from `offset`, empty at the synced end."""
        return bytes((await self.get_data(name, offset, max_bytes, wait_ms)).payload)

    async def get_data(self, name: str, offset: int, max_bytes: int, wait_ms: int = 0) -> Data:
        """Return durable bytes from `offset`, with the synced size."""
        request = Get(name, offset, max_bytes, wait_ms)
        data = await self.call(request, Data, self.answer_timeout_s + wait_ms / 1_000)
        if data.offset != offset or len(data.payload) > max_bytes or data.name != name:
            raise self.unfit(request, "bytes that were not requested")
        return data

    async def delete(self, name: str) -> None:
        """Delete a whole object permanently. On return, the deletion is durable.

        The session must be allowed to append there. Raises FencedError, NotClaimedError, NotFoundError,
        BeingAppendedError, BusyError, and UnsupportedError if the server is in a store; nothing was deleted
        then. After PoisonedError, STAT shows what is left. After BrokenConnectionError the result is unknown
        until the directory is read again.
        """
        answer = await self.call(Delete(name), Deleted, delete_timeout_s)
        if answer.name != name:
            raise self.unfit(Delete(name), f"the deletion of {answer.name[:40]!a}")

    async def repair(self, request: RepairChunk) -> RepairAck:
        """Send a piece of a new copy. Raises WouldLoseError and others, see protocol.md."""
        answer = await self.call(request, RepairAck, repair_timeout_s)
        if answer.name != request.name:
            raise self.unfit(request, f"the repair of {answer.name[:40]!a}")
        return answer

    async def configure(self, record: StoreRecord) -> int:
        """Send a newer store record to the server. Returns the generation that it then stores."""
        return (await self.call(Configure(encode_store_record(record)), Configured)).generation

    async def scrub(self, *, begin: bool = False, bytes_per_s: int = 0) -> ScrubProgress:
        """Return the progress of the server's scrub; with `begin`, begin a round over everything first."""
        return await self.call(ScrubRequest(begin, bytes_per_s), ScrubProgress)

    async def ping(self, payload: bytes = b"", timeout_s: float | None = None) -> float:
        """Return the seconds of one round trip."""
        begin = trio.current_time()
        answer = await self.call(Ping(payload), Pong, timeout_s)
        if bytes(answer.payload) != payload:
            raise RemoteProtocolError(f"{self.address} answered PING with different bytes")
        return trio.current_time() - begin
