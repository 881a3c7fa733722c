"""An entry point: the process at a site that producers connect to. It talks to producers and to its peers.

A batch is given its time, appended, and acknowledged once a majority of the entry store has it. Whatever goes
wrong with an origin closes the link of its producer, which sends again elsewhere what was not acknowledged.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import trio

from checkpoint import (
    INPUT_CHAIN,
    AttendedOrigins,
    ClockCheck,
    EntryOrigins,
    EntrySettings,
    OriginMark,
    OriginTime,
    checked_settings,
    floor_of_new_origin,
    input_register,
    may_stamp,
    producer_directory,
    with_entry,
)
from checkpoint import limits as checkpoint_limits
from checkpoint.chains.consumer_register import change_register, settled_register
from checkpoint.chains.input_log import InputLog, last_recorded
from checkpoint.chains.manifest_log import StoreHost
from checkpoint.errors import (
    ChannelFrameError,
    ControlMessageError,
    EntryRefusedError,
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
from dataflow.entry.sending import EntryLink
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.event_time import check_time_column, times_of
from dataflow.producing import arrow_stream
from dataflow.schema import parse_schema
from dos_client import QuorumUnavailableError, Store, StoreNotReadyError, randomness
from dos_protocol.errors import BrokenConnectionError, ClosedError, DosError, FencedError
from journal import NotEnoughAnswersError, UnsettledStateError, size_seen

# --- the times of rows --------------------------------------------------------------------------------------


class TimedBatch(NamedTuple):
    """A batch as it is recorded. time_us: given to its rows, 0 if they had times. late: stream of the late
    rows.
    """

    parts: list[tuple[int, bytes]]
    time_us: int
    late: bytes


def timed_batch(
    parts: Sequence[tuple[int, bytes]], settings: EntrySettings, origin: OriginTime, now_us: int
) -> TimedBatch:
    """Return a batch with its times. `origin` counts it as recorded, so it must be appended next.

    Raises EntryRefusedError if the rows do not fit the settings; `origin` is unchanged then.
    """
    tables = [_read(data) for _, data in parts]
    if settings.lateness_us is None:
        if any(settings.time in table.column_names for table in tables):
            raise EntryRefusedError(
                f"the entry points give rows their times, and these have a column {settings.time!r} already",
                remedy="send rows without it, or serve another handle with --lateness",
            )
        time_us = origin.stamp(now_us)
        return TimedBatch([_stamped(table, settings.time, time_us) for table in tables], time_us, b"")
    found = [_divided(table, settings.time, origin) for table in tables]
    late = [rows for _, rows in found if rows.num_rows]
    if not late:
        return TimedBatch(list(parts), 0, b"")
    left = [(table.num_rows, arrow_stream(table)) for table, _ in found]
    return TimedBatch(left, 0, arrow_stream(pa.concat_tables(late)))


def _read(data: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise EntryRefusedError(f"a part of a batch is not an Arrow stream: {error}") from error


def _stamped(table: pa.Table, column: str, time_us: int) -> tuple[int, bytes]:
    field = parse_schema(f"{column} timestamp").field(0)
    times = pa.array(np.full(table.num_rows, time_us, dtype=np.int64)).cast(field.type)
    return table.num_rows, arrow_stream(table.add_column(0, field, times))


def _divided(table: pa.Table, column: str, origin: OriginTime) -> tuple[pa.Table, pa.Table]:
    try:
        check_time_column(column, table.schema)
        times = times_of(table.column(column).combine_chunks(), column)
    except (SchemaError, UserFault) as error:
        raise EntryRefusedError(f"these rows have no times: {error.args[0]}") from error
    late = pa.array(np.asarray(origin.is_late(times)))
    return table.filter(pa.compute.invert(late)), table.filter(late)


# --- origins ------------------------------------------------------------------------------------------------
#
# The origins that one entry point serves: their claims, their marks, and those that nobody else marks.
#
# `checkpoint/core/entry.py` decides; `Origins` reads the store and performs.
#
# 1. Claiming an origin fences the entry point that served it. What was recorded is found in its chain, and
#    time continues above it.
# 2. A task of each origin marks it, also without rows, as long as this clock is good.
# 3. Another task reads the list of origins, and claims those whose chains do not grow.


class EntryClock:
    """This machine's clock (wall_ns: nanoseconds since 1970), and how far it is from those of the peers."""

    def __init__(self, peers: Sequence[str], error_max_us: int, wall_ns: Callable[[], int]) -> None:
        self.check = ClockCheck(peers, error_max_us)
        self._wall_ns = wall_ns

    def now_us(self) -> int:
        return self._wall_ns() // 1000

    def is_good(self) -> bool:
        """Return whether this clock may give times."""
        return self.check.is_good(self.now_us(), trio.current_time())

    def errors(self) -> dict[str, tuple[int, int]]:
        """Return peer -> (offset, bound) in microseconds."""
        found = self.check.errors(self.now_us(), trio.current_time())
        return {peer: (error.offset_us, error.bound_us) for peer, error in found.items()}


