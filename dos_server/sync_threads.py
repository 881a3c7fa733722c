"""The threads that sync. A few of them, started once, with one queue: handing a sync over and hearing of it
costs little beside the sync, also when syncs are many and short.

At most one sync of an object runs, so a thread takes one at a time and never holds up another object's. What
begins, and what it covers, is told to the core before it is handed over here.

Rules of this file: threads and a queue. Nothing is decided here, and no error of the disk is handled: `sync`
returns it.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from dos_server.core import vocabulary as v

Sync = Callable[[v.Sync], v.Trouble]
Report = Callable[[v.Synced | BaseException], None]
_END: Final = None


class SyncThreads:
    """See the module. Threads start when there is work for them.

    `report` is called in a thread, with how the sync ended; or with what `sync` raised, which it must not:
    then nobody knows how it ended, and the server must not go on.
    """

    def __init__(self, sync: Sync, report: Report, threads_max: int) -> None:
        self._sync = sync
        self._report = report
        self._threads_max = threads_max
        self._queue: queue.SimpleQueue[v.Sync | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._due: deque[v.Sync] = deque()

    def ask(self, effect: v.Sync) -> None:
        """A sync is due. The owner begins it when there is a thread for it."""
        self._due.append(effect)

    def next_due(self) -> v.Sync | None:
        """The next sync that may begin now, if there is one."""
        return self._due.popleft() if self._due and self._running < self._threads_max else None

    def begin(self, effect: v.Sync) -> None:
        """Sync, now."""
        self._running += 1
        if self._running > len(self._threads):
            thread = threading.Thread(target=self._work, name=f"sync-{self._running}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(effect)

    def ended(self) -> None:
        """A report has reached the event loop."""
        self._running -= 1

    def _work(self) -> None:
        take, sync, report = self._queue.get, self._sync, self._report
        while (effect := take()) is not _END:
            try:
                event = v.Synced(effect.directory, effect.name, sync(effect))
            except BaseException as error:  # raised again in the event loop
                report(error)
                raise
            report(event)

    def close(self) -> None:
        """Wait until every sync that began has ended."""
        for _ in self._threads:
            self._queue.put(_END)
        for thread in self._threads:
            thread.join()
