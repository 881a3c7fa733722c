"""One connection as the core sees it: its state by the table of `dos_protocol.session_states`, and what it
still waits for.

Rules of this file: values of one session and no more.
"""

from collections import deque
from dataclasses import dataclass, field

from dos_protocol.frames import Frame
from dos_protocol.names import NO_ID
from dos_protocol.session_states import SessionEvent, SessionState, step
from dos_server.core.object_state import ObjectState


@dataclass(eq=False)
class Session:
    """`directory`: where it is; `opening`: where its unanswered CWD goes; `deferred`: what came behind that
    CWD.

    `version`: of the protocol it speaks; `stream`: what it appends to, in version 0.
    `leaving`: it sends nothing more, and ends when everything is answered. `pending`: requests at the disk or
    waiting; `reading`: those of them that read; `unsynced_*`: appends accepted for it and not yet settled.
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
    stream: ObjectState | None = None

    def move(self, event: SessionEvent) -> None:
        """Step by the table."""
        self.state = step(self.state, event)

    @property
    def closed(self) -> bool:
        return self.state is SessionState.CLOSED

    @property
    def answered(self) -> bool:
        """Nothing this session asked for is still open."""
        return not (self.pending or self.unsynced_appends or self.opening or self.deferred)
