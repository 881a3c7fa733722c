"""What is legal when on a version 0 connection, as data; the diagram in protocol.md is drawn from it.

Rules of this file: states, events, the table. No effects: those come after the table agreed, in `service`.
"""

from enum import Enum
from typing import Final


class V0State(Enum):
    """A connection that speaks version 0, as the server sees it."""

    COMMAND = "COMMAND"
    """The next bytes are a request."""
    ANSWERING = "ANSWERING"
    """A request is being carried out. Nothing is read until it is answered: replies come in order."""
    STREAMING = "STREAMING"
    """Every byte that comes is appended. There is no way back to COMMAND."""
    FINISHING = "FINISHING"
    """The stream has ended; what was received goes to stable storage."""
    CLOSED = "CLOSED"


class V0Event(Enum):
    """What moves it."""

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


def step(state: V0State, happening: V0Event) -> V0State:
    """The state after it. A step that the table does not have is a bug of ours: the peer cannot cause one."""
    after = TABLE[state].get(happening)
    assert after is not None, f"{happening.name} cannot happen in {state.name}"
    return after


def diagram() -> str:
    """The table as a Mermaid state diagram, as protocol.md shows it."""
    lines = ["stateDiagram-v2", "    [*] --> COMMAND"]
    for state, row in TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {happening.value}" for happening, after in row.items()]
    return "\n".join([*lines, "    CLOSED --> [*]"])
