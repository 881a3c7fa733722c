"""The states of a session as a table. The diagram in protocol.md is drawn from it.

Only states, events, the table and `step` belong here. The cores perform the effects after a transition is
found legal.
"""

from enum import Enum
from typing import Final

from dos_protocol.errors import LocalProtocolError


class SessionState(Enum):
    """The state of a session on the server. A client derives its copy from the answers."""

    NEW = "NEW"
    """Connected. Only HELLO and QUIT are answered, for 5 s."""
    READY = "READY"
    """HELLO was answered. LIST names directories."""
    READING = "READING"
    """In a directory, without a claim."""
    CLAIMED = "CLAIMED"
    """In a directory, as its writer."""
    SUPERSEDED = "SUPERSEDED"
    """In a directory that another writer has claimed since, or in which an object was repaired since.

    Reads continue, appends are answered FENCED, no durability ack is sent.
    """
    CLOSED = "CLOSED"


class SessionEvent(Enum):
    """An event of a session."""

    WELCOMED = "HELLO answered WELCOME"
    OPENED = "CWD answered DIRECTORY_OPENED"
    CLAIMED = "claim answered DIRECTORY_OPENED"
    SUPERSEDED = "a later claim of the directory, or a repaired object in it"
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
    """Return the state after the event. Raises LocalProtocolError for an event not in the table."""
    try:
        return SESSION_TABLE[state][event]
    except KeyError:
        raise LocalProtocolError(
            f"event {event.name} is not valid for a session in state {state.name}"
        ) from None


def diagram() -> str:
    """Return the table as a Mermaid state diagram, as in protocol.md."""
    lines = ["stateDiagram-v2", "    [*] --> NEW"]
    for state, row in SESSION_TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join([*lines, "    CLOSED --> [*]"])
