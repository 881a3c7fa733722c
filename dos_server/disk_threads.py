"""Threads for work on the disk that is much and short: syncs and reads. A few, started once, with one queue:
handing a job over and hearing of it costs little beside the job.

A thread takes one job at a time, so a slow one never holds up another while there are threads. The owner says
when a job begins: what a sync covers is told to the core before it is handed over here.

Rules of this file: threads and a queue. Nothing is decided here, and no error of the disk is handled: the
work returns it.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from dos_server.readiness import Call

Job = TypeVar("Job")
Result = TypeVar("Result")


class Wakeup(Protocol):
    """What `readiness` is to a thread."""

    def done(self, call: Call) -> None:
        """Call in the event loop. From any thread, in order."""


class DiskThreads(Generic[Job, Result]):
    """See the module. Threads start when there is work for them.

    `hear` is called in the event loop with every result. What `work` raises, which it must not, is raised
    there too: nobody knows then how it ended, and the server must not go on.
    """

    def __init__(
        self,
        work: Callable[[Job], Result],
        hear: Callable[[Result], None],
        readiness: Wakeup,
        threads_max: int,
    ) -> None:
        self._work = work
        self._hear = hear
        self._readiness = readiness
        self._threads_max = threads_max
        self._queue: queue.SimpleQueue[tuple[Job] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._due: deque[Job] = deque()
        self._eager: deque[Job] = deque()

    @property
    def busy(self) -> bool:
        """Whether a job has begun and not ended."""
        return self._running > 0

    def ask(self, job: Job) -> None:
        """A job is due. The owner begins it when there is a thread for it."""
        self._due.append(job)

    def next_due(self) -> Job | None:
        """The next job that may begin now, if there is one."""
        return self._due.popleft() if self._due and self._running < self._threads_max else None

    def start(self, job: Job) -> None:
        """Begin a job as soon as there is a thread; for threads whose owner has nothing to say about when."""
        if self._running < self._threads_max:
            self.begin(job)
        else:
            self._eager.append(job)

    def begin(self, job: Job) -> None:
        """Hand it over."""
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

    def _ended(self, result: Result) -> None:
        self._running -= 1
        if self._eager:
            self.begin(self._eager.popleft())
        self._hear(result)

    def close(self) -> None:
        """Wait until every job that began has ended."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


def _raise(error: BaseException) -> None:
    raise error
