"""The producer's side of entry points: batches are kept until they are recorded, and sent again to another
entry point if one fails. `EntryLog` has the methods of `InputLog` that a `Producer` uses.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle

import trio

from checkpoint import BatchDecision, LinkHello, judge_batch
from checkpoint.errors import (
    ChannelFrameError,
    ControlMessageError,
    EntryRefusedError,
    HandshakeError,
    InputClosedError,
    LinkClosedError,
)
from checkpoint.link import Link, connect_link
from dataflow import limits
from dataflow.core.entry_messages import (
    Ask,
    BatchRecorded,
    EntryMessage,
    EntryRefusal,
    EntryStatus,
    OpenOrigin,
    OriginOpened,
    SendBatch,
    UnrecordedBatch,
    UnrecordedBatches,
    decode_message,
    link_job,
    link_key,
    message_frame,
    part_frame,
)
from dos_client import backoff_s, randomness
from dos_protocol.arguments import parse_listen
from dos_protocol.errors import BrokenConnectionError, DosError, FencedError, LocalProtocolError, errors_in
from journal import LostBytesError


class OtherEntryPointError(EntryRefusedError):
    """The process at an address is no entry point of this handle, or has another token."""

    remedy = (
        "pass the token of the entry store, and the application and handle that `dos input serve` at this"
        " address names"
    )


class EntryLink:
    """A link to one entry point. Calls raise BrokenConnectionError, LinkClosedError, ChannelFrameError and
    ControlMessageError.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, address: str, application: str, handle: str, token: bytes
    ) -> "AsyncIterator[EntryLink]":
        """Connect to HOST:PORT. Raises BrokenConnectionError; OtherEntryPointError for another handle or
        token.
        """
        host, port = parse_listen(address, "an entry point")
        job = link_job(application, handle)
        hello = LinkHello(role="control", job=job, worker=-1, attempt=0)
        try:
            link = await connect_link(
                host, port, key=link_key(token), hello=hello, timeout_s=limits.entry_silence_s
            )
        except HandshakeError as error:
            if isinstance(error.__cause__, LinkClosedError):  # it ends
                raise BrokenConnectionError(str(error.args[0])) from error
            text = f"{address} does not serve input {handle!r} of application {application!r} for this token"
            raise OtherEntryPointError(f"{text}: {_reason(str(error.args[0]))}") from error
        try:
            yield cls(link)
        finally:
            await link.aclose()

    async def send(self, message: EntryMessage, parts: "list[tuple[int, bytes]] | None" = None) -> None:
        await self._link.send_many([message_frame(message), *(part_frame(data) for _, data in parts or ())])

    async def receive(self) -> EntryMessage:
        return decode_message(await self._link.receive())

    async def ask(self) -> EntryStatus:
        await self.send(Ask())
        answer = await self.receive()
        if not isinstance(answer, EntryStatus):
            raise ControlMessageError(f"expected EntryStatus, got {type(answer).__name__}")
        return answer


def _reason(text: str) -> str:
    """Return why a handshake failed, without the words of a region's links."""
    if "did not prove" in text:
        return "it has another token"
    return "it serves another application or handle" if "this is job" in text else text


logger = logging.getLogger("dos.dataflow")

_MOVES = (
    BrokenConnectionError,
    LinkClosedError,
    ChannelFrameError,
    ControlMessageError,
    OtherEntryPointError,
)
"""Another entry point may serve the producer."""
_ATTEMPTS_TO_WARN = 5
"""After so many entry points that recorded nothing, one warning says why."""


