"""What a client takes from outside: connections, and chance.

The one of a trio run can be replaced as a whole (`replace_runtime`); then every store, claim and reader of
that run lives in the other one. So the shells run in memory, on virtual time, with nothing in them that
knows (`dos_server.testing`).

Rules of this file: signatures, and the real thing where it is one line. Nothing is decided here.
"""

import random
import secrets
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import trio

from dos_protocol.digests import Buffer


class ClientStream(Protocol):
    """One end of a connection. Errors are OSError; 0 bytes received: the peer sends no more. A real one is a
    socket of trio. A context manager that closes it."""

    def recv_into(self, buffer: memoryview, /) -> Awaitable[int]: ...

    def sendmsg(self, buffers: Sequence[Buffer], /) -> Awaitable[int]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class ClientRuntime(Protocol):
    """Everything from outside."""

    @property
    def rng(self) -> random.Random:
        """Spreads load and waiting times."""
        ...

    def fresh_id(self, size: int) -> bytes:
        """Random bytes that nobody else has."""
        ...

    async def connect(self, host: str, port: int) -> ClientStream:
        """A connection. Raises OSError."""
        ...


class RealClientRuntime:
    """The real one."""

    def __init__(self) -> None:
        self.rng = random.SystemRandom()  # a forked process must not go on with its parent's numbers

    def fresh_id(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    async def connect(self, host: str, port: int) -> ClientStream:
        return (await trio.open_tcp_stream(host, port)).socket


_OUTSIDE: Final = RealClientRuntime()
_runtime: Final[trio.lowlevel.RunVar[ClientRuntime]] = trio.lowlevel.RunVar("dos_client.runtime", _OUTSIDE)


def runtime() -> ClientRuntime:
    """The one of this trio run; outside of one, the real one."""
    try:
        return _runtime.get()
    except RuntimeError:  # trio's word for that
        return _OUTSIDE


def replace_runtime(other: ClientRuntime) -> ClientRuntime:
    """Put another in its place, for this trio run; the one there was."""
    before = _runtime.get()
    _runtime.set(other)
    return before
