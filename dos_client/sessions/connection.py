"""One session with one server, in trio: connecting, requests and their answers.

Callers decide what an answer means. Nothing is sent twice or retried here, except the greeting of a server
that has no place for one more connection. OSError becomes the client's errors only here.

- Sockets are read and written in `rounds`: frames that have arrived are passed to their waiters. The bytes to
  send are sent in one system call: posted requests first, then what `feed` supplies. So an append needs no
  task switch of its own.
- The *watch* is a task that sends PING when the peer is silent, and ends the session if it stays silent.

The first failure ends the session for all: every waiter gets a BrokenConnectionError with the cause.
"""

import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeVar

import trio

from dos_client.core.replacement import GONE_SUFFIX
from dos_client.core.window import tag_of
from dos_client.file_token import current
from dos_client.limits import (
    answer_timeout_s,
    chunk_bytes_max,
    connect_timeout_s,
    delete_timeout_s,
    repair_timeout_s,
    send_batch_buffers,
    silence_broken_s,
    silence_ping_s,
)
from dos_client.randomness import backoff_s
from dos_client.rounds import ClientRounds
from dos_client.runtime import ClientSocket, runtime
from dos_client.urls import split_address
from dos_protocol import messages as m
from dos_protocol.digests import Buffer
from dos_protocol.errors import (
    BrokenConnectionError,
    BusyError,
    ClosedError,
    DosError,
    ErrorCode,
    RefusedError,
    RemoteProtocolError,
    TlsRequiredError,
)
from dos_protocol.frames import Frame, FrameDecoder, frame_head
from dos_protocol.limits import PROTOCOL_VERSION
from dos_protocol.messages import NO_DIGEST, Message, decode, encode, refused
from dos_protocol.names import NO_ID, is_name
from dos_protocol.store_record import StoreRecord, decode_store_record, encode_store_record
from dos_tls import TlsBusyError, TlsError
from dos_tls.sockets import EncryptedSocket

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
        answer = await self.request(message, timeout_s)
        if not isinstance(answer, expected):
            raise self.unfit(message, type(answer).__name__)
        return answer

    def unfit(self, message: Message, what: str) -> RemoteProtocolError:
        """End the session because an answer does not fit its request. Return the error."""
        error = RemoteProtocolError(f"{self.address} answered {type(message).__name__} with {what}")
        self.fail(error)
        return error

    async def open_directory(self, directory: str) -> m.DirectoryOpened:
        request = m.ChangeDirectory(directory)
        answer = await self.call(request, m.DirectoryOpened)
        self._check_names(request, answer.entries)
        return answer

    async def claim(self, directory: str, epoch: int, writer_id: bytes) -> m.DirectoryOpened:
        """Become the directory's writer on this server. Raises FencedError with the epoch that it holds."""
        request = m.ChangeDirectory(directory, claim=True, epoch=epoch, writer_id=writer_id)
        answer = await self.call(request, m.DirectoryOpened)
        if (answer.epoch, answer.writer_id) != (epoch, writer_id):
            raise self.unfit(request, f"the claim of epoch {answer.epoch}, or of another writer")
        self._check_names(request, answer.entries)
        return answer

    def _check_names(self, message: Message, entries: Iterable[m.ObjectInfo]) -> None:
        """End the session if a name does not match the grammar: names reach files, URLs and terminals."""
        for info in entries:
            if not is_name(info.name):
                raise self.unfit(message, f"a name that no object can have: {info.name[:40]!a}")

    async def list_names(self, prefix: str = "", after: str = "", entries_max: int = 1_000) -> m.Listing:
        request = m.List(prefix, after, entries_max)
        answer = await self.call(request, m.Listing)
        self._check_names(request, answer.entries)
        return answer

    async def list_all(self, prefix: str = "") -> list[m.ObjectInfo]:
        found: list[m.ObjectInfo] = []
        while True:
            page = await self.list_names(prefix, found[-1].name if found else "")
            found += page.entries
            if not page.more or not page.entries:
                return found

    async def stat(self, name: str, digest_at: int = NO_DIGEST) -> m.StatResult:
        request = m.Stat(name, digest_at)
        answer = await self.call(request, m.StatResult)
        if (answer.info.name, answer.digest_at) != (name, digest_at):
            raise self.unfit(request, "the sizes of another object, or a digest at another size")
        return answer

    async def get(self, name: str, offset: int, max_bytes: int, wait_ms: int = 0) -> bytes:
        return bytes((await self.get_data(name, offset, max_bytes, wait_ms)).payload)

    async def get_data(self, name: str, offset: int, max_bytes: int, wait_ms: int = 0) -> m.Data:
        request = m.Get(name, offset, max_bytes, wait_ms)
        data = await self.call(request, m.Data, self.answer_timeout_s + wait_ms / 1_000)
        if data.offset != offset or len(data.payload) > max_bytes or data.name != name:
            raise self.unfit(request, "bytes that were not requested")
        return data

    async def delete(self, name: str) -> None:
        """Delete a whole object permanently. On return, the deletion is durable. After PoisonedError, STAT
        shows what is left; after BrokenConnectionError the result is unknown. Other errors: nothing was
        deleted.
        """
        answer = await self.call(m.Delete(name), m.Deleted, delete_timeout_s)
        if answer.name != name:
            raise self.unfit(m.Delete(name), f"the deletion of {answer.name[:40]!a}")

    async def repair(self, request: m.RepairChunk) -> m.RepairAck:
        """Send a piece of a new copy. Raises WouldLoseError and others, see protocol.md."""
        answer = await self.call(request, m.RepairAck, repair_timeout_s)
        if answer.name != request.name:
            raise self.unfit(request, f"the repair of {answer.name[:40]!a}")
        return answer

    async def configure(self, record: StoreRecord) -> int:
        return (await self.call(m.Configure(encode_store_record(record)), m.Configured)).generation

    async def scrub(self, *, begin: bool = False, bytes_per_s: int = 0) -> m.ScrubProgress:
        """Return the progress of the server's scrub; with `begin`, begin a round over everything first."""
        return await self.call(m.ScrubRequest(begin, bytes_per_s), m.ScrubProgress)

    async def ping(self, payload: bytes = b"", timeout_s: float | None = None) -> float:
        begin = trio.current_time()
        answer = await self.call(m.Ping(payload), m.Pong, timeout_s)
        if bytes(answer.payload) != payload:
            raise RemoteProtocolError(f"{self.address} answered PING with different bytes")
        return trio.current_time() - begin


