"""Shared code of the tests on real servers: writers with ids, waiting for a condition, servers in threads.

Real sockets and real servers. Waits are for a condition, with a time limit; no test sleeps in the hope that
something has happened. `tests/support/proxy.py` is the unreliable network.
"""

import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from dos_client import Claim, Store, init_store, open_store
from dos_client.membership.replacing import ReplaceProgress
from dos_client.sessions.connection import open_connection
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import CorruptError
from dos_server import embedded
from tests.support.proxy import Proxy, proxies
from tests.support.servers import ServerProcess

PATIENCE_S = 45.0


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


Threads = list[ThreadServer]


@contextmanager
def thread_servers(folder: Path, count: int) -> Iterator[list[ThreadServer]]:
    """So many servers in threads, not yet a store."""
    servers = [ThreadServer(folder / f"server-{number}") for number in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.kill()


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


async def copy_disk(server: ThreadServer, image: Path) -> None:
    """Copy its disk, which may be in use: a file that is being replaced is not there when it is its turn."""
    unfinished = shutil.ignore_patterns(".*.new")
    await trio.to_thread.run_sync(lambda: shutil.copytree(server.data, image, ignore=unfinished))


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


async def caught_up(store: Store) -> None:
    """Wait until every member that is there has all that was written: a quorum is not everybody."""
    await until(
        lambda: all(one.state == "in sync" and not one.lag_bytes for one in store.members() if one.connected),
        "all members that are there have everything",
    )


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


@contextmanager
def cancelled_at(phase: str) -> Iterator[Callable[[ReplaceProgress], None]]:
    """Cancel the block when the progress function that it is given reports the phase."""
    with trio.CancelScope() as scope:
        yield lambda progress: scope.cancel() if progress.phase == phase else None


@asynccontextmanager
async def claimed_through_proxies(
    servers: Sequence[AnyServer],
) -> AsyncIterator[tuple[list[Proxy], Store, Claim]]:
    """A new store whose members are reached through proxies, and a claim in it."""
    async with proxies(servers) as between:
        await init_store(url_of(between))
        async with claimed(servers, url=url_of(between)) as (store, claim):
            yield between, store, claim


def record_of(number: int) -> bytes:
    """A record that is unlike every other, about 1000 bytes."""
    return b"%08d" % number * 125


async def write_idle(url: str, directory: str, epoch: int, *contents: bytes) -> None:
    """A directory with objects o0, o1, ... whose writer is gone."""
    async with open_store(url) as store, await store.claim(directory, epoch, new_writer()) as claim:
        for number, content in enumerate(contents):
            writer = claim.open_object(f"o{number}")
            await writer.wait_synced(writer.append(content))
        await caught_up(store)


async def wipe(*servers: ThreadServer) -> None:
    """The servers stop and lose their data directories."""
    await off(*servers)
    for server in servers:
        shutil.rmtree(server.data)


async def connect_as(server: ThreadServer, store_id: bytes, generation: int) -> None:
    """Raises as a member of the store would."""
    async with open_connection(server.location, store_id=store_id, generation=generation):
        pass
