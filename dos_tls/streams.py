"""TLS over bytes in memory, and over a socket of trio: the stream of a client, and both ends of a link.

The first byte of the peer is checked here and not by OpenSSL, whose report of plain text differs between
versions.
"""

import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, cast

import trio

from dos_protocol.digests import Buffer
from dos_tls.contexts import ServerContext, client_context
from dos_tls.core.settings import (
    ALERT,
    HANDSHAKE,
    PlainTextPeerError,
    TlsError,
    TlsHandshakeError,
    TlsSettings,
    TlsTruncatedError,
    failure_of,
)

RECEIVE_BYTES: Final = 128 * 1024
"""A good size for reading encrypted bytes: eight records."""


class TlsEngine:
    """One end. `name`: the name that the peer's certificate must have, for the end that connects.

    `established`: the handshake is complete.
    """

    def __init__(self, context: ssl.SSLContext, peer: str, *, name: str | None) -> None:
        self.established = False
        self._peer, self._name = peer, name or ""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._server_side = name is None
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._server_side, server_hostname=name
        )
        self._began = self._ended = self._starved = False
        self._failure: TlsError | None = None

    def received(self, data: Buffer) -> None:
        """Take encrypted bytes; none: the peer sends no more. Raises PlainTextPeerError."""
        self._starved = False
        if not len(data):
            self._ended = True
            return
        if not self._began:
            self._began = True
            if data[0] not in (HANDSHAKE, ALERT):
                self._failure = PlainTextPeerError(
                    f"{self._peer} sends plain text, but this end uses TLS",
                    remedy="set DOS_TLS there" if self._server_side else "",
                )
                raise self._failure
        self._incoming.write(data)

    def take_outgoing(self) -> bytes:
        return self._outgoing.read()

    def handshake(self) -> bool:
        """Continue the handshake; return whether it is complete. Raises TlsError. There may be bytes to send
        afterwards, also after an error: the alert that tells the peer.
        """
        if not self.established:
            self._raise_failure()
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                if self._ended:
                    raise self._fail(
                        TlsHandshakeError(
                            f"{self._peer} closed the connection during the TLS handshake",
                            remedy="check that it uses TLS, and its log for the reason",
                        )
                    ) from None
            except ssl.SSLError as error:
                raise self._fail(self._named(error)) from error
            else:
                self.established = True
        return self.established

    def read_into(self, buffer: memoryview) -> int | None:
        """Decrypt into the buffer; return how many bytes, 0 after the orderly end, None: more bytes of the
        peer are needed. Raises TlsError; an error that follows some bytes is raised by the next call.
        """
        self._raise_failure()
        if self._starved:  # OpenSSL has said so already
            return None
        count = 0
        while count < len(buffer):
            try:
                # with a buffer it returns a count; typeshed knows bytes only
                more = cast("int", self._object.read(len(buffer) - count, buffer[count:]))
            except ssl.SSLWantReadError:
                if not self._ended:
                    self._starved = True
                    break
                self._fail(TlsTruncatedError(f"the connection to {self._peer} was cut off"))
                more = -1
            except ssl.SSLZeroReturnError:
                more = 0
            except ssl.SSLError as error:
                self._fail(self._named(error))
                more = -1
            if more <= 0:
                if more < 0 and not count:
                    self._raise_failure()
                return count
            count += more
        return count or None

    def write(self, data: Buffer) -> None:
        """Encrypt bytes, to be sent after all earlier ones. Raises OSError if the connection has failed."""
        self._object.write(data)

    def end(self) -> None:
        if self.established and self._failure is None:
            try:
                self._object.unwrap()
            except ssl.SSLError:
                return  # it waits for the mark of the peer, which may send for a while

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: TlsError) -> TlsError:
        self._failure = error
        return error

    def _named(self, error: ssl.SSLError) -> TlsError:
        if isinstance(error, ssl.SSLEOFError):
            return TlsTruncatedError(f"the connection to {self._peer} was cut off")
        return failure_of(
            self._peer,
            error.reason or "",
            getattr(error, "verify_code", 0),
            getattr(error, "verify_message", "") or str(error.args[-1]),
            server_side=self._server_side,
            name=self._name,
        )


_encrypt_bytes_max: Final = 128 * 1024
"""Encrypted and sent in one call."""
_receive_bytes: Final = 64 * 1024


class TlsStream(trio.abc.Stream):
    """One end of a TLS connection, as a stream of trio and as the stream of a client.

    The end that accepts performs the handshake when it first sends or receives, so that a slow peer delays
    nobody else. One task may send while another receives. Raises TlsError and OSError. A send that is
    cancelled midway breaks the connection.
    """

    def __init__(self, sock: trio.socket.SocketType, engine: TlsEngine) -> None:
        self.socket, self.engine = sock, engine
        self._flushing, self._shaking = trio.Lock(), trio.Lock()
        self._whole = True
        self._closed = False
        self._received = self._decrypted = memoryview(b"")

    async def handshake(self) -> None:
        """Complete the handshake; nothing if it is complete."""
        async with self._shaking:
            try:
                while not self.engine.handshake():
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
        while (count := self.engine.read_into(buffer)) is None:
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
                self.engine.end()
                os.write(self.socket.fileno(), self.engine.take_outgoing())
        self.socket.close()

    async def aclose(self) -> None:
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
        if not self.engine.established:
            await self.handshake()

    async def _take(self) -> None:
        if not len(self._received):
            self._received = memoryview(bytearray(RECEIVE_BYTES))
        count = await self.socket.recv_into(self._received)
        self.engine.received(self._received[:count])

    async def _send(self, data: Buffer) -> None:
        self.engine.write(data)
        await self._flush()

    async def _flush(self) -> None:
        try:
            # Bytes are taken from the engine under the lock, so their order is kept.
            self._flushing.acquire_nowait()
        except trio.WouldBlock:  # `async with` would let other tasks run in any case
            await self._flushing.acquire()
        try:
            if not self._whole:
                raise trio.BrokenResourceError("a send was cancelled within a record")
            data = memoryview(self.engine.take_outgoing())
            self._whole = not len(data)  # stays False if cancelled or failed: half a record may be sent
            while len(data):
                data = data[await self.socket.send(data) :]
            self._whole = True
        finally:
            self._flushing.release()


async def connect_tls(
    sock: trio.socket.SocketType, settings: TlsSettings, peer: str, *, name: str
) -> TlsStream:
    """Perform the handshake on a new connection, whose peer must have a certificate for `name`. Raises
    TlsSettingsError, TlsError, OSError; the connection is closed then.
    """
    try:
        stream = TlsStream(sock, TlsEngine(client_context(settings), peer, name=name))
        await stream.handshake()
    except BaseException:
        sock.close()
        raise
    return stream


class TlsListener(trio.abc.Listener[TlsStream]):
    def __init__(self, listener: trio.SocketListener, context: ServerContext) -> None:
        self.socket = listener.socket
        self._listener = listener
        self._context = context

    async def accept(self) -> TlsStream:
        stream = await self._listener.accept()
        return TlsStream(stream.socket, TlsEngine(self._context.current(), _peer(stream.socket), name=None))

    async def aclose(self) -> None:
        await self._listener.aclose()


def _peer(sock: trio.socket.SocketType) -> str:
    try:
        name = sock.getpeername()
    except OSError:
        return "a disconnected peer"
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return str(name)
    return f"{name[0]}:{name[1]}"
