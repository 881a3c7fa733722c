"""Parts of an archived segment, asked for before they are needed: a restore decodes one while the next come.

Rules of this file: order and memory. Which parts there are, and whether their bytes are right, `reading.py`
knows. Parts come out in order; what is wrong with one is raised where it would have come.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable

import trio

from journal.limits import archive_reads_ahead_max

Read = Callable[[], bytes]


class _Part:
    """One part on its way, in a thread. A cancellation leaves that alone."""

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
        except Exception as error:  # raised by `data`
            self._error = error
        finally:
            self._ended.set()

    async def data(self) -> bytes:
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._data


async def in_order(reads: Iterable[Read]) -> AsyncGenerator[bytes]:
    """What each of these blocking reads gives, in order; some of them are begun before they are asked for.

    Raises what they raise. Memory: what `archive_reads_ahead_max` reads give, the one before them and the one
    that was given out last.
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
