"""The proxy does what it says: each fault alone, on an echo of bytes and on a real server's frames."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dos_client.core.window import Chunk, append_head
from dos_client.sessions.connection import Connection, open_connection
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import BrokenConnectionError
from dos_protocol.frames import encode_frame
from dos_protocol.messages import (
    Append,
    Data,
    DurabilityAck,
    Get,
    ObjectInfo,
    Opcode,
    Pong,
    Stat,
    StatResult,
    encode,
)
from dos_server import embedded
from tests.support import proxy_pipes
from tests.support.proxy import Ending, Proxy, Way

pytestmark = pytest.mark.trio
PATIENCE_S = 20.0
SHORT_S = 0.1
"""How long nothing may come where nothing should: too short shows nothing, and never fails wrongly."""


class Echo:
    """A server that keeps what comes and sends it back. `endings`: how its connections ended."""

    def __init__(self) -> None:
        self.address = ("127.0.0.1", 0)
        self.got = bytearray()
        self.endings: list[str] = []
        self.came = 0
        self.reads = trio.Event()
        self.reads.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = listeners[0].socket.getsockname()
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.came += 1
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
    """Whether nothing comes for a moment."""
    with trio.move_on_after(SHORT_S):
        await stream.receive_some(1)
        return False
    return True


async def ending(stream: trio.SocketStream) -> tuple[bytes, Ending]:
    """What still comes, and how the connection ends."""
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


async def test_without_a_rule_bytes_and_endings_pass() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        sent = bytes(range(256)) * 4_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            assert await exactly(stream, len(sent)) == sent
        await stream.send_eof()
        assert await ending(stream) == (b"", Ending.FIN)
        await until(lambda: echo.endings == ["FIN"], "the server saw the end")
        await until(lambda: not proxy.connections, "the proxy forgot it")


async def test_a_partition_towards_the_server_holds_bytes_which_arrive_late() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        await stream.send_all(b"a")
        await exactly(stream, 1)
        with proxy.hold(Way.TO_SERVER):
            await stream.send_all(b"b")
            assert await silent(stream)
            assert echo.got == b"a"
        assert await exactly(stream, 1) == b"b"
        assert echo.got == b"ab"


async def test_a_partition_towards_the_client_holds_answers_which_arrive_late() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        with proxy.hold(Way.TO_CLIENT):
            await stream.send_all(b"a")
            await until(lambda: echo.got == b"a", "the server has it")
            assert await silent(stream)
        assert await exactly(stream, 1) == b"a"


async def test_a_partition_holds_new_connections_and_the_ends_of_old_ones() -> None:
    async with echoing() as (echo, proxy):
        old = await dial(proxy)
        await old.send_all(b"a")
        await exactly(old, 1)
        rule = proxy.hold()
        await old.aclose()
        new = await dial(proxy)
        await new.send_all(b"b")
        assert await silent(new)
        assert (echo.came, echo.endings, echo.got) == (1, [], b"a")
        rule.end()
        assert await exactly(new, 1) == b"b"
        await until(lambda: echo.endings != [], "the server saw the first one's end")


async def test_a_partition_that_loses_bytes_ends_the_connections_that_lost_some() -> None:
    async with echoing() as (echo, proxy):
        loser, other = await dial(proxy), await dial(proxy)
        for stream in (loser, other):
            await stream.send_all(b"a")
            await exactly(stream, 1)
        with proxy.lose(Way.TO_CLIENT):
            await loser.send_all(b"b")
            await until(lambda: echo.got == b"aab", "the server has it")
            assert await silent(loser)
        assert await ending(loser) == (b"", Ending.RST)
        await other.send_all(b"c")
        assert await exactly(other, 1) == b"c"


async def test_a_stall_takes_nothing_so_that_the_sender_has_to_wait() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        rule = proxy.stall()
        sent = 0
        with trio.move_on_after(SHORT_S):
            while True:
                await stream.send_all(bytes(65_536))
                sent += 65_536
        assert sent < 64 << 20, "the sender was held up"
        assert not echo.got
        rule.end()
        await until(lambda: len(echo.got) > 0, "it goes on")


async def test_a_partition_keeps_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_pipes, "held_bytes_max", 1 << 20)
    async with echoing() as (_, proxy):
        stream = await dial(proxy)
        with proxy.hold(Way.TO_SERVER):
            with trio.move_on_after(SHORT_S):
                while True:
                    await stream.send_all(bytes(65_536))
            (connection,) = proxy.connections
            assert connection._pipes[0]._queued <= (1 << 20) + proxy_pipes.piece_bytes_max


async def test_slow_is_as_slow_as_asked() -> None:
    async with echoing() as (_, proxy):
        stream = await dial(proxy)
        begin = trio.current_time()
        with proxy.slow(Way.TO_SERVER, bytes_per_s=100_000):
            await stream.send_all(bytes(20_000))
            await exactly(stream, 20_000)
        assert trio.current_time() - begin >= 0.2
        begin = trio.current_time()
        with proxy.slow(delay_s=0.1):
            await stream.send_all(b"x")
            await exactly(stream, 1)
        assert trio.current_time() - begin >= 0.2, "there and back"


@pytest.mark.parametrize("how", Ending)
@pytest.mark.parametrize("count", [0, 1, 10_000])
async def test_cut_after_the_kth_byte_towards_the_server(how: Ending, count: int) -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        await stream.send_all(b"before")
        await exactly(stream, 6)
        rule = proxy.cut_after(count, Way.TO_SERVER, ending=how)
        await stream.send_all(bytes(20_000))
        assert (await ending(stream))[1] is how
        await rule.done.wait()
        await until(lambda: echo.endings != [], "the server sees an end")
        assert len(echo.got) <= 6 + count
        if how is Ending.FIN:
            assert len(echo.got) == 6 + count
            assert echo.endings == ["FIN"]
        again = await dial(proxy)
        await again.send_all(b"z")
        assert await exactly(again, 1) == b"z", "one cut a rule"


async def test_cut_after_the_kth_byte_towards_the_client() -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        proxy.cut_after(5, Way.TO_CLIENT, ending=Ending.FIN)
        await stream.send_all(b"0123456789")
        assert await ending(stream) == (b"01234", Ending.FIN)
        assert echo.got == b"0123456789"


@pytest.mark.parametrize("how", Ending)
async def test_cut_now(how: Ending) -> None:
    async with echoing() as (echo, proxy):
        stream = await dial(proxy)
        await stream.send_all(b"a")
        await exactly(stream, 1)
        proxy.cut(how)
        assert await ending(stream) == (b"", how)
        await until(lambda: echo.endings == [how.name], "the server sees it too")


async def test_refused_connections_end_and_those_there_continue() -> None:
    async with echoing() as (echo, proxy):
        there = await dial(proxy)
        await there.send_all(b"a")
        await exactly(there, 1)
        with proxy.refuse():
            assert (await ending(await dial(proxy)))[0] == b""
            await there.send_all(b"b")
            assert await exactly(there, 1) == b"b"
        again = await dial(proxy)
        await again.send_all(b"c")
        assert await exactly(again, 1) == b"c"
        assert echo.came == 2


async def test_heal_ends_all_rules_and_nothing_less() -> None:
    async with echoing() as (_, proxy):
        stream = await dial(proxy)
        first, _ = proxy.hold(Way.TO_CLIENT), proxy.stall(Way.TO_CLIENT)
        await stream.send_all(b"a")
        first.end()
        assert await silent(stream)
        proxy.heal()
        assert await exactly(stream, 1) == b"a"
        assert not proxy.rules


async def test_the_strictest_of_several_rules_counts() -> None:
    async with echoing() as (_, proxy):
        stream = await dial(proxy)
        _, losing = proxy.hold(Way.TO_CLIENT), proxy.lose(Way.TO_CLIENT)
        await stream.send_all(b"a")
        await until(lambda: any(one.torn for one in proxy.connections), "it is lost, not held")
        losing.end()
        assert await ending(stream) == (b"", Ending.RST)


@asynccontextmanager
async def before_a_server(tmp_path: Path) -> AsyncIterator[Proxy]:
    with embedded.start(tmp_path / "server") as server:
        proxy = Proxy(server.address)
        async with trio.open_nursery() as nursery:
            await nursery.start(proxy.run)
            with trio.fail_after(PATIENCE_S):
                yield proxy
            nursery.cancel_scope.cancel()


def send_append(connection: Connection, content: bytes, payload: bytes) -> None:
    connection.post(append_head("x", 1, Chunk(len(content), prefix_digest(content), payload)), payload)


async def test_the_reply_to_the_nth_request_is_dropped_after_the_server_acted(tmp_path: Path) -> None:
    async with before_a_server(tmp_path) as proxy:
        rule = proxy.drop_reply(Opcode.CHANGE_DIRECTORY, 2)
        async with open_connection(proxy.location) as connection:
            await connection.open_directory("d")
            with pytest.raises(BrokenConnectionError):
                await connection.claim("d", 7, b"w" * 16)
        assert rule.done.is_set()
        async with open_connection(proxy.location) as connection:
            assert (await connection.open_directory("d")).epoch == 7, "the server had carried it out"


async def test_an_appends_acknowledgement_is_dropped_and_those_before_it_are_not(tmp_path: Path) -> None:
    async with before_a_server(tmp_path) as proxy:
        async with open_connection(proxy.location) as connection:
            await connection.claim("d", 1, b"w" * 16)
            told: list[DurabilityAck] = []
            connection.on_durability_ack = told.append
            send_append(connection, b"", b"one")
            await until(lambda: told and told[-1].synced == 3, "the first is acknowledged")
            rule = proxy.drop_reply(Opcode.APPEND)
            send_append(connection, b"one", b"two")
            await rule.done.wait()
            assert isinstance(await connection.wait_broken(), BrokenConnectionError)
            assert max(mark.synced for mark in told) == 3
        async with open_connection(proxy.location) as connection:
            await connection.open_directory("d")
            assert await connection.get("x", 0, 10) == b"onetwo"


async def test_only_the_answer_to_that_request_is_dropped(tmp_path: Path) -> None:
    async with before_a_server(tmp_path) as proxy, open_connection(proxy.location):
        (there,) = proxy.connections
        to_server, to_client = (proxy_pipes._Framing(there, way) for way in (Way.TO_SERVER, Way.TO_CLIENT))
        rules = [proxy.drop_reply(opcode, then_cut=False) for opcode in (Opcode.APPEND, Opcode.STAT)]
        for request_id, request in ((1, Get("x", 0, 9)), (2, Stat("x")), (3, Append("x", 3, 0, b"abc"))):
            to_server.take(encode_frame(encode(request, request_id)))
        passing = [
            (0, DurabilityAck("x", 6, 3)),
            (0, DurabilityAck("y", 6, 6)),
            (1, Data("x", 0, 3, b"...")),
            (9, Pong()),
        ]
        for request_id, answer in passing:
            data = encode_frame(encode(answer, request_id))
            assert to_client.take(data) == [data]
        assert not any(rule.done.is_set() for rule in rules)
        for request_id, answer in ((0, DurabilityAck("x", 7, 6)), (2, StatResult(ObjectInfo("x"), 0, 0))):
            assert to_client.take(encode_frame(encode(answer, request_id))) == []
        assert all(rule.done.is_set() for rule in rules)


async def test_a_frame_may_vanish_from_a_session_that_continues(tmp_path: Path) -> None:
    async with before_a_server(tmp_path) as proxy, open_connection(proxy.location) as connection:
        proxy.drop_reply(Opcode.PING, then_cut=False)
        with pytest.raises(BrokenConnectionError, match="did not answer"):
            await connection.ping(timeout_s=SHORT_S)
        assert await connection.ping(b"and on") >= 0


async def test_a_rule_may_concern_one_client_alone(tmp_path: Path) -> None:
    async with (
        before_a_server(tmp_path) as proxy,
        open_connection(proxy.location, client="one") as one,
        open_connection(proxy.location, client="two") as two,
    ):
        with proxy.hold(client="one"):
            await two.ping()
            with pytest.raises(BrokenConnectionError):
                await one.ping(timeout_s=SHORT_S)
        await one.ping()
        proxy.cut(client="two")
        await two.wait_broken()
        await one.ping()


async def test_large_frames_and_split_frames_pass_whole(tmp_path: Path) -> None:
    async with before_a_server(tmp_path) as proxy, open_connection(proxy.location) as connection:
        payload = bytes(range(256)) * 1_024
        await connection.claim("d", 1, b"w" * 16)
        synced = trio.Event()
        connection.on_durability_ack = lambda mark: synced.set() if mark.synced == 4 * len(payload) else None
        for number in range(4):
            send_append(connection, payload * number, payload)
        await synced.wait()
        assert await connection.get("x", 0, 1 << 20) == payload * 4
