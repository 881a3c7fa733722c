"""How much memory connections may read into, all together.

Every connection has a small buffer. A larger one makes a stream fast, and a frame that does not fit the
small one needs it; but there may be a thousand connections, each of which could begin a large frame. So what
lies beyond the small buffers comes out of one account, and is taken only when the small buffer is full: a
frame that was merely announced holds nothing. A wish is granted while there is plenty; a need, whole or not
at all, to a bound above that: so one frame at least can always become whole. The last part is for
connections that have delivered a large frame before.

Beyond that a connection waits, unread. Room that comes back goes to those that have delivered first, then to
who needs least. While somebody waits, `connection` ends those that hold room and send nothing.

Rules of this file: sums, and who waits.
"""

from typing import Protocol

from dos_server.limits import (
    buffers_large_bytes_max,
    buffers_needed_bytes_max,
    buffers_total_bytes_max,
    buffers_wished_bytes_max,
    connection_buffer_bytes,
    full_send_seconds_max,
    outgoing_bytes_max,
    outgoing_full_bytes,
    outgoing_pressed_bytes,
    outgoing_total_bytes_max,
    send_seconds_max,
)


class BufferWaiter(Protocol):
    """A buffer that must be larger before its connection is read again."""

    delivered: bool

    @property
    def lacks_bytes(self) -> int:
        """What it needs beyond what it holds."""

    def has_room(self) -> None:
        """There may be room now: ask again."""


class OutgoingAccount:
    """Bytes that peers were answered and have not taken, over all connections."""

    def __init__(self) -> None:
        self.held = 0

    @property
    def of_one_max(self) -> int:
        """What may stand before one peer until it is not read any more: less when many do not take theirs."""
        return outgoing_bytes_max if self.held <= outgoing_total_bytes_max else outgoing_pressed_bytes

    @property
    def full(self) -> bool:
        """No answer is begun whose length nobody knows before: that of LIST or CWD."""
        return self.held > outgoing_full_bytes

    @property
    def taken_within_seconds(self) -> float:
        """A peer that takes nothing for longer is closed."""
        return full_send_seconds_max if self.full else send_seconds_max


class BufferAccount:
    """See the module. `held`: beyond the small buffers, over all connections."""

    def __init__(self) -> None:
        self.held = 0
        self._waiting: dict[BufferWaiter, None] = {}

    @property
    def wanted(self) -> bool:
        """Somebody waits: who has a buffer and nothing in it should give it back."""
        return bool(self._waiting)

    def wish(self, have: int, size: int) -> int:
        """What a connection that holds `have` may hold, to be faster: `size`, if there is plenty."""
        bound = buffers_large_bytes_max if size >= connection_buffer_bytes else buffers_wished_bytes_max
        return self._take(have, size, bound)

    def need(self, have: int, size: int, *, delivered: bool) -> int:
        """The same, to go on at all. `delivered`: it has had a large frame whole before."""
        return self._take(have, size, self._bound(delivered=delivered))

    def _bound(self, *, delivered: bool) -> int:
        return buffers_total_bytes_max if delivered else buffers_needed_bytes_max

    def _take(self, have: int, size: int, bound: int) -> int:
        if size <= have or self.held + size - have > bound:
            return have
        self.held += size - have
        return size

    def wait(self, waiter: BufferWaiter) -> None:
        """Tell it when there may be room. Once, and perhaps in vain."""
        self._waiting[waiter] = None

    def give_back(self, count: int) -> None:
        self.held -= count
        assert self.held >= 0, "more buffer given back than taken"
        self._wake()

    def leave(self, waiter: BufferWaiter) -> None:
        """Its connection is gone: what it was told of may be another's."""
        self._waiting.pop(waiter, None)
        self._wake()

    def _wake(self) -> None:
        """Tell as many as there is room for."""
        if not self._waiting:
            return
        promised = self.held
        for one in sorted(self._waiting, key=lambda one: (not one.delivered, one.lacks_bytes)):
            promised += one.lacks_bytes
            if promised > self._bound(delivered=one.delivered):
                return
            del self._waiting[one]
            one.has_room()
