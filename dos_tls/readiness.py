"""Sockets in rounds: the sockets of one server, or of all sessions of a client's trio run.

One task waits for an epoll object that has all the sockets. A *round* serves everything that is ready. Its
results are then written, synced and sent together, which saves most of the cost of a message
(docs/decisions/0070).
"""

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import trio

from dos_protocol.digests import Buffer

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


class Rounds(Protocol):
    """The interface of `Readiness`, the real implementation."""

    def watch(self, sock: Any, call: ReadyCall, *, reading: bool, writing: bool) -> None: ...

    def soon(self, call: Call) -> None: ...

    def done(self, call: Call) -> None: ...

    def yield_to_loop(self) -> None: ...

    async def wait_readable(self, sock: Any) -> None: ...

    async def run(self, round_ended: Call) -> None: ...

    def close(self) -> None: ...


class Readiness:
    """The readiness service of one server or client. `linger_s`: how long a round waits for the next one
    before other tasks of the loop run. `done` and `yield_to_loop` may be called from any thread.
    """

    def __init__(self, linger_s: float = 0.0) -> None:
        self._linger_s = linger_s
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
            end = trio.current_time() + self._linger_s
            ready = self._epoll.poll(0)
            while ready:
                self._in_round = True
                self._round(ready)
                round_ended()
                self._in_round = False
                if trio.current_time() >= end:
                    break
                ready = self._epoll.poll(self._linger_s)

    def _round(self, ready: list[tuple[int, int]]) -> None:
        calls, soon = self._calls, self._soon
        for descriptor, events in ready:
            call = calls.get(descriptor)  # None: an earlier call of this round ended the watch
            if call is not None:
                call(readable=bool(events & _READABLE))
        for _ in range(len(soon)):
            soon.popleft()()

    def close(self) -> None:
        self._calls.clear()  # a socket that leaves later leaves nothing
        self._epoll.close()
        os.close(self._bell)
