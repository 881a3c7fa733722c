"""The server's interfaces to the outside, except the disk: sockets, readiness, threads, clock, randomness.

One task waits for an epoll object that has all the sockets. A *round* serves everything that is ready; its
results are then written, synced and sent together, which saves most of the cost of a message
(docs/decisions/0070). A thread of the disk runs one job at a time. The owner decides when a job begins,
because the core must know what a sync covers before the thread gets it.
"""

import os
import queue
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import trio

from dos_protocol.digests import Buffer

# --- Readiness of sockets, in rounds -----------------------------------------------------------------------


Call = Callable[[], None]


class ReadyCall(Protocol):
    """A callback for a socket that is ready."""

    def __call__(self, *, readable: bool) -> None:
        """`readable`: there is data to read, or the peer is gone; otherwise there is room to write."""


_READABLE: Final = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_SLICE_SECONDS: Final = 0.0005
"""Processor time of a thread after which it pauses."""
_YIELD_SECONDS: Final = 0.0001
"""Minimum pause: enough to wake the loop if it waits for the interpreter lock."""
_YIELD_SECONDS_MAX: Final = 0.004
"""Maximum pause while a round lasts, so that an overloaded server still opens a directory."""
_LINGER_SECONDS: Final = 0.001
"""How long a round waits for the next one before other tasks of the loop run: a pass through the loop costs
more than a small append."""


class Readiness:
    """The readiness service of one server. `done` and `yield_to_loop` may be called from any thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, ReadyCall] = {}
        self._soon: deque[Call] = deque()
        self._done: deque[Call] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rung = False
        self._in_round = False
        self._of_thread = threading.local()
        self._calls[self._bell] = self._take_done
        self._epoll.register(self._bell, select.EPOLLIN)

    def watch(self, sock: socket.socket, call: ReadyCall, *, reading: bool, writing: bool) -> None:
        """Call in every round in which the socket is ready, or broken. Neither `reading` nor `writing` ends
        it; required before the socket is closed.
        """
        descriptor = sock.fileno()
        events = (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if writing else 0)
        if not events:
            if self._calls.pop(descriptor, None) is not None:
                self._epoll.unregister(descriptor)
        elif descriptor in self._calls:
            self._epoll.modify(descriptor, events)
        else:
            self._calls[descriptor] = call
            self._epoll.register(descriptor, events)

    async def wait_readable(self, sock: socket.socket) -> None:
        """Wait, outside of rounds, until there is data to read or a connection to accept."""
        await trio.lowlevel.wait_readable(sock)

    def soon(self, call: Call) -> None:
        """Call at the end of this round, or in one that begins immediately."""
        self._soon.append(call)
        self._ring()

    def done(self, call: Call) -> None:
        """Call in the event loop, in a round that begins immediately. Thread-safe; keeps the order."""
        self._done.append(call)
        self._ring()

    def yield_to_loop(self) -> None:
        """Let the event loop run first. Long computations in threads call this regularly."""
        # A computing thread keeps the interpreter lock until another thread has waited for 5 ms, and a round
        # releases the lock at each system call: a round of ten calls would take 50 ms longer.
        of_thread, used = self._of_thread, time.thread_time()
        if used - getattr(of_thread, "yielded", used - _SLICE_SECONDS) < _SLICE_SECONDS:
            return
        until = time.monotonic() + _YIELD_SECONDS_MAX
        time.sleep(_YIELD_SECONDS)
        while self._in_round and time.monotonic() < until:
            time.sleep(_YIELD_SECONDS)
        of_thread.yielded = time.thread_time()

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._bell, 1)

    def _take_done(self, *, readable: bool) -> None:
        """Make the queued calls. The flag is cleared first, so that a later call rings again."""
        assert readable, "the event descriptor is watched for reading only"
        os.eventfd_read(self._bell)
        self._rung = False
        done = self._done
        while done:
            done.popleft()()

    async def run(self, round_ended: Call) -> None:
        """Serve rounds until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            end = trio.current_time() + _LINGER_SECONDS
            ready = self._epoll.poll(0)
            while ready:
                self._in_round = True
                self._round(ready)
                round_ended()
                self._in_round = False
                if trio.current_time() >= end:
                    break
                ready = self._epoll.poll(_LINGER_SECONDS)

    def _round(self, ready: list[tuple[int, int]]) -> None:
        calls, soon = self._calls, self._soon
        for descriptor, events in ready:
            call = calls.get(descriptor)  # None: an earlier call of this round ended the watch
            if call is not None:
                call(readable=bool(events & _READABLE))
        for _ in range(len(soon)):
            soon.popleft()()

    def close(self) -> None:
        self._epoll.close()
        os.close(self._bell)


# --- The interfaces ----------------------------------------------------------------------------------------


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

    def rounds(self) -> Rounds: ...

    def workers(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        rounds: Rounds,
        threads_max: int,
    ) -> Workers[Job]:
        """Return a pool of at most `threads_max` threads. `on_result` gets each result in a round of
        `rounds`.
        """
        ...

    async def in_thread(self, call: Callable[[], T], limiter: trio.CapacityLimiter | None = None) -> T: ...

    def monotonic(self) -> float: ...

    def fresh_id(self) -> bytes:
        """Return 16 random bytes, for the id of a new server."""
        ...


class OperatingSystem:
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


# --- Threads -----------------------------------------------------------------------------------------------


class WorkerPool(ABC, Generic[Job, Result]):
    """Jobs, of which at most `threads_max` run at once. `on_result` gets every result in the event loop."""

    def __init__(
        self, work: Callable[[Job], Result], on_result: Callable[[Result], None], threads_max: int
    ) -> None:
        self._work = work
        self._on_result = on_result
        self._threads_max = threads_max
        self._running = 0
        self._queued: deque[Job] = deque()
        self._eager: deque[Job] = deque()

    @property
    def busy(self) -> bool:
        return self._running > 0

    def submit(self, job: Job) -> None:
        """Queue a job. The owner begins it when a thread is free, see `next_due`."""
        self._queued.append(job)

    def next_due(self) -> Job | None:
        """Return the next queued job if a thread is free for it."""
        return self._queued.popleft() if self._queued and self._running < self._threads_max else None

    def start(self, job: Job) -> None:
        """Begin a job as soon as a thread is free; for owners that need not know when it begins."""
        if self._running < self._threads_max:
            self.begin(job)
        else:
            self._eager.append(job)

    @abstractmethod
    def begin(self, job: Job) -> None:
        """Hand a job to a thread."""

    def _ended(self, result: Result) -> None:
        self._running -= 1
        if self._eager:
            self.begin(self._eager.popleft())
        self._on_result(result)


class DiskThreads(WorkerPool[Job, Result]):
    """A pool of threads, which are started when they are first needed."""

    def __init__(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        readiness: Rounds,
        threads_max: int,
    ) -> None:
        super().__init__(work, on_result, threads_max)
        self._readiness = readiness
        self._queue: queue.SimpleQueue[tuple[Job] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def begin(self, job: Job) -> None:
        self._running += 1
        if self._running > len(self._threads):
            thread = threading.Thread(target=self._run, name="disk", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put((job,))

    def _run(self) -> None:
        take, work, done, ended = self._queue.get, self._work, self._readiness.done, self._ended
        while (item := take()) is not None:
            try:
                result = work(item[0])
            except BaseException as error:
                # The outcome of the job is unknown: the server must end.
                done(partial(_raise, error))
                return
            done(partial(ended, result))

    def close(self) -> None:
        """Wait until every job that has begun is finished."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


def _raise(error: BaseException) -> None:
    raise error
