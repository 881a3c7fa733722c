"""Version 0 requests, carried out over the same objects as version 1, on the same port.

A version 0 session holds no claim: it may write in directories that were never claimed, and only read in
others. Messages of the rest of the core to such a session are translated here. It has few words for failures:

    failure                      what the peer receives
    a request is refused         ERROR: and the reason; the connection stays usable
    an `a` is refused            ERROR: and the reason; the connection ends
    a `g` cannot be completed    the connection ends: any message would be taken for content
    a stream cannot continue     the connection ends: there is no error among the status frames

`g` is one frame that begins with its length, sent in pieces as they are read. Each piece is a GET of version
1. `a` begins a stream, which locks the object until the session ends; after `ok`, which follows a durable
creation, bytes are appended as they arrive. A status frame has the bytes in the file and on stable storage.
It is sent when bytes arrive and a second has passed since the last one, and after a second's pause if a
number has changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from dos_protocol import messages as m
from dos_protocol.digests import Buffer
from dos_protocol.limits import payload_bytes_max
from dos_protocol.messages import SessionEvent
from dos_server.core import vocabulary as v
from dos_server.core.access import Tokens
from dos_server.core.directory_state import DirectoryState, Session
from dos_server.core.object_state import ObjectState, refuses_bytes, refuses_session
from dos_server.core.quotas import Quotas
from dos_server.core.requests import version0_wire as wire
from dos_server.core.requests.appends import Appends
from dos_server.core.requests.claims import Claims
from dos_server.core.requests.reads import Reads
from dos_server.core.requests.removals import RemovalOutcome, Removals
from dos_server.core.requests.version0_wire import Request
from dos_server.core.tables import Tables
from dos_server.limits import (
    entries_few,
    version0_in_flight_batches_max,
    version0_in_flight_bytes_max,
    version0_status_seconds,
)

# --- The states of a connection. The diagram in protocol.md is drawn from the table ------------------------


class V0State(Enum):
    COMMAND = "COMMAND"
    """The next bytes are a request."""
    ANSWERING = "ANSWERING"
    """A request is being carried out. Nothing is read until it is answered: replies are sent in order."""
    STREAMING = "STREAMING"
    """Every byte that arrives is appended. There is no way back to COMMAND."""
    FINISHING = "FINISHING"
    """The stream has ended; received bytes go to stable storage."""
    CLOSED = "CLOSED"


class V0Event(Enum):
    REQUESTED = "a request"
    ANSWERED = "its reply"
    APPENDING = "a answered ok"
    STREAM_ENDED = "the client sends no more"
    ENDED = "the end"


_ENDED: Final = {V0Event.ENDED: V0State.CLOSED}

TABLE: Final[dict[V0State, dict[V0Event, V0State]]] = {
    V0State.COMMAND: {V0Event.REQUESTED: V0State.ANSWERING} | _ENDED,
    V0State.ANSWERING: {V0Event.ANSWERED: V0State.COMMAND, V0Event.APPENDING: V0State.STREAMING} | _ENDED,
    V0State.STREAMING: {V0Event.STREAM_ENDED: V0State.FINISHING} | _ENDED,
    V0State.FINISHING: _ENDED,
    V0State.CLOSED: {},
}


def step(state: V0State, event: V0Event) -> V0State:
    after = TABLE[state].get(event)
    assert after is not None, f"event {event.name} is not valid in state {state.name}"
    return after


def diagram() -> str:
    lines = ["stateDiagram-v2", "    [*] --> COMMAND"]
    for state, row in TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join([*lines, "    CLOSED --> [*]"])


# --- Sessions, and how they are answered, refused and ended ------------------------------------------------


@dataclass(eq=False)
class V0Session:
    """The state of one version 0 connection. `request`, `state`: the request being answered, and its object.

    `position`, `end`: for `g`, the range still to be sent; for `s`, `end` must be synced. `bytes_at`,
    `status_at`: when bytes last arrived, and when a status with the numbers `reported` was last sent.
    `status_due`: send one with the next write.
    """

    session: Session
    protocol_state: V0State = V0State.COMMAND
    half_closed: bool = False
    request: Request | None = None
    state: ObjectState | None = None
    position: int = 0
    end: int = 0
    bytes_at: float = 0.0
    status_at: float = 0.0
    reported: tuple[int, int] = (0, 0)
    status_due: bool = False

    def move(self, event: V0Event) -> None:
        self.protocol_state = step(self.protocol_state, event)

    @property
    def target(self) -> ObjectState:
        assert self.state is not None, "no object in this request"
        return self.state

    @property
    def closed(self) -> bool:
        return self.protocol_state is V0State.CLOSED


NO_DIRECTORY: Final = "no directory: u DIR comes first"


class V0Answers:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.sessions: dict[int, V0Session] = {}
        self.waiting: dict[ObjectState, list[V0Session]] = {}

    def reply(self, one: V0Session, body: bytes) -> None:
        self.send(one, wire.reply(body))
        self.answered(one)

    def refuse(self, one: V0Session, text: str) -> None:
        self.reply(one, _error(text))

    def refuse_and_end(self, one: V0Session, text: str) -> None:
        self.send(one, wire.reply(_error(text)))
        self.end(one)

    def answered(self, one: V0Session) -> None:
        one.move(V0Event.ANSWERED)
        one.request = one.state = None
        if one.half_closed:
            self.end(one)

    def send(self, one: V0Session, data: bytes) -> None:
        self._tables.effects.append(v.SendBytes(one.session.number, data))

    def end(self, one: V0Session, why: str = "") -> None:
        """End the connection after everything sent before has left. `why`: logged, not sent to the peer."""
        if why:
            self._tables.effects.append(v.LogReason(one.session.number, why))
        one.move(V0Event.ENDED)
        self.stop_waiting(one)
        self._tables.close(one.session)

    def directory_of(self, one: V0Session) -> DirectoryState | None:
        directory = one.session.directory
        return self._tables.directories.get(directory) if directory else None

    def wait(self, one: V0Session) -> None:
        """Check the session again whenever a write or sync of its object ends."""
        self.waiting.setdefault(one.target, []).append(one)

    def stop_waiting(self, one: V0Session) -> None:
        waiting = self.waiting.get(one.state) if one.state is not None else None
        if waiting is not None and one in waiting:
            waiting.remove(one)
            if not waiting:
                del self.waiting[one.target]


def read_only(directory: DirectoryState) -> str:
    if directory.claimed:
        return f"directory {directory.name} is claimed by a writer of version 1: version 0 may only read it"
    return ""


def _error(text: str) -> bytes:
    return f"ERROR: {text}".encode("ascii", "backslashreplace")


# --- Reading -----------------------------------------------------------------------------------------------


class V0Gets:
    def __init__(self, tables: Tables, reads: Reads, answers: V0Answers) -> None:
        self._tables = tables
        self._reads = reads
        self._answers = answers

    def get(self, one: V0Session, request: wire.V0Get) -> None:
        directory = self._answers.directory_of(one)
        state = directory.objects.get(request.name) if directory is not None else None
        if state is None or not state.exists:
            self._answers.end(one, f"no file {request.name} to get")
            return
        start = max(request.offset, 0)
        wanted = start + request.bytes_max if request.bytes_max else None
        end = state.synced if wanted is None else min(wanted, state.synced)
        good_size = state.corrupt_from
        if good_size is not None and (wanted is None or wanted > good_size):
            self._answers.end(one, f"{state.name} is damaged from offset {good_size} on")
        elif end - start > wire.REPLY_BYTES_MAX:
            self._answers.end(one, f"{end - start} bytes of {state.name} do not fit in a frame of version 0")
        elif start >= end:
            self._answers.reply(one, b"")
        else:
            one.state, one.position, one.end = state, start, end
            self._answers.send(one, wire.head(end - start))
            self._next(one)

    def _next(self, one: V0Session) -> None:
        count = min(one.end - one.position, payload_bytes_max)
        self._reads.get(one.session, m.Get(one.target.name, one.position, count), 0)

    def got(self, one: V0Session, piece: m.Data, parts: Sequence[Buffer]) -> None:
        count = sum(map(len, parts))
        if not count:
            self._answers.end(one, f"{piece.name} ended at {one.position}, {one.end} were announced")
            return
        self._tables.effects += [v.SendBytes(one.session.number, part) for part in parts]
        one.position += count
        if one.position == one.end:
            self._answers.answered(one)
        else:
            self._next(one)


# --- Streams -----------------------------------------------------------------------------------------------


class V0Streams:
    """The open streams. `unacknowledged`: streams for which a status may become due without an event."""

    def __init__(self, tables: Tables, appends: Appends, answers: V0Answers) -> None:
        self._tables = tables
        self._appends = appends
        self._answers = answers
        self.unacknowledged: dict[V0Session, None] = {}

    def append(self, one: V0Session, request: wire.V0Append) -> None:
        directory = self._answers.directory_of(one)
        if directory is None:
            self._answers.refuse_and_end(one, NO_DIRECTORY)
            return
        state = directory.objects.get(request.name) or self._tables.new_object(directory, request.name)
        full = None if request.name in directory.objects else self._tables.refuses_object(directory)
        why = read_only(directory) or _why_not(one, state, request.offset) or self._no_space(state)
        why = why or ("" if full is None else full.message)
        if why:
            self._answers.refuse_and_end(one, why)
            return
        session = one.session
        directory.objects[request.name] = one.state = session.stream = state
        state.appender = session.number
        session.wrote = True
        self._answers.wait(one)
        if state.exists and not state.needs_sync:
            self._begin(one)
        else:
            # an empty append creates the file; `inspect` begins the stream after it is synced
            self._appends.accept(session, directory, state, b"", 0)
            self._appends.batch_ended()

    def _no_space(self, state: ObjectState) -> str:
        # Checked here, because a stream that fails later only ends.
        refusal = self._tables.reserve_space(state, 0)
        return "" if refusal is None else refusal.message

    def _begin(self, one: V0Session) -> None:
        self._answers.send(one, wire.reply(b"ok"))
        one.move(V0Event.APPENDING)
        one.bytes_at = one.status_at = self._tables.now
        one.reported = (one.target.written, one.target.synced)

    def streamed(self, event: v.Streamed) -> None:
        one = self._answers.sessions.get(event.session)
        if one is None or one.protocol_state is not V0State.STREAMING:
            return
        state, now = one.target, self._tables.now
        count = len(event.data)
        refusal = (
            refuses_session(state, event.session)
            or refuses_bytes(state, count)
            or self._tables.reserve_space(state, count)
        )
        if refusal is not None:
            self._answers.end(one, refusal.message)
            return
        one.bytes_at = now
        one.status_due = now - one.status_at >= version0_status_seconds
        self.unacknowledged[one] = None
        directory = self._tables.directories[state.directory]
        self._appends.accept(one.session, directory, state, event.data, 0)
        self._appends.batch_ended()

    def finish(self, one: V0Session) -> None:
        one.move(V0Event.STREAM_ENDED)
        self.inspect(one)

    def inspect(self, one: V0Session) -> None:
        settled = not one.session.unsynced_appends
        if one.protocol_state is V0State.ANSWERING and settled:
            self._begin(one)
        elif one.protocol_state is not V0State.ANSWERING and one.target.damaged:
            # No status may be sent that covers bytes found damaged.
            self._answers.end(one, f"{one.target.name} was found damaged")
        elif one.protocol_state is V0State.FINISHING and settled:
            self._send_status(one)
            self._answers.end(one)
        elif one.protocol_state is V0State.STREAMING and one.status_due:
            self._send_status(one)

    def tick(self) -> None:
        now = self._tables.now
        for one in list(self.unacknowledged):
            state = one.target
            if now - max(one.bytes_at, one.status_at) < version0_status_seconds and not one.closed:
                continue
            if not one.closed and one.reported != (state.written, state.synced):
                one.status_due = True
                self.inspect(one)
            if one.closed or state.written == state.synced:
                del self.unacknowledged[one]

    def _send_status(self, one: V0Session) -> None:
        one.reported = (one.target.written, one.target.synced)
        one.status_at = self._tables.now
        one.status_due = False
        self._answers.send(one, wire.reply("{}\t{}".format(*one.reported).encode("ascii")))


def _why_not(one: V0Session, state: ObjectState, offset: int) -> str:
    refusal = refuses_session(state, one.session.number)
    if refusal is not None:
        return refusal.message
    if offset != state.accepted:
        return f"{state.name} has {state.accepted} bytes, not {offset}"
    return ""


# --- Requests, events of the peer, translation -------------------------------------------------------------


class V0Service:
    """Version 0 in the core. `off`: why version 0 is disabled on this server; empty if it is enabled."""

    def __init__(
        self, tables: Tables, claims: Claims, appends: Appends, reads: Reads, removals: Removals, *, off: str
    ) -> None:
        self._tables = tables
        self._claims = claims
        self._removals = removals
        self._off = off
        self._answers = answers = V0Answers(tables)
        self._streams = streams = V0Streams(tables, appends, answers)
        self._gets = gets = V0Gets(tables, reads, answers)
        self.streamed = streams.streamed
        self.tick = streams.tick
        self._on_request: Final[dict[type[Any], Callable[[V0Session, Any], None]]] = {
            wire.V0Use: self._use,
            wire.V0Append: streams.append,
            wire.V0List: self._list,
            wire.V0Get: gets.get,
            wire.V0Delete: self._delete,
            wire.V0Sync: self._sync,
            wire.V0InvalidRequest: self._invalid,
        }

    def may_read(self, session: int) -> bool:
        one = self._answers.sessions.get(session)
        if one is None or one.protocol_state is V0State.COMMAND:
            return True
        return (
            one.protocol_state is V0State.STREAMING
            and one.session.unsynced_bytes < version0_in_flight_bytes_max
            and one.session.unsynced_appends < version0_in_flight_batches_max
        )

    def is_streaming(self, session: int) -> bool:
        one = self._answers.sessions.get(session)
        return one is not None and one.protocol_state is V0State.STREAMING

    def wants_tick(self) -> bool:
        """Return whether a status may become due without an event."""
        return bool(self._streams.unacknowledged)

    # Events of the peer

    def requested(self, event: v.Requested) -> None:
        session = self._tables.sessions.get(event.session)
        if session is None or session.closed:
            return
        one = self._session_of(session)
        if not event.body:
            self._answers.end(one)
            return
        one.move(V0Event.REQUESTED)
        if self._off:
            self._answers.refuse_and_end(one, self._off)
            return
        request = wire.parse(event.body)
        one.request = None if isinstance(request, wire.V0InvalidRequest) else request
        self._on_request[type(request)](one, request)

    def _session_of(self, session: Session) -> V0Session:
        one = self._answers.sessions.get(session.number)
        if one is None:
            session.version = 0
            session.move(SessionEvent.WELCOMED)
            one = self._answers.sessions[session.number] = V0Session(session)
        return one

    def half_closed(self, session: Session) -> None:
        one = self._session_of(session)
        if one.protocol_state is V0State.STREAMING:
            self._streams.finish(one)
        elif one.protocol_state is V0State.COMMAND:
            self._answers.end(one)
        else:
            one.half_closed = True

    def ended(self, session: int) -> None:
        one = self._answers.sessions.pop(session, None)
        if one is not None and not one.closed:
            one.move(V0Event.ENDED)
            self._answers.stop_waiting(one)

    # Requests

    def _invalid(self, one: V0Session, request: wire.V0InvalidRequest) -> None:
        if request.command == "g":
            self._answers.end(one, request.text)
        elif request.command == "a":
            self._answers.refuse_and_end(one, request.text)
        else:
            self._answers.refuse(one, request.text)

    def _use(self, one: V0Session, request: wire.V0Use) -> None:
        if request.directory in self._tables.directory_names:
            self._open(one, request.directory)
        else:
            one.session.pending += 1
            self._tables.effects.append(v.MakeDirectory(one.session.number, request.directory))

    def directory_made(self, effect: v.MakeDirectory, failure: v.DiskFailure) -> None:
        tables = self._tables
        tables.answerable(effect.session)
        if failure is v.DiskFailure.NONE:
            tables.directory_names.add(effect.directory)
            directory = tables.directories.get(effect.directory)
            if directory is not None:
                self._claims.now_exists(directory)
        one = self._answers.sessions.get(effect.session)
        if one is None or one.closed:
            return
        if failure is v.DiskFailure.NONE:
            self._open(one, effect.directory)
        else:
            self._answers.refuse(one, f"directory {effect.directory} cannot be made: {failure.value}")

    def _open(self, one: V0Session, directory: str) -> None:
        self._claims.change_directory(one.session, m.ChangeDirectory(directory), 0)

    def answers_long(self, session: int, body: bytes) -> bool:
        """Return whether the answer may have many entries, which only `l` has."""
        one = self._answers.sessions.get(session)
        directory = self._answers.directory_of(one) if one is not None and body[:1] == b"l" else None
        return directory is not None and len(directory.objects) > entries_few

    def _list(self, one: V0Session, request: wire.V0List) -> None:
        del request
        directory = self._answers.directory_of(one)
        if directory is None:
            self._answers.refuse(one, NO_DIRECTORY)
            return
        states = [directory.objects[name] for name in directory.objects.ordered()]
        lines = [
            f"{state.name}\t{state.claimed_size[0]}\t{'yes' if state.being_appended else 'no'}\n"
            for state in states
            if state.exists
        ]
        self._answers.reply(one, "".join(lines).encode("ascii"))

    def _delete(self, one: V0Session, request: wire.V0Delete) -> None:
        directory = self._answers.directory_of(one)
        if directory is None:
            self._answers.refuse(one, NO_DIRECTORY)
            return
        state = directory.objects.get(request.name)
        why = read_only(directory)
        if why or state is None or not state.exists:
            self._answers.refuse(one, why or f"no file {request.name} in {directory.name}")
            return
        refusal = self._removals.remove(one.session, directory, state, 0)
        if refusal is not None:
            self._answers.refuse(one, refusal.message)

    def removed(self, outcome: RemovalOutcome) -> None:
        session, _, refusal = outcome
        one = self._answers.sessions.get(session.number) if session is not None else None
        if one is None or one.closed:
            return
        if refusal is None:
            self._answers.reply(one, b"ok")
        else:
            self._answers.refuse(one, refusal.message)

    def _sync(self, one: V0Session, request: wire.V0Sync) -> None:
        """Wait until everything accepted is on stable storage; its sync is already ordered."""
        directory = self._answers.directory_of(one)
        if directory is None:
            self._answers.refuse(one, NO_DIRECTORY)
            return
        state = directory.objects.get(request.name)
        if state is None or not state.exists:
            self._answers.refuse(one, f"no file {request.name} in {directory.name}")
        elif state.damaged or state.changing:
            self._answers.refuse(one, state.changing or _damaged(state.name))
        else:
            one.state, one.end = state, state.accepted
            self._answers.wait(one)
            self._reply_if_synced(one)

    def _reply_if_synced(self, one: V0Session) -> None:
        state = one.target
        if state.poisoned:
            self._answers.stop_waiting(one)
            self._answers.refuse(one, _damaged(state.name))
        elif state.synced >= one.end and state.entry_durable:
            self._answers.stop_waiting(one)
            self._answers.reply(one, f"{state.synced}\t{state.synced}".encode("ascii"))

    # Messages of the rest of the core

    def translate_messages(self) -> None:
        while self._tables.untranslated:
            untranslated, self._tables.untranslated = self._tables.untranslated, []
            for session, message, rest in untranslated:
                one = self._answers.sessions.get(session.number)
                if one is not None and not one.closed:
                    self._translate(one, message, rest)

    def _translate(self, one: V0Session, message: m.Message, rest: Sequence[Buffer]) -> None:
        if isinstance(message, m.DirectoryOpened):
            self._answers.reply(one, b"ok")
        elif isinstance(message, m.Data):
            # The range was fixed when the request arrived: what was durable then.
            self._gets.got(one, message, rest)
        elif isinstance(message, m.Error):
            self._refused(one, message.message)
        # A durability ack needs no translation: the status frames read the sizes from the object.

    def _refused(self, one: V0Session, text: str) -> None:
        if isinstance(one.request, wire.V0Get) or one.protocol_state is not V0State.ANSWERING:
            self._answers.end(one, text)
        elif isinstance(one.request, wire.V0Append):
            self._answers.refuse_and_end(one, text)
        else:
            self._answers.refuse(one, text)

    @property
    def waits(self) -> bool:
        """Whether a session waits for bytes to be written or synced, which `progress` reports."""
        return bool(self._answers.waiting)

    def progress(self, directory: str, name: str) -> None:
        self.translate_messages()
        state = self._tables.find(directory, name)
        for one in list(self._answers.waiting.get(state, ())) if state is not None else ():
            if isinstance(one.request, wire.V0Sync):
                self._reply_if_synced(one)
            else:
                self._streams.inspect(one)


def _damaged(name: str) -> str:
    return f"{name} is damaged, or a write or sync of it failed"


def why_off(*, version0: bool, tokens: Tokens | None, quotas: Quotas | None) -> str:
    if not version0:
        return "version 0 is switched off on this server"
    if quotas is not None:
        return "this server has quotas, which version 0 has no words to explain"
    return "" if tokens is None else "this server requires a token, which version 0 cannot carry"
