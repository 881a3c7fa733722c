"""What a server takes from outside, besides its disk: sockets and when they are ready, work in threads, a
clock, chance. `OperatingSystem` is the real one; in `dos_server.memory` everything is in memory.

Rules of this file: signatures, and the real thing where it is one line. Nothing is decided here.
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
    """One end of a connection. Nothing blocks: what would, raises BlockingIOError. A real one is a
    `socket.socket`."""

    @property
    def family(self) -> int: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...

    def recv_into(self, buffer: memoryview | bytearray, /) -> int: ...

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int: ...

    def send(self, data: bytes, /) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def getpeername(self) -> Any: ...

    def close(self) -> None: ...


class Listener(Protocol):
    """Where connections come in."""

    def setblocking(self, flag: bool, /) -> None: ...

    def accept(self) -> tuple[Any, Any]:
        """A `Socket` and where its peer is. BlockingIOError: nobody waits."""
        ...

    def close(self) -> None: ...


class Rounds(Protocol):
    """See `readiness.Readiness`, which is the real one."""

    def watch(self, sock: Any, call: ReadyCall, *, reading: bool, writing: bool) -> None: ...

    def soon(self, call: Call) -> None: ...

    def done(self, call: Call) -> None: ...

    def give_way(self) -> None: ...

    async def wait_readable(self, sock: Any) -> None: ...

    async def run(self, round_ended: Call) -> None: ...

    def close(self) -> None: ...


class Workers(Protocol[Job]):
    """See `disk_threads.DiskThreads`, which is the real one."""

    @property
    def busy(self) -> bool: ...

    def ask(self, job: Job) -> None: ...

    def next_due(self) -> Job | None: ...

    def start(self, job: Job) -> None: ...

    def begin(self, job: Job) -> None: ...

    def close(self) -> None: ...


class Ports(Protocol):
    """Everything from outside."""

    def rounds(self) -> Rounds:
        """Who says what is ready, for one server."""
        ...

    def workers(
        self,
        work: Callable[[Job], Result],
        hear: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
    ) -> Workers[Job]:
        """Who does one kind of work on the disk."""
        ...

    async def in_thread(self, call: Callable[[], T], limiter: trio.CapacityLimiter | None = None) -> T:
        """Call something that may take its time."""
        ...

    def monotonic(self) -> float:
        """Seconds, for how long work took. From any thread."""
        ...

    def fresh_id(self) -> bytes:
        """16 random bytes: who a new server is."""
        ...


class OperatingSystem:
    """The real ones: sockets of the kernel, threads, its clock, its randomness."""

    def rounds(self) -> Rounds:
        return Readiness()

    def workers(
        self,
        work: Callable[[Job], Result],
        hear: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
    ) -> Workers[Job]:
        return DiskThreads(work, hear, rounds, threads_max)

    async def in_thread(self, call: Callable[[], T], limiter: trio.CapacityLimiter | None = None) -> T:
        return await trio.to_thread.run_sync(call, limiter=limiter)

    def monotonic(self) -> float:
        return time.monotonic()

    def fresh_id(self) -> bytes:
        return os.urandom(16)


OPERATING_SYSTEM = OperatingSystem()
