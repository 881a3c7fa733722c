"""The client's runtime environment: connections and random numbers. `replace_runtime` exchanges it for one
trio run, so the same code runs in memory and on virtual time (`dos_server.testing`).
"""

import random
import secrets
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

import trio

from dos_client.rounds import ClientRounds, rounds_of_run
from dos_protocol.arguments import address_text
from dos_protocol.digests import Buffer
from dos_tls import tls_of_environment
from dos_tls.sockets import connect_encrypted, detached

T = TypeVar("T")


class ClientSocket(Protocol):
    """One end of a connection. Errors are OSError; a call that would block raises BlockingIOError.
    `recv_into` returns 0 at the end.
    """

    def recv_into(self, buffer: memoryview, /) -> int: ...

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int: ...

    def close(self) -> None: ...


class ClientRuntime(Protocol):
    @property
    def rng(self) -> random.Random: ...

    def fresh_id(self, size: int) -> bytes:
        """Return random bytes for an identity that is used only once."""
        ...

    async def connect(self, host: str, port: int) -> tuple[ClientSocket, ClientRounds]:
        """Open a connection, and return it with the rounds that serve it. Raises OSError, TlsError."""
        ...


class RealClientRuntime:
    def __init__(self) -> None:
        self.rng = random.SystemRandom()  # a forked process must not repeat its parent's numbers

    def fresh_id(self, size: int) -> bytes:
        return secrets.token_bytes(size)

    async def connect(self, host: str, port: int) -> tuple[ClientSocket, ClientRounds]:
        tls = tls_of_environment()
        sock = (await trio.open_tcp_stream(host, port)).socket
        if tls is None:
            return detached(sock), rounds_of_run()
        return await connect_encrypted(sock, tls, address_text(host, port), name=host), rounds_of_run()


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
