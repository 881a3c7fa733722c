"""Row 28: a peer that asks for much and takes nothing is not answered into memory."""

import os

import pytest
import trio
from trio.testing import MockClock

from dos_client import connect
from dos_client.world import world
from dos_protocol.frames import encode_frame
from dos_protocol.limits import MIB, PROTOCOL_VERSION
from dos_protocol.messages import encode
from dos_protocol.names import NO_ID
from dos_protocol.vocabulary import ChangeDirectory, Get, Hello
from dos_server.testing import memory_server
from tests.shells.bugs import planted
from tests.shells.oracles import check_server
from tests.sim.history import ViolationError

GETS = 20


async def ask_and_take_nothing() -> int:
    """A server with an object of 1 MiB, asked for it many times; the bytes that it held most."""
    most = 0
    async with memory_server(seed=1) as server:
        async with connect(server.url) as store, await store.claim("d", 1, os.urandom(16)) as claim:
            writer = claim.open_object("o")
            for _ in range(4):
                await writer.wait_synced(writer.append(bytes(MIB // 4)))
        host, port = server.address.split(":")
        with await world().connect(host, int(port)) as stream:
            asked = [Hello(PROTOCOL_VERSION, b"", NO_ID, 0, "deaf"), ChangeDirectory("d")]
            frames = [
                encode(one, number) for number, one in enumerate([*asked, *[Get("o", 0, MIB)] * GETS], 1)
            ]
            await stream.sendmsg([b"".join(map(encode_frame, frames))])
            for _ in range(100):
                await trio.sleep(0.01)
                assert server.host.server is not None
                most = max(most, server.host.server.outgoing.held)
                check_server(server.address, server.host.server)
    return most


def test_answers_to_a_peer_that_takes_none_are_bounded() -> None:
    assert MIB <= trio.run(ask_and_take_nothing, clock=MockClock(autojump_threshold=0)) <= 3 * MIB


def test_without_back_pressure_they_are_not() -> None:
    with planted("nothing_holds_answers_back"), pytest.raises(ViolationError, match="takes nothing"):
        trio.run(ask_and_take_nothing, clock=MockClock(autojump_threshold=0))
