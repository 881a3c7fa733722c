"""How much memory connections may read into, all together.

Every connection has a small buffer. A larger one makes a stream fast, and a frame that does not fit the
small one needs it; but there may be a thousand connections, each of which could begin a large frame. So what
lies beyond the small buffers comes out of one account. A wish is granted while there is plenty; a need, to
the last byte; beyond that a connection waits, unread, until others have given back. Those that hold a frame
begun are cut off after a while, so that comes.

Rules of this file: sums, and who waits.
"""

from collections.abc import Callable

from dos_server.limits import (
    buffers_large_bytes_max,
    buffers_total_bytes_max,
    buffers_wished_bytes_max,
    connection_buffer_bytes,
    outgoing_bytes_max,
    outgoing_pressed_bytes,
    outgoing_total_bytes_max,
)


class OutgoingAccount:
    """Bytes that peers were answered and have not taken, over all connections."""

    def __init__(self) -> None:
        self.held = 0

    @property
    def of_one_max(self) -> int:
        """What may stand before one peer until it is not read any more: less when many do not take theirs."""
        return outgoing_bytes_max if self.held <= outgoing_total_bytes_max else outgoing_pressed_bytes


class BufferAccount:
    """See the module. `held`: beyond the small buffers, over all connections."""

    def __init__(self) -> None:
        self.held = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def wanted(self) -> bool:
        """Somebody waits: who has a buffer and nothing in it should give it back."""
        return bool(self._waiting)

    def wish(self, have: int, size: int) -> int:
        """What a connection that holds `have` may hold, to be faster: `size`, if there is plenty."""
        bound = buffers_large_bytes_max if size >= connection_buffer_bytes else buffers_wished_bytes_max
        return self._take(have, size, bound)

    def need(self, have: int, size: int) -> int:
        """The same, to go on at all."""
        return self._take(have, size, buffers_total_bytes_max)

    def _take(self, have: int, size: int, bound: int) -> int:
        if size <= have or self.held + size - have > bound:
            return have
        self.held += size - have
        return size

    def wait(self, call: Callable[[], None]) -> None:
        """Call when some was given back. Once, and perhaps in vain."""
        self._waiting.append(call)

    def give_back(self, count: int) -> None:
        self.held -= count
        assert self.held >= 0, "more buffer given back than taken"
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
