"""What the processes of a region take from outside, besides what the client of their store takes
(`dos_client.runtime`: connections to servers, chance): links between them, work in threads, the wall clock,
and who they are.

The one of a trio run can be replaced as a whole (`replace_runtime`), as that of the client; then coordinators
and workers of that run live in the other one. How a process begins and ends is its launcher's; what a
circuit is told of time is `dataflow.worker.identity.Clock`'s.

Rules of this file: signatures, and the real thing where it is one line. Nothing is decided here.
"""

import getpass
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

import trio

from dos_protocol.digests import Buffer

T = TypeVar("T")


class Endpoints(Protocol):
    """Where the ends of a connection are, (host, port, ...) each."""

    def getsockname(self) -> Any: ...

    def getpeername(self) -> Any: ...


class LinkStream(Protocol):
    """One end of a connection. Errors are trio's of streams. A real one is a `trio.SocketStream`."""

    @property
    def socket(self) -> Endpoints: ...

    async def send_all(self, data: Buffer) -> None: ...

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray: ...

    async def aclose(self) -> None: ...


class RegionRuntime(Protocol):
    """Everything from outside."""

    async def connect(self, host: str, port: int) -> LinkStream:
        """A connection. Raises OSError."""
        ...

    async def listen(self, host: str, port: int, backlog: int) -> list[Any]:
        """Take connections there; port 0: any that is free. Listeners of trio whose streams are `LinkStream`,
        with a `socket` that says where each listens. Raises OSError.
        """
        ...

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Call something that may take its time. Cancelled, it is still done before this returns."""
        ...

    def wall_time_ns(self) -> int:
        """Since 1970, as this machine's clock says. For people, and for what has no other clock in common."""
        ...

    def host_name(self) -> str: ...

    def process_id(self) -> int: ...

    def user_name(self) -> str: ...


class RealRegionRuntime:
    """The real one."""

    async def connect(self, host: str, port: int) -> LinkStream:
        return await trio.open_tcp_stream(host, port)

    async def listen(self, host: str, port: int, backlog: int) -> list[Any]:
        return await trio.open_tcp_listeners(port, host=host, backlog=backlog)

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


_OUTSIDE: Final = RealRegionRuntime()
_runtime: Final[trio.lowlevel.RunVar[RegionRuntime]] = trio.lowlevel.RunVar("checkpoint.runtime", _OUTSIDE)


def runtime() -> RegionRuntime:
    """The one of this trio run; outside of one, the real one."""
    try:
        return _runtime.get()
    except RuntimeError:  # trio's word for that
        return _OUTSIDE


def replace_runtime(other: RegionRuntime) -> RegionRuntime:
    """Put another in its place, for this trio run; the one there was."""
    before = _runtime.get()
    _runtime.set(other)
    return before


def wall_time_ms() -> int:
    """Since 1970."""
    return runtime().wall_time_ns() // 1_000_000


def timestamp() -> str:
    """Now, for people: ISO 8601 with milliseconds, in UTC."""
    return datetime.fromtimestamp(wall_time_ms() / 1000, UTC).isoformat(timespec="milliseconds")


def this_driver() -> str:
    """host:pid of this process, as cuts and answers name it."""
    return f"{runtime().host_name()}:{runtime().process_id()}"
