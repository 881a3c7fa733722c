"""Threads for disk work that is frequent and short: syncs and reads.

A few threads are started once and share one queue, so that handing over a job and reporting its result cost
little compared with the job. A thread runs one job at a time, so a slow job delays no other while there are
threads. The owner decides when a job begins, because the core must know what a sync covers before the thread
gets it.

Nothing is decided here, and no disk error is handled: the work returns it.
"""

import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from dos_server.readiness import Call

Job = TypeVar("Job")
Result = TypeVar("Result")


class Wakeup(Protocol):
    """The part of `readiness` that threads use."""

    def done(self, call: Call) -> None:
        """Call in the event loop. Callable from any thread; calls keep their order."""


class WorkerPool(ABC, Generic[Job, Result]):
    """Jobs, of which at most `threads_max` run at once. A subclass runs them.

    `on_result` is called in the event loop with every result.
    """

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
        """Whether a job has begun and not finished."""
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
    """A pool of threads, which are started when they are first needed.

    `work` must not raise. If it does, the exception is raised in the event loop and ends the server, because
    the outcome of the job is unknown.
    """

    def __init__(
        self,
        work: Callable[[Job], Result],
        on_result: Callable[[Result], None],
        readiness: Wakeup,
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
