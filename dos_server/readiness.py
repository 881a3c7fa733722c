"""What is ready to be read, asked once for all of it: sockets of connections, and what threads have finished.

A wait of its own for each connection costs a task switch or two for every message. Here one task waits for
an epoll object, in which everything else is; a *round* serves all that is ready, and what the round gave is
then written, synced and sent together. With many peers that saves most of the cost of a message, and it makes
syncs begin in groups.

Rules of this file: who is called when. What a call does is the caller's; it must not block.
"""

import os
import select
from collections import deque
from collections.abc import Callable

import trio

Call = Callable[[], None]


class Readiness:
    """See the module. All but `done` belong to the event loop; `done` may be called from any thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Call] = {}
        self._soon: deque[Call] = deque()
        self._done: deque[Call] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rung = False
        self.watch(self._bell, self._take_done)

    def watch(self, descriptor: int, call: Call) -> None:
        """Call in every round in which the descriptor is readable, or broken."""
        self._calls[descriptor] = call
        self._epoll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Not any more; before the descriptor is closed."""
        del self._calls[descriptor]
        self._epoll.unregister(descriptor)

    def soon(self, call: Call) -> None:
        """Call at the end of this round, or in one that begins at once."""
        self._soon.append(call)
        self._ring()

    def done(self, call: Call) -> None:
        """Call in the event loop, in a round that begins at once. From any thread, in order."""
        self._done.append(call)
        self._ring()

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._bell, 1)

    def _take_done(self) -> None:
        """What is appended from here on rings again: the flag goes down before the queue is looked at."""
        os.eventfd_read(self._bell)
        self._rung = False
        done = self._done
        while done:
            done.popleft()()

    async def run(self, round_ended: Call) -> None:
        """Serve rounds until cancelled."""
        calls, soon = self._calls, self._soon
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for descriptor, _ in self._epoll.poll(0):
                call = calls.get(descriptor)  # None: an earlier call of this round was its last
                if call is not None:
                    call()
            for _ in range(len(soon)):
                soon.popleft()()
            round_ended()

    def close(self) -> None:
        """Give the descriptors back."""
        self._epoll.close()
        os.close(self._bell)
