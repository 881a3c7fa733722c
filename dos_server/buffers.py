"""Limits the memory that all connections together use for receiving and sending.

Every connection has a small receive buffer. Memory beyond it comes out of one account, and is taken only when
the small buffer is full: a thousand connections could each announce a large frame.

| request | meaning | granted up to |
|---|---|---|
| optional | a larger buffer would be faster | `buffers_large_bytes_max`, `buffers_optional_bytes_max` |
| need | the frame does not fit; granted whole or not at all | `buffers_needed_bytes_max` |
| need, `delivered` | the same, after a large frame was delivered | `buffers_total_bytes_max` |

The limit of needed memory is above that of optional memory, so at least one frame can always be completed.
"""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from dos_protocol.digests import Buffer
from dos_protocol.frames import FrameDecoder
from dos_protocol.limits import meta_bytes_max, payload_bytes_max
from dos_server.core.requests import version0_wire as wire0
from dos_server.limits import (
    buffers_large_bytes_max,
    buffers_needed_bytes_max,
    buffers_optional_bytes_max,
    buffers_total_bytes_max,
    connection_buffer_bytes,
    connection_buffer_fair_bytes,
    full_send_seconds_max,
    hello_bytes_max,
    outgoing_bytes_max,
    outgoing_full_bytes,
    outgoing_pressed_bytes,
    outgoing_total_bytes_max,
    send_seconds_max,
)
from dos_tls.readiness import Socket


class OutgoingAccount:
    """Bytes of answers that are queued for peers and not yet sent, over all connections."""

    def __init__(self) -> None:
        self.held = 0

    @property
    def per_peer_max(self) -> int:
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
        self._waiting: dict[Inflow, None] = {}

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

    def wait(self, waiter: "Inflow") -> None:
        """Call `on_room` once when there may be room. The room may be taken again by then."""
        self._waiting[waiter] = None

    def release(self, count: int) -> None:
        self.held -= count
        assert self.held >= 0, "more buffer given back than taken"
        self._wake()

    def leave(self, waiter: "Inflow") -> None:
        """Remove a waiter whose connection is gone; room that was promised to it may go to another."""
        self._waiting.pop(waiter, None)
        self._wake()

    def _wake(self) -> None:
        if not self._waiting:
            return
        promised = self.held
        # Those that have delivered first, then the smallest need: a peer that only announces frames starves
        # nobody.
        for waiter in sorted(self._waiting, key=lambda waiter: (not waiter.delivered, waiter.lacks_bytes)):
            promised += waiter.lacks_bytes
            if promised > self._bound(delivered=waiter.delivered):
                return
            del self._waiting[waiter]
            waiter.on_room()


# --- The receive buffer of one connection ------------------------------------------------------------------


class Inflow:
    """The receive buffer of one connection. `inlet`: set once the peer is known to speak version 0.
    `delivered`: a frame larger than the small buffer was completed. `on_room`: called when a wait for memory
    may be over.
    """

    def __init__(self, account: BufferAccount, on_room: Callable[[], None]) -> None:
        self.decoder = FrameDecoder(copy=False, meta_max=hello_bytes_max, payload_max=hello_bytes_max)
        self.inlet: wire0.Inlet | None = None
        self.on_room = on_room
        self.delivered = False
        self._account = account
        self._first_bytes = self._granted_bytes = self.decoder.capacity_grown = self.decoder.capacity
        self._began = False
        self._writable_bytes = 0
        self._filled = False

    @property
    def buffered(self) -> int:
        return (self.inlet or self.decoder).buffered

    @property
    def holds_large_buffer(self) -> bool:
        return self._granted_bytes > self._first_bytes and self.buffered > 0

    @property
    def lacks_bytes(self) -> int:
        return max(self.decoder.needed - self._granted_bytes, 0)

    def welcome(self) -> None:
        """Allow frames of any length that the protocol allows: HELLO was answered."""
        self.decoder.allow(meta_bytes_max, payload_bytes_max)

    def writable(self) -> memoryview:
        view = (self.inlet or self.decoder).writable()
        self._writable_bytes = len(view)
        return view

    def wrote(self, count: int) -> bool:
        """Note that `count` bytes were received. True: they are the first, and the peer speaks version 0."""
        self._filled = count == self._writable_bytes
        if self._began:
            (self.inlet or self.decoder).wrote(count)
            return False
        self._began = True
        first = self.decoder.writable()[:count]
        if first[0] != wire0.FIRST_BYTE:
            self.decoder.wrote(count)
            return False
        self.inlet = wire0.Inlet(self._first_bytes)
        self.inlet.receive(first)
        return True

    def make_room(self) -> bool:
        """Make room for the next bytes. False: no memory is available now; `on_room` will be called."""
        inflow = self.inlet or self.decoder
        filled, self._filled = self._filled, False
        if self._granted_bytes > self._first_bytes >= self.decoder.needed:
            self.delivered = True
        if not inflow.buffered and (self.inlet is None or not filled):
            # Others wait: an empty large buffer is worth more to them.
            if self._account.wanted:
                self.release()
            return True
        have, needed = self._granted_bytes, self.decoder.needed
        if filled:
            have = self._account.take_optional(have, connection_buffer_bytes)
            have = self._account.take_optional(have, connection_buffer_fair_bytes)
        if needed > have and inflow.buffered == inflow.capacity:
            have = self._account.need(have, needed, delivered=self.delivered)
        self._granted_bytes = inflow.capacity_grown = have
        if needed <= have or inflow.buffered < inflow.capacity:
            return True
        self._account.wait(self)
        return False

    def release(self) -> None:
        """Shrink to the small buffer if it is empty. A frame that has begun keeps what it was granted."""
        inflow = self.inlet or self.decoder
        if inflow.buffered:
            return
        inflow.shrink()
        if inflow.capacity == self._first_bytes:
            inflow.capacity_grown = self._first_bytes
            self.end()

    def close(self) -> None:
        """Release the buffer at once, even if something still refers to the connection."""
        self.end()
        self._account.leave(self)
        self.inlet = None
        del self.decoder

    def end(self) -> None:
        """Return everything beyond the small buffer to the account."""
        count, self._granted_bytes = self._granted_bytes - self._first_bytes, self._first_bytes
        if count:
            self._account.release(count)


# --- The bytes that wait for one peer ----------------------------------------------------------------------


_IOV_MAX: Final = 64


class Outflow:
    """A queue of buffers. `bytes`: how many bytes are in it."""

    def __init__(self, account: OutgoingAccount) -> None:
        self._account = account
        self._queue: deque[Buffer] = deque()
        self.bytes = 0

    def add(self, data: Buffer) -> None:
        self._queue.append(data)
        self._count(len(data))

    def send_some(self, sock: Socket) -> bool:
        """Send one group of buffers. False: the socket accepted only a part. Raises OSError."""
        group = list(islice(self._queue, _IOV_MAX))
        count = sock.sendmsg(group)
        if count == self.bytes:  # the usual case
            self.clear()
            return True
        complete = count == sum(map(len, group))
        self._count(-count)
        while count:
            first = self._queue.popleft()
            if count < len(first):
                self._queue.appendleft(memoryview(first)[count:])
                break
            count -= len(first)
        return complete

    def clear(self) -> None:
        self._queue.clear()
        self._count(-self.bytes)

    def _count(self, more: int) -> None:
        self.bytes += more
        self._account.held += more