log: Final = logging.getLogger("dos.client")
_DURABILITY_ACK: Final = int(m.Opcode.DURABILITY_ACK)
_ERROR: Final = int(m.Opcode.ERROR)
_quit_timeout_s: Final = 0.2

Feed = Callable[[list[Buffer]], bool]


def _drop(buffers: list[Buffer], count: int) -> None:
    """Remove so many bytes from the front."""
    whole = 0
    for buffer in buffers:
        if count < len(buffer):
            break
        count -= len(buffer)
        whole += 1
    del buffers[:whole]
    if count:
        buffers[0] = memoryview(buffers[0])[count:]


def _no_durability_ack(_: m.DurabilityAck) -> None:
    """Ignore a durability ack: this session appends nothing."""


def _no_refusal(tag: int, error: RefusedError) -> None:
    raise RemoteProtocolError(
        f"the server rejected an append that this session never sent (tag {tag}): {error}"
    )


class _Slot:
    __slots__ = ("event", "message")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.message: Message | None = None


class Connection(Requests):
    """A live session, made by `open_connection`. `feed(buffers)` appends more to send, and returns whether it
    has still more for the next turn. `on_durability_ack`, `on_append_refused(tag, error)`: called in rounds.
    An error of these three ends the session.
    """

    def __init__(self, sock: ClientSocket, rounds: ClientRounds, address: str) -> None:
        self.address = address
        self.welcome: m.Welcome
        self.record: StoreRecord | None = None
        self.feed: Feed | None = None
        self.on_durability_ack: Callable[[m.DurabilityAck], None] = _no_durability_ack
        self.on_append_refused: Callable[[int, RefusedError], None] = _no_refusal
        self.failure: DosError | None = None
        self._sock, self._rounds = sock, rounds
        self._tls = sock if isinstance(sock, EncryptedSocket) else None
        self._decoder = FrameDecoder()
        self._outbox: list[Buffer] = []
        self._unsent: list[Buffer] = []
        """What the socket did not accept yet. Nothing of the outbox or of `feed` is sent before it."""
        self._sent = trio.lowlevel.ParkingLot()
        self._pending: dict[int, _Slot] = {}
        self._owed: set[int] = set()
        self._next_id = 1
        self._broken = trio.Event()
        self._received_at = trio.current_time()
        self._quitting = False
        # tasks that a callback starts belong to the opener of the session
        in_context = copy_context().run
        self._call_ready = partial(in_context, self._ready)  # type: ignore[call-arg] # each call has it
        self._call_read = partial(self._call_ready, readable=True)
        self._call_flush = partial(in_context, self._flush)
        self._readiness = rounds.join()
        self._watch_socket()
        if self._tls is not None and self._tls.holds_input:
            self._readiness.soon(self._call_read)

    @property
    def server_id(self) -> bytes:
        return self.welcome.server_id

    @property
    def awaited(self) -> bool:
        """Return whether a task waits for an answer."""
        return bool(self._pending)

    @property
    def owed(self) -> int:
        """How many answers to abandoned requests are outstanding, without a GET that waits for more bytes."""
        return len(self._owed)

    async def wait_broken(self) -> DosError:
        await self._broken.wait()
        assert self.failure is not None
        return self.failure

    def wake(self) -> None:
        self._rounds.send_soon(self._call_flush)

    def post(self, *buffers: Buffer) -> None:
        """Send buffers after those already posted. Never blocks; the caller limits how much it posts."""
        self._outbox += buffers
        self.wake()

    async def wait_sent(self) -> None:
        """Wait until the kernel has all that was posted, and it is in no memory here, or until the end."""
        while (self._outbox or self._unsent) and self.failure is None:
            await self._sent.park()

    def fail(self, error: DosError) -> None:
        if self.failure is None:
            self.failure = (
                ClosedError(f"the session with {self.address} was closed") if self._quitting else error
            )
            self._broken.set()
            self._sent.unpark_all()
            for slot in self._pending.values():
                slot.event.set()
            self._watch_socket()

    async def request(self, message: Message, timeout_s: float | None = None) -> Message:
        """Send a request and wait for its answer. Raises RefusedError, and BrokenConnectionError if the
        session ends first or the answer takes too long. If cancelled, it may or may not be carried out.
        """
        if self.failure is not None:
            raise fresh_failure(self.failure)
        await trio.lowlevel.checkpoint_if_cancelled()  # the rounds would send it although its caller is gone
        timeout_s = self.answer_timeout_s if timeout_s is None else timeout_s
        request_id, self._next_id = self._next_id, self._next_id + 1
        frame = encode(message, request_id)
        slot = self._pending[request_id] = _Slot()
        head = frame_head(frame)
        self.post(head, frame.payload) if len(frame.payload) else self.post(head)
        try:
            with trio.move_on_after(timeout_s):
                await slot.event.wait()
        finally:
            del self._pending[request_id]
            if slot.message is None and not (isinstance(message, m.Get) and message.wait_ms):
                self._owed.add(request_id)
        if slot.message is None:
            if self.failure is not None:
                raise fresh_failure(self.failure)
            raise BrokenConnectionError(
                f"{self.address} did not answer {type(message).__name__} within {timeout_s:g} s"
            )
        if isinstance(slot.message, m.Error):
            raise refused(slot.message)
        return slot.message

    async def _hello(self, hello: m.Hello) -> None:
        self.welcome = await self.call(hello, m.Welcome, connect_timeout_s)
        if self.welcome.payload_bytes_max < chunk_bytes_max:
            raise RemoteProtocolError(
                f"{self.address} accepts at most {self.welcome.payload_bytes_max} bytes per frame, but this"
                f" client sends {chunk_bytes_max}"
            )
        if self.welcome.store_record:
            self.record = decode_store_record(self.welcome.store_record, f"store record of {self.address}")

    # In rounds

    def _watch_socket(self) -> None:
        """Be called when the socket is ready. A session that failed is not: its socket will be closed."""
        alive = self.failure is None
        writing = alive and bool(self._unsent)
        self._readiness.watch(self._sock, self._call_ready, reading=alive, writing=writing)

    def _ready(self, *, readable: bool) -> None:
        try:
            if self._unsent:
                self._send()
            if readable and self.failure is None:
                self._receive()
        except Exception as error:
            self._end_with(error)

    def _flush(self) -> None:
        try:
            if not self._unsent:  # otherwise the socket reports when it accepts more
                self._send()
        except Exception as error:
            self._end_with(error)

    def _send(self) -> None:
        """Send the rest of an earlier turn, or the posted bytes and one supply of `feed`. More waits for the
        next turn, so that other sessions have theirs.
        """
        if self.failure is not None:
            return
        unsent, more = self._unsent, True
        if not unsent:
            unsent, self._outbox = self._outbox, []
            more = self.feed is not None and self.feed(unsent)
        was_blocked, self._unsent = bool(self._unsent), unsent
        try:
            while unsent:
                _drop(unsent, self._sock.sendmsg(unsent[:send_batch_buffers]))
        except BlockingIOError:
            more = False
        if was_blocked is not bool(unsent):
            self._watch_socket()
        if more:
            self.wake()
        if self._sent and not unsent:
            self._sent.unpark_all()

    def _receive(self) -> None:
        decoder = self._decoder
        try:
            count = self._sock.recv_into(decoder.writable())
        except BlockingIOError:
            return
        if not count:
            raise BrokenConnectionError(f"{self.address} closed the connection")
        self._received_at = trio.current_time()
        decoder.wrote(count)
        while True:
            for ack in decoder.next_acks():
                self.on_durability_ack(m.DurabilityAck(*ack))
            if not decoder.buffered or (frame := decoder.next_frame()) is None:
                break
            self._dispatch(frame)
        if self._tls is not None and self._tls.holds_input:
            self._readiness.soon(self._call_read)

    def _end_with(self, error: Exception) -> None:
        match error:
            case RemoteProtocolError():
                text = str(error.args[0])
                named = text if self.address in text else f"{self.address}: {text}"
                error = RemoteProtocolError(named, code=error.code, request_id=error.request_id)
            case DosError():
                pass
            case OSError():
                error = broken(self.address, error)
            case _:
                log.exception("a bug ends the session with %s", self.address)
                bug = BrokenConnectionError(f"a bug ended the session with {self.address}: {error!r}")
                bug.__cause__, error = error, bug
        self.fail(error)

    def _dispatch(self, frame: Frame) -> None:
        if frame.opcode == _DURABILITY_ACK:
            message = decode(frame)
            assert isinstance(message, m.DurabilityAck)
            self.on_durability_ack(message)
            return
        slot = self._pending.get(frame.request_id)
        if slot is not None:
            slot.message = decode(frame)
            slot.event.set()
            return
        self._owed.discard(frame.request_id)
        if frame.opcode == _ERROR:
            self._refused(frame)
        elif frame.request_id == 0 or frame.request_id >= self._next_id:
            raise RemoteProtocolError(
                f"{self.address} answered request {frame.request_id}, which was never sent"
            )

    def _refused(self, frame: Frame) -> None:
        """Handle an error that no request waits for: of an append, of the session, or of an abandoned
        request.
        """
        message = decode(frame)
        assert isinstance(message, m.Error)
        tag = tag_of(frame.request_id)
        if tag is not None:
            self.on_append_refused(tag, refused(message))
        elif frame.request_id == 0:
            raise refused(message)

    async def _watch(self) -> None:
        while self.failure is None:
            now = trio.current_time()
            silent, due = now - self._received_at, self._received_at + silence_ping_s
            if silent >= silence_broken_s:
                self.fail(BrokenConnectionError(f"{self.address} was silent for {silent:.0f} s"))
            # compare times, not differences: rounding could make a difference too short for ever
            elif now >= due:
                self.post(frame_head(encode(m.Ping(), self._unanswered_id())))
            await trio.sleep_until(due if now < due else now + silence_ping_s)

    def _unanswered_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    async def _quit(self) -> None:
        self._quitting = True
        with trio.move_on_after(_quit_timeout_s):
            try:
                await self.call(m.Quit(), m.Bye, math.inf)
            except DosError as error:
                log.debug("no BYE from %s: %s", self.address, error)


