"""TLS as a socket that encrypts and does not block, for connections that are served in rounds."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from dos_protocol.digests import Buffer
from dos_tls.core.settings import TlsError, TlsSettings
from dos_tls.readiness import Socket
from dos_tls.streams import TlsEngine, connect_tls

SCRATCH_BYTES: Final = 64 * 1024
"""Encrypted bytes that are read at once. A connection holds at most this much and one record beyond that."""
_ENCRYPT_BYTES: Final = 64 * 1024


class EncryptedSocket:
    """One end of a TLS connection. Reading raises TlsError, and BlockingIOError like a socket. `scratch`: for
    encrypted bytes; all connections of a thread may share it. `holds_input`: there may be more to read that
    the operating system does not report.
    """

    def __init__(self, sock: Socket, engine: TlsEngine, scratch: bytearray) -> None:
        self._sock = sock
        self._engine = engine
        self._scratch = scratch
        self._unsent = memoryview(b"")
        self._unsent_covers = 0
        self._discards = self.holds_input = False

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
        view, total, scratch = memoryview(buffer), 0, self._scratch
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
        """Mark the end if that needs no wait, and close."""
        with suppress(OSError):
            self._engine.end()
            self._send_control()
        self._sock.close()

    def _shaken(self) -> bool:
        return self._engine.established

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


def detached(sock: trio.socket.SocketType) -> socket.socket:
    """Return the socket of a trio socket, which is used no more."""
    own = socket.socket(fileno=sock.detach())
    own.setblocking(False)  # noqa: FBT003
    return own


async def connect_encrypted(
    sock: trio.socket.SocketType, settings: TlsSettings, peer: str, *, name: str
) -> EncryptedSocket:
    """Perform the handshake as `connect_tls`. Raises as that."""
    stream = await connect_tls(sock, settings, peer, name=name)
    encrypted = EncryptedSocket(detached(stream.socket), stream.engine, bytearray(SCRATCH_BYTES))
    encrypted.holds_input = True  # perhaps: the last message of the handshake may have come with more
    return encrypted


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
