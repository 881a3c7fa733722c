"""The server's interfaces to the outside, except the disk: listeners, threads, clock, randomness. Sockets in
rounds are in `dos_tls.readiness`.

A thread of the disk runs one job at a time. The owner decides when a job begins, because the core must know
what a sync covers before the thread gets it.
"""

import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import trio

from dos_tls.readiness import Readiness, Rounds

# --- The interfaces ----------------------------------------------------------------------------------------


_LINGER_S: Final = 0.001
"""How long a round waits for the next one before other tasks of the loop run: a pass through the loop costs
more than a small append."""

T = TypeVar("T")
Job = TypeVar("Job")
Result = TypeVar("Result")


class Listener(Protocol):
    """A listening socket."""

    def setblocking(self, flag: bool, /) -> None: ...

    def accept(self) -> tuple[Any, Any]:
        """Return a `Socket` and the peer's address. Raises BlockingIOError if no connection is waiting."""
        ...

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
        return Readiness(linger_s=_LINGER_S)

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