class EntryLog:
    """One producer name, served by entry points. Start `run` in a task; only waits may run concurrently."""

    def __init__(
        self, addresses: tuple[str, ...], token: bytes, application: str, handle: str, producer: str
    ) -> None:
        self._addresses = addresses
        self._token = token
        self._application, self._handle, self._producer = application, handle, producer
        self._session = randomness.fresh_id()
        self._first = True
        self._recorded = 0, 0
        self._unrecorded = UnrecordedBatches()
        self._changed = trio.Event()
        self._failure: DosError | None = None
        self.last = 0
        """The last batch that was sent; it is recorded when `recorded` returns."""
        self.last_mark = b""

    @property
    def last_end(self) -> int:
        """The position after the last batch that is recorded."""
        return self._recorded[1]

    async def append(
        self, parts: list[tuple[int, bytes]], *, number: int, mark: bytes = b""
    ) -> BatchDecision:
        """Send a batch, as `InputLog.append`. Also raises EntryRefusedError for one that no entry point
        accepts.
        """
        decision = judge_batch(number, self.last)
        if decision is BatchDecision.DISCARD:
            return decision
        batch = UnrecordedBatch(parts, mark)
        if batch.bytes > limits.entry_batch_bytes_max:
            raise EntryRefusedError(
                f"a batch for an entry point has at most {limits.entry_batch_bytes_max} bytes,"
                f" got {batch.bytes}",
                remedy="send several smaller batches",
            )
        while self._unrecorded.batches and (
            self._unrecorded.bytes + batch.bytes > limits.entry_batch_bytes_max
        ):
            await self._wait_change()
        self._check()
        self._unrecorded.add(number, batch)
        self.last, self.last_mark = number, mark
        self._change()
        return decision

    async def recorded(self, number: int) -> int:
        """Wait until a majority of the entry store has a batch; return the position after the last such
        batch. Raises as `InputLog.recorded`, and EntryRefusedError if no entry point accepts it.
        """
        if number > self.last:
            raise LocalProtocolError(f"batch {number} was not sent; the last one sent is {self.last}")
        while self._recorded[0] < number:
            await self._wait_change()
        return self._recorded[1]

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_change(self) -> None:
        self._check()
        await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- the link -----------------------------------------------------------------------------------------

    async def run(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Talk to entry points, one after the other, until none can serve this producer.

        task_status: called once the producer is open. Raises before that what refuses it, and
        OtherEntryPointError if no address has an entry point of this handle and token; afterwards the other
        methods raise it.
        """
        attempt, others = 0, set[str]()
        for address in cycle(self._addresses):
            before = self._recorded
            try:
                await self._talk(address, task_status)
            except (DosError, ExceptionGroup) as error:
                found = _first(error)
                is_other = isinstance(found, OtherEntryPointError)
                others = others | {address} if is_other else set()
                if not isinstance(found, _MOVES) or (self._first and others.issuperset(self._addresses)):
                    self._failure = found
                    self._change()
                    if self._first:
                        raise found from None
                    return
                attempt = 0 if self._recorded != before else attempt + 1
                level = logging.WARNING if attempt == _ATTEMPTS_TO_WARN else logging.INFO
                logger.log(level, "producer %s moves from %s: %s", self._producer, address, found)
            await trio.sleep(backoff_s(attempt, randomness.jitter()) if attempt else 0)

    async def _talk(self, address: str, task_status: "trio.TaskStatus[None]") -> None:
        async with EntryLink.opened(address, self._application, self._handle, self._token) as link:
            opening = OpenOrigin(producer=self._producer, session=self._session, first=self._first)
            await link.send(opening)
            opened = None
            with trio.move_on_after(2 * limits.entry_silence_s):
                opened = self._accepted(await link.receive())
            if not isinstance(opened, OriginOpened):
                raise BrokenConnectionError(f"{address} answered {opened}, not OriginOpened")
            self._opened(opened)
            if self._first:
                self._first = False
                task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all, link, opened.batch)
                nursery.start_soon(self._hear_all, link)

    def _accepted(self, message: EntryMessage) -> EntryMessage:
        """Return a message. Raises what a refusal means."""
        if not isinstance(message, EntryRefusal):
            return message
        if message.kind == "closed":
            raise InputClosedError(self._handle)
        if message.kind == "refused":
            raise EntryRefusedError(message.reason, remedy=message.remedy)
        if message.kind == "fenced":
            raise FencedError(message.reason)
        raise BrokenConnectionError(message.reason)

    def _opened(self, opened: OriginOpened) -> None:
        if self._first:
            self.last, self.last_mark = opened.batch, opened.mark
        elif not self._recorded[0] <= opened.batch <= self.last:
            raise LostBytesError(
                f"producer {self._producer!r} sent batches up to {self.last}, of which {self._recorded[0]}"
                f" were recorded, and the entry store has {opened.batch}"
            )
        self._note_recorded(opened.batch, opened.position)

    def _note_recorded(self, batch: int, position: int) -> None:
        self._recorded = batch, position
        self._unrecorded.recorded(batch)
        self._change()

    async def _send_all(self, link: EntryLink, sent: int) -> None:
        while True:
            number = self._unrecorded.after(sent)
            if number is None:
                await self._changed.wait()
                continue
            batch = self._unrecorded.batches[number]
            rows = tuple(count for count, _ in batch.parts)
            await link.send(SendBatch(batch=number, mark=batch.mark, rows=rows), batch.parts)
            sent = number

    async def _hear_all(self, link: EntryLink) -> None:
        while True:
            waiting = min(self._unrecorded.batches, default=None)
            with trio.move_on_after(limits.entry_silence_s) as waited:
                message = self._accepted(await link.receive())
                if not isinstance(message, BatchRecorded):
                    raise ControlMessageError(f"expected BatchRecorded, got {type(message).__name__}")
                self._note_recorded(message.batch, message.position)
            if waited.cancelled_caught and waiting in self._unrecorded.batches:
                raise BrokenConnectionError(
                    f"batch {waiting} is not recorded after {limits.entry_silence_s:g} s"
                )


def _first(error: Exception) -> DosError:
    """Return the error, or the first one of a group. Raises one that is a bug."""
    found = errors_in(error)[0]
    if not isinstance(found, DosError):
        raise found
    return found
