"""TLS under the connections of a server, as sockets that encrypt and do not block.

The handshake is part of the first reads: a peer that is slow in it delays nobody, and has as long as a peer
that does not send HELLO.
"""

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from dos_protocol import messages as m
from dos_protocol.digests import Buffer
from dos_protocol.errors import VERDICTS, ErrorCode
from dos_protocol.frames import encode_frame
from dos_server.core.requests import version0_wire as wire0
from dos_server.ports import Socket
from dos_tls import (
    BUSY_ALERT,
    PlainTextPeerError,
    ServerContext,
    TlsEngine,
    TlsError,
)

_SCRATCH_BYTES: Final = 64 * 1024
"""Encrypted bytes that are read at once. A connection holds at most this much and one record beyond that."""
_ENCRYPT_BYTES: Final = 64 * 1024
_REFUSED: Final = "this server accepts TLS only"


class TlsPeers:
    """All TLS connections of one server. `handshakes`: how many have not completed it."""

    def __init__(self, context: ServerContext) -> None:
        self.scratch = bytearray(_SCRATCH_BYTES)
        self.handshakes = 0
        self._context = context

    def wrap(self, sock: Socket, peer: str) -> "TlsSocket":
        return TlsSocket(sock, TlsEngine(self._context.current(), peer, name=None), self)

    def reject(self, sock: Socket) -> None:
        """Close a connection that cannot be served, with an alert that a client can name."""
        with suppress(OSError):
            sock.send(BUSY_ALERT)
        sock.close()


class TlsSocket:
    """The server's end of one TLS connection. Reading raises TlsError, and BlockingIOError like a socket.
    `holds_input`: there may be more to read that the operating system does not report.
    """

    def __init__(self, sock: Socket, engine: TlsEngine, peers: TlsPeers) -> None:
        self._sock = sock
        self._engine = engine
        self._peers = peers
        self._shaking = True
        peers.handshakes += 1
        self._unsent = memoryview(b"")
        self._unsent_covers = 0
        self._discards = self.holds_input = False

    @property
    def in_handshake(self) -> bool:
        return self._shaking

    @property
    def family(self) -> int:
        return self._sock.family

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool, /) -> None:
        self._sock.setblocking(flag)

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        self._sock.setsockopt(level, name, value)

    def getpeername(self) -> object:
        return self._sock.getpeername()

    def recv_into(self, buffer: memoryview | bytearray, /) -> int:
        """Decrypt into the buffer, as much as is there; 0 after the orderly end. After `shutdown`, only
        discard.
        """
        if self._discards:
            return self._sock.recv_into(buffer)
        view, total, scratch = memoryview(buffer), 0, self._peers.scratch
        self.holds_input = drained = False
        try:
            while total < len(view):
                count = self._engine.read_into(view[total:]) if self._shaken() else None
                if count is None and drained:
                    raise BlockingIOError
                if count is None:
                    size = self._sock.recv_into(scratch)
                    drained = 0 < size < len(scratch)
                    self._engine.received(memoryview(scratch)[:size])
                elif count:
                    total += count
                else:
                    break
        except PlainTextPeerError:
            self._answer_plain(scratch[0])
            raise
        except BlockingIOError:
            if not total:
                raise
            return total
        except (TlsError, OSError):
            self._send_control()  # the alert
            if not total:
                raise
        # the buffer is full, or the end or an error follows: the next call returns or raises it
        self.holds_input = total > 0
        return total

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        """Encrypt and send from the beginning of the buffers. Return how many bytes were sent; if not all,
        the next call must continue with the others.
        """
        total = 0
        try:
            self._flush()
            while True:
                total, self._unsent_covers = total + self._unsent_covers, 0
                parts = _part(buffers, total)
                if not parts:
                    return total
                self._engine.write(parts[0] if len(parts) == 1 else b"".join(parts))
                # Counted when they are sent, so that the caller waits until it can write.
                self._unsent_covers = sum(map(len, parts))
                self._flush()
        except BlockingIOError:
            if not total:
                raise
            return total

    def send(self, data: Buffer, /) -> int:
        return self.sendmsg([data])

    def shutdown(self, how: int, /) -> None:
        assert how == socket.SHUT_WR, "only the sending side is shut down"
        self._discards, self.holds_input = True, False
        self._engine.end()
        self._send_control()
        self._sock.shutdown(how)

    def close(self) -> None:
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

    def _flush(self) -> None:
        while True:
            while len(self._unsent):
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            self._unsent = memoryview(self._engine.take_outgoing())
            if not len(self._unsent):
                return

    def _send_control(self) -> None:
        """Send what TLS itself has to send: a few KiB, which find room unless the peer reads nothing."""
        with suppress(OSError):
            self._flush()

    def _answer_plain(self, first: int) -> None:
        if first == wire0.FIRST_BYTE:
            answer = wire0.reply(f"ERROR: {_REFUSED}".encode("ascii"))
        else:
            remedy = VERDICTS[ErrorCode.TLS_REQUIRED].remedy
            answer = encode_frame(m.encode(m.Error(int(ErrorCode.TLS_REQUIRED), _REFUSED, remedy)))
        self._discards = True
        with suppress(OSError):
            self._sock.send(answer)


def _part(buffers: Sequence[Buffer], begin: int) -> list[memoryview]:
    parts: list[memoryview] = []
    room = _ENCRYPT_BYTES
    for buffer in buffers:
        if begin >= len(buffer):
            begin -= len(buffer)
        elif room:
            parts.append(memoryview(buffer)[begin : begin + room])
            room, begin = room - len(parts[-1]), 0
    return parts
