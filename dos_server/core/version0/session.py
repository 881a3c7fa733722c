"""One version 0 connection: its protocol state, and what it waits for."""

from dataclasses import dataclass

from dos_server.core.object_state import ObjectState
from dos_server.core.session import Session
from dos_server.core.version0.requests import Request
from dos_server.core.version0.states import V0Event, V0State, step


@dataclass(eq=False)
class V0Session:
    """The state of one version 0 connection.

    `session`: the session in the rest of the core. `request`: the request being answered. `state`: the object
    of that request.
    `position`, `end`: for `g`, the range still to be sent; for `s`, `end` must be synced.
    `bytes_at`, `status_at`: for a stream, when bytes last arrived and when a status was last sent, with the
    numbers `reported`. `status_due`: send a status with the next write.
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
        """Apply the event to the state table."""
        self.protocol_state = step(self.protocol_state, event)

    @property
    def target(self) -> ObjectState:
        """The object of the request or stream, which must exist."""
        assert self.state is not None, "no object in this request"
        return self.state

    @property
    def closed(self) -> bool:
        return self.protocol_state is V0State.CLOSED
