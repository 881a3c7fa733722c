"""Streams of version 0 on the core of the server."""

from dos_protocol import messages as m
from tests.support.core_harness import Harness


def streaming(server: Harness, name: str = "f", offset: int = 0, directory: str = "dir") -> int:
    session = server.connect0(directory)
    assert server.ask0(session, f"a{name}\t{offset}") == b"ok"
    return session


def written(server: Harness, name: str, content: bytes, directory: str = "dir") -> None:
    """A file, streamed whole and closed."""
    session = streaming(server, name, directory=directory)
    server.stream(session, content)
    server.half_close(session)
    server.settle()
    assert server.replies(session) == [b"%d\t%d" % (len(content), len(content))]
    server.end(session)


def reading(server: Harness, directory: str = "dir") -> int:
    session = server.connect()
    server.ask(session, m.ChangeDirectory(directory))
    return session
