"""Requests of the tests that drive the core of the server, and what its answers say."""

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_protocol.errors import ErrorCode
from tests.support.core_harness import Harness

W1, W2 = b"w" * 16, b"x" * 16
"""Two writers."""


def to_claim(epoch: int = 1, writer: bytes = W1, directory: str = "dir") -> m.ChangeDirectory:
    return m.ChangeDirectory(directory, claim=True, epoch=epoch, writer_id=writer)


def append(content: bytes, payload: bytes, name: str = "o") -> m.Append:
    return m.Append(name, len(content), prefix_digest(content), payload)


def claimed(server: Harness, epoch: int = 1, writer: bytes = W1, directory: str = "dir") -> int:
    session = server.connect()
    opened = server.ask(session, to_claim(epoch, writer, directory))
    assert isinstance(opened, m.DirectoryOpened), opened
    return session


def writing(content: bytes = b"") -> tuple[Harness, int]:
    """A server, and a session that holds `dir`, where object `o` has the content if there is any."""
    server = Harness()
    session = claimed(server)
    if content:
        server.ask(session, append(b"", content))
    return server, session


def code_of(answer: object) -> ErrorCode:
    assert isinstance(answer, m.Error), answer
    return ErrorCode(answer.code)
