"""One connection that speaks version 0: where it stands, and what it waits for.

Rules of this file: values of one session and no more.
"""

from dataclasses import dataclass

from dos_server.core.object_state import ObjectState
from dos_server.core.session import Session
from dos_server.core.version0.requests import Request
from dos_server.core.version0.states import V0Event, V0State, step


@dataclass(eq=False)
class V0Session:
    """`session`: what the rest of the core knows of it. `request`: the one being answered.

    `state`: the object of that request. GET: [`position`, `end`) is still to be sent. `s`: `end` must be
    synced. STREAMING: when bytes last came and when a status was last sent, with which numbers; `due`: a
    status goes out with the next write.
    """

    session: Session
    stands: V0State = V0State.COMMAND
    half_closed: bool = False
    request: Request | None = None
    state: ObjectState | None = None
    position: int = 0
    end: int = 0
    bytes_at: float = 0.0
    status_at: float = 0.0
    told: tuple[int, int] = (0, 0)
    due: bool = False

    def move(self, happening: V0Event) -> None:
        """Step by the table."""
        self.stands = step(self.stands, happening)

    @property
    def target(self) -> ObjectState:
        """The object of the request or the stream; there is one."""
        assert self.state is not None, "no object in this request"
        return self.state

    @property
    def closed(self) -> bool:
        return self.stands is V0State.CLOSED
