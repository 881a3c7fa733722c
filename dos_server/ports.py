"""The server's interfaces to the outside, except the disk: sockets, readiness, threads, clock, randomness.

`OperatingSystem` is the real implementation; `dos_server.memory` implements them in memory. This file holds
signatures, and the real implementation where it is one line; nothing is decided here.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import trio

from dos_protocol.digests import Buffer
from dos_server.disk_threads import DiskThreads
from dos_server.readiness import Call, Readiness, ReadyCall

T = TypeVar("T")
Job = TypeVar("Job")
Result = TypeVar("Result")


class Socket(Protocol):
    """One end of a connection, like `socket.socket`. A call that would block raises BlockingIOError."""

    @property
    def family(self) -> int: ...

    def fileno(self) -> int: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...

    def recv_into(self, buffer: memoryview | bytearray, /) -> int: ...

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int: ...

    def send(self, data: Buffer, /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def getpeername(self) -> Any: ...

    def close(self) -> None: ...


class Listener(Protocol):
    """A listening socket."""

    def setblocking(self, flag: bool, /) -> None: ...

    def accept(self) -> tuple[Any, Any]:
        """Return a `Socket` and the peer's address. Raises BlockingIOError if no connection is waiting."""
        ...

    def close(self) -> None: ...


class Rounds(Protocol):
    """The interface of `readiness.Readiness`, the real implementation."""

    def watch(self, sock: Any, call: ReadyCall, *, reading: bool, writing: bool) -> None: ...

    def soon(self, call: Call) -> None: ...

    def done(self, call: Call) -> None: ...

    def yield_to_loop(self) -> None: ...

    async def wait_readable(self, sock: Any) -> None: ...

    async def run(self, round_ended: Call) -> None: ...

    def close(self) -> None: ...


class Workers(Protocol[Job]):
    """The interface of `disk_threads.DiskThreads`, the real implementation."""

    @property
    def busy(self) -> bool: ...

    def submit(self, job: Job) -> None: ...

    def next_due(self) -> Job | None: ...

    def start(self, job: Job) -> None: ...

    def begin(self, job: Job) -> None: ...

    def close(self) -> None: ...


class Ports(Protocol):
    """Everything a server takes from outside."""

    def rounds(self) -> Rounds:
        """Return a readiness service for one server."""
        ...

    def workers(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
    ) -> Workers[Job]:
        """Return a pool of at most `threads_max` threads for one kind of disk work.

        Each result is passed to `on_result` in the event loop, in a round of `rounds`.
        """
        ...

    async def in_thread(self, call: Callable[[], T], limiter: trio.CapacityLimiter | None = None) -> T:
        """Run a blocking call in a thread and return its result."""
        ...

    def monotonic(self) -> float:
        """Return a time in seconds for measuring durations. Callable from any thread."""
        ...

    def fresh_id(self) -> bytes:
        """Return 16 random bytes, for the id of a new server."""
        ...


class OperatingSystem:
    """The real implementation: kernel sockets, threads, the system clock and random source."""

    def rounds(self) -> Rounds:
        return Readiness()

    def workers(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
    ) -> Workers[Job]:
        return DiskThreads(work, on_result, rounds, threads_max)

    async def in_thread(self, call: Callable[[], T], limiter: trio.CapacityLimiter | None = None) -> T:
        return await trio.to_thread.run_sync(call, limiter=limiter)

    monotonic = staticmethod(time.monotonic)

    def fresh_id(self) -> bytes:
        return os.urandom(16)


OPERATING_SYSTEM = OperatingSystem()
