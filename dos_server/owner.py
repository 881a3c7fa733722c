"""The interface of the server that a connection uses."""

from typing import Protocol

from dos_protocol.errors import RemoteProtocolError
from dos_protocol.frames import Frame
from dos_server.buffers import BufferAccount, OutgoingAccount
from dos_server.core.requests import version0_wire as wire0
from dos_server.ports import Rounds
from dos_server.turns import Turns
from dos_tls import TlsError


class Resumable(Protocol):
    """A connection that is paused."""

    def wanted(self) -> bool:
        """Whether it may be read again."""

    def resume(self) -> None:
        """Called when the reason for the pause may be gone."""


class ConnectionOwner(Protocol):
    """The server, as a connection sees it."""

    def received(self, session: int, frame: Frame) -> None:
        """Accept a whole frame."""

    def received_appends(self, session: int, frames: list[Frame]) -> None:
        """Accept whole frames, all of them APPEND."""

    readiness: Rounds
    buffers: BufferAccount
    outgoing: OutgoingAccount
    turns: Turns
    rounds_ended: int
    """At the end of a round, what its reads have left in the buffers is written."""

    def requested(self, session: int, body: bytes) -> None:
        """Accept a whole request of version 0."""

    def streamed(self, session: int, data: memoryview) -> None:
        """Accept bytes to append, of version 0. The view is valid only during the call."""

    def is_streaming(self, session: int) -> bool:
        """Whether the next bytes, in version 0, are bytes to append."""

    def half_closed(self, session: int) -> None:
        """Note that the peer sends no more; it may still read."""

    def stalled(self, connection: Resumable) -> None:
        """Call `resume` of the connection when it may continue."""

    def has_sent(self, session: int) -> None:
        """Note that the peer has taken answers."""

    def bad_frame(self, session: int, error: RemoteProtocolError) -> None:
        """Report the error and close: nothing more can be framed on this connection."""

    def bad_request(self, session: int, error: wire0.RequestTooLongError) -> None:
        """Do the same as `bad_frame`, for version 0."""

    def tls_failed(self, error: TlsError) -> None:
        """Log why TLS failed on a connection, which closes."""

    def may_read(self, session: int) -> bool:
        """Whether the core accepts more input."""

    def may_answer(self, session: int, request: Frame | bytes) -> bool:
        """Whether there is memory for the answer of LIST or CWD (up to 1 MiB), or of a version 0 request."""

    def is_welcome(self, session: int) -> bool:
        """Whether HELLO was answered."""