class ServedOrigin:
    """One origin that is claimed here."""

    # The lock is held from giving a time, or a mark, to its place in the chain: else the chain had another
    # order.
    def __init__(self, name: str, log: InputLog, time: OriginTime) -> None:
        self.name, self.log, self.time = name, log, time
        self.lock = trio.Lock()
        self.producer: trio.CancelScope | None = None
        """Its producer's connection, if there is one."""
        self.older: dict[int, OriginMark] = {}
        """For a new origin: number -> a committed mark of an older origin that knows the new one."""


class Origins:
    """The origins of a handle, and those of them that are served here. Create it with `open`."""

    def __init__(
        self,
        store: Store,
        application: str,
        handle: str,
        clock: EntryClock,
        listed: EntryOrigins,
        nursery: trio.Nursery,
    ) -> None:
        self._store, self._application, self._handle = store, application, handle
        self._clock = clock
        self._nursery = nursery
        self._listed = listed
        self._watch = AttendedOrigins()
        self._claiming: dict[str, trio.Lock] = {}
        self._marks: dict[str, int] = {}
        """Origin -> its newest mark, as far as this entry point has heard."""
        self._read_at: dict[str, float] = {}
        self.served: dict[str, ServedOrigin] = {}

    @classmethod
    async def open(
        cls,
        store: Store,
        application: str,
        handle: str,
        clock: EntryClock,
        settings: EntrySettings | None,
        nursery: trio.Nursery,
    ) -> "Origins":
        """Record the settings of a new handle, or check them. Raises EntryRefusedError if they differ."""
        place = input_register(application, handle)
        known = (await settled_register(store, place)).entry
        listed = checked_settings(known, settings)
        if known is None:
            changed = await change_register(
                StoreHost(store),
                place,
                lambda register: with_entry(register, checked_settings(register.entry, settings)),
            )
            assert changed.entry is not None
            listed = changed.entry
        return cls(store, application, handle, clock, listed, nursery)

    @property
    def settings(self) -> EntrySettings:
        return self._listed.settings

    # --- claims -------------------------------------------------------------------------------------------

    async def claim(self, name: str, *, session: bytes = b"") -> ServedOrigin:
        """Serve an origin from now on, and mark it. session: of a producer program that opens the name, which
        is recorded with the mark. Raises BadNameError, EntryRefusedError, InputClosedError,
        NotEnoughAnswersError (a new origin needs every member of the entry store). Waits without a quorum.
        """
        async with self._claiming.setdefault(name, trio.Lock()):
            await self.drop(name)
            log = await InputLog.open(self._store, self._application, self._handle, name)
            if not self._listed.number(name):
                # After its chain is there, which needs every member: the marks of all others wait for a
                # registered origin, which can be served with a majority then.
                await self._register(name, log)
            if session:
                log.last_mark = session + log.last_mark[len(session) :]
            time = OriginTime(self.settings, self._listed.number(name), log.origin_mark, log.last_time)
            served = self.served[name] = ServedOrigin(name, log, time)
            try:
                if time.begun:
                    await self.mark(served, restated=True)
            except BaseException:
                await self.drop(name)
                raise
            self._nursery.start_soon(self._keep_marked, served)
            return served

    async def _register(self, name: str, log: InputLog) -> None:
        try:
            changed = await change_register(
                StoreHost(self._store),
                input_register(self._application, self._handle),
                lambda register: with_entry(
                    register, checked_settings(register.entry, self.settings).with_origin(name)
                ),
            )
        except BaseException:
            with trio.CancelScope(shield=True):
                await log.aclose()
            raise
        assert changed.entry is not None
        self._listed = changed.entry

    async def drop(self, name: str) -> None:
        """Serve an origin no more: its producer moves, and another entry point claims it."""
        served = self.served.pop(name, None)
        if served is not None:
            if served.producer is not None:
                served.producer.cancel()
            with trio.CancelScope(shield=True):
                await served.log.aclose()

    async def drop_all(self) -> None:
        """Serve nothing more."""
        for name in list(self.served):
            await self.drop(name)

    # --- marks --------------------------------------------------------------------------------------------

    async def mark(self, served: ServedOrigin, *, restated: bool = False) -> None:
        """Append the mark that is due, if one is. Raises FencedError, ClosedError."""
        if not self._clock.is_good():
            return
        async with served.lock:
            if not served.time.begun:
                floor = await self._floor(served)
                if floor is None:
                    return
                served.time.begin(floor)
                restated = True
            now = self._clock.now_us()
            mark = served.time.next_mark(now, version=self._listed.version, restated=restated)
            if mark is not None:
                await served.log.append_mark(mark)
                self.heard({served.name: mark.mark})

    async def _floor(self, new: ServedOrigin) -> int | None:
        """Return the time above which a new origin begins, from what is committed of the older ones."""
        for number, name in enumerate(self._listed.origins[: new.time.number - 1], 1):
            if number not in new.older:
                mark = (await last_recorded(self._store, self._application, self._handle, name)).newest_mark
                if mark is not None and mark.version >= new.time.number:
                    new.older[number] = mark
        return floor_of_new_origin(new.time.number, new.older)

    async def _keep_marked(self, served: ServedOrigin) -> None:
        try:
            while self.served.get(served.name) is served:
                try:
                    await self.mark(served)
                except (FencedError, ClosedError):
                    raise
                except DosError as error:  # an older origin cannot be read now
                    logger.info("origin %s waits: %s", served.name, error)
                await trio.sleep(self._pause_s(served))
        except (FencedError, ClosedError):
            logger.info("origin %s is served elsewhere", served.name)
            if self.served.get(served.name) is served:
                await self.drop(served.name)

    def _pause_s(self, served: ServedOrigin) -> float:
        if not served.time.begun:
            return limits.entry_poll_s / 5
        every = self.settings.marks_every_us
        elapsed = (self._clock.now_us() - (self.settings.lateness_us or 0)) % every
        return min((every - elapsed) / 1e6 + 0.001, limits.entry_poll_s)

    def heard(self, marks: Mapping[str, int]) -> None:
        """Note marks that this entry point gave, or heard of."""
        for name, mark in marks.items():
            self._marks[name] = max(mark, self._marks.get(name, 0))

    def may_stamp(self, served: ServedOrigin) -> bool:
        """Return whether rows of an origin may get times now."""
        if not served.time.begun or not self._clock.is_good():
            return False
        known = {name: mark for name, mark in self._marks.items() if mark}
        return may_stamp(self._clock.now_us(), known, self._listed.origins)

    # --- unattended origins -------------------------------------------------------------------------------

    async def watch_all(self) -> None:
        """Read the list at intervals; claim origins that nobody marks. Raises InputClosedError."""
        while True:
            try:
                await self._watch_once()
            except InputClosedError:
                raise
            except DosError as error:  # too few members answer now
                logger.info("the origins of %s cannot be watched now: %s", self._handle, error)
            # Not all at once: of entry points that find the same origin, the first one marks it.
            await trio.sleep(limits.entry_poll_s * (0.5 + randomness.jitter()))

    async def _watch_once(self) -> None:
        entry = (await settled_register(self._store, input_register(self._application, self._handle))).entry
        if entry is not None and entry.version >= self._listed.version:
            self._listed = entry
        if not self._clock.is_good():
            await self.drop_all()  # their producers move, and other entry points mark them
            return
        for name in self._listed.origins:
            if name in self.served:
                self._watch.forget(name)
                continue
            directory = producer_directory(self._application, self._handle, name)
            size = await size_seen(self._store, directory, INPUT_CHAIN)
            self._watch.saw(name, size, trio.current_time())
            await self._read_mark(name)
        for name in self._watch.unattended(trio.current_time()):
            self._watch.forget(name)
            if name not in self.served:
                logger.info("origin %s is unattended and claimed", name)
                await self.claim(name)

    async def _read_mark(self, name: str) -> None:
        """Read the mark of an origin from the store, if no peer has reported it for long."""
        now_s, old = trio.current_time(), self._clock.now_us() - checkpoint_limits.entry_horizon_us // 2
        if self._marks.get(name, 0) < old and now_s >= self._read_at.get(name, now_s):
            self._read_at[name] = now_s + limits.entry_read_marks_s
            with suppress(DosError):
                line = await last_recorded(self._store, self._application, self._handle, name)
                self.heard({name: 0 if line.newest_mark is None else line.newest_mark.mark})


# --- the entry point ----------------------------------------------------------------------------------------

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
"""Another entry point may record the batch, or this one a moment later."""


class EntryOptions(NamedTuple):
    """How an entry point serves. peers: HOST:PORT of the others. settings: of a new handle; None: as
    recorded. token: of producers and peers. wall_ns: the clock.
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
