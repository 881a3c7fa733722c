"""The contract of trio's streams and listeners: those on TCP over loopback keep it, and so do those in
memory. What the links of a region stand on (`checkpoint.runtime`)."""

import contextlib
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Protocol

import pytest
import trio
import trio.testing

from checkpoint.runtime import RealRegionRuntime
from dos_server.memory.network import MemoryNetwork, MemoryTimers, here
from tests.support.memory_streams import open_memory_listeners, open_memory_stream

KINDS = ["tcp", "memory", "memory in pieces", "memory, slow"]
BACKLOG = 16


class Net(Protocol):
    """What a link takes from outside."""

    host: str

    async def connect(self, host: str, port: int) -> Any: ...

    async def listen(self, host: str, port: int, backlog: int) -> list[Any]: ...


class Tcp(RealRegionRuntime):
    host = "127.0.0.1"


class Memory:
    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.host = "here.memory"
        here.set(self.host)

    async def connect(self, host: str, port: int) -> Any:
        return await open_memory_stream(self.network, host, port)

    async def listen(self, host: str, port: int, backlog: int) -> list[Any]:
        return await open_memory_listeners(self.network, host, port)


@asynccontextmanager
async def net_of(kind: str) -> AsyncIterator[Net]:
    if kind == "tcp":
        yield Tcp()
        return
    timers, rng = MemoryTimers(), None if kind == "memory" else Random(7)
    slow = kind == "memory, slow"
    network = MemoryNetwork(timers, rng, lambda _, __: 0.002 if slow else 0.0, way_bytes_max=65_536)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        yield Memory(network)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def ends_of(kind: str) -> AsyncIterator[tuple[Any, Any]]:
    """Who dialled, and who was dialled."""
    async with net_of(kind) as net:
        (listener,) = await net.listen(net.host, 0, BACKLOG)
        near = await net.connect(*listener.socket.getsockname()[:2])
        far = await listener.accept()
        await listener.aclose()
        try:
            yield near, far
        finally:
            await near.aclose()
            await far.aclose()


pytestmark = [pytest.mark.trio, pytest.mark.parametrize("kind", KINDS)]


async def received(stream: Any, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := await stream.receive_some(count - len(data))):
        data += more
    return data


async def send_for_ever(stream: Any, size: int) -> None:
    while True:
        await stream.send_all(bytes(size))


async def test_bytes_come_whole_and_in_order_both_ways(kind: str) -> None:
    one, other = Random(1).randbytes(300_000), Random(2).randbytes(200_000)
    async with ends_of(kind) as (near, far), trio.open_nursery() as nursery:
        nursery.start_soon(near.send_all, one)
        nursery.start_soon(far.send_all, memoryview(other))
        assert await received(far, len(one)) == one
        assert await received(near, len(other)) == other


async def test_each_end_knows_where_both_are(kind: str) -> None:
    async with ends_of(kind) as (near, far):
        assert near.socket.getsockname()[:2] == far.socket.getpeername()[:2]
        assert near.socket.getpeername()[:2] == far.socket.getsockname()[:2]


async def test_the_end_comes_after_all_that_was_sent_and_stays(kind: str) -> None:
    async with ends_of(kind) as (near, far):
        await near.send_all(b"last words")
        await near.aclose()
        assert await received(far, 99) == b"last words"
        assert await far.receive_some() == b""


async def test_a_send_to_a_closed_end_fails(kind: str) -> None:
    async with ends_of(kind) as (near, far):
        await far.aclose()
        with pytest.raises(trio.BrokenResourceError) as caught, trio.fail_after(30):
            await send_for_ever(near, 1000)
        assert isinstance(caught.value.__cause__, OSError)


async def test_who_closes_with_bytes_unread_breaks_the_connection(kind: str) -> None:
    async with ends_of(kind) as (near, far):
        await near.send_all(b"never read")
        await received(far, 1)
        await far.aclose()
        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some()


async def test_an_end_that_was_closed_here_reports_it(kind: str) -> None:
    async with ends_of(kind) as (near, _):
        await near.aclose()
        await near.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await near.send_all(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_some()


async def test_closing_wakes_who_reads_and_who_sends(kind: str) -> None:
    woken: list[str] = []

    async def read(stream: Any) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()
        woken.append("reader")

    async def send(stream: Any) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await send_for_ever(stream, 1 << 20)
        woken.append("sender")

    async with ends_of(kind) as (near, _), trio.open_nursery() as nursery:
        nursery.start_soon(read, near)
        nursery.start_soon(send, near)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await near.aclose()
    assert sorted(woken) == ["reader", "sender"]


async def test_two_tasks_may_not_send_at_once(kind: str) -> None:
    async with ends_of(kind) as (near, _), trio.open_nursery() as nursery:
        nursery.start_soon(near.send_all, bytes(64 << 20))
        await trio.testing.wait_all_tasks_blocked(0.05)
        with pytest.raises(trio.BusyResourceError):
            await near.send_all(b"x")
        nursery.cancel_scope.cancel()


async def test_who_sends_waits_for_room_and_what_is_cancelled_may_be_half_out(kind: str) -> None:
    data = bytes(64 << 20)
    async with ends_of(kind) as (near, far):
        with trio.move_on_after(0.2) as scope:
            await near.send_all(data)
        assert scope.cancelled_caught
        await near.aclose()
        assert 0 < len(await received(far, len(data))) < len(data)


async def test_a_read_that_is_cancelled_takes_nothing(kind: str) -> None:
    async with ends_of(kind) as (near, far):
        with trio.move_on_after(0.02):
            await near.receive_some()
        await far.send_all(b"whole")
        assert await received(near, 5) == b"whole"


async def test_a_place_is_listened_at_once_and_free_again_when_closed(kind: str) -> None:
    async with net_of(kind) as net:
        (first,) = await net.listen(net.host, 0, BACKLOG)
        host, port = first.socket.getsockname()[:2]
        assert port
        with pytest.raises(OSError) as caught:
            await net.listen(host, port, BACKLOG)
        assert caught.value.errno == errno.EADDRINUSE
        await first.aclose()
        with pytest.raises(OSError):
            await net.connect(host, port)
        (second,) = await net.listen(host, port, BACKLOG)
        await second.aclose()


async def test_closing_a_listener_ends_who_accepts_and_who_was_not_accepted(kind: str) -> None:
    async with net_of(kind) as net:
        (listener,) = await net.listen(net.host, 0, BACKLOG)
        waiting = await net.connect(*listener.socket.getsockname()[:2])
        await listener.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await listener.accept()
        with contextlib.suppress(trio.BrokenResourceError):  # as TCP has it, where the end is a reset
            assert await waiting.receive_some() == b""
        await waiting.aclose()
