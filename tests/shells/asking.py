"""A peer that asks for an object over and over in the protocol's own frames; the test says what it takes."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dos_client import connect
from dos_client.runtime import ClientStream, runtime
from dos_protocol.frames import encode_frame
from dos_protocol.limits import PROTOCOL_VERSION
from dos_protocol.messages import encode
from dos_protocol.names import NO_ID
from dos_protocol.vocabulary import ChangeDirectory, Get, Hello
from dos_server.testing import MemoryServer

APPENDS = 4


@asynccontextmanager
async def asked_often(server: MemoryServer, content: bytes, gets: int) -> AsyncIterator[ClientStream]:
    """The server has an object with that content; a connection on which all of it was asked for so often."""
    part = len(content) // APPENDS
    async with connect(server.url) as store, await store.claim("d", 1, os.urandom(16)) as claim:
        writer = claim.open_object("o")
        for begin in range(0, len(content), part):
            await writer.wait_synced(writer.append(content[begin : begin + part]))
    host, port = server.address.split(":")
    with await runtime().connect(host, int(port)) as stream:
        asked = [Hello(PROTOCOL_VERSION, b"", NO_ID, 0, "peer"), ChangeDirectory("d")]
        asked += [Get("o", 0, len(content))] * gets
        frames = [encode(one, number) for number, one in enumerate(asked, 1)]
        await stream.sendmsg([b"".join(map(encode_frame, frames))])
        yield stream
