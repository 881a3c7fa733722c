"""What is legal when, as data. One table per end; the diagrams of protocol.md are drawn from them, a test
keeps them equal.

Rules of this file: states, events, tables, `step`. No effects: those come after the table agreed, in the
cores.
"""

from enum import Enum
from typing import Final

from dos_protocol.errors import LocalProtocolError


class SessionState(Enum):
    """A session as the server sees it. The client's copy follows from the answers it gets."""

    NEW = "NEW"
    """Connected. Only HELLO and QUIT are answered, for 5 s."""
    READY = "READY"
    """Known. LIST names directories."""
    READING = "READING"
    """In a directory, without a claim."""
    CLAIMED = "CLAIMED"
    """In a directory, as its writer."""
    SUPERSEDED = "SUPERSEDED"
    """In a directory whose later claim is another's, or where an object was mended since.

    Reads go on, appends are FENCED, no watermark is sent.
    """
    CLOSED = "CLOSED"


class SessionEvent(Enum):
    """What moves a session."""

    WELCOMED = "HELLO answered WELCOME"
    OPENED = "CWD answered DIRECTORY_OPENED"
    CLAIMED = "claim answered DIRECTORY_OPENED"
    SUPERSEDED = "a later claim of the directory, or a mended object in it"
    ENDED = "QUIT, the connection ended, or an error that closes"


_OPENING: Final = {
    SessionEvent.OPENED: SessionState.READING,
    SessionEvent.CLAIMED: SessionState.CLAIMED,
    SessionEvent.ENDED: SessionState.CLOSED,
}

SESSION_TABLE: Final[dict[SessionState, dict[SessionEvent, SessionState]]] = {
    SessionState.NEW: {
        SessionEvent.WELCOMED: SessionState.READY,
        SessionEvent.ENDED: SessionState.CLOSED,
    },
    SessionState.READY: _OPENING,
    SessionState.READING: _OPENING | {SessionEvent.SUPERSEDED: SessionState.SUPERSEDED},
    SessionState.CLAIMED: _OPENING | {SessionEvent.SUPERSEDED: SessionState.SUPERSEDED},
    SessionState.SUPERSEDED: _OPENING,
    SessionState.CLOSED: {},
}


def step(state: SessionState, event: SessionEvent) -> SessionState:
    """The state after the event. Raises LocalProtocolError for an event the table does not have."""
    try:
        return SESSION_TABLE[state][event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} cannot happen to a session that is {state.name}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram, as protocol.md shows it."""
    lines = ["stateDiagram-v2", "    [*] --> NEW"]
    for state, row in SESSION_TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join([*lines, "    CLOSED --> [*]"])
