"""The server's shell: performs the effects that the core requests, with trio, in the order in which the core
returns them. Each result is fed back as an event.

Writes go to the page cache from the event loop while the disk is fast (docs/decisions/0001). Syncs, claims,
loads and reads run in threads with a limit per kind.
"""

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping
from functools import partial
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final

import trio

from dos_monitoring.logs import time_of
from dos_protocol import messages as m
from dos_protocol.errors import VERDICTS, RemoteProtocolError
from dos_protocol.frames import IS_TLS, Frame
from dos_protocol.limits import payload_bytes_max
from dos_protocol.names import id_text
from dos_protocol.store_record import StoreRecord, decode_store_record
from dos_server import limits
from dos_server.buffers import BufferAccount, OutgoingAccount
from dos_server.connection import (
    ServerConnection,
    accept_some,
    descriptors_for_connections,
    peer_of,
    reject,
)
from dos_server.core import vocabulary as v
from dos_server.core.access import Tokens
from dos_server.core.files.scan import ExtentStart
from dos_server.core.quotas import Quota, Quotas
from dos_server.core.requests import version0_wire as wire0
from dos_server.core.requests.scrub import NO_SCRUB, ScrubPlan
from dos_server.core.server_core import ServerCore
from dos_server.figures import ServerFigures
from dos_server.limits import (
    claim_threads_max,
    digests_in_flight_max,
    load_threads_max,
    log_slots,
    outgoing_bytes_max,
    outgoing_pressed_bytes,
    outgoing_total_bytes_max,
    read_bytes_in_flight_max,
    reads_in_flight_max,
    repair_threads_max,
    slow_disk_seconds,
    slow_writes_bytes_max,
    space_check_seconds,
    sync_threads_max,
    write_threads_max,
)
from dos_server.ports import OPERATING_SYSTEM, Listener, Ports, Workers
from dos_server.storage import Storage
from dos_server.tls_sockets import TlsPeers
from dos_server.turns import OncePerRound, Turns
from dos_server.watched_files import WatchedQuotas, WatchedTokens
from dos_tls import LogLimit, ServerContext, TlsError, TlsTruncatedError
from dos_tls.readiness import Rounds, Socket

# --- The audit log -----------------------------------------------------------------------------------------


audit_log: Final = logging.getLogger("dos.audit")


def note_audit(peer: str, token: str, action: str) -> None:
    who = f"token {token!r} from {peer}" if token else peer
    audit_log.info(
        "audit: %s: %s", who, action, extra={"audit": {"peer": peer, "token": token, "action": action}}
    )


class _AuditLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"time": time_of(record), **getattr(record, "audit", {})})


class _PrivateFile(WatchedFileHandler):
    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).touch(mode=0o600)
        return super()._open()


def write_audit_to(path: Path) -> None:
    """Append the entries of this process to a file, which only its owner can read. Raises OSError."""
    path.touch(mode=0o600)
    handler = _PrivateFile(path, encoding="utf-8")
    handler.setFormatter(_AuditLines())
    audit_log.addHandler(handler)


# --- The start ---------------------------------------------------------------------------------------------


