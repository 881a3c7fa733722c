"""Limits the memory that all connections together use for receiving and sending.

Every connection has a small receive buffer. A larger one makes a stream fast, and a frame that does not fit
the small buffer needs one; but a thousand connections could each begin a large frame. So memory beyond the
small buffers comes out of one account, and is taken only when the small buffer is full: a frame that was
only announced holds nothing.

| request | meaning | granted up to |
|---|---|---|
| optional | a larger buffer would be faster | `buffers_large_bytes_max`, `buffers_optional_bytes_max` |
| need | the frame does not fit; granted whole or not at all | `buffers_needed_bytes_max` |
| need, `delivered` | the same, after a large frame was delivered | `buffers_total_bytes_max` |

The limit of needed memory is above that of optional memory, so at least one frame can always be completed.

Above its limit a connection waits and is not read. Memory that is returned goes first to connections that
have delivered, then to the smallest need. While a connection waits, `connection` closes those that hold
memory and send nothing.
"""

from typing import Protocol

from dos_server.limits import (
    buffers_large_bytes_max,
    buffers_needed_bytes_max,
    buffers_optional_bytes_max,
    buffers_total_bytes_max,
    connection_buffer_bytes,
    full_send_seconds_max,
    outgoing_bytes_max,
    outgoing_full_bytes,
    outgoing_pressed_bytes,
    outgoing_total_bytes_max,
    send_seconds_max,
)


class BufferWaiter(Protocol):
    """A buffer that must grow before its connection can be read again."""

    delivered: bool

    @property
    def lacks_bytes(self) -> int:
        """Bytes that it needs beyond those that it holds."""

    def on_room(self) -> None:
        """Called when there may be room: request it again."""


class OutgoingAccount:
    """Bytes of answers that are queued for peers and not yet sent, over all connections."""

    def __init__(self) -> None:
        self.held = 0

    @property
    def per_peer_max(self) -> int:
        """How much may be queued for one peer before it is no longer read; less while the total is high."""
        return outgoing_bytes_max if self.held <= outgoing_total_bytes_max else outgoing_pressed_bytes

    @property
    def full(self) -> bool:
        """Whether to postpone answers whose length is not known in advance: those of LIST and CWD."""
        return self.held > outgoing_full_bytes

    @property
    def read_within_seconds(self) -> float:
        """A peer that reads nothing for longer than this is closed."""
        return full_send_seconds_max if self.full else send_seconds_max


class BufferAccount:
    """The receive memory of all connections. `held`: bytes granted beyond the small buffers."""

    def __init__(self) -> None:
        self.held = 0
        self._waiting: dict[BufferWaiter, None] = {}

    @property
    def wanted(self) -> bool:
        """Whether a connection waits: connections should then return large buffers that are empty."""
        return bool(self._waiting)

    def take_optional(self, have: int, size: int) -> int:
        """Grow a buffer from `have` to `size` bytes for speed; return the size granted, perhaps `have`."""
        bound = buffers_large_bytes_max if size >= connection_buffer_bytes else buffers_optional_bytes_max
        return self._take(have, size, bound)

    def need(self, have: int, size: int, *, delivered: bool) -> int:
        """Grow a buffer for a frame that does not fit. `delivered`: it has completed a large frame before."""
        return self._take(have, size, self._bound(delivered=delivered))

    def _bound(self, *, delivered: bool) -> int:
        return buffers_total_bytes_max if delivered else buffers_needed_bytes_max

    def _take(self, have: int, size: int, bound: int) -> int:
        if size <= have or self.held + size - have > bound:
            return have
        self.held += size - have
        return size

    def wait(self, waiter: BufferWaiter) -> None:
        """Call `on_room` once when there may be room. The room may be taken again by then."""
        self._waiting[waiter] = None

    def release(self, count: int) -> None:
        self.held -= count
        assert self.held >= 0, "more buffer given back than taken"
        self._wake()

    def leave(self, waiter: BufferWaiter) -> None:
        """Remove a waiter whose connection is gone; room that was promised to it may go to another."""
        self._waiting.pop(waiter, None)
        self._wake()

    def _wake(self) -> None:
        """Wake as many waiters as there is room for."""
        if not self._waiting:
            return
        promised = self.held
        for waiter in sorted(self._waiting, key=lambda waiter: (not waiter.delivered, waiter.lacks_bytes)):
            promised += waiter.lacks_bytes
            if promised > self._bound(delivered=waiter.delivered):
                return
            del self._waiting[waiter]
            waiter.on_room()
