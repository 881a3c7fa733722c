"""Read parts of an archived segment ahead: a restore decodes one part while the next ones are in flight.

Parts are returned in order, and the error of a part is raised in its place. `reading.py` determines the parts
and verifies their bytes.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable

import trio

from journal.limits import archive_reads_ahead_max

Read = Callable[[], bytes]


class _Part:
    """A part that is being read in a thread. A cancellation does not wait for the thread."""

    def __init__(self, read: Read) -> None:
        self.scope = trio.CancelScope()
        self._read = read
        self._data = b""
        self._error: Exception | None = None
        self._ended = trio.Event()

    async def run(self) -> None:
        try:
            with self.scope:
                self._data = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        except Exception as error:  # raised again by `data`
            self._error = error
        finally:
            self._ended.set()

    async def data(self) -> bytes:
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._data


async def in_order(reads: Iterable[Read]) -> AsyncGenerator[bytes]:
    """Yield the results of blocking reads in order. Some reads are started before they are needed.

    Raises the errors of the reads. Memory: the results of `archive_reads_ahead_max` reads, of the read before
    them, and the result that was yielded last.
    """
    begun: deque[_Part] = deque()
    waiting = iter(reads)
    try:
        while True:
            while len(begun) <= archive_reads_ahead_max and (read := next(waiting, None)) is not None:
                begun.append(_Part(read))
                trio.lowlevel.spawn_system_task(begun[-1].run)
            if not begun:
                return
            yield await begun.popleft().data()
    finally:
        for part in begun:
            part.scope.cancel()
