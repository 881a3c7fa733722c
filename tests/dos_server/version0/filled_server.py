"""A server that has one object, o in dir, written by a client of version 0."""

from dos_server import embedded
from tests.support.v0_client import V0Connection

CONTENT = b"what was there before"
PATIENT = 30.0


def connect(server: embedded.EmbeddedServer, directory: str = "dir") -> V0Connection:
    connection = V0Connection(server.address, reply_seconds=PATIENT)
    connection.use(directory)
    return connection


def fill(server: embedded.EmbeddedServer) -> None:
    with connect(server) as tool:
        tool.append("o", 0)
        tool.send(CONTENT)
        assert tool.finish() == [(len(CONTENT), len(CONTENT))]
