"""A server that sends back what it receives, behind a proxy: for tests of the proxy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.support.proxy import Ending, Proxy

PATIENCE_S = 20.0
SHORT_S = 0.1
"""How long no byte may arrive where none should. If it is too short, a test proves less, and does not
fail."""


class Echo:
    """A server that records what it receives and sends it back. `endings`: how its connections ended."""

    def __init__(self) -> None:
        self.address = ("127.0.0.1", 0)
        self.got = bytearray()
        self.endings: list[str] = []
        self.connections = 0
        self.reads = trio.Event()
        self.reads.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = listeners[0].socket.getsockname()
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        try:
            while True:
                await self.reads.wait()
                data = await stream.receive_some(4_096)
                if not data:
                    break
                self.got += data
                await stream.send_all(data)
        except trio.BrokenResourceError:
            self.endings.append("RST")
        else:
            self.endings.append("FIN")


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Echo, Proxy]]:
    async with trio.open_nursery() as nursery:
        echo = Echo()
        await nursery.start(echo.run)
        proxy = Proxy(echo.address, frames=False)
        await nursery.start(proxy.run)
        try:
            with trio.fail_after(PATIENCE_S):
                yield echo, proxy
        finally:
            for stream in _dialled:
                stream.socket.close()
            _dialled.clear()
        nursery.cancel_scope.cancel()


_dialled: list[trio.SocketStream] = []


async def dial(proxy: Proxy) -> trio.SocketStream:
    """A connection, closed by `echoing`."""
    _dialled.append(await trio.open_tcp_stream(*proxy.address))
    return _dialled[-1]


async def exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        assert more, f"the end after {data!r}"
        data += more
    return data


async def silent(stream: trio.SocketStream) -> bool:
    """Return whether nothing arrives for `SHORT_S`."""
    with trio.move_on_after(SHORT_S):
        await stream.receive_some(1)
        return False
    return True


async def ending(stream: trio.SocketStream) -> tuple[bytes, Ending]:
    """Return what still arrives, and how the connection ends."""
    data = b""
    try:
        while more := await stream.receive_some(4_096):
            data += more
    except trio.BrokenResourceError:
        return data, Ending.RST
    return data, Ending.FIN


async def until(condition: object, what: str) -> None:
    assert callable(condition)
    while not condition():  # noqa: ASYNC110 - it watches from outside what sets no event
        await trio.sleep(0.005)
