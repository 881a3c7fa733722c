"""The object server as a pure state machine: `handle(event, now) -> effects`.

Every ordering guarantee of the server is enforced here and in the parts that this module composes:

    effect           condition
    Write            the request was carried out, by the directory's writer, and its size and digest matched
    Sync             after Written; at most one per object at a time; covers what was written before it began
    SetMark          after Synced, and before any durability ack
    DurabilityAck    after Synced, and never to a session whose claim is older than the held claim
    DirectoryOpened  for a claim: after the claim is on stable storage and all objects are settled

The shell performs the effects in order and reports their outcomes. A refused request has no effect (P-8).

This module dispatches events and ends sessions. The parts that handle requests are in `requests`.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dos_protocol import messages as m
from dos_protocol.errors import ErrorCode, RemoteProtocolError
from dos_protocol.frames import Frame
from dos_protocol.messages import SessionState
from dos_server.core import vocabulary as v
from dos_server.core.access import Tokens, why_forbidden
from dos_server.core.directory_state import LoadState, Session
from dos_server.core.files.scan import ExtentStart
from dos_server.core.group_log import GroupLog, LogTail
from dos_server.core.object_state import ObjectState
from dos_server.core.quotas import QuotaGauge, Quotas
from dos_server.core.requests.appends import Appends, take_entries
from dos_server.core.requests.claims import Claims
from dos_server.core.requests.greetings import Greetings
from dos_server.core.requests.reads import Reads
from dos_server.core.requests.removals import Removals
from dos_server.core.requests.repairs import Repairs, Tails
from dos_server.core.requests.scrub import NO_SCRUB, Scrub, ScrubPlan
from dos_server.core.requests.stamps import NO_FILES, StampFiles, Stamps
from dos_server.core.requests.version0 import V0Service, why_off
from dos_server.core.tables import Tables
from dos_server.limits import (
    entries_few,
    reads_queued_of_one_max,
    requests_in_flight_max,
)


class CoreGauges(NamedTuple):
    """What metrics show: the fields have the names of the metrics (`figures.py`)."""

    open_connections: int
    sessions: int
    directories: int
    loaded_objects: int
    damaged_directories: int
    unsynced_bytes: int
    room_bytes: int
    refuses_appends: bool
    rolled_back: bool
    store_generation: int
    quotas: tuple[QuotaGauge, ...] = ()


def gauges_of(tables: Tables, *, rolled_back: bool) -> CoreGauges:
    sessions = tables.sessions.values()
    broken = {one.name for one in tables.directories.values() if one.loading is LoadState.BROKEN}
    return CoreGauges(
        open_connections=len(sessions),
        sessions=sum(one.state not in (SessionState.NEW, SessionState.CLOSED) for one in sessions),
        directories=len(tables.directory_names),
        loaded_objects=tables.objects,
        damaged_directories=len(tables.damaged_names | broken),
        unsynced_bytes=sum(one.unsynced_bytes for one in sessions),
        room_bytes=max(tables.space.room_bytes, 0),
        refuses_appends=tables.space.refusing,
        rolled_back=rolled_back,
        store_generation=0 if tables.record is None else tables.record.generation,
        quotas=tables.quotas.gauges(),
    )


class ServerCore:
    def __init__(
        self,
        *,
        server_id: bytes,
        incarnation_id: bytes,
        record: bytes = b"",
        tokens: Tokens | None = None,
        quotas: Quotas | None = None,
        directory_names: set[str] | None = None,
        damaged_names: set[str] | None = None,
        version0: bool = True,
        reserve_bytes: int | None = None,
        scrub: ScrubPlan = NO_SCRUB,
        stamps: StampFiles = NO_FILES,
        log: LogTail | None = None,
    ) -> None:
        """Create the core.

        `incarnation_id`: random, unique to this start. `tokens`: None: clients send none. `quotas`: None:
        off. `directory_names`, `damaged_names`: on the disk, and those known to hold a damaged object.
        `reserve_bytes`: None derives it from the file system's size. `log`: where the group log continues;
        None: there is none.
        """
        names, bad, valid = directory_names or set(), damaged_names or set(), tokens or Tokens.single(b"")
        self._tables = tables = Tables(
            server_id, incarnation_id, record, valid, names, bad, reserve_bytes, quotas
        )
        stamps_ = Stamps(tables, incarnation_id, stamps)
        self._greetings, claims = (greetings := Greetings(tables, stamps_)), Claims(tables)
        self._reads = reads = Reads(tables)
        self._appends = appends = Appends(tables, claims, reads)
        self._claims, self._tails = claims, Tails(tables, claims)
        repairs, scrub_ = Repairs(tables, claims, reads), Scrub(tables, reads, scrub)
        self._removals = removals = Removals(tables, claims, reads)
        tables.log = None if log is None else self._group_log(log)
        off = why_off(version0=version0, tokens=tokens, quotas=quotas)
        self._version0 = version0_ = V0Service(tables, claims, appends, reads, removals, off=off)
        self._on_event: Final[dict[type[Any], Callable[[Any], None]]] = {
            v.Connected: self._connected,
            v.TokensChanged: greetings.tokens_changed,
            v.QuotasChanged: lambda one: tables.quotas.replace(one.quotas, tables.now),
            v.Received: self._received,
            v.ReceivedAppends: self._received_appends,
            v.BatchEnded: appends.batch_ended,
            v.HalfClosed: self._half_closed,
            v.ConnectionEnded: self._ended,
            v.DirectoryLoaded: self._directory_loaded,
            v.DirectoriesLost: claims.lost,
            v.ObjectLoaded: self._tails.object_loaded,
            v.LogDue: self._log_due,
            v.LogSynced: self._log_synced,
            v.WrittenMany: self._written,
            v.SyncBegins: appends.sync_begins,
            v.Synced: self._synced,
            v.GotData: reads.got_data,
            v.GotDigest: reads.got_digest,
            v.RepairInstalled: repairs.installed,
            v.Removed: self._removed,
            v.EffectDone: self._effect_done,
            v.Requested: version0_.requested,
            v.Streamed: version0_.streamed,
            v.SpaceSeen: self._space_seen,
            v.Tick: self._tick,
            v.ScrubDue: scrub_.due,
            v.ScrubReadDone: scrub_.read_done,
        }
        self._on_done: Final[dict[type[Any], Callable[[Any, v.DiskFailure], None]]] = {
            v.WriteClaim: claims.written,
            v.FileClaim: claims.claim_filed,
            v.WriteStoreRecord: greetings.record_stored,
            v.WriteStamps: stamps_.stored,
            v.WriteRepair: repairs.written,
            v.MakeDirectory: version0_.directory_made,
        }
        parts = greetings, stamps_, reads, claims, appends, removals, repairs, scrub_
        self._on_message = _messages_of(*parts)
        self._on_message[m.Quit] = self._quit

    def _group_log(self, log: LogTail) -> GroupLog:
        tables = self._tables
        return GroupLog(
            log,
            order=lambda effect: tables.effects.append(effect),
            settled=self._logged,
            gone=self._gone,
            find=tables.find,
            file_claim=self._claims.file,
        )

    def handle(self, event: v.Event, now: float) -> list[v.Effect]:
        """Handle one event and return the effects in the order to perform them. `now`: monotonic seconds."""
        tables = self._tables
        tables.now = now
        self._on_event[type(event)](event)
        while tables.opened or tables.settled or tables.untranslated:
            self._resume_deferred()
        effects, tables.effects = tables.effects, []
        return effects

    def extent_of(self, read: v.ReadData) -> ExtentStart:
        return self._reads.extent_of(read)

    def may_read(self, session: int) -> bool:
        """Return whether the shell may read more from the connection. False applies back-pressure."""
        one = self._tables.sessions.get(session)
        if one is not None and one.version == 0:
            return self._version0.may_read(session)
        return one is None or not (
            one.opening
            or (one.unsynced_bytes and one.unsynced_bytes >= self._tables.in_flight.bytes_max)
            or one.pending >= requests_in_flight_max
            or one.reading >= reads_queued_of_one_max
            or one.deferred
            or self._tables.quotas.must_wait(one.directory, self._tables.now)
        )

    @property
    def opens_many(self) -> bool:
        return self._tables.opens_many

    def answers_long(self, session: int, frame: Frame | bytes) -> bool:
        """Return whether the answer to a LIST or CWD, or to a version 0 request, may have many entries."""
        if isinstance(frame, bytes):
            return self._version0.answers_long(session, frame)
        tables, one = self._tables, self._tables.sessions.get(session)
        try:
            request = m.decode(frame)
        except RemoteProtocolError:
            return False
        name = request.directory if isinstance(request, m.ChangeDirectory) else one.directory if one else None
        if name is None:
            return len(tables.directory_names) > entries_few
        directory = tables.directories.get(name)
        if directory is None or directory.loading is LoadState.LOADING:
            # It is not loaded, so its count is unknown: a known name counts as many.
            return name in tables.directory_names
        return len(directory.objects) > entries_few

    def is_streaming(self, session: int) -> bool:
        return self._version0.is_streaming(session)

    def wants_tick(self) -> bool:
        """Return whether the core needs `Tick` events, because a GET waits or a size is not yet reported."""
        tables = self._tables
        waits = tables.unacknowledged or tables.waiting or tables.later or self._version0.wants_tick()
        waits = waits or self._greetings.wants_tick or tables.quotas.wants_tick(tables.now)
        return bool(waits or (tables.log is not None and tables.log.wants_tick))

    @property
    def log_is_due(self) -> bool:
        log = self._tables.log
        return log is not None and log.is_due

    def is_welcome(self, session: int) -> bool:
        one = self._tables.sessions.get(session)
        return one is not None and one.state is not SessionState.NEW

    @property
    def room_bytes(self) -> int:
        return self._tables.space.room_bytes

    def gauges(self) -> CoreGauges:
        return gauges_of(self._tables, rolled_back=self._greetings.rolled_back)

    @property
    def record_bytes(self) -> bytes:
        return self._tables.record_bytes

    # Events of connections

    def _connected(self, event: v.Connected) -> None:
        self._tables.sessions[event.session] = Session(event.session, host=event.host)

    def _ended(self, event: v.ConnectionEnded) -> None:
        self._greetings.ended(event.session)
        session = self._tables.sessions.pop(event.session, None)
        self._version0.ended(event.session)
        if session is not None and not session.closed:
            self._tables.detach(session)
        self._tables.forget_idle()

    def _received(self, event: v.Received) -> None:
        session = self._tables.sessions.get(event.session)
        if session is None or session.closed or session.leaving:
            return
        # Deferred while a CWD of the session is unanswered, to keep the order sent.
        if session.opening or session.deferred:
            frame = event.frame  # copied: its payload may be a view into the receive buffer
            session.deferred.append(frame._replace(payload=bytes(frame.payload)))
            return
        self._execute(session, event.frame)

    def _received_appends(self, event: v.ReceivedAppends) -> None:
        number, frames = event
        session, index, count = self._tables.sessions.get(number), 0, len(frames)
        while session is not None and index < count:
            if not (session.leaving or session.opening or session.deferred):
                index = take_entries(self._tables, session, frames, index)
            if index < count:
                self._received(v.Received(number, frames[index]))
                index += 1

    def _execute(self, session: Session, frame: Frame) -> None:
        try:
            message = m.decode(frame)
        except RemoteProtocolError as error:
            self._tables.refuse(session, error.code, str(error.args[0]), error.request_id)
            return
        handler = self._on_message.get(type(message))
        if handler is None:
            text = f"{type(message).__name__} is a reply, not a request"
            self._tables.refuse(session, ErrorCode.UNKNOWN_OPCODE, text, frame.request_id)
        elif session.state is SessionState.NEW and not isinstance(message, m.Hello | m.Quit):
            text = f"{type(message).__name__} before HELLO"
            self._tables.refuse(session, ErrorCode.NOT_READY, text, frame.request_id)
        elif (reason := why_forbidden(session.access, session.directory, message)) is not None:
            self._tables.forbid(session, reason, frame.request_id)
        else:
            self._tables.quotas.spend(session.directory, 1, self._tables.now)
            handler(session, message, frame.request_id)

    def _resume_deferred(self) -> None:
        """Execute the requests that were deferred by a CWD that is now answered; end sessions that quit."""
        self._version0.translate_messages()
        opened, self._tables.opened = self._tables.opened, []
        for session in opened:
            while session.deferred and not session.opening and not session.closed:
                self._execute(session, session.deferred.popleft())
        if opened:
            self._appends.batch_ended()
        settled, self._tables.settled = self._tables.settled, []
        for session in (*opened, *settled):
            self._finish_quit(session)

    def _tick(self, event: v.Tick) -> None:
        del event
        self._tables.tick()
        self._appends.tick()
        self._reads.tick()
        self._version0.tick()
        self._greetings.tick()
        if self._tables.log is not None:
            self._tables.log.tick(self._tables.now)

    def _space_seen(self, event: v.SpaceSeen) -> None:
        self._tables.warn(self._tables.space.seen(*event, self._tables.now))
        self._tails.space_seen(event)

    def _directory_loaded(self, event: v.DirectoryLoaded) -> None:
        self._claims.directory_loaded(event)
        self._tails.directory_loaded(event)

    def _effect_done(self, event: v.EffectDone) -> None:
        self._on_done[type(event.effect)](event.effect, event.failure)

    def _written(self, event: v.WrittenMany) -> None:
        self._appends.written(event)
        for write in event.writes if self._version0.waits else ():
            self._version0.progress(write.directory, write.name)

    def _log_due(self, event: v.LogDue) -> None:
        del event
        if self._tables.log is not None:
            self._tables.log.write_next(self._tables.now)

    def _log_synced(self, event: v.LogSynced) -> None:
        assert self._tables.log is not None
        self._tables.log.synced(event.gone)
        self._appends.send_acks()

    def _gone(self, state: ObjectState) -> None:
        self._appends.gone(state)
        self._version0.progress(state.directory, state.name)

    def _logged(self, state: ObjectState, end: int) -> None:
        self._appends.logged(state, end)
        if self._version0.waits:
            self._version0.progress(state.directory, state.name)

    def _synced(self, event: v.Synced) -> None:
        self._appends.synced(event)
        self._version0.progress(event.directory, event.name)

    def _removed(self, event: v.Removed) -> None:
        outcome = self._removals.removed(event)
        if outcome is None:
            return
        if outcome.session is not None and outcome.session.version == 0:
            self._version0.removed(outcome)
        else:
            self._removals.answer(outcome, event.name)

    # End of sessions

    def _quit(self, session: Session, request: m.Quit, request_id: int) -> None:
        del request
        session.quit_request = request_id
        self._leave(session)

    def _half_closed(self, event: v.HalfClosed) -> None:
        session = self._tables.sessions.get(event.session)
        if session is None or session.closed:
            return
        if session.version == 0:
            self._version0.half_closed(session)
        else:
            self._leave(session)

    def _leave(self, session: Session) -> None:
        session.leaving = True
        self._appends.batch_ended()
        self._reads.stop_waiting(session)
        self._finish_quit(session)

    def _finish_quit(self, session: Session) -> None:
        if session.leaving and not session.closed and session.answered:
            if session.quit_request is not None:
                self._tables.send(session, m.Bye(), session.quit_request)
            self._tables.close(session)


def _messages_of(
    greetings: Greetings,
    stamps: Stamps,
    reads: Reads,
    claims: Claims,
    appends: Appends,
    removals: Removals,
    repairs: Repairs,
    scrub: Scrub,
) -> dict[type[Any], Callable[..., None]]:
    return {
        m.ChangeDirectory: claims.change_directory,
        m.Append: appends.append,
        m.Delete: removals.delete,
        m.RepairChunk: repairs.repair,
        m.ScrubRequest: scrub.request,
        m.Hello: greetings.hello,
        m.Configure: greetings.configure,
        m.Ping: greetings.ping,
        m.Get: reads.get,
        m.List: reads.list_entries,
        m.Stat: reads.stat,
        m.Stamp: stamps.stamp,
        m.Witness: stamps.witness,
    }
