"""The environment of a region's processes: links between them, threads, the wall clock, and their identity.

The environment of a trio run can be replaced as a whole (`replace_runtime`), like that of
`dos_client.runtime`. This file has signatures, and implementations of one line.
"""

import functools
import getpass
import os
import socket
import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final, Protocol, TypeVar

import trio

from dos_client.runtime import RunScoped
from dos_protocol.arguments import address_text, is_wildcard
from dos_protocol.digests import Buffer
from dos_tls import WORKER_NAME, ServerContext, TlsListener, TlsStream, connect_tls, tls_of_environment

T = TypeVar("T")

DISTRIBUTION: Final = "dos-journal"


class Endpoints(Protocol):
    """The local and remote address of a connection, each (host, port, ...)."""

    def getsockname(self) -> Any: ...

    def getpeername(self) -> Any: ...


class LinkStream(Protocol):
    """One end of a connection: `trio.SocketStream` or `TlsStream`. Raises trio's stream errors."""

    @property
    def socket(self) -> Endpoints: ...

    async def send_all(self, data: Buffer) -> None: ...

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray: ...

    async def aclose(self) -> None: ...


class RegionRuntime(Protocol):
    """The environment of a process."""

    async def connect(self, host: str, port: int) -> LinkStream:
        """Open a connection, with TLS if environment variables name its files. Raises OSError, TlsError."""
        ...

    async def listen(self, host: str, port: int, backlog: int) -> list[Any]:
        """Listen for connections; port 0: any free port. Returns trio listeners of `LinkStream`. Raises
        OSError.
        """
        ...

    def silent_s(self, stream: LinkStream) -> float:
        """Return the seconds since the peer's host last sent a packet."""
        ...

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function that may block in a thread. If cancelled, it completes before this returns."""
        ...

    def wall_time_ns(self) -> int:
        """Return nanoseconds since 1970 by this machine's clock. For display, and where no common clock
        exists.
        """
        ...

    def host_name(self) -> str: ...

    def process_id(self) -> int: ...

    def user_name(self) -> str: ...


class RealRegionRuntime:
    """The real environment."""

    async def connect(self, host: str, port: int) -> LinkStream:
        tls = tls_of_environment()
        stream = await trio.open_tcp_stream(host, port)
        _probe_when_idle(stream.socket)
        if tls is None:
            return stream
        return await connect_tls(stream.socket, tls, address_text(host, port), name=WORKER_NAME)

    async def listen(self, host: str, port: int, backlog: int) -> list[Any]:
        tls = tls_of_environment()
        # both ends of a link have the same certificate, so the acceptor can demand it
        context = None if tls is None else ServerContext(tls, client_certificates=True)
        if is_wildcard(host) and socket.has_dualstack_ipv6():  # peers may use addresses of either family
            family = socket.AF_INET6
            both = socket.create_server(("::", port), family=family, backlog=backlog, dualstack_ipv6=True)
            listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(both))]
        else:
            listeners = await trio.open_tcp_listeners(port, host=host, backlog=backlog)
        for listener in listeners:
            _probe_when_idle(listener.socket)  # accepted connections inherit it
        return listeners if context is None else [TlsListener(one, context) for one in listeners]

    def silent_s(self, stream: LinkStream) -> float:
        if _TCP_INFO is None or not isinstance(stream, trio.SocketStream | TlsStream):
            return 0.0
        info = stream.socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_RECEIVED.size)
        data_ms, acknowledgement_ms = _LAST_RECEIVED.unpack(info)
        return float(min(data_ms, acknowledgement_ms)) / 1000

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await trio.to_thread.run_sync(call, *args)

    def wall_time_ns(self) -> int:
        return time.time_ns()

    def host_name(self) -> str:
        return socket.gethostname()

    def process_id(self) -> int:
        return os.getpid()

    def user_name(self) -> str:
        try:
            return getpass.getuser()
        except (KeyError, OSError):  # a container whose user has no name
            return "?"


_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
"""None where the kernel does not report it: there, only the kernel's limits end a silent connection."""
_LAST_RECEIVED: Final = struct.Struct("@52xII")
"""Two fields of the kernel's `struct tcp_info`: milliseconds since the last data, and since the last
acknowledgement, arrived.
"""
_PROBE_OPTIONS: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 127),  # the maximum: users of `silent_s` decide, not the kernel
)


def _probe_when_idle(sock: "trio.socket.SocketType") -> None:
    """Let the kernel request an acknowledgement each second while a connection transfers nothing."""
    for level, name, value in _PROBE_OPTIONS:
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(level, option, value)


_environment: Final[RunScoped[RegionRuntime]] = RunScoped("checkpoint.runtime", RealRegionRuntime())
runtime: Final = _environment.get
replace_runtime: Final = _environment.replace


def wall_time_ms() -> int:
    """Return milliseconds since 1970."""
    return runtime().wall_time_ns() // 1_000_000


def checkpoint_named(text: str) -> str:
    """Return the name of a checkpoint as `lines.find_target` takes it: a time in ISO 8601, local if it names
    no zone, becomes `time:MS`.
    """
    try:
        return f"time:{int(datetime.fromisoformat(text).timestamp() * 1000)}"
    except ValueError:
        return text


def timestamp() -> str:
    """Return the current time for display: ISO 8601 with milliseconds, in UTC."""
    return datetime.fromtimestamp(wall_time_ms() / 1000, UTC).isoformat(timespec="milliseconds")


@functools.cache
def package_version() -> str:
    """Return the version of this package in this process, which an installation meanwhile does not change."""
    return metadata.version(DISTRIBUTION)


def this_driver() -> str:
    """Return host:pid of this process, as recorded in checkpoints and answers."""
    return f"{runtime().host_name()}:{runtime().process_id()}"