class ServerAccess(NamedTuple):
    """How a client presents itself to each server: its token, and its name for their logs. The fields are
    arguments of `open_connection` and `open_store`.
    """

    token: bytes = b""
    client: str = ""


ANYBODY: Final = ServerAccess()


@asynccontextmanager
async def open_connection(
    address: str,
    *,
    token: bytes = b"",
    store_id: bytes = NO_ID,
    generation: int = 0,
    client: str = "",
) -> AsyncIterator[Connection]:
    """Open a session with the server at `address` (`host:port`), including HELLO. Raises
    BrokenConnectionError, RefusedError. On exit, unacknowledged appends may or may not have happened.
    """
    hello = m.Hello(PROTOCOL_VERSION, current(token), store_id, generation, client)
    failure: Exception | None = None
    with ExitStack() as sockets:
        async with trio.open_nursery() as nursery:
            try:
                connection = await _greeted(address, hello, nursery, sockets)
                try:
                    yield connection
                    if connection.failure is None:
                        await connection._quit()  # noqa: SLF001
                finally:
                    connection.fail(ClosedError(f"the session with {address} was closed"))
            except Exception as error:  # raised below: the nursery would wrap it in an exception group
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _greeted(address: str, hello: m.Hello, nursery: trio.Nursery, sockets: ExitStack) -> Connection:
    """Return a session after its HELLO. Its watch is in the nursery, its socket in `sockets`."""
    deadline = trio.current_time() + connect_timeout_s
    for attempt in count(1):
        try:
            sock, rounds = await dial(address)
            sockets.callback(sock.close)
            connection = Connection(sock, rounds, address)
            nursery.start_soon(connection._watch)  # noqa: SLF001 - it ends with the session
            try:
                await connection._hello(hello)  # noqa: SLF001
            except BaseException:
                connection.fail(ClosedError(f"the session with {address} was closed"))
                raise
        except (TlsBusyError, BusyError):
            pause_s = backoff_s(attempt, runtime().rng.random())
            if trio.current_time() + pause_s > deadline:
                raise
            await trio.sleep(pause_s)
        else:
            return connection
    raise AssertionError("unreachable")


