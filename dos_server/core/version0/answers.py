"""What the parts of version 0 share: its sessions, replying, refusing, ending, waiting for the disk.

Rules of this file: how something is said, and to whom. No request is decided here.
"""

from typing import Final

from dos_server.core import vocabulary as v
from dos_server.core.directory_state import DirectoryState
from dos_server.core.object_state import ObjectState
from dos_server.core.tables import Tables
from dos_server.core.version0 import wire
from dos_server.core.version0.session import V0Session
from dos_server.core.version0.states import V0Event

NO_DIRECTORY: Final = "no directory: u DIR comes first"


class V0Answers:
    """See the module. `waiting`: who must look again when a write or a sync of the object has ended."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.sessions: dict[int, V0Session] = {}
        self.waiting: dict[ObjectState, list[V0Session]] = {}

    def reply(self, one: V0Session, body: bytes) -> None:
        """Answer the request; the next one may come."""
        self.send(one, wire.reply(body))
        self.answered(one)

    def refuse(self, one: V0Session, text: str) -> None:
        """Answer that it cannot be done; the connection stays usable."""
        self.reply(one, _error(text))

    def refuse_and_end(self, one: V0Session, text: str) -> None:
        """Answer that it cannot be done, and end the connection."""
        self.send(one, wire.reply(_error(text)))
        self.end(one)

    def answered(self, one: V0Session) -> None:
        """The whole reply was sent."""
        one.move(V0Event.ANSWERED)
        one.request = one.state = None
        if one.half_closed:
            self.end(one)

    def send(self, one: V0Session, data: bytes) -> None:
        self._tables.effects.append(v.SendBytes(one.session.number, data))

    def end(self, one: V0Session, why: str = "") -> None:
        """The connection ends once what was sent before has left. `why`: what the peer is not told."""
        if why:
            self._tables.effects.append(v.LogReason(one.session.number, why))
        one.move(V0Event.ENDED)
        self.wait_no_more(one)
        self._tables.close(one.session)

    def directory_of(self, one: V0Session) -> DirectoryState | None:
        """Where the session is."""
        directory = one.session.directory
        return self._tables.directories.get(directory) if directory else None

    def wait(self, one: V0Session) -> None:
        """Have the session looked at whenever the disk has got on with its object."""
        self.waiting.setdefault(one.target, []).append(one)

    def wait_no_more(self, one: V0Session) -> None:
        waiting = self.waiting.get(one.state) if one.state is not None else None
        if waiting is not None and one in waiting:
            waiting.remove(one)
            if not waiting:
                del self.waiting[one.target]


def read_only(directory: DirectoryState) -> str:
    """Why version 0 may not write there, or nothing."""
    if directory.claimed:
        return f"directory {directory.name} is claimed by a writer of version 1: version 0 may only read it"
    return ""


def _error(text: str) -> bytes:
    return f"ERROR: {text}".encode("ascii", "backslashreplace")
