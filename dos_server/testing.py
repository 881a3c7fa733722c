"""Servers in memory, for tests of programs that use DOS: the real server on a simulated disk.

A test can inject faults: `crash` (SIGKILL), `power_cut` (data that was not synced is lost at random), a full
disk (`disk.space`), a failing disk (`disk.fail`), and `restart`. Within one trio run, with connections in
memory too:

    async with memory_store() as servers, open_store(servers.url) as store:
        servers[0].power_cut()
        await servers[0].restart()

On real loopback ports, for `dos_client.blocking`, Spark and its workers, other processes:

    with threaded_store() as servers:
        run(spark, graph, store=servers.url)
"""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from random import Random, SystemRandom
from typing import Final, Generic, Protocol, TypeVar

import trio

from dos_client.rounds import ClientRounds
from dos_client.runtime import ClientRuntime, ClientSocket, replace_runtime, runtime
from dos_protocol.limits import id_bytes
from dos_protocol.store_record import Member, StoreRecord
from dos_server.memory.disk import MemoryDisk
from dos_server.memory.host import Loopback, MemoryHost, MemoryPorts, MemoryRounds
from dos_server.memory.network import MemoryNetwork, MemoryTimers
from dos_server.ports import OPERATING_SYSTEM

_PORT: Final = 9999
_LOOPBACK: Final = "127.0.0"
_QUORUM: Final = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3}


class HasAddress(Protocol):
    """A server as a store names it."""

    @property
    def address(self) -> str: ...


S = TypeVar("S", bound=HasAddress)


class MemoryServer:
    """One server in memory. All methods but `restart` and `stop` take effect at once. For the trio run that
    created it.
    """

    def __init__(self, host: MemoryHost, nursery: trio.Nursery, rng: Random) -> None:
        self.host = host
        self._nursery = nursery
        self._rng = rng

    @property
    def disk(self) -> MemoryDisk:
        return self.host.disk

    @property
    def address(self) -> str:
        return self.host.address

    @property
    def url(self) -> str:
        return f"dos://{self.address}"

    @property
    def running(self) -> bool:
        return self.host.up

    def crash(self) -> None:
        """Kill the process. Bytes that it had written are in the page cache and survive."""
        self.host.crash()

    def power_cut(self) -> None:
        """Cut the power. Bytes that were acknowledged as synced survive; of the rest, a random part does."""
        self.host.power_cut(self._rng)

    async def stop(self) -> None:
        """Stop it cleanly."""
        self.host.stop()
        await self.host.wait_ended()

    async def restart(self) -> None:
        """Start it again at its address with the content of its disk; a running server is crashed first."""
        self.host.crash()
        await self.host.wait_ended()
        self.host.start(self._nursery)


