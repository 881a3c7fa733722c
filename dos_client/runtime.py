"""The client's runtime environment: connections and random numbers. `replace_runtime` exchanges it for one
trio run, so the same code runs in memory and on virtual time (`dos_server.testing`).
"""

import random
import secrets
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeVar

import trio

from dos_protocol.arguments import address_text
from dos_protocol.digests import Buffer
from dos_tls import connect_tls, tls_of_environment

T = TypeVar("T")


class ClientStream(Protocol):
    """One end of a connection, a context manager that closes it. Errors are OSError; `recv_into` returns 0 at
    the end.
    """

    def recv_into(self, buffer: memoryview, /) -> Awaitable[int]: ...

    def sendmsg(self, buffers: Sequence[Buffer], /) -> Awaitable[int]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class ClientRuntime(Protocol):
    @property
    def rng(self) -> random.Random: ...

    def fresh_id(self, size: int) -> bytes:
        """Return random bytes for an identity that is used only once."""
        ...

    async def connect(self, host: str, port: int) -> ClientStream:
        """Open a connection. Raises OSError, TlsError."""
        ...


class RealClientRuntime:
    def __init__(self) -> None:
        self.rng = random.SystemRandom()  # a forked process must not repeat its parent's numbers

    def fresh_id(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    async def connect(self, host: str, port: int) -> ClientStream:
        tls = tls_of_environment()
        sock = (await trio.open_tcp_stream(host, port)).socket
        return sock if tls is None else await connect_tls(sock, tls, address_text(host, port), name=host)


class RunScoped(Generic[T]):
    """A value that can be replaced within one trio run. Outside of a run it is the default."""

    def __init__(self, name: str, default: T) -> None:
        self._default = default
        self._variable = trio.lowlevel.RunVar(name, default)

    def get(self) -> T:
        try:
            return self._variable.get()
        except RuntimeError:  # trio's error for a RunVar outside of a run
            return self._default

    def replace(self, other: T) -> T:
        before = self._variable.get()
        self._variable.set(other)
        return before


_environment: Final[RunScoped[ClientRuntime]] = RunScoped("dos_client.runtime", RealClientRuntime())
runtime: Final = _environment.get
replace_runtime: Final = _environment.replace
