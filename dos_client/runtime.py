"""The client's runtime environment: connections and random numbers.

`replace_runtime` exchanges the environment of one trio run. Every store, claim and reader of that run then
uses the replacement. So the same code runs in memory and on virtual time (`dos_server.testing`).

Only signatures and one-line implementations belong here; no decisions.
"""

import random
import secrets
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import trio

from dos_protocol.digests import Buffer


class ClientStream(Protocol):
    """One end of a connection, such as a trio socket. A context manager that closes it.

    Errors are raised as OSError. `recv_into` returns 0 after the peer has closed its side.
    """

    def recv_into(self, buffer: memoryview, /) -> Awaitable[int]: ...

    def sendmsg(self, buffers: Sequence[Buffer], /) -> Awaitable[int]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class ClientRuntime(Protocol):
    """What a client needs from its environment."""

    @property
    def rng(self) -> random.Random:
        """Random numbers for jitter and load spreading."""
        ...

    def fresh_id(self, size: int) -> bytes:
        """Return random bytes for an identity that is used only once."""
        ...

    async def connect(self, host: str, port: int) -> ClientStream:
        """Open a connection. Raises OSError."""
        ...


class RealClientRuntime:
    """The real environment: TCP and the system's random source."""

    def __init__(self) -> None:
        self.rng = random.SystemRandom()  # a forked process must not repeat its parent's numbers

    def fresh_id(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    async def connect(self, host: str, port: int) -> ClientStream:
        return (await trio.open_tcp_stream(host, port)).socket


_OUTSIDE: Final = RealClientRuntime()
_runtime: Final[trio.lowlevel.RunVar[ClientRuntime]] = trio.lowlevel.RunVar("dos_client.runtime", _OUTSIDE)


def runtime() -> ClientRuntime:
    """Return the environment of the current trio run, or the real one outside of a run."""
    try:
        return _runtime.get()
    except RuntimeError:  # trio's error for a RunVar outside of a run
        return _OUTSIDE


def replace_runtime(other: ClientRuntime) -> ClientRuntime:
    """Set the environment of this trio run and return the previous one."""
    before = _runtime.get()
    _runtime.set(other)
    return before