async def dial(address: str) -> tuple[ClientSocket, ClientRounds]:
    """Open a connection. Raises BrokenConnectionError, for example a TlsError."""
    if address.endswith(GONE_SUFFIX):
        raise BrokenConnectionError("its address belongs to the server that replaces it")
    host, port = split_address(address)
    try:
        with trio.fail_after(connect_timeout_s):
            return await connect(host, port)
    except (OSError, trio.TooSlowError) as error:
        raise BrokenConnectionError(
            f"cannot connect to {address}: {_cause_text(error)}",
            remedy="nothing was sent: start a server there, or correct the URL",
        ) from error


async def connect(host: str, port: int) -> tuple[ClientSocket, ClientRounds]:
    return await runtime().connect(host, port)


def _cause_text(error: BaseException) -> str:
    if isinstance(error, trio.TooSlowError):
        return f"no answer within {connect_timeout_s:g} s"
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    reason = cause or error
    if isinstance(reason, OSError) and reason.errno and reason.errno > 0:
        return os.strerror(reason.errno)  # the text of the error would repeat the address
    return str(reason)


def line_of(error: DosError) -> str:
    """Return the text of an error for a list of servers. Of TLS with the remedy, which differs by server."""
    return str(error if isinstance(error, TlsError | TlsRequiredError) else error.args[0])


def broken(address: str, error: OSError) -> BrokenConnectionError:
    broken = BrokenConnectionError(f"the connection to {address} broke: {error}")
    broken.__cause__ = error
    return broken


def fresh_failure(failure: DosError) -> DosError:
    """Return a new exception for one more waiter. RefusedError and TlsError keep their classes."""
    if isinstance(failure, RefusedError):
        return type(failure)(
            str(failure.args[0]), code=ErrorCode(failure.code), actual=failure.actual, record=failure.record
        )
    if isinstance(failure, TlsError):
        return type(failure)(str(failure.args[0]), remedy=failure.remedy)
    fresh = ClosedError(str(failure.args[0])) if isinstance(failure, ClosedError) else None
    fresh_error = fresh or BrokenConnectionError(str(failure.args[0]))
    fresh_error.__cause__ = failure
    return fresh_error
