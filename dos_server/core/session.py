"""One connection as the core sees it.

The protocol state follows the table in `dos_protocol.messages`. Only values of one session belong here.
"""

from collections import deque
from dataclasses import dataclass, field

from dos_protocol.frames import Frame
from dos_protocol.messages import SessionEvent, SessionState, step
from dos_protocol.names import NO_ID
from dos_server.core.access import EVERYTHING, Access
from dos_server.core.object_state import ObjectState


@dataclass(eq=False)
class Session:
    """The state of one connection and its outstanding requests.

    `directory`: the current directory. `opening`: the directory of the CWD that is not answered yet.
    `deferred`: frames received after that CWD; they are executed when it is answered.
    `wrote`: the session appended in its current directory. `version`: the protocol version it speaks.
    `stream`: the object that a version 0 session appends to.
    `host`: where it comes from. `access`: what its token allows.
    `leaving`: the session sends nothing more and ends when everything is answered.
    `pending`: requests that wait or are with the disk. `reading`: those of them that read.
    `unsynced_bytes`, `unsynced_appends`: appends accepted from it that are neither synced nor refused.
    """

    number: int
    state: SessionState = SessionState.NEW
    store_id: bytes = NO_ID
    generation: int = 0
    directory: str | None = None
    opening: str | None = None
    wrote: bool = False
    deferred: deque[Frame] = field(default_factory=deque)
    pending: int = 0
    reading: int = 0
    unsynced_bytes: int = 0
    unsynced_appends: int = 0
    quit_request: int | None = None
    leaving: bool = False
    version: int = 1
    host: str = ""
    access: Access = EVERYTHING
    stream: ObjectState | None = None

    def move(self, event: SessionEvent) -> None:
        """Apply the event to the state table."""
        self.state = step(self.state, event)

    @property
    def closed(self) -> bool:
        return self.state is SessionState.CLOSED

    @property
    def answered(self) -> bool:
        """Whether no request of the session is outstanding."""
        return not (self.pending or self.unsynced_appends or self.opening or self.deferred)
