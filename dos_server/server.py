"""The server's shell: performs the effects that the core requests, with trio.

Effects are performed in the order in which the core returns them; each result is fed back as an event.
Writes go to the page cache from the event loop while the disk is fast: a write is a memory copy, and the
payload is still in its receive buffer (`writes`, docs/decisions/0001). Syncs, claims, loads and reads run in
threads with a limit per kind.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from dos_protocol import messages as m
from dos_protocol.errors import VERDICTS, RemoteProtocolError
from dos_protocol.frames import IS_TLS, Frame
from dos_server.accepting import ConnectionGate
from dos_server.audit import note_audit
from dos_server.buffers import BufferAccount, OutgoingAccount
from dos_server.connection import ServerConnection
from dos_server.core import vocabulary as v
from dos_server.core.access import Tokens
from dos_server.core.requests import version0_wire as wire0
from dos_server.core.requests.scrub import NO_SCRUB, ScrubPlan
from dos_server.core_start import start_core
from dos_server.disk_effects import DiskEffects
from dos_server.figures import ServerFigures
from dos_server.limits import space_check_seconds, sync_threads_max
from dos_server.log_thread import LogThread
from dos_server.owner import Resumable
from dos_server.paced_reads import PacedReads
from dos_server.ports import OPERATING_SYSTEM, Listener, Ports, Socket, Workers
from dos_server.scrubber import Scrubber
from dos_server.storage import Storage
from dos_server.tls_sockets import TlsPeers
from dos_server.turns import OncePerRound, Turns
from dos_server.watched_files import WatchedQuotas, WatchedTokens
from dos_server.writes import Writes
from dos_tls import LogLimit, ServerContext, TlsError, TlsTruncatedError

logger = logging.getLogger("dos.server")

_TICK_SECONDS: Final = 0.05
_HOUSEKEEPING_SECONDS: Final = 0.25
_EVENT_BATCH: Final = v.BatchEnded()
_LOG_DUE: Final = v.LogDue()
_LOG: Final = ("", "log")
"""The log among the objects whose syncs show that the disk is slow."""


class ObjectServer:
    """One server on one data directory. It runs in `serve`, until that is cancelled."""

    def __init__(
        self,
        storage: Storage,
        *,
        token: bytes = b"",
        tokens: WatchedTokens | None = None,
        quotas: WatchedQuotas | None = None,
        figures: ServerFigures | None = None,
        version0: bool = True,
        reserve_bytes: int | None = None,
        scrub: ScrubPlan = NO_SCRUB,
        ports: Ports = OPERATING_SYSTEM,
        log_bytes: int = 0,
        tls: ServerContext | None = None,
    ) -> None:
        """Read the identity and the store record, or create an identity. Raises CorruptDataError.
        `reserve_bytes`: disk space that appends must leave free; None: the default for the size of the disk.
        `log_bytes`: size of the group log; 0: every object is synced in its own file. `token`: clients must
        send it; `tokens`: or one of these. `quotas`: None: off. `figures`: count what the server does.
        `tls`: None for plain text.
        """
        self._storage, self._ports, self._now = storage, ports, ports.monotonic
        self.server_id, self._core = start_core(
            storage,
            ports,
            log_bytes,
            quotas.settings if quotas is not None else None,
            tokens=tokens.settings if tokens is not None else Tokens.single(token) if token else None,
            version0=version0,
            reserve_bytes=reserve_bytes,
            scrub=scrub,
        )
        self._tokens, self._quotas = tokens, quotas
        self._connections: dict[int, ServerConnection] = {}
        self._warnings = LogLimit()
        self._tls = None if tls is None else TlsPeers(tls)
        self.gone, self._last_session, self._batch_is_open = "", 0, False
        self.rounds_ended = 0
        self._tick_wanted = trio.Event()
        self._stalled: dict[Resumable, None] = {}  # in the order in which they stalled
        self._to_flush: dict[int, ServerConnection] = {}
        self.readiness = ports.rounds()
        self.turns = Turns(ports.monotonic, self.readiness)
        self._retry_soon = OncePerRound(self.readiness, self._retry_waiting)
        self.buffers, self.outgoing = BufferAccount(), OutgoingAccount()
        self._sync_threads: Workers[v.Sync] = ports.workers(
            lambda effect: v.Synced(effect.directory, effect.name, storage.sync(effect)),
            self._sync_ended,
            self.readiness,
            sync_threads_max,
        )
        self._writes = Writes(storage, self._done, self.readiness, ports)
        self._log_thread = LogThread(storage, ports, self.readiness, self._log_synced, self._halt)
        self._effects = DiskEffects(storage, ports, self.readiness, self._done, self._connections)
        self._reads = PacedReads(storage, self._connections, self.outgoing, self.readiness, self._done, ports)
        self._scrubber, self._scrub = Scrubber(storage, self._feed, self._is_busy, ports), scrub
        self._perform: dict[type[Any], Callable[[Any], v.Event | None]] = {
            v.Send: self._send,
            v.CloseSession: self._close_session,
            v.ForgetDirectory: lambda one: storage.forget(one.directory),
            v.Write: self._writes.write,
            v.Sync: self._sync_threads.submit,
            v.WriteLog: self._write_log,
            v.Halt: lambda one: self._halt(one.reason),
            v.SetMark: lambda one: storage.set_mark(*one),
            v.ReadData: self._reads.submit,
            v.SendBytes: self._send_bytes,
            v.LogReason: lambda one: self._log_end(*one),
            v.Audit: self._audit,
            **self._effects.performs,
            **self._scrubber.performs,
        }
        self._figures = figures
        if figures is not None:
            self._perform, storage.timing = figures.count(self._perform), figures.syncs.timing

    async def serve(self, listener: Listener) -> None:
        """Accept and serve until cancelled; then wait for the disk threads, sync and close the files.

        Returns early if the data directory is removed or moved meanwhile; `gone` then holds the reason.
        Closes the listener on exit. Raises no errors of peers or of the disk.
        """
        listener.setblocking(False)  # noqa: FBT003
        self._storage.yield_to_loop = self.readiness.yield_to_loop
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.readiness.run, self._round_ended)
                nursery.start_soon(self._ticker)
                if self._scrub.bytes_per_s:
                    self._scrubber.begin(nursery, self._scrub.first_seconds)
                nursery.start_soon(self._housekeeper)
                for file, event in ((self._tokens, v.TokensChanged), (self._quotas, v.QuotasChanged)):
                    if file is not None:
                        nursery.start_soon(
                            file.watch, self._ports, lambda now, event=event: self._feed(event(now))
                        )
                await self._measure_space()
                self._served = nursery.cancel_scope
                nursery.start_soon(self._space_watcher)
                begin = partial(self._begin_connection, nursery)
                gate = ConnectionGate(self._connections, begin, self._tls, self._warn)
                await gate.run(listener, self.readiness)
        finally:
            listener.close()
            with trio.CancelScope(shield=True):  # a disk thread cannot be interrupted, and uses the files
                await self._ports.in_thread(self._join_threads)
            self.readiness.close()
            self._storage.stop()

    # Connections

    def _begin_connection(self, nursery: trio.Nursery, sock: Socket) -> None:
        self._last_session += 1
        connection = ServerConnection(self._last_session, sock, self)
        self._connections[connection.session] = connection
        nursery.start_soon(self._run_connection, connection)

    async def _run_connection(self, connection: ServerConnection) -> None:
        self._feed(v.Connected(connection.session, connection.host))
        try:
            await connection.run()
        finally:
            del self._connections[connection.session]
            self._feed(v.ConnectionEnded(connection.session))

    def received(self, session: int, frame: Frame) -> None:
        self._batch_is_open = True
        self._feed_one(v.Received(session, frame))

    def received_appends(self, session: int, frames: list[Frame]) -> None:
        self._batch_is_open = True
        self._feed_one(v.ReceivedAppends(session, frames))

    def requested(self, session: int, body: bytes) -> None:
        self._feed(v.Requested(session, body))

    def streamed(self, session: int, data: memoryview) -> None:
        self._feed(v.Streamed(session, data))

    def half_closed(self, session: int) -> None:
        self._feed(v.HalfClosed(session))

    def stalled(self, connection: Resumable) -> None:
        self._stalled[connection] = None

    def has_sent(self, session: int) -> None:
        if session in self._reads.waiting:
            self._retry_soon.submit()

    def bad_frame(self, session: int, error: RemoteProtocolError) -> None:
        """Send the error and close the connection: the bytes after a bad frame cannot be framed."""
        connection = self._connections[session]
        text = str(error.args[0])
        tls = f"{connection.peer} uses TLS, but this server does not ({text}); closed"
        if not (text.endswith(IS_TLS) and self._warn(IS_TLS, tls)):
            self._log_end(session, text)
        verdict = VERDICTS[error.code]
        message = m.Error(int(error.code), str(error.args[0]), verdict.remedy)
        connection.send(m.encode(message, error.request_id))
        connection.flush()
        connection.close()

    def bad_request(self, session: int, error: wire0.RequestTooLongError) -> None:
        """Do the same as `bad_frame`, for version 0."""
        self._log_end(session, str(error))
        connection = self._connections[session]
        connection.send_bytes(wire0.reply(f"ERROR: {error}".encode("ascii")))
        connection.flush()
        connection.close()

    def tls_failed(self, error: TlsError) -> None:
        if not isinstance(error, TlsTruncatedError):  # a client that is gone
            self._warn(type(error).__name__, f"TLS: {error.args[0]}; closed")

    def may_read(self, session: int) -> bool:
        return not self._writes.full and self._core.may_read(session)

    def may_answer(self, session: int, request: Frame | bytes) -> bool:
        pressed = self.outgoing.full or self._core.opens_many
        return not pressed or not self._core.answers_long(session, request)

    def is_streaming(self, session: int) -> bool:
        return self._core.is_streaming(session)

    def is_welcome(self, session: int) -> bool:
        return self._core.is_welcome(session)

    def _warn(self, kind: str, line: str) -> bool:
        """Log a warning about peers, at most one of each kind within some seconds. Return whether it was."""
        text = self._warnings.text(kind, line, self._now())
        if text is not None:
            logger.warning("%s", text)
        return text is not None

    def _log_end(self, session: int, why: str) -> None:
        """Log why a connection is closed because of its input. The text contains no raw bytes of the peer."""
        connection = self._connections.get(session)
        logger.info("session %d of %s: %s; closed", session, connection.peer if connection else "?", why)

    def _audit(self, effect: v.Audit) -> None:
        connection = self._connections.get(effect.session)
        note_audit(connection.peer if connection else "this server", effect.token, effect.action)

    # The loop of events and effects

    def _round_ended(self) -> None:
        """End the batch: everything that was ready on all connections has been taken in."""
        if self._batch_is_open:
            self._batch_is_open = False
            self._feed(_EVENT_BATCH)
        self.rounds_ended += 1
        self.turns.round_ended()

    def _feed(self, event: v.Event) -> None:
        """Pass an event to the core, perform its effects, begin due syncs, and flush connections."""
        self._feed_one(event)
        if self._core.log_is_due:
            self._feed_one(_LOG_DUE)
        self._begin_syncs()
        flush, self._to_flush = self._to_flush, {}
        for connection in flush.values():
            connection.flush()
        if self._reads.waiting or self._stalled:
            self._retry_soon.submit()
        if self._core.wants_tick():
            self._tick_wanted.set()

    def _retry_waiting(self) -> None:
        """Retry waiting reads and stalled connections, once per round: there may be a thousand."""
        self._reads.inspect()
        for one in [one for one in self._stalled if one.wanted()]:
            del self._stalled[one]
            one.resume()

    def _feed_one(self, event: v.Event) -> None:
        now, perform = self._now(), self._perform
        events: deque[v.Event] = deque()
        following: v.Event | None = event
        while following is not None:
            for effect in self._core.handle(following, now):
                answer = perform[type(effect)](effect)
                if answer is not None:
                    events.append(answer)
            following = events.popleft() if events else None

    async def _ticker(self) -> None:
        while True:
            await self._tick_wanted.wait()
            self._tick_wanted = trio.Event()
            await trio.sleep(_TICK_SECONDS)
            self._feed(v.Tick())

    async def _housekeeper(self) -> None:
        while True:
            await trio.sleep(_HOUSEKEEPING_SECONDS)
            now = self._now()
            for connection in list(self._connections.values()):
                connection.enforce_timeouts(now)
            if self._figures is not None:
                self._figures.publish(self._core.gauges(), self._last_session)

    async def _space_watcher(self) -> None:
        while not self.gone:
            await trio.sleep(space_check_seconds)
            await self._measure_space()
            gone = await self._ports.in_thread(self._storage.why_gone)
            if gone:
                self._end(f"{gone}; the server stops, because its data could not be found again")
            elif lost := await self._ports.in_thread(self._storage.missing_directories):
                self._feed(v.DirectoriesLost(tuple(lost)))

    async def _measure_space(self) -> None:
        """Report the free space to the core. statfs runs in a thread, because it may be slow."""
        before = self._core.room_bytes
        self._feed(v.SpaceSeen(*await self._ports.in_thread(self._storage.free_space), before))

    # Effects that need no disk

    def _send(self, effect: v.Send) -> None:
        connection = self._connections.get(effect.session)
        if connection is not None:
            connection.send(m.encode(effect.message, effect.request_id))
            self._to_flush[effect.session] = connection

    def _send_bytes(self, effect: v.SendBytes) -> None:
        connection = self._connections.get(effect.session)
        if connection is not None:
            connection.send_bytes(effect.data)
            self._to_flush[effect.session] = connection

    def _close_session(self, effect: v.CloseSession) -> None:
        connection = self._connections.get(effect.session)
        if connection is not None:
            connection.flush()
            connection.close()

    # Effects of the disk

    def _begin_syncs(self) -> None:
        """Begin as many due syncs as there are free threads. A sync covers only what was written before
        `SyncBegins`, so the core must process that event before a thread can start the sync."""
        while (effect := self._sync_threads.next_due()) is not None:
            self._feed_one(v.SyncBegins(effect.directory, effect.name))
            self._writes.sync_began(effect.directory, effect.name)
            self._sync_threads.begin(effect)

    def _sync_ended(self, event: v.Synced) -> None:
        self._writes.sync_ended(event.directory, event.name)
        self._done(event)

    def _done(self, event: v.Event | None) -> None:
        """Feed the result of a thread. The end of the round begins further syncs and flushes the replies."""
        if event is not None:
            self._batch_is_open = True
            self._feed_one(event)

    def _write_log(self, effect: v.WriteLog) -> None:
        self._writes.sync_began(*_LOG)
        self._log_thread.start(effect)

    def _log_synced(self, event: v.Event) -> None:
        self._writes.sync_ended(*_LOG)
        self._done(event)

    def _is_busy(self) -> bool:
        """Whether the disk works for clients."""
        return any(one.busy for one in (self._sync_threads, self._writes, self._reads, self._effects))

    def _halt(self, reason: str) -> None:
        """End without syncing anything: the kernel shows bytes that the disk may lack, and a restart replays
        them from the log.
        """
        self._storage.halted = True
        self._end(f"{reason}; the server stops, and replays the group log at its next start")

    def _end(self, reason: str) -> None:
        """Stop serving, for a reason that was not asked for."""
        logger.critical("%s", reason)
        self.gone = self.gone or reason
        self._served.cancel()

    def _join_threads(self) -> None:
        """Wait until all disk threads have finished their current work."""
        for threads in (self._sync_threads, self._log_thread, self._writes, self._reads, self._effects):
            threads.close()
