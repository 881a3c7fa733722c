"""TLS over a socket of trio: the stream of a client, and both ends of a link."""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import trio

from dos_protocol.digests import Buffer
from dos_tls.contexts import ServerContext, client_context
from dos_tls.core.settings import TlsSettings
from dos_tls.engine import RECEIVE_BYTES, TlsEngine
from dos_tls.errors import TlsError

_encrypt_bytes_max: Final = 128 * 1024
"""Encrypted and sent in one call."""
_receive_bytes: Final = 64 * 1024


class TlsStream(trio.abc.Stream):
    """One end of a TLS connection, as a stream of trio and as the stream of a client.

    The end that accepts performs the handshake when it first sends or receives, so that a slow peer delays
    nobody else; its user limits the time. One task may send while another receives. Raises TlsError, and
    OSError if the connection breaks. A send that is cancelled midway breaks the connection.
    """

    def __init__(self, sock: trio.socket.SocketType, engine: TlsEngine) -> None:
        self.socket = sock
        self._engine = engine
        self._flushing, self._shaking = trio.Lock(), trio.Lock()
        self._whole = True
        self._closed = False
        self._received = self._decrypted = memoryview(b"")

    async def handshake(self) -> None:
        """Complete the handshake; nothing if it is complete."""
        async with self._shaking:
            try:
                while not self._engine.handshake():
                    await self._flush()
                    await self._take()
            except TlsError:
                with suppress(OSError):
                    await self._flush()  # the alert
                raise
            await self._flush()

    async def recv_into(self, buffer: memoryview, /) -> int:
        """Receive at least one byte into the buffer; 0 after the orderly end."""
        await self._ready()
        # It sends nothing: two ends that both wait until they can send would never read. What TLS itself
        # has to answer, such as to a change of keys, is sent before the next data.
        while (count := self._engine.read_into(buffer)) is None:
            await self._take()
        return count

    async def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        """Send from the beginning of the buffers. Return how many bytes were sent, at least one."""
        await self._ready()
        parts: list[memoryview] = []
        room = _encrypt_bytes_max
        for buffer in buffers:
            parts.append(memoryview(buffer)[:room])
            room -= len(parts[-1])
            if not room:
                break
        await self._send(parts[0] if len(parts) == 1 else b"".join(parts))
        return _encrypt_bytes_max - room

    async def send_all(self, data: "bytes | bytearray | memoryview") -> None:
        """Send all bytes."""
        await self._ready()
        view = memoryview(data)
        for begin in range(0, len(view), _encrypt_bytes_max):
            await self._send(view[begin : begin + _encrypt_bytes_max])

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return at least one byte; none after the orderly end."""
        size = max_bytes or _receive_bytes
        if len(self._decrypted) < size:
            self._decrypted = memoryview(bytearray(size))
        count = await self.recv_into(self._decrypted[:size])
        return bytes(self._decrypted[:count])

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until no other task sends."""
        async with self._flushing:
            pass

    async def answer_plain(self, data: bytes) -> None:
        """Send bytes that are not encrypted, to a peer that sent plain text."""
        await trio.SocketStream(self.socket).send_all(data)

    def close(self) -> None:
        """Mark the end if that needs no wait, and close."""
        if self._closed:
            return
        self._closed = True
        if self._whole:
            with suppress(OSError):
                self._engine.end()
                os.write(self.socket.fileno(), self._engine.take_outgoing())
        self.socket.close()

    async def aclose(self) -> None:
        """Do the same as `close`."""
        self.close()
        await trio.lowlevel.checkpoint()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    async def _ready(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this stream was closed")
        if not self._engine.established:
            await self.handshake()

    async def _take(self) -> None:
        if not len(self._received):
            self._received = memoryview(bytearray(RECEIVE_BYTES))
        count = await self.socket.recv_into(self._received)
        self._engine.received(self._received[:count])

    async def _send(self, data: Buffer) -> None:
        self._engine.write(data)
        await self._flush()

    async def _flush(self) -> None:
        """Send what the engine has to send. Bytes are taken under the lock, so their order is kept."""
        try:
            self._flushing.acquire_nowait()
        except trio.WouldBlock:  # `async with` would let other tasks run in any case
            await self._flushing.acquire()
        try:
            if not self._whole:
                raise trio.BrokenResourceError("a send was cancelled within a record")
            data = memoryview(self._engine.take_outgoing())
            self._whole = not len(data)  # stays False if cancelled or failed: half a record may be sent
            while len(data):
                data = data[await self.socket.send(data) :]
            self._whole = True
        finally:
            self._flushing.release()


async def connect_tls(
    sock: trio.socket.SocketType, settings: TlsSettings, peer: str, *, name: str
) -> TlsStream:
    """Perform the handshake on a new connection, whose peer must have a certificate for `name`.

    Raises TlsSettingsError, TlsError, OSError; the connection is closed then, also if cancelled.
    """
    try:
        stream = TlsStream(sock, TlsEngine(client_context(settings), peer, name=name))
        await stream.handshake()
    except BaseException:
        sock.close()
        raise
    return stream


class TlsListener(trio.abc.Listener[TlsStream]):
    """A listener of trio whose connections use TLS. It waits for no handshake."""

    def __init__(self, listener: trio.SocketListener, context: ServerContext) -> None:
        self.socket = listener.socket
        self._listener = listener
        self._context = context

    async def accept(self) -> TlsStream:
        """Return the next connection. Raises OSError."""
        stream = await self._listener.accept()
        return TlsStream(stream.socket, TlsEngine(self._context.current(), _peer(stream.socket), name=None))

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()


def _peer(sock: trio.socket.SocketType) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "a disconnected peer"
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return str(name)
    return f"{name[0]}:{name[1]}"
