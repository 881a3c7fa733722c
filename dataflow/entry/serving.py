"""An entry point: the process at a site that producers connect to. It talks to producers and to its peers.

`origins.py` claims and marks. A batch is given its time, appended, and acknowledged once a majority of the
entry store has it. Whatever goes wrong with an origin closes the link of its producer, which connects to
another entry point and sends again what was not acknowledged.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import trio

from checkpoint import EntrySettings
from checkpoint import limits as checkpoint_limits
from checkpoint.errors import (
    ChannelFrameError,
    ControlMessageError,
    InputClosedError,
    LinkClosedError,
    RegisterUnsettledError,
)
from checkpoint.link import Link, serve_links
from checkpoint.runtime import runtime
from dataflow import limits
from dataflow.core.entry_messages import (
    SESSION_BYTES,
    Ask,
    BatchRecorded,
    EntryRefusal,
    EntryStatus,
    OpenOrigin,
    OriginOpened,
    SendBatch,
    decode_message,
    link_job,
    link_key,
    message_frame,
)
from dataflow.entry.asking import EntryLink
from dataflow.entry.origins import EntryClock, Origins, ServedOrigin
from dataflow.entry.row_times import timed_batch
from dos_client import QuorumUnavailableError, Store, StoreNotReadyError
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError, FencedError
from journal import NotEnoughAnswersError, UnsettledStateError

logger = logging.getLogger("dos.dataflow")

_LINK_ENDS = (BrokenConnectionError, LinkClosedError, ClosedError)
_MOVES = (
    *_LINK_ENDS,
    FencedError,
    NotEnoughAnswersError,
    QuorumUnavailableError,
    RegisterUnsettledError,
    StoreNotReadyError,
    UnsettledStateError,
)
"""Another entry point may record the batch, or this one a moment later: too few servers of the entry store
answer here now, or another process changes what is read.
"""


class EntryOptions(NamedTuple):
    """How an entry point serves. peers: HOST:PORT of the other entry points. settings: of a new handle; None:
    those that are recorded. token: producers and peers must have the same. wall_ns: the clock.
    """

    site: str
    peers: Sequence[str] = ()
    settings: EntrySettings | None = None
    token: bytes = b""
    clock_error_max_us: int = checkpoint_limits.entry_clock_error_max_us
    wall_ns: Callable[[], int] | None = None


async def serve_entry(
    store: Store,
    application: str,
    handle: str,
    options: EntryOptions,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    task_status: "trio.TaskStatus[EntryPoint]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an input handle in an entry store until cancelled. task_status: gets the entry point.

    Raises EntryRefusedError if the handle is served with other settings; InputClosedError once it is closed;
    BrokenConnectionError if the port is not free. What was acknowledged is recorded.
    """
    clock = EntryClock(options.peers, options.clock_error_max_us, options.wall_ns or runtime().wall_time_ns)
    async with trio.open_nursery() as nursery:
        origins = await Origins.open(store, application, handle, clock, options.settings, nursery)
        point = EntryPoint(options, origins, clock, application, handle)
        links = partial(
            serve_links,
            point.serve,
            job=link_job(application, handle),
            key=link_key(options.token),
            host=host,
            ports=(port,),
        )
        point.address = await nursery.start(links)
        for peer in options.peers:
            nursery.start_soon(point.compare_clocks, peer)
        nursery.start_soon(origins.watch_all)
        task_status.started(point)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await origins.drop_all()


