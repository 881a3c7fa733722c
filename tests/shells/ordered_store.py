"""Servers in memory, their disks, and their network, whose completions are parked in `Orders`."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any, Final

import trio

from dos_client.runtime import replace_runtime, runtime
from dos_protocol.frames import MAGIC
from dos_protocol.limits import frame_header_bytes
from dos_protocol.messages import Opcode
from dos_server.memory.host import MemoryHost, MemoryPorts, MemoryWorkers
from dos_server.memory.network import MemoryNetwork, MemoryStream, MemoryTimers, PipeDirection, here
from dos_server.testing import MemoryServer, Servers, _InMemory, _make_store
from tests.shells.orders import Orders

_PORT: Final = 9999


def _messages(item: Any) -> str:
    """Return the names of the messages that begin in a piece of data."""
    if not isinstance(item, bytes):
        return str(item.name)
    names, at = [], 0
    while item[at : at + 2] == MAGIC and len(item) - at >= frame_header_bytes:
        names.append(Opcode(item[at + 3]).name)
        at += (
            frame_header_bytes
            + int.from_bytes(item[at + 16 : at + 20])
            + int.from_bytes(item[at + 20 : at + 24])
        )
    return " ".join(names) or f"{len(item)} bytes"


class OrderedTimers(MemoryTimers):
    """What arrives "in infinite time" is parked."""

    def __init__(self, orders: Orders) -> None:
        super().__init__()
        self._orders = orders

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        if seconds != math.inf:
            super().after(seconds, call)
            return
        way: PipeDirection = call.__self__  # type: ignore[attr-defined]
        what = _messages(way.in_flight[-1][1])
        near, far = way.sender, way.receiver
        name = f"{near.host}:{near.port} > {far.host}:{far.port} {what}"
        self._orders.park(name, partial(self._arrives, way), lane=way)

    @staticmethod
    def _arrives(way: PipeDirection) -> None:
        if way.in_flight:  # otherwise a reset lost it
            way.in_flight[0] = (trio.current_time(), way.in_flight[0][1])
            way.deliver()


class OrderedNetwork(MemoryNetwork):
    """A network whose arrivals are parked."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(OrderedTimers(orders))
        self._orders = orders

    def due(self, source: str, target: str) -> float:
        return math.inf

    async def connect(self, host: str, port: int) -> MemoryStream:
        await self._orders.point(f"{here.get()} connects to {host}:{port}")
        return await super().connect(host, port)


class _OrderedWorkers(MemoryWorkers[Any, Any]):
    """Disk work whose effect and report are parked."""

    orders: Orders
    host: str

    def _later(self, seconds: float, call: Any) -> None:
        at_work = call.func == self._touch
        job = self._begun[call.args[0]] if at_work else call.args[0]
        job = job[-1] if type(job) is tuple else job
        what = "/".join(getattr(job, one) for one in ("directory", "name") if hasattr(job, one))
        name = f"{self.host} {type(job).__name__} {what} {'works' if at_work else 'reports'}"
        self.orders.park(name, partial(self._rounds.done, call))


class OrderedPorts(MemoryPorts):
    """The outside of a server whose disk work is parked."""

    def __init__(self, orders: Orders, host: str, network: MemoryNetwork, ids: Random) -> None:
        super().__init__(network.timers, ids=ids)
        self._orders, self._host = orders, host

    def workers(self, work: Any, on_result: Any, rounds: Any, threads_max: int) -> Any:
        made = _OrderedWorkers(work, on_result, rounds, threads_max, self._timers, self._durations_s)
        made.orders, made.host = self._orders, self._host
        return made


@asynccontextmanager
async def ordered_hosts(
    orders: Orders, names: Sequence[str], network: MemoryNetwork, *, a_store: bool = False, log_bytes: int = 0
) -> AsyncIterator[list[MemoryServer]]:
    """Run servers in memory under these orders: one store, or each for itself."""
    rng = Random(repr(names))
    hosts = [
        MemoryHost(network, f"{name}.memory", _PORT, partial(OrderedPorts, orders, name, network, rng))
        for name in names
    ]
    if a_store:
        _make_store(hosts, rng)
    async with trio.open_nursery() as nursery:
        for host in hosts:
            host.start(nursery, log_bytes=log_bytes)
        yield [MemoryServer(host, nursery, rng) for host in hosts]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def ordered_store(
    orders: Orders, members: int = 3, *, log_bytes: int = 0
) -> AsyncIterator[Servers[MemoryServer]]:
    """Run the servers s0, s1 ... of one store under these orders, and clients that connect to them."""
    network, outside = OrderedNetwork(orders), runtime()
    replace_runtime(_InMemory(network, Random(1), outside))
    try:
        names = [f"s{number}" for number in range(members)]
        async with ordered_hosts(orders, names, network, a_store=True, log_bytes=log_bytes) as hosts:
            yield Servers(hosts)
    finally:
        replace_runtime(outside)