class Servers(Generic[S]):
    """The servers of one store, indexed by number."""

    def __init__(self, servers: list[S]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        return "dos://" + ",".join(server.address for server in self.servers)

    def __getitem__(self, number: int) -> S:
        return self.servers[number]

    def __len__(self) -> int:
        return len(self.servers)

    def __iter__(self) -> Iterator[S]:
        return iter(self.servers)


class _InMemory:
    """The environment of clients in a trio run with servers in memory, around the outer one."""

    def __init__(self, network: MemoryNetwork, rng: Random, outside: ClientRuntime) -> None:
        self.network = network
        self.rng = rng
        self.outside = outside
        self.rounds = ClientRounds(MemoryRounds())
        self.hosts = count(1)
        self.users = 0

    def fresh_id(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    async def connect(self, host: str, port: int) -> tuple[ClientSocket, ClientRounds]:
        if host.endswith(".memory"):
            return (await self.network.connect(host, port)).socket, self.rounds
        return await self.outside.connect(host, port)


def _rng(seed: int | None) -> Random:
    return SystemRandom() if seed is None else Random(seed)  # noqa: S311 - chance of tests is no secret


@asynccontextmanager
async def _in_memory(seed: int | None) -> AsyncIterator[_InMemory]:
    """Enter the memory network of this trio run; the first user creates it, the last one removes it."""
    now = runtime()
    if not isinstance(now, _InMemory):
        now = _InMemory(MemoryNetwork(MemoryTimers()), _rng(seed), now)
        replace_runtime(now)
    now.users += 1
    try:
        yield now
    finally:
        now.users -= 1
        if not now.users:
            replace_runtime(now.outside)


@asynccontextmanager
async def memory_server(*, seed: int | None = None, token: bytes = b"") -> AsyncIterator[MemoryServer]:
    """Run one server that is in no store. `seed` makes all random decisions repeatable."""
    async with _hosts(1, seed, token) as hosts:
        yield hosts[0]


@asynccontextmanager
async def memory_store(
    members: int = 3, *, seed: int | None = None, token: bytes = b""
) -> AsyncIterator[Servers[MemoryServer]]:
    """Run `members` servers that form a store, for `dos_client.open_store`."""
    async with _hosts(members, seed, token, a_store=True) as servers:
        yield Servers(servers)


@asynccontextmanager
async def _hosts(
    members: int, seed: int | None, token: bytes, *, a_store: bool = False
) -> AsyncIterator[list[MemoryServer]]:
    failure: Exception | None = None
    async with _in_memory(seed) as here, trio.open_nursery() as nursery:
        names = [f"server{next(here.hosts)}.memory" for _ in range(members)]
        hosts = [
            MemoryHost(
                here.network,
                name,
                _PORT,
                lambda: MemoryPorts(here.network.timers, ids=here.rng),
                token=token,
            )
            for name in names
        ]
        if a_store:
            _make_store(hosts, here.rng)
        for host in hosts:
            host.start(nursery)
        nursery.start_soon(here.network.timers.run)
        try:
            yield [MemoryServer(host, nursery, here.rng) for host in hosts]
        except Exception as error:  # raised again below: a nursery would wrap it in an exception group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _make_store(hosts: list[MemoryHost], rng: Random) -> None:
    """Form a store as `init_store` does, but on the disks, before the servers start."""
    if len(hosts) not in _QUORUM:
        raise ValueError(f"a store has one to {max(_QUORUM)} members, not {len(hosts)}")
    ids = [rng.randbytes(id_bytes) for _ in hosts]
    members = tuple(Member(one, host.address) for one, host in zip(ids, hosts, strict=True))
    record = StoreRecord(rng.randbytes(id_bytes), 1, _QUORUM[len(hosts)], members)
    for one, host in zip(ids, hosts, strict=True):
        host.prepare(one, record)


class ThreadedServer:
    """A server of `threaded_server`: a `MemoryServer` for any thread. Calls wait for their effect."""

    def __init__(self, server: MemoryServer, token: trio.lowlevel.TrioToken) -> None:
        self._server = server
        self._token = token

    @property
    def disk(self) -> MemoryDisk:
        """The disk. While the server runs, only the settings for injected faults may be changed."""
        return self._server.disk

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def running(self) -> bool:
        return self._server.running

    def crash(self) -> None:
        self._ended_by(self._server.crash)

    def power_cut(self) -> None:
        """Do the same as `MemoryServer.power_cut`, but connections end as in a crash: the kernel stays."""
        self._ended_by(self._server.power_cut)

    def stop(self) -> None:
        trio.from_thread.run(self._server.stop, trio_token=self._token)

    def restart(self) -> None:
        trio.from_thread.run(self._server.restart, trio_token=self._token)

    def _ended_by(self, call: Callable[[], None]) -> None:
        async def end() -> None:
            call()
            await self._server.host.wait_ended()

        trio.from_thread.run(end, trio_token=self._token)


@contextmanager
def threaded_server(*, seed: int | None = None, token: bytes = b"") -> Iterator[ThreadedServer]:
    """Run one server that is in no store, on a free loopback port."""
    with _threaded(1, seed, token, a_store=False) as servers:
        yield servers[0]


@contextmanager
def threaded_store(
    members: int = 3, *, seed: int | None = None, token: bytes = b""
) -> Iterator[Servers[ThreadedServer]]:
    """Run `members` servers that form a store, on free loopback ports."""
    with _threaded(members, seed, token, a_store=True) as servers:
        yield Servers(servers)


class _Thread:
    def __init__(self, members: int, seed: int | None, token: bytes, *, a_store: bool) -> None:
        self._wanted = (members, seed, token, a_store)
        self._ready = threading.Event()
        self._scope = trio.CancelScope()
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self.servers: list[ThreadedServer] = []
        self._thread = threading.Thread(target=self._run, name="dos-memory-servers", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # raised in the waiting thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        members, seed, token, a_store = self._wanted
        self._token = trio.lowlevel.current_trio_token()
        rng = _rng(seed)
        loopback, timers = Loopback(), MemoryTimers()

        def make_ports() -> MemoryPorts:
            return MemoryPorts(timers, ids=rng, make_rounds=lambda _: OPERATING_SYSTEM.rounds())

        names = [f"{_LOOPBACK}.{number + 1}" for number in range(members)]
        try:
            hosts = [
                MemoryHost(loopback, name, loopback.reserve(name), make_ports, token=token) for name in names
            ]
            if a_store:
                _make_store(hosts, rng)
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for host in hosts:
                        host.start(nursery)
                    made = [MemoryServer(host, nursery, rng) for host in hosts]
                    self.servers = [ThreadedServer(one, self._token) for one in made]
                    self._ready.set()
                    await trio.sleep_forever()
        finally:
            loopback.close()

    def end(self) -> None:
        if self._token is not None and self._thread.is_alive():
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()
        if self._failure is not None:
            raise self._failure


@contextmanager
def _threaded(
    members: int, seed: int | None, token: bytes, *, a_store: bool
) -> Iterator[list[ThreadedServer]]:
    thread = _Thread(members, seed, token, a_store=a_store)
    try:
        yield thread.servers
    finally:
        thread.end()
