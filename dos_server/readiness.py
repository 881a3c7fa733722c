"""What is ready, asked once for all of it: sockets of connections, and what threads have finished.

A wait of its own for each connection costs a task switch or two for every message. Here one task waits for
an epoll object, in which everything else is; a *round* serves all that is ready, and what the round gave is
then written, synced and sent together. With many peers that saves most of the cost of a message, and it makes
syncs begin in groups.

Rules of this file: who is called when. What a call does is the caller's; it must not block.
"""

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import trio

Call = Callable[[], None]


class ReadyCall(Protocol):
    """What is called when a socket is ready."""

    def __call__(self, *, readable: bool) -> None:
        """`readable`: there is something to read, or the peer is gone. Else there is room to write."""


_READABLE: Final = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_SLICE_SECONDS: Final = 0.0005
"""Of a thread's processor time, after which it gives way,"""
_GIVE_WAY_SECONDS: Final = 0.0001
"""for so long at least: time enough for the loop to be woken, if it waits for the interpreter;"""
_GIVE_WAY_SECONDS_MAX: Final = 0.004
"""and for so long at most while a round lasts: an overloaded server still opens a directory."""
_LINGER_SECONDS: Final = 0.001
"""So long a round waits for the next before other tasks of the loop get their turn: the way through the loop
costs more than a small append."""


class Readiness:
    """See the module. All but `done` and `give_way` belong to the event loop; those may be called from any
    thread."""

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
        """From now on call in every round in which the socket can be read or written, whichever is wanted, or
        is broken. Neither: not any more; before the socket is closed."""
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
        """Wait outside of rounds until there is something to read, or to accept."""
        await trio.lowlevel.wait_readable(sock)

    def soon(self, call: Call) -> None:
        """Call at the end of this round, or in one that begins at once."""
        self._soon.append(call)
        self._ring()

    def done(self, call: Call) -> None:
        """Call in the event loop, in a round that begins at once. From any thread, in order."""
        self._done.append(call)
        self._ring()

    def give_way(self) -> None:
        """Let the event loop go first. To be called every now and then by a thread with much to compute.

        A thread that computes has the interpreter until somebody who waits has waited for 5 ms, and a round
        gives it up with each system call: so without this a round of ten calls takes 50 ms longer. What a
        thread computes between two calls should take no more than a slice.
        """
        of_thread, used = self._of_thread, time.thread_time()
        if used - getattr(of_thread, "gave_way", used - _SLICE_SECONDS) < _SLICE_SECONDS:
            return
        until = time.monotonic() + _GIVE_WAY_SECONDS_MAX
        time.sleep(_GIVE_WAY_SECONDS)
        while self._in_round and time.monotonic() < until:
            time.sleep(_GIVE_WAY_SECONDS)
        of_thread.gave_way = time.thread_time()

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            os.eventfd_write(self._bell, 1)

    def _take_done(self, *, readable: bool) -> None:
        """What is appended from here on rings again: the flag goes down before the queue is looked at."""
        assert readable, "a bell is only heard"
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
            call = calls.get(descriptor)  # None: an earlier call of this round was its last
            if call is not None:
                call(readable=bool(events & _READABLE))
        for _ in range(len(soon)):
            soon.popleft()()

    def close(self) -> None:
        """Give the descriptors back."""
        self._epoll.close()
        os.close(self._bell)
