"""Trio's streams and listeners over sockets in memory, for code written for `trio.SocketStream` and
`trio.open_tcp_listeners`. `tests/contract/test_trio_streams.py` checks that they behave alike.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from dos_protocol.digests import Buffer
from dos_server.memory.network import MemoryListener, MemoryNetwork, MemorySocket, MemoryStream

_RECEIVE_BYTES: Final = 64 * 1024


@contextmanager
def _translated() -> Iterator[None]:
    """Raise socket errors as trio's streams do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EBADF:
            raise trio.ClosedResourceError("this socket was already closed") from None
        raise trio.BrokenResourceError(f"socket connection broken: {error}") from error


class MemoryTcpStream(trio.abc.Stream):
    """One end of a connection; `socket` has the addresses of both ends."""

    def __init__(self, sock: MemorySocket) -> None:
        self.socket = sock
        self._stream = MemoryStream(sock)
        self._sending = False

    async def send_all(self, data: Buffer) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is currently sending data on this stream")
        self._sending = True
        try:
            with _translated(), memoryview(data) as view:
                if not view:
                    await trio.lowlevel.checkpoint()
                    self._check_open()
                sent = 0
                while sent < len(view):
                    sent += await self._stream.sendmsg([view[sent:]])
        finally:
            self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        with _translated():
            self._check_open()
            while not self.socket.writable:
                await self.socket.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytearray:
        buffer = bytearray(_RECEIVE_BYTES if max_bytes is None else max_bytes)
        with _translated():
            count = await self._stream.recv_into(buffer)
        del buffer[count:]
        return buffer

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self.socket.closed:
            raise trio.ClosedResourceError("this socket was already closed")


class MemoryTcpListener(trio.abc.Listener[MemoryTcpStream]):
    """A listener; `socket` has its address."""

    def __init__(self, listener: MemoryListener) -> None:
        self.socket = listener

    async def accept(self) -> MemoryTcpStream:
        await trio.lowlevel.checkpoint()
        if self.socket.closed:
            raise trio.ClosedResourceError("this listener was already closed")
        while not self.socket.readable:
            await self.socket.wait()
        sock, _ = self.socket.accept()
        return MemoryTcpStream(sock)

    async def aclose(self) -> None:
        self.socket.close()
        await trio.lowlevel.checkpoint()


async def open_memory_stream(network: MemoryNetwork, host: str, port: int) -> MemoryTcpStream:
    """Connect like `trio.open_tcp_stream`, from the host in `here`. Raises OSError."""
    return MemoryTcpStream((await network.connect(host, port)).socket)


async def open_memory_listeners(network: MemoryNetwork, host: str, port: int) -> list[MemoryTcpListener]:
    """Listen like `trio.open_tcp_listeners`; port 0 picks a free one. Raises OSError."""
    await trio.lowlevel.checkpoint()
    return [MemoryTcpListener(network.listen(host, port))]
