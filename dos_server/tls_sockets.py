"""TLS under the connections of a server, as sockets that encrypt and do not block.

The handshake is part of the first reads: a peer that is slow in it delays nobody, and has as long as a peer
that does not send HELLO.
"""

from contextlib import suppress
from typing import Final

from dos_protocol import messages as m
from dos_protocol.errors import VERDICTS, ErrorCode
from dos_protocol.frames import encode_frame
from dos_server.core.requests import version0_wire as wire0
from dos_tls import BUSY_ALERT, PlainTextPeerError, ServerContext, TlsEngine
from dos_tls.readiness import Socket
from dos_tls.sockets import SCRATCH_BYTES, EncryptedSocket

_REFUSED: Final = "this server accepts TLS only"


class TlsPeers:
    """All TLS connections of one server. `handshakes`: how many have not completed it."""

    def __init__(self, context: ServerContext) -> None:
        self.scratch = bytearray(SCRATCH_BYTES)
        self.handshakes = 0
        self._context = context

    def wrap(self, sock: Socket, peer: str) -> "TlsSocket":
        return TlsSocket(sock, TlsEngine(self._context.current(), peer, name=None), self)

    def reject(self, sock: Socket) -> None:
        """Close a connection that cannot be served, with an alert that a client can name."""
        with suppress(OSError):
            sock.send(BUSY_ALERT)
        sock.close()


class TlsSocket(EncryptedSocket):
    """The server's end of one TLS connection, with its handshake."""

    def __init__(self, sock: Socket, engine: TlsEngine, peers: TlsPeers) -> None:
        super().__init__(sock, engine, peers.scratch)
        self._peers = peers
        self._shaking = True
        peers.handshakes += 1

    @property
    def in_handshake(self) -> bool:
        return self._shaking

    def recv_into(self, buffer: memoryview | bytearray, /) -> int:
        """Decrypt as `EncryptedSocket`. A peer that sends plain text is answered in its protocol."""
        try:
            return super().recv_into(buffer)
        except PlainTextPeerError:
            self._answer_plain(self._scratch[0])
            raise

    def close(self) -> None:
        """Close without a mark of the end: what the peer has of an answer may not be whole."""
        self._count_shaken()
        self._sock.close()

    def alert_busy(self) -> None:
        """Tell a peer in the handshake that its place is needed. A peer that waits for our first record can
        name the alert.
        """
        with suppress(OSError):
            self._sock.send(BUSY_ALERT)

    def _shaken(self) -> bool:
        if not self._shaking:
            return True
        done = self._engine.handshake()
        self._send_control()
        if done:
            self._count_shaken()
        return done

    def _count_shaken(self) -> None:
        if self._shaking:
            self._shaking = False
            self._peers.handshakes -= 1

    def _answer_plain(self, first: int) -> None:
        if first == wire0.FIRST_BYTE:
            answer = wire0.reply(f"ERROR: {_REFUSED}".encode("ascii"))
        else:
            remedy = VERDICTS[ErrorCode.TLS_REQUIRED].remedy
            answer = encode_frame(m.encode(m.Error(int(ErrorCode.TLS_REQUIRED), _REFUSED, remedy)))
        self._discards = True
        with suppress(OSError):
            self._sock.send(answer)