class EntryPoint:
    """One entry point. `serve_entry` creates it."""

    def __init__(
        self, options: EntryOptions, origins: Origins, clock: EntryClock, application: str, handle: str
    ) -> None:
        self.address = ("", 0)
        self.recorded_rows = 0
        """Rows that were recorded here."""
        self._options = options
        self._origins = origins
        self._clock = clock
        self._application, self._handle = application, handle

    def status(self) -> EntryStatus:
        """Return what it serves now, and how far its clock is from those of the peers."""
        served = self._origins.served
        return EntryStatus(
            site=self._options.site,
            now_us=self._clock.now_us(),
            is_good=self._clock.is_good(),
            errors=self._clock.errors(),
            marks={name: one.time.mark if one.time.begun else 0 for name, one in served.items()},
            attended=tuple(sorted(name for name, one in served.items() if one.producer is not None)),
        )

    async def compare_clocks(self, peer: str) -> None:
        """Ask a peer for its clock and its marks, at intervals."""
        while True:
            with suppress(DosError, trio.TooSlowError):
                async with EntryLink.opened(
                    peer, self._application, self._handle, self._options.token
                ) as link:
                    while True:
                        sent_s = trio.current_time()
                        with trio.fail_after(limits.entry_silence_s):
                            status = await link.ask()
                        self._clock.check.measured(
                            peer, sent_s=sent_s, received_s=trio.current_time(), peer_us=status.now_us
                        )
                        self._origins.heard(status.marks)
                        await trio.sleep(limits.entry_ask_s)
            await trio.sleep(limits.entry_ask_s)

    async def serve(self, link: Link) -> None:
        """Serve one link of a producer, a peer, or a person who asks."""
        try:
            while True:
                message = decode_message(await link.receive())
                if isinstance(message, Ask):
                    await link.send(message_frame(self.status()))
                elif isinstance(message, OpenOrigin):
                    await self._serve_producer(link, message)
                    return
                else:
                    raise ControlMessageError(f"{type(message).__name__} before OpenOrigin")
        except _LINK_ENDS:
            return
        except (ControlMessageError, ChannelFrameError) as error:
            logger.warning("a link is closed: %s", error)

    async def _serve_producer(self, link: Link, opening: OpenOrigin) -> None:
        try:
            refusal = await self._open_and_record(link, opening)
        except DosError as error:
            if isinstance(error, _LINK_ENDS) and not isinstance(error, ClosedError):
                return
            refusal = refusal_of(error)
        with suppress(*_LINK_ENDS):
            await link.send(message_frame(refusal))

    async def _open_and_record(self, link: Link, opening: OpenOrigin) -> EntryRefusal:
        if not self._clock.is_good():
            return self._clock_refusal()
        session = opening.session
        served = await self._origins.claim(opening.producer, session=session if opening.first else b"")
        log, owner = served.log, served.log.last_mark[:SESSION_BYTES]
        if owner and owner != session:
            text = f"producer {opening.producer!r} was opened again by another program, which writes now"
            return EntryRefusal(kind="fenced", reason=text)
        log.last_mark = log.last_mark or session
        await log.all_synced()  # so that a program that was fenced now stays so
        opened = OriginOpened(batch=log.last, mark=log.last_mark[SESSION_BYTES:], position=log.last_end)
        await link.send(message_frame(opened))
        refusals: list[EntryRefusal] = []
        with trio.CancelScope() as served.producer:
            refusals.append(await self._record_all(link, served, session))
        served.producer = None
        if refusals:
            return refusals[0]
        if not self._clock.is_good():
            return self._clock_refusal()
        return EntryRefusal(kind="moves", reason=f"producer {served.name!r} is served elsewhere")

    def _clock_refusal(self) -> EntryRefusal:
        bound = self._options.clock_error_max_us / 1e6
        return EntryRefusal(
            kind="moves",
            reason=f"the clock of entry point {self._options.site} is not known to be within {bound:g} s of a"
            f" majority of all clocks: {self._clock.errors()}",
        )

    async def _record_all(self, link: Link, served: ServedOrigin, session: bytes) -> EntryRefusal:
        """Record what a producer sends. Return why the link ends."""
        sent, appended = trio.open_memory_channel[tuple[int, int]](checkpoint_limits.consumers_max)
        refusals: list[EntryRefusal] = []

        async def until_refused(run: Callable[[], Awaitable[EntryRefusal]]) -> None:
            try:
                refusals.append(await run())
            except DosError as error:
                refusals.append(refusal_of(error))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_refused, partial(self._append_all, link, served, session, sent))
            nursery.start_soon(until_refused, partial(self._acknowledge_all, link, served, appended))
        return refusals[0]

    async def _append_all(
        self,
        link: Link,
        served: ServedOrigin,
        session: bytes,
        sent: "trio.MemorySendChannel[tuple[int, int]]",
    ) -> EntryRefusal:
        while True:
            message = decode_message(await link.receive())
            if not isinstance(message, SendBatch):
                raise ControlMessageError(f"{type(message).__name__} on the link of a producer")
            parts = [(rows, bytes((await link.receive()).payload)) for rows in message.rows]
            while not self._origins.may_stamp(served):
                if not self._clock.is_good():
                    return self._clock_refusal()
                await trio.sleep(limits.entry_wait_s)
            async with served.lock:
                if message.batch == served.log.last + 1:
                    timed = timed_batch(parts, self._origins.settings, served.time, self._clock.now_us())
                    await served.log.append(
                        timed.parts,
                        number=message.batch,
                        mark=session + message.mark,
                        time_us=timed.time_us,
                        late=timed.late,
                    )
                else:  # recorded before, or one that leaves a gap
                    await served.log.append([], number=message.batch)
            await sent.send((message.batch, sum(message.rows)))

    async def _acknowledge_all(
        self, link: Link, served: ServedOrigin, appended: "trio.MemoryReceiveChannel[tuple[int, int]]"
    ) -> EntryRefusal:
        async for batch, rows in appended:
            position = await served.log.recorded(batch)
            self.recorded_rows += rows
            await link.send(message_frame(BatchRecorded(batch=batch, position=position)))
        raise ClosedError("the producer's batches have ended")


def refusal_of(error: DosError) -> EntryRefusal:
    """Return the refusal that a producer receives for an error."""
    text = str(error.args[0]) if error.args else str(error)
    if isinstance(error, InputClosedError):
        return EntryRefusal(kind="closed", reason=text)
    if isinstance(error, _MOVES):
        return EntryRefusal(kind="moves", reason=text)
    return EntryRefusal(kind="refused", reason=text, remedy=error.remedy)
