"""The states of a version 0 connection, as data. The diagram in protocol.md is drawn from this table.

Only states, events and the table belong here. `service` performs the effects after a transition is found
legal.
"""

from enum import Enum
from typing import Final


class V0State(Enum):
    """The protocol state of a version 0 connection on the server."""

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
    """An event of a version 0 connection."""

    REQUESTED = "a request"
    ANSWERED = "its reply"
    APPENDING = "a answered ok"
    STREAM_ENDED = "the client sends no more"
    ENDED = "an empty request, the connection ended, or a refusal that closes"


_ENDED: Final = {V0Event.ENDED: V0State.CLOSED}

TABLE: Final[dict[V0State, dict[V0Event, V0State]]] = {
    V0State.COMMAND: {V0Event.REQUESTED: V0State.ANSWERING} | _ENDED,
    V0State.ANSWERING: {V0Event.ANSWERED: V0State.COMMAND, V0Event.APPENDING: V0State.STREAMING} | _ENDED,
    V0State.STREAMING: {V0Event.STREAM_ENDED: V0State.FINISHING} | _ENDED,
    V0State.FINISHING: _ENDED,
    V0State.CLOSED: {},
}


def step(state: V0State, event: V0Event) -> V0State:
    """Return the state after the event.

    An event that the table does not allow is a bug of the server: the peer cannot cause one.
    """
    after = TABLE[state].get(event)
    assert after is not None, f"event {event.name} is not valid in state {state.name}"
    return after


def diagram() -> str:
    """Return the table as a Mermaid state diagram, as in protocol.md."""
    lines = ["stateDiagram-v2", "    [*] --> COMMAND"]
    for state, row in TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join([*lines, "    CLOSED --> [*]"])
