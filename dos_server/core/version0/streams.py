"""Appending in version 0: `a`, then a stream of bytes with status frames, until the client ends it.

    a, refused   ERROR: and the reason, and the connection ends
    a, accepted  the file is created if necessary, durably before `ok`, and locked
    bytes        appended as they arrive, in the batches that the socket delivers
    status       bytes in the file and bytes on stable storage; sent when bytes arrive and a second has
                 passed since the last status, and after a second's pause if a number has changed
    the end      received bytes go to stable storage, then the last status, then the connection ends
    a failure    the connection ends without a message: status frames cannot carry an error, and no number
                 may be sent that covers bytes found damaged

The session holds the lock until it ends, for whatever reason. Bytes accepted from an interrupted stream still
go to the disk, and no other session may append before they are there.

This part handles the course of a stream. `appends` decides the order of writing and syncing.
"""

from dos_server.core import vocabulary as v
from dos_server.core.append_checks import refuses_bytes, refuses_session
from dos_server.core.object_state import ObjectState
from dos_server.core.requests import version0_wire as wire
from dos_server.core.requests.appends import Appends
from dos_server.core.tables import Tables
from dos_server.core.version0 import requests as r
from dos_server.core.version0.answers import NO_DIRECTORY, V0Answers, read_only
from dos_server.core.version0.session import V0Session
from dos_server.core.version0.states import V0Event, V0State
from dos_server.limits import version0_status_seconds


class V0Streams:
    """The open streams. `unacknowledged`: streams for which a status may become due without an event."""

    def __init__(self, tables: Tables, appends: Appends, answers: V0Answers) -> None:
        self._tables = tables
        self._appends = appends
        self._answers = answers
        self.unacknowledged: dict[V0Session, None] = {}

    def append(self, one: V0Session, request: r.V0Append) -> None:
        """Carry out an `a`: lock the object and begin the stream, or refuse."""
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
        """Return why there is no space, or ''. Checked here because a stream that fails later only ends."""
        refusal = self._tables.reserve_space(state, 0)
        return "" if refusal is None else refusal.message

    def _begin(self, one: V0Session) -> None:
        """Answer `ok` and begin the stream."""
        self._answers.send(one, wire.reply(b"ok"))
        one.move(V0Event.APPENDING)
        one.bytes_at = one.status_at = self._tables.now
        one.reported = (one.target.written, one.target.synced)

    def streamed(self, event: v.Streamed) -> None:
        """Append bytes of a stream, or end the stream."""
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
        """Handle the end of the client's data."""
        one.move(V0Event.STREAM_ENDED)
        self.inspect(one)

    def inspect(self, one: V0Session) -> None:
        """Advance the session after a write or sync of its object."""
        settled = not one.session.unsynced_appends
        if one.protocol_state is V0State.ANSWERING and settled:
            self._begin(one)
        elif one.protocol_state is not V0State.ANSWERING and one.target.damaged:
            self._answers.end(one, f"{one.target.name} was found damaged")
        elif one.protocol_state is V0State.FINISHING and settled:
            self._send_status(one)
            self._answers.end(one)
        elif one.protocol_state is V0State.STREAMING and one.status_due:
            self._send_status(one)

    def tick(self) -> None:
        """Send the status frames that are due."""
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
    """Return why the session cannot append at that offset, or ''."""
    refusal = refuses_session(state, one.session.number)
    if refusal is not None:
        return refusal.message
    if offset != state.accepted:
        return f"{state.name} has {state.accepted} bytes, not {offset}"
    return ""
