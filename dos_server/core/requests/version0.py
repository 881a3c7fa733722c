"""Version 0 requests, carried out over the same objects as version 1.

A version 0 session holds no claim: it may write in directories that were never claimed, and only read in
others. Messages of the rest of the core to such a session (an `Error`, a `Data`) are translated here. Version
0 has few words for failures:

    failure                      what the peer receives
    a request is refused         ERROR: and the reason; the connection stays usable
    an `a` is refused            ERROR: and the reason; the connection ends
    a `g` cannot be completed    the connection ends: any message would be taken for content
    a stream cannot continue     the connection ends: there is no error among the status frames

This part handles the peer's events, the short requests, and the translation. `streams` handles `a` and the
stream that follows it, `gets` handles `g`.
"""

from collections.abc import Callable
from typing import Any, Final

from dos_protocol import messages as m
from dos_protocol.messages import SessionEvent
from dos_server.core import vocabulary as v
from dos_server.core.access import Tokens
from dos_server.core.quotas import Quotas
from dos_server.core.requests.appends import Appends
from dos_server.core.requests.claims import Claims
from dos_server.core.requests.reads import Reads
from dos_server.core.requests.removals import RemovalOutcome, Removals
from dos_server.core.session import Session
from dos_server.core.tables import Tables
from dos_server.core.version0 import requests as r
from dos_server.core.version0.answers import NO_DIRECTORY, V0Answers, read_only
from dos_server.core.version0.gets import V0Gets
from dos_server.core.version0.session import V0Session
from dos_server.core.version0.states import V0Event, V0State
from dos_server.core.version0.streams import V0Streams
from dos_server.limits import entries_few, version0_in_flight_batches_max, version0_in_flight_bytes_max


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
            r.V0Use: self._use,
            r.V0Append: streams.append,
            r.V0List: self._list,
            r.V0Get: gets.get,
            r.V0Delete: self._delete,
            r.V0Sync: self._sync,
            r.V0InvalidRequest: self._invalid,
        }

    def may_read(self, session: int) -> bool:
        """Return whether the shell may read more from the connection."""
        one = self._answers.sessions.get(session)
        if one is None or one.protocol_state is V0State.COMMAND:
            return True
        return (
            one.protocol_state is V0State.STREAMING
            and one.session.unsynced_bytes < version0_in_flight_bytes_max
            and one.session.unsynced_appends < version0_in_flight_batches_max
        )

    def is_streaming(self, session: int) -> bool:
        """Return whether the next bytes are content, not a request."""
        one = self._answers.sessions.get(session)
        return one is not None and one.protocol_state is V0State.STREAMING

    def wants_tick(self) -> bool:
        """Return whether a status may become due without an event."""
        return bool(self._streams.unacknowledged)

    # Events of the peer

    def requested(self, event: v.Requested) -> None:
        """Carry out a request. An empty one ends the connection."""
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
        request = r.parse(event.body)
        one.request = None if isinstance(request, r.V0InvalidRequest) else request
        self._on_request[type(request)](one, request)

    def _session_of(self, session: Session) -> V0Session:
        """Return the version 0 session, creating it on first use."""
        one = self._answers.sessions.get(session.number)
        if one is None:
            session.version = 0
            session.move(SessionEvent.WELCOMED)
            one = self._answers.sessions[session.number] = V0Session(session)
        return one

    def half_closed(self, session: Session) -> None:
        """Handle the end of the peer's data: finish a stream, or end the session after its answer."""
        one = self._session_of(session)
        if one.protocol_state is V0State.STREAMING:
            self._streams.finish(one)
        elif one.protocol_state is V0State.COMMAND:
            self._answers.end(one)
        else:
            one.half_closed = True

    def ended(self, session: int) -> None:
        """Forget the session of a closed connection. Stream bytes accepted from it still go to the disk."""
        one = self._answers.sessions.pop(session, None)
        if one is not None and not one.closed:
            one.move(V0Event.ENDED)
            self._answers.stop_waiting(one)

    # Requests

    def _invalid(self, one: V0Session, request: r.V0InvalidRequest) -> None:
        if request.command == "g":
            self._answers.end(one, request.text)
        elif request.command == "a":
            self._answers.refuse_and_end(one, request.text)
        else:
            self._answers.refuse(one, request.text)

    def _use(self, one: V0Session, request: r.V0Use) -> None:
        """Open the directory, after creating it durably if it is new."""
        if request.directory in self._tables.directory_names:
            self._open(one, request.directory)
        else:
            one.session.pending += 1
            self._tables.effects.append(v.MakeDirectory(one.session.number, request.directory))

    def directory_made(self, event: v.DirectoryMade) -> None:
        """Enter the directory that was created for `u`."""
        tables = self._tables
        tables.answerable(event.session)
        if event.failure is v.DiskFailure.NONE:
            tables.directory_names.add(event.directory)
            directory = tables.directories.get(event.directory)
            if directory is not None:
                self._claims.now_exists(directory)
        one = self._answers.sessions.get(event.session)
        if one is None or one.closed:
            return
        if event.failure is v.DiskFailure.NONE:
            self._open(one, event.directory)
        else:
            self._answers.refuse(one, f"directory {event.directory} cannot be made: {event.failure.value}")

    def _open(self, one: V0Session, directory: str) -> None:
        self._claims.change_directory(one.session, m.ChangeDirectory(directory), 0)

    def answers_long(self, session: int, body: bytes) -> bool:
        """Return whether the answer may have many entries, which only `l` has.

        `g` is sent piece by piece; all other answers have less than 1 KiB.
        """
        one = self._answers.sessions.get(session)
        directory = self._answers.directory_of(one) if one is not None and body[:1] == b"l" else None
        return directory is not None and len(directory.objects) > entries_few

    def _list(self, one: V0Session, request: r.V0List) -> None:
        """Answer the objects of the directory, a line each."""
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

    def _delete(self, one: V0Session, request: r.V0Delete) -> None:
        """Order a removal, or refuse it."""
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
        """Answer a `d`."""
        session, _, refusal = outcome
        one = self._answers.sessions.get(session.number) if session is not None else None
        if one is None or one.closed:
            return
        if refusal is None:
            self._answers.reply(one, b"ok")
        else:
            self._answers.refuse(one, refusal.message)

    def _sync(self, one: V0Session, request: r.V0Sync) -> None:
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
        """Answer the `s` if the sync it waits for has ended."""
        state = one.target
        if state.poisoned:
            self._answers.stop_waiting(one)
            self._answers.refuse(one, _damaged(state.name))
        elif state.synced >= one.end and state.entry_durable:
            self._answers.stop_waiting(one)
            self._answers.reply(one, f"{state.synced}\t{state.synced}".encode("ascii"))

    # Messages of the rest of the core

    def translate_messages(self) -> None:
        """Translate the messages to version 0 sessions."""
        while self._tables.untranslated:
            untranslated, self._tables.untranslated = self._tables.untranslated, []
            for session, message in untranslated:
                one = self._answers.sessions.get(session.number)
                if one is not None and not one.closed:
                    self._translate(one, message)

    def _translate(self, one: V0Session, message: m.Message) -> None:
        """Translate one message."""
        if isinstance(message, m.DirectoryOpened):
            self._answers.reply(one, b"ok")
        elif isinstance(message, m.Data):
            self._gets.got(one, message)
        elif isinstance(message, m.Error):
            self._refused(one, message.message)
        # A durability ack needs no translation: the status frames read the sizes from the object.

    def _refused(self, one: V0Session, text: str) -> None:
        """Translate an error by the table of this module."""
        if isinstance(one.request, r.V0Get) or one.protocol_state is not V0State.ANSWERING:
            self._answers.end(one, text)
        elif isinstance(one.request, r.V0Append):
            self._answers.refuse_and_end(one, text)
        else:
            self._answers.refuse(one, text)

    def progress(self, directory: str, name: str) -> None:
        """Check the sessions that wait on the object after a write or sync has ended or failed."""
        self.translate_messages()
        if not self._answers.waiting:
            return
        state = self._tables.find(directory, name)
        for one in list(self._answers.waiting.get(state, ())) if state is not None else ():
            if isinstance(one.request, r.V0Sync):
                self._reply_if_synced(one)
            else:
                self._streams.inspect(one)


def _damaged(name: str) -> str:
    return f"{name} is damaged, or a write or sync of it failed"


def why_off(*, version0: bool, tokens: Tokens | None, quotas: Quotas | None) -> str:
    """Return why version 0 is not served; "" if it is."""
    if not version0:
        return "version 0 is switched off on this server"
    if quotas is not None:
        return "this server has quotas, which version 0 has no words to explain"
    return "" if tokens is None else "this server requires a token, which version 0 cannot carry"
