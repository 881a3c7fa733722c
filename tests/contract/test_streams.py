"""The contract of connections: TCP over loopback keeps it, and so do those in memory, whole and in pieces."""

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from dos_server.memory.host import MemoryRounds
from dos_server.memory.network import MemoryNetwork, MemoryStream, MemoryTimers
from dos_tls.readiness import Readiness, Rounds

KINDS = ["tcp", "memory", "memory in pieces", "memory, slow"]
Ends = tuple[Any, Any, Rounds]


@asynccontextmanager
async def ends_of(kind: str) -> AsyncIterator[tuple[Any, Any, Rounds]]:
    """A stream of trio, the socket at its other end, and who says when that is ready."""
    if kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host, port = listener.getsockname()
            stream = (await trio.open_tcp_stream(host, port)).socket
            sock, _ = listener.accept()
        sock.setblocking(False)
        readiness = Readiness()
        try:
            yield stream, sock, readiness
        finally:
            stream.close()
            sock.close()
            readiness.close()
        return
    timers, rng = MemoryTimers(), None if kind == "memory" else Random(7)
    slow = kind == "memory, slow"
    network = MemoryNetwork(timers, rng, lambda _, __: 0.002 if slow else 0.0, way_bytes_max=65_536)
    near, far = network.pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        yield MemoryStream(near), far, MemoryRounds()
        near.close()
        far.close()
        nursery.cancel_scope.cancel()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def story(test: Callable[[Any, Any, Rounds], Awaitable[None]]) -> Callable[[str], None]:
    """A test on each kind of connection."""

    def run(kind: str) -> None:
        async def main() -> None:
            failure: BaseException | None = None
            with trio.fail_after(30):
                async with ends_of(kind) as (stream, sock, rounds):
                    try:
                        await test(stream, sock, rounds)
                    except BaseException as error:  # raised below: a nursery would wrap it
                        failure = error
            if failure is not None:
                raise failure

        trio.run(main)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def received(sock: Any, rounds: Rounds, count: int) -> bytes:
    """So many bytes, at the socket; fewer when there are no more."""
    data, buffer = b"", bytearray(count)
    while len(data) < count:
        await rounds.wait_readable(sock)
        try:
            got = sock.recv_into(memoryview(buffer)[: count - len(data)])
        except BlockingIOError:
            continue
        if not got:
            break
        data += buffer[:got]
    return data


async def received_by(stream: Any, count: int) -> bytes:
    """The same at the stream."""
    data, buffer = b"", bytearray(count)
    while len(data) < count and (got := await stream.recv_into(memoryview(buffer)[: count - len(data)])):
        data += buffer[:got]
    return data


def filled(sock: Any) -> int:
    """Send until there is no room; so much was sent."""
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < 1 << 30:
            sent += sock.sendmsg([bytes(65_536)])
    return sent


async def send_for_ever(stream: Any) -> None:
    while True:
        await stream.sendmsg([b"x"])
        await trio.sleep(0.001)


@story
async def test_bytes_come_in_order_in_pieces_of_any_size(stream: Any, sock: Any, rounds: Rounds) -> None:
    data = Random(1).randbytes(300_000)
    parts = [data[:1], data[1:1000], b"", data[1000:]]

    async def send() -> None:
        left = [memoryview(part) for part in parts]
        while left:
            sent = await stream.sendmsg(left)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert await received(sock, rounds, len(data)) == data


@story
async def test_nothing_to_read_is_reported_and_blocks_nobody(stream: Any, sock: Any, rounds: Rounds) -> None:
    with pytest.raises(BlockingIOError):
        sock.recv_into(bytearray(9))
    await stream.sendmsg([b"x"])
    assert await received(sock, rounds, 1) == b"x"


@story
async def test_room_is_bounded_and_returns_when_the_peer_reads(
    stream: Any, sock: Any, rounds: Rounds
) -> None:
    sent = filled(sock)
    assert 0 < sent < 64 << 20
    more = trio.Event()

    def ready(*, readable: bool) -> None:
        more.set()
        rounds.watch(sock, ready, reading=False, writing=False)

    rounds.watch(sock, ready, reading=False, writing=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rounds.run, lambda: None)
        assert len(await received_by(stream, sent)) == sent
        await more.wait()
        nursery.cancel_scope.cancel()
    assert sock.sendmsg([b"again"]) > 0


