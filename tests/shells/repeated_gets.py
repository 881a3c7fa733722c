"""A peer that requests an object repeatedly, in frames of the protocol. The test reads the answers."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dos_client import connect
from dos_client.runtime import runtime
from dos_protocol.frames import encode_frame
from dos_protocol.limits import PROTOCOL_VERSION
from dos_protocol.messages import ChangeDirectory, Get, Hello, encode
from dos_protocol.names import NO_ID
from dos_server.memory.network import MemorySocket, MemoryStream
from dos_server.testing import MemoryServer

APPENDS = 4


@asynccontextmanager
async def repeated_gets(server: MemoryServer, content: bytes, gets: int) -> AsyncIterator[MemoryStream]:
    """Store an object with that content, and yield a connection on which `gets` GETs of all of it were
    sent."""
    part = len(content) // APPENDS
    async with connect(server.url) as store, await store.claim("d", 1, os.urandom(16)) as claim:
        writer = claim.open_object("o")
        for begin in range(0, len(content), part):
            await writer.wait_synced(writer.append(content[begin : begin + part]))
    host, port = server.address.split(":")
    sock, _ = await runtime().connect(host, int(port))
    assert isinstance(sock, MemorySocket)
    with MemoryStream(sock) as stream:
        requests = [Hello(PROTOCOL_VERSION, b"", NO_ID, 0, "peer"), ChangeDirectory("d")]
        requests += [Get("o", 0, len(content))] * gets
        frames = [encode(one, number) for number, one in enumerate(requests, 1)]
        await stream.sendmsg([b"".join(map(encode_frame, frames))])
        yield stream
