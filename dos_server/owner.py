"""What a connection needs of the server it belongs to.

Rules of this file: the port only.
"""

from typing import Protocol

from dos_protocol.errors import RemoteProtocolError
from dos_protocol.frames import Frame
from dos_server.buffers import BufferAccount, OutgoingAccount
from dos_server.core.version0 import wire as wire0
from dos_server.ports import Rounds
from dos_server.turns import Turns


class Resumable(Protocol):
    """A connection that is not read from."""

    def wanted(self) -> bool:
        """Whether it may be read from again."""

    def resume(self) -> None:
        """What it waits for may have changed."""


class ConnectionOwner(Protocol):
    """What a connection needs of the server."""

    def received(self, session: int, frame: Frame) -> None:
        """A whole frame."""

    def received_appends(self, session: int, frames: list[Frame]) -> None:
        """Whole frames, all of them APPEND."""

    readiness: Rounds
    buffers: BufferAccount
    outgoing: OutgoingAccount
    turns: Turns

    def requested(self, session: int, body: bytes) -> None:
        """A whole request of version 0."""

    def streamed(self, session: int, data: memoryview) -> None:
        """Bytes to append, of version 0. They are good only during the call."""

    def is_streaming(self, session: int) -> bool:
        """Whether what comes next, in version 0, is bytes to append."""

    def half_closed(self, session: int) -> None:
        """The peer sends no more; it may still read."""

    def stalled(self, connection: Resumable) -> None:
        """The connection waits for `resume`."""

    def has_sent(self, session: int) -> None:
        """The peer has taken answers."""

    def bad_frame(self, session: int, error: RemoteProtocolError) -> None:
        """Nothing more can be framed on this connection."""

    def bad_request(self, session: int, error: wire0.RequestTooLongError) -> None:
        """The same, in version 0."""

    def may_read(self, session: int) -> bool:
        """Whether the core takes more."""

    def may_answer(self, session: int, request: Frame | bytes) -> bool:
        """Whether there is memory for the answer of a LIST or CWD, which may have 1 MiB, or of a request of
        version 0."""

    def is_welcome(self, session: int) -> bool:
        """Whether HELLO was answered."""
