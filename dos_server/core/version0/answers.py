"""Sessions of version 0, and how they are answered, refused, ended and made to wait for the disk.

Shared by the parts of version 0. No request is decided here.
"""

from typing import Final

from dos_server.core import vocabulary as v
from dos_server.core.directory_state import DirectoryState
from dos_server.core.object_state import ObjectState
from dos_server.core.requests import version0_wire as wire
from dos_server.core.tables import Tables
from dos_server.core.version0.session import V0Session
from dos_server.core.version0.states import V0Event

NO_DIRECTORY: Final = "no directory: u DIR comes first"


class V0Answers:
    """The version 0 sessions. `waiting`: sessions to check after a write or sync of the object ends."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.sessions: dict[int, V0Session] = {}
        self.waiting: dict[ObjectState, list[V0Session]] = {}

    def reply(self, one: V0Session, body: bytes) -> None:
        """Answer the request. The next one may follow."""
        self.send(one, wire.reply(body))
        self.answered(one)

    def refuse(self, one: V0Session, text: str) -> None:
        """Answer with an error. The connection stays usable."""
        self.reply(one, _error(text))

    def refuse_and_end(self, one: V0Session, text: str) -> None:
        """Answer with an error and end the connection."""
        self.send(one, wire.reply(_error(text)))
        self.end(one)

    def answered(self, one: V0Session) -> None:
        """Record that the whole reply was sent."""
        one.move(V0Event.ANSWERED)
        one.request = one.state = None
        if one.half_closed:
            self.end(one)

    def send(self, one: V0Session, data: bytes) -> None:
        """Send bytes to the peer."""
        self._tables.effects.append(v.SendBytes(one.session.number, data))

    def end(self, one: V0Session, why: str = "") -> None:
        """End the connection after everything sent before has left. `why`: logged, not sent to the peer."""
        if why:
            self._tables.effects.append(v.LogReason(one.session.number, why))
        one.move(V0Event.ENDED)
        self.stop_waiting(one)
        self._tables.close(one.session)

    def directory_of(self, one: V0Session) -> DirectoryState | None:
        """Return the session's directory, or None."""
        directory = one.session.directory
        return self._tables.directories.get(directory) if directory else None

    def wait(self, one: V0Session) -> None:
        """Check the session again whenever a write or sync of its object ends."""
        self.waiting.setdefault(one.target, []).append(one)

    def stop_waiting(self, one: V0Session) -> None:
        """Stop checking the session after writes and syncs."""
        waiting = self.waiting.get(one.state) if one.state is not None else None
        if waiting is not None and one in waiting:
            waiting.remove(one)
            if not waiting:
                del self.waiting[one.target]


def read_only(directory: DirectoryState) -> str:
    """Return why version 0 may not write in the directory, or ''."""
    if directory.claimed:
        return f"directory {directory.name} is claimed by a writer of version 1: version 0 may only read it"
    return ""


def _error(text: str) -> bytes:
    return f"ERROR: {text}".encode("ascii", "backslashreplace")