@story
async def test_who_waits_for_room_sends_when_there_is_some(stream: Any, sock: Any, rounds: Rounds) -> None:
    with trio.move_on_after(0.2) as waited:
        while True:
            await stream.sendmsg([bytes(1 << 20)])
    assert waited.cancelled_caught
    sent = trio.Event()

    async def send() -> None:
        await stream.sendmsg([b"more"])
        sent.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while not sent.is_set():
            with trio.move_on_after(0.05):
                await received(sock, rounds, 1)


@story
async def test_the_end_comes_after_all_that_was_sent_and_the_other_way_stays_open(
    stream: Any, sock: Any, rounds: Rounds
) -> None:
    sock.sendmsg([b"last words"])
    sock.shutdown(socket.SHUT_WR)
    assert await received_by(stream, 100) == b"last words"
    assert await stream.recv_into(bytearray(9)) == 0
    await stream.sendmsg([b"still heard"])
    assert await received(sock, rounds, 11) == b"still heard"
    with pytest.raises(BrokenPipeError):
        sock.sendmsg([b"x"])


@story
async def test_an_end_that_is_closed_with_all_read_is_an_end(stream: Any, sock: Any, rounds: Rounds) -> None:
    await stream.sendmsg([b"x"])
    assert await received(sock, rounds, 1) == b"x"
    sock.close()
    assert await stream.recv_into(bytearray(9)) == 0
    with pytest.raises(OSError, match=r"[Bb]ad file descriptor"):
        sock.recv_into(bytearray(9))


@story
async def test_who_closes_with_bytes_unread_resets(stream: Any, sock: Any, rounds: Rounds) -> None:
    await stream.sendmsg([b"never read"])
    await rounds.wait_readable(sock)
    sock.close()
    with pytest.raises(ConnectionResetError):
        await stream.recv_into(bytearray(9))
    assert await stream.recv_into(bytearray(9)) == 0
    with pytest.raises(BrokenPipeError):
        await stream.sendmsg([b"x"])


@story
async def test_what_arrived_before_a_reset_can_still_be_read(stream: Any, sock: Any, rounds: Rounds) -> None:
    await stream.sendmsg([b"never read"])
    await rounds.wait_readable(sock)
    sock.sendmsg([b"read me"])
    assert await received_by(stream, 4) == b"read"
    sock.close()
    with pytest.raises(ConnectionResetError):
        await received_by(stream, 100)


@story
async def test_who_sends_to_an_end_that_is_closed_is_told_so(stream: Any, sock: Any, rounds: Rounds) -> None:
    sock.close()
    assert await stream.recv_into(bytearray(9)) == 0
    with pytest.raises(OSError, match=r"pipe|reset"):
        await send_for_ever(stream)


@story
async def test_a_broken_connection_is_ready_for_whoever_waits_for_it(
    stream: Any, sock: Any, rounds: Rounds
) -> None:
    """A task that waits for room only is woken as for reading; a read returns the reason."""
    filled(sock)
    called: list[bool] = []
    ended = trio.Event()

    def ready(*, readable: bool) -> None:
        called.append(readable)
        if readable:
            rounds.watch(sock, ready, reading=False, writing=False)
            ended.set()

    rounds.watch(sock, ready, reading=False, writing=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rounds.run, lambda: None)
        await received_by(stream, 1)
        stream.close()  # with bytes unread
        await ended.wait()
        nursery.cancel_scope.cancel()
    assert called[-1]
    with pytest.raises(OSError, match=r"pipe|reset"):
        sock.sendmsg([b"x"])


@story
async def test_closing_wakes_the_task_that_reads(stream: Any, sock: Any, rounds: Rounds) -> None:
    woken = trio.Event()

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await stream.recv_into(bytearray(9))
        woken.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        stream.close()
        await woken.wait()


@story
async def test_a_read_that_is_cancelled_takes_nothing(stream: Any, sock: Any, rounds: Rounds) -> None:
    with trio.move_on_after(0.02):
        await stream.recv_into(bytearray(9))
    sock.sendmsg([b"whole"])
    assert await received_by(stream, 5) == b"whole"


@pytest.mark.parametrize("where", ["tcp", "memory"])
def test_where_nobody_listens_a_connection_is_refused(where: str) -> None:
    async def main() -> None:
        if where == "memory":
            with pytest.raises(ConnectionRefusedError):
                await MemoryNetwork(MemoryTimers()).connect("nobody", 1)
            return
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        with pytest.raises(OSError, match="failed"):
            await trio.open_tcp_stream("127.0.0.1", port)

    trio.run(main)