def start_core(
    storage: Storage, ports: Ports, log_bytes: int, quotas: tuple[Quota, ...] | None, **options: Any
) -> tuple[bytes, ServerCore]:
    """Return the server id and the core. `quotas`: None: nothing is counted. Raises CorruptDataError,
    OSError; everything is closed then.
    """
    server_id, record, _ = storage.start(ports.fresh_id())
    try:
        log = None
        if log_bytes:
            log = storage.start_log(ports.fresh_id(), log_bytes // log_slots)
        else:
            storage.replay_log()
        names = storage.directory_names()  # a replay may have made some
        return server_id, ServerCore(
            server_id=server_id,
            incarnation_id=ports.fresh_id(),
            record=record,
            directory_names=names,
            damaged_names=storage.damaged_among(names),
            stamps=storage.add_stamp(ports.fresh_id()),
            log=log,
            quotas=None if quotas is None else Quotas(quotas, storage.usage_among(names)),
            **options,
        )
    except BaseException:
        storage.abandon()
        raise


# --- Effects that threads perform, one by one --------------------------------------------------------------


logger = logging.getLogger("dos.server")


class DiskEffects:
    """Performs effects in threads, with a limit for each kind, and reports to `done`."""

    def __init__(
        self,
        storage: Storage,
        ports: Ports,
        readiness: Rounds,
        done: Callable[[v.Event | None], None],
        connections: Container[int],
    ) -> None:
        self._storage, self._connections = storage, connections

        def threads(threads_max: int) -> Workers[v.Effect]:
            return ports.workers(self._perform, done, readiness, threads_max)

        claims, repairs, digests = map(
            threads, (claim_threads_max, repair_threads_max, digests_in_flight_max)
        )
        loads = threads(load_threads_max)
        self._busy = claims, repairs, digests
        self._threads: Final[dict[type[Any], Workers[v.Effect]]] = {
            **dict.fromkeys((v.LoadDirectory, v.LoadObject, v.MakeDirectory), loads),
            **dict.fromkeys((v.WriteClaim, v.FileClaim, v.WriteStoreRecord, v.WriteStamps), claims),
            **dict.fromkeys((v.WriteRepair, v.InstallRepair, v.DropRepair, v.RemoveObject), repairs),
            v.ReadDigest: digests,
        }

    @property
    def performs(self) -> dict[type[Any], Callable[[Any], v.Event | None]]:
        return dict.fromkeys(self._threads, self.start)

    @property
    def busy(self) -> bool:
        return any(one.busy for one in self._busy)

    def start(self, effect: v.Effect) -> v.Event | None:
        self._threads[type(effect)].start(effect)
        return None

    def close(self) -> None:
        for threads in dict.fromkeys(self._threads.values()):
            threads.close()

    def _perform(self, effect: v.Effect) -> v.Event | None:
        if isinstance(effect, v.ReadDigest) and effect.session not in self._connections:
            return v.GotDigest(effect, 0)  # the peer is gone, and others may be queued
        event = self._storage.perform(effect)
        if isinstance(effect, v.WriteStoreRecord) and event == v.EffectDone(effect, v.DiskFailure.NONE):
            record = decode_store_record(effect.record)
            # A store of one server changes only when it begins, or its server has another address.
            level = logging.WARNING if len(record.members) > 1 else logging.INFO
            logger.log(level, "store record: %s", record_text(record))
        return event


def record_text(record: StoreRecord) -> str:
    members = ", ".join(f"{one.address} {one.state}" for one in record.members)
    return (
        f"store {id_text(record.store_id)}, generation {record.generation}, Qa {record.ack_quorum}: {members}"
    )


# --- Writes ------------------------------------------------------------------------------------------------


class Writes:
    """The writes of one server. `on_result` is called in the event loop with each result of a thread."""

    def __init__(
        self, storage: Storage, on_result: Callable[[v.Event | None], None], rounds: Rounds, ports: Ports
    ) -> None:
        self._storage = storage
        self._on_result = on_result
        self._clock = ports.monotonic
        self._threads: Workers[v.Write] = ports.workers(self._work, self._ended, rounds, write_threads_max)
        self._syncs: dict[tuple[str, str], float] = {}
        self._slow_until = 0.0
        self._waiting_bytes = 0

    @property
    def full(self) -> bool:
        return self._waiting_bytes > slow_writes_bytes_max

    @property
    def busy(self) -> bool:
        return self._threads.busy

    def sync_began(self, directory: str, name: str) -> None:
        """Note the start of a sync. An object has one at a time, as the log has; they end in any order."""
        self._syncs[directory, name] = self._clock()

    def sync_ended(self, directory: str, name: str) -> None:
        del self._syncs[directory, name]

    def write(self, effect: v.WriteMany) -> v.WrittenMany:
        """Write now, and return the results. From the first write on that finds the disk slow, threads write
        one by one, and `on_result` gets the result of each.
        """
        failures, began = list[v.DiskFailure](), self._clock()
        is_slow = self._is_slow(began)
        for one in effect.writes:
            if is_slow:
                buffers = [bytes(each) for each in one.buffers]
                self._waiting_bytes += sum(map(len, buffers))
                self._threads.start(one._replace(buffers=list(buffers)))
                continue
            failures.append(self._storage.write(one))
            ended = self._clock()
            if ended - began > slow_disk_seconds:
                is_slow, self._slow_until = True, ended + slow_disk_seconds
            began = ended
        return v.WrittenMany(effect.writes, failures)

    def _is_slow(self, now: float) -> bool:
        if now < self._slow_until or self._waiting_bytes:
            return True
        for began in self._syncs.values():  # the first is the oldest
            return now - began > slow_disk_seconds
        return False

    def _work(self, effect: v.Write) -> v.WrittenMany:
        return v.WrittenMany([effect], [self._storage.write(effect)])

    def _ended(self, done: v.WrittenMany) -> None:
        self._waiting_bytes -= sum(map(len, done.writes[0].buffers))
        self._on_result(done)

    def close(self) -> None:
        self._threads.close()


# --- Reads for GET -----------------------------------------------------------------------------------------


class PacedReads:
    """The GETs that are at the disk or waiting. Reads of one session begin in the order of the requests."""

    def __init__(
        self,
        storage: Storage,
        connections: Mapping[int, ServerConnection],
        outgoing: OutgoingAccount,
        readiness: Rounds,
        on_result: Callable[[v.GotData], None],
        extent_of: Callable[[v.ReadData], ExtentStart],
        ports: Ports,
    ) -> None:
        self._connections = connections
        self._extent_of = extent_of
        self._outgoing = outgoing
        self._reserved_bytes = 0
        self._on_result = on_result
        self._readiness = readiness
        self._threads = ports.workers(storage.read, self._ended, readiness, reads_in_flight_max)
        self.waiting: dict[int, deque[v.ReadData]] = {}

    @property
    def busy(self) -> bool:
        return self._threads.busy

    def submit(self, effect: v.ReadData) -> None:
        """Read as soon as the peer has taken enough of its earlier answers."""
        waiting = self.waiting.get(effect.session)
        if waiting is not None:
            waiting.append(effect)
        elif not self._begin(effect):
            self.waiting[effect.session] = deque((effect,))

    def inspect(self) -> None:
        """Begin the reads that have become possible, after answers were taken or a peer left."""
        sessions = deque(self.waiting)
        while sessions:  # one read of each, then the next one of each
            session = sessions.popleft()
            waiting = self.waiting[session]
            if not self._begin(waiting[0]):
                continue
            waiting.popleft()
            del self.waiting[session]
            if waiting:
                self.waiting[session] = waiting  # behind the others
                sessions.append(session)

    def _begin(self, effect: v.ReadData) -> bool:
        """Try to begin a read: a shorter one if many peers are slow, none for a peer that is gone."""
        connection = self._connections.get(effect.session)
        if connection is None:
            self._readiness.soon(partial(self._on_result, v.GotData(effect)))
            return True
        wanted = effect.end - effect.start
        if self._reserved_bytes and self._reserved_bytes + wanted > read_bytes_in_flight_max:
            return False
        # Beside a large read, the next one of the session could not begin where that ends.
        if connection.reserved_bytes and connection.reserved_bytes + wanted > payload_bytes_max:
            return False
        held = connection.outgoing_bytes + connection.reserved_bytes
        if held + wanted > outgoing_bytes_max:
            return False
        if self._outgoing.held + self._reserved_bytes > outgoing_total_bytes_max:
            if held:
                return False
            effect = effect._replace(end=min(effect.end, effect.start + outgoing_pressed_bytes))
        effect = effect._replace(extent=self._extent_of(effect))
        connection.reserved_bytes += effect.end - effect.start
        self._reserved_bytes += effect.end - effect.start
        self._threads.start(effect)
        return True

    def _ended(self, event: v.GotData) -> None:
        count = event.read.end - event.read.start
        self._reserved_bytes -= count
        connection = self._connections.get(event.read.session)
        if connection is not None:
            connection.reserved_bytes -= count
        self._on_result(event)
        if len(self.waiting) == 1:  # read while the answer is sent; many are inspected once per round
            self.inspect()

    def close(self) -> None:
        self._threads.close()


# --- The scrub ---------------------------------------------------------------------------------------------


class Scrubber:
    """The scrub of one server. `feed` passes an event to the core; `is_busy`: the disk works for clients."""

    def __init__(
        self, storage: Storage, feed: Callable[[v.Event], None], is_busy: Callable[[], bool], ports: Ports
    ) -> None:
        self._storage = storage
        self._ports = ports
        self._feed = feed
        self._is_busy = is_busy
        self._limiter = trio.CapacityLimiter(1)
        self._nursery: trio.Nursery | None = None
        self._pause = trio.CancelScope()

    def begin(self, nursery: trio.Nursery, first_seconds: float) -> None:
        self._nursery = nursery
        nursery.start_soon(self._wait, first_seconds)

    @property
    def performs(self) -> dict[type[Any], Callable[[Any], None]]:
        return {
            v.ScrubRead: self._read,
            v.ScrubLater: self._later,
            v.ScrubNow: lambda _: self._pause.cancel(),
            v.LogNotice: self._log,
        }

    def _later(self, effect: v.ScrubLater) -> None:
        assert self._nursery is not None, "not serving"
        self._nursery.start_soon(self._wait, effect.seconds)

    async def _wait(self, seconds: float) -> None:
        with trio.CancelScope() as self._pause:
            await trio.sleep(seconds)
        self._feed(v.ScrubDue(self._is_busy()))

    def _read(self, effect: v.ScrubRead) -> None:
        assert self._nursery is not None, "not serving"
        self._nursery.start_soon(self._read_in_thread, effect)

    async def _read_in_thread(self, effect: v.ScrubRead) -> None:
        read = partial(self._storage.scrub_read, effect, self._ports.monotonic)
        result = await self._ports.in_thread(read, self._limiter)
        self._feed(result)

    def _log(self, effect: v.LogNotice) -> None:
        logger.log(logging.WARNING if effect.bad else logging.INFO, "%s", effect.text)


# --- Accepting connections ---------------------------------------------------------------------------------


_PAUSE_SECONDS: Final = 0.1


class ConnectionGate:
    """open_now: the open connections, the oldest first. begin: takes what a new connection is read from."""

    def __init__(
        self,
        open_now: Mapping[int, ServerConnection],
        begin: Callable[[Socket], None],
        tls: TlsPeers | None,
        warn: Callable[[str, str], object],
    ) -> None:
        self._open, self._begin, self._tls, self._warn = open_now, begin, tls, warn
        self._descriptors = descriptors_for_connections()

    async def run(self, listener: Listener, readiness: Rounds) -> None:
        while True:
            await readiness.wait_readable(listener)
            try:
                for sock in accept_some(listener):
                    self._take(sock)
            except OSError as error:  # no free descriptor, or the peer is gone: continue with the others
                logger.warning("accept: %s", error)
                await trio.sleep(_PAUSE_SECONDS)

    def _take(self, sock: Socket) -> None:
        """Begin a connection, in place of an older one if there are too many; close it if none gives way."""
        if len(self._open) >= min(limits.connections_max, self._descriptors):
            if not self._make_place("greeted", lambda one: not one.has_greeted):
                if self._tls is None:
                    reject(sock, len(self._open))
                else:
                    self._tls.reject(sock)
                return
        elif self._tls is not None and self._tls.handshakes >= limits.handshakes_max:
            self._make_place("completed the TLS handshake", lambda one: one.in_handshake)
        self._begin(sock if self._tls is None else self._tls.wrap(sock, peer_of(sock)))

    def _make_place(self, what: str, gives_way: Callable[[ServerConnection], bool]) -> bool:
        found = [one for one in self._open.values() if not one.closing and gives_way(one)]
        if not found:
            return False
        count = Counter(one.host for one in found)
        most = max(count.values())
        oldest = next(one for one in found if count[one.host] == most)
        self._warn(
            "busy",
            f"{len(self._open)} connections, {len(found)} that have not {what}: {oldest.peer} was closed",
        )
        oldest.give_way(len(self._open))
        return True


# --- The server --------------------------------------------------------------------------------------------


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

        `reserve_bytes`: disk space that appends must leave free; None: by the size of the disk. `log_bytes`:
        size of the group log; 0: every object is synced in its own file. `token`: clients must send it;
        `tokens`: or one of these. `quotas`: None: off. `figures`: count what the server does. `tls`: None for
        plain text.
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
        self._stalled: dict[ServerConnection, None] = {}  # in the order in which they stalled
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
        self._log_thread: Workers[v.WriteLog] = ports.workers(
            self._append_log, self._log_synced, self.readiness, 1
        )
        self._effects = DiskEffects(storage, ports, self.readiness, self._done, self._connections)
        self._reads = PacedReads(
            storage,
            self._connections,
            self.outgoing,
            self.readiness,
            self._done,
            self._core.extent_of,
            ports,
        )
        self._scrubber, self._scrub = Scrubber(storage, self._feed, self._is_busy, ports), scrub
        self._perform = self._effect_table()
        self._figures = figures
        if figures is not None:
            self._perform, storage.timing = figures.count(self._perform), figures.syncs.timing

    def _effect_table(self) -> dict[type[Any], Callable[[Any], v.Event | None]]:
        storage = self._storage
        return {
            v.Send: self._send,
            v.SendAcks: self._send_acks,
            v.CloseSession: self._close_session,
            v.ForgetDirectory: lambda one: storage.forget(one.directory),
            v.WriteMany: self._writes.write,
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

    async def serve(self, listener: Listener) -> None:
        """Accept and serve until cancelled; then wait for the disk threads, sync and close the files. Returns
        early with a reason in `gone` if the data directory is removed or moved. Raises no errors of peers or
        of the disk.
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

    def stalled(self, connection: ServerConnection) -> None:
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
        connection = self._connections.get(session)
        logger.info("session %d of %s: %s; closed", session, connection.peer if connection else "?", why)

    def _audit(self, effect: v.Audit) -> None:
        connection = self._connections.get(effect.session)
        note_audit(connection.peer if connection else "this server", effect.token, effect.action)

    # The loop of events and effects

    def _round_ended(self) -> None:
        if self._batch_is_open:
            self._batch_is_open = False
            self._feed(_EVENT_BATCH)
        self.rounds_ended += 1
        self.turns.round_ended()

    def _feed(self, event: v.Event) -> None:
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
        now, perform, events = self._now(), self._perform, [event]
        for following in events:  # which grow meanwhile
            for effect in self._core.handle(following, now):
                answer = perform[type(effect)](effect)
                if answer is not None:
                    events.append(answer)

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
        before = self._core.room_bytes
        self._feed(v.SpaceSeen(*await self._ports.in_thread(self._storage.free_space), before))

    # Effects that need no disk

    def _send(self, effect: v.Send) -> None:
        connection = self._connections.get(effect.session)
        if connection is not None:
            connection.send(m.encode(effect.message, effect.request_id), effect.rest)
            self._to_flush[effect.session] = connection

    def _send_acks(self, effect: v.SendAcks) -> None:
        for session, ack in effect.acks:
            connection = self._connections.get(session)
            if connection is not None:
                connection.send(m.encode(ack))
                self._to_flush[session] = connection

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
        """Begin as many due syncs as there are free threads."""
        while (effect := self._sync_threads.next_due()) is not None:
            # Before a thread can start the sync: it covers only what the core knows as written now.
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

    def _append_log(self, effect: v.WriteLog) -> v.LogSynced | OSError:
        try:
            return self._storage.append_log(effect)
        except OSError as error:
            return error

    def _log_synced(self, result: v.LogSynced | OSError) -> None:
        self._writes.sync_ended(*_LOG)
        if isinstance(result, OSError):
            # Only a restart can tell what of the record is on the disk: a failed sync is never tried again.
            self._halt(f"a write or sync of the group log failed: {result}")
        else:
            self._done(result)

    def _is_busy(self) -> bool:
        return any(one.busy for one in (self._sync_threads, self._writes, self._reads, self._effects))

    def _halt(self, reason: str) -> None:
        # Nothing is synced: the kernel shows bytes that the disk may lack, and a restart replays them from
        # the log.
        self._storage.halted = True
        self._end(f"{reason}; the server stops, and replays the group log at its next start")

    def _end(self, reason: str) -> None:
        logger.critical("%s", reason)
        self.gone = self.gone or reason
        self._served.cancel()

    def _join_threads(self) -> None:
        for threads in (self._sync_threads, self._log_thread, self._writes, self._reads, self._effects):
            threads.close()
