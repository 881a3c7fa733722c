"""Faults of the proxy that concern frames: each alone, in front of a real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dos_client.core.window import Chunk, append_frame
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
from tests.support.echo import PATIENCE_S, SHORT_S, until
from tests.support.proxy import Proxy, Way

pytestmark = pytest.mark.trio


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
    connection.post(*append_frame("x", 1, Chunk(len(content), prefix_digest(content), payload)))


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
            acks: list[DurabilityAck] = []
            connection.on_durability_ack = acks.append
            send_append(connection, b"", b"one")
            await until(lambda: acks and acks[-1].synced == 3, "the first is acknowledged")
            rule = proxy.drop_reply(Opcode.APPEND)
            send_append(connection, b"one", b"two")
            await rule.done.wait()
            assert isinstance(await connection.wait_broken(), BrokenConnectionError)
            assert max(ack.synced for ack in acks) == 3
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
