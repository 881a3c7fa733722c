"""What the tests on real servers share: writers with ids, waiting for a condition, and a TCP proxy that
misbehaves.

Rules of this file: real sockets, real servers. Waiting is for a condition, with an end; nothing sleeps to
be lucky.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dos_client import Claim, Store, open_store
from dos_client.connection import open_connection
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import CorruptError
from dos_server import embedded
from tests.support.servers import ServerProcess

PATIENCE_S = 25.0


class ThreadServer:
    """A server in a thread of this process, with the surface of `ServerProcess`: starts in no time.

    For tests that need no signal. `kill` is a clean stop: what a kill leaves behind is for tests with
    processes."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._server = embedded.start(data)
        self.address = self._server.address
        self.location = f"127.0.0.1:{self.address[1]}"
        self.url = f"dos://{self.location}"

    @property
    def server_id(self) -> str:
        return self._server.server_id

    def kill(self) -> None:
        self._server.stop()

    def restart(self) -> None:
        self._server.stop()
        self._server = embedded.start(self.data, port=self.address[1])


AnyServer = ServerProcess | ThreadServer


def url_of(servers: Sequence[AnyServer], path: str = "") -> str:
    """One URL for several servers."""
    return "dos://" + ",".join(server.location for server in servers) + (f"/{path}" if path else "")


def new_writer() -> bytes:
    return secrets.token_bytes(16)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so, or fail saying what never was."""
    with trio.move_on_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it watches from outside what sets no event
            await trio.sleep(0.01)
        return
    raise AssertionError(f"never happened: {what}")


@asynccontextmanager
async def claimed(
    servers: Sequence[AnyServer], directory: str = "d", epoch: int = 1, *, url: str = ""
) -> AsyncIterator[tuple[Store, Claim]]:
    """A store and a claim in it."""
    async with (
        open_store(url or url_of(servers)) as store,
        await store.claim(directory, epoch, new_writer()) as claim,
    ):
        yield store, claim


async def content_of(server: AnyServer, directory: str, name: str) -> bytes:
    """An object's durable bytes on one server, asked directly."""
    async with open_connection(server.location) as connection:
        await connection.open_directory(directory)
        parts = []
        size = 0
        while part := await connection.get(name, size, 1 << 20):
            parts.append(part)
            size += len(part)
        return b"".join(parts)


async def has(server: AnyServer, directory: str, name: str, content: bytes) -> None:
    """Wait until that server durably holds exactly this content."""
    wanted = (len(content), prefix_digest(content))
    found = None
    with trio.move_on_after(PATIENCE_S):
        while True:
            async with open_connection(server.location) as connection:
                opened = await connection.open_directory(directory)
                found = {info.name: (info.synced, info.digest) for info in opened.entries}.get(name)
            if found == wanted:
                return
            await trio.sleep(0.05)
    raise AssertionError(f"{server.location} has {found} of {directory}/{name}, wanted {wanted}")


async def off(*servers: ThreadServer) -> None:
    """Stop servers."""
    for server in servers:
        await trio.to_thread.run_sync(server.kill)


async def on(*servers: ThreadServer) -> None:
    """Start servers again, at their addresses."""
    for server in servers:
        await trio.to_thread.run_sync(server.restart)


async def damage(
    server: AnyServer, directory: str, name: str, *, notice: bool = True, at: int = 1_000
) -> None:
    """A bit flips in an object's file on a server's disk. `notice`: the server finds out, by being read."""
    path = server.data / "d" / directory / name
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    if notice:
        async with open_connection(server.location) as connection:
            await connection.open_directory(directory)
            with pytest.raises(CorruptError):
                await connection.get(name, 0, 1 << 20)


class Proxy:
    """A TCP proxy in front of one server. `answers_pass` False: what the server says is swallowed.

    `stalled`: nothing is taken from the client any more, so its socket fills up. `cut` ends all connections
    through it, `accepts` False refuses new ones at once. `target` may be another server from the next
    connection on."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.answers_pass = True
        self.requests_pass = True
        self.accepts = True
        self.stalled = False
        self.port = 0
        self._scopes: set[trio.CancelScope] = set()

    @property
    def location(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, client: trio.SocketStream) -> None:
        if not self.accepts:
            return
        try:
            server = await trio.open_tcp_stream(*self.target)
        except OSError:
            return
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, client, server, lambda: self.requests_pass, scope)
                    nursery.start_soon(self._pump, server, client, lambda: self.answers_pass, scope)
            finally:
                self._scopes.discard(scope)
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(client)
                    await trio.aclose_forcefully(server)

    async def _pump(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        passes: Callable[[], bool],
        scope: trio.CancelScope,
    ) -> None:
        try:
            while data := await source.receive_some(65_536):
                while self.stalled:  # noqa: ASYNC110 - set from outside
                    await trio.sleep(0.01)
                if passes():
                    await sink.send_all(data)
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@asynccontextmanager
async def proxies(servers: Sequence[AnyServer]) -> AsyncIterator[list[Proxy]]:
    """One proxy in front of each server."""
    found = [Proxy(server.address) for server in servers]
    async with trio.open_nursery() as nursery:
        for one in found:
            await nursery.start(one.run)
        yield found
        nursery.cancel_scope.cancel()
