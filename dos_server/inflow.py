"""What a connection reads into: the decoder of version 1, or the inlet of version 0, and how large its buffer
may be.

The first byte tells which version of the protocol the peer speaks: zero is version 0 (`core.version0.wire`).
Every buffer begins small; what lies beyond that is taken from the account of all connections when the small
one is full, and given back when the connection is idle, or others wait for it and nothing is in it. Before
HELLO was answered no frame is larger than the small buffer.

Rules of this file: the buffer of one connection. What is in it is handed over in `connection`.
"""

from collections.abc import Callable

from dos_protocol.frames import FrameDecoder
from dos_protocol.limits import meta_bytes_max, payload_bytes_max
from dos_server.buffers import BufferAccount
from dos_server.core.version0 import wire as wire0
from dos_server.limits import connection_buffer_bytes, connection_buffer_fair_bytes, hello_bytes_max


class Inflow:
    """See the module. `inlet` is there once the peer is known to speak version 0. `delivered`: a frame larger
    than the small buffer became whole. `has_room` is called when waiting for room may be over."""

    def __init__(self, account: BufferAccount, has_room: Callable[[], None]) -> None:
        self.decoder = FrameDecoder(copy=False, meta_max=hello_bytes_max, payload_max=hello_bytes_max)
        self.inlet: wire0.Inlet | None = None
        self.has_room = has_room
        self.delivered = False
        self._account = account
        self._first_bytes = self._granted_bytes = self.decoder.capacity_grown = self.decoder.capacity
        self._began = False
        self._room = 0
        self._filled = False

    @property
    def buffered(self) -> int:
        """Bytes that are not handed over yet."""
        return (self.inlet or self.decoder).buffered

    @property
    def holds_room(self) -> bool:
        """It has a large buffer with something in it, which is not whole."""
        return self._granted_bytes > self._first_bytes and self.buffered > 0

    @property
    def lacks_bytes(self) -> int:
        """What the frame that comes needs beyond what was granted."""
        return max(self.decoder.needed - self._granted_bytes, 0)

    def welcome(self) -> None:
        """HELLO was answered: frames may have any length that the protocol allows."""
        self.decoder.allow(meta_bytes_max, payload_bytes_max)

    def writable(self) -> memoryview:
        """Room for the next bytes."""
        view = (self.inlet or self.decoder).writable()
        self._room = len(view)
        return view

    def wrote(self, count: int) -> bool:
        """So many bytes are in. True: they are the first, and speak version 0."""
        self._filled = count == self._room
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

    def find_room(self) -> bool:
        """See to room for what comes next. False: there must be more, and there is none to be had: it
        waits."""
        inflow = self.inlet or self.decoder
        filled, self._filled = self._filled, False
        if self._granted_bytes > self._first_bytes >= self.decoder.needed:
            self.delivered = True
        if not inflow.buffered and (self.inlet is None or not filled):
            if self._account.wanted:
                self.give_back()
            return True
        have, needed = self._granted_bytes, self.decoder.needed
        if filled:
            have = self._account.wish(have, connection_buffer_bytes)
            have = self._account.wish(have, connection_buffer_fair_bytes)
        if needed > have and inflow.buffered == inflow.capacity:
            have = self._account.need(have, needed, delivered=self.delivered)
        self._granted_bytes = inflow.capacity_grown = have
        if needed <= have or inflow.buffered < inflow.capacity:
            return True
        self._account.wait(self)
        return False

    def give_back(self) -> None:
        """Back to the small buffer, if nothing is in the large one. A frame that has begun keeps what it was
        granted, also before it fills it: it would take it all the same."""
        inflow = self.inlet or self.decoder
        if inflow.buffered:
            return
        inflow.shrink()
        if inflow.capacity == self._first_bytes:
            inflow.capacity_grown = self._first_bytes
            self.end()

    def close(self) -> None:
        """The connection is gone: what was in the buffer goes at once, whoever still knows the connection."""
        self.end()
        self._account.leave(self)
        self.inlet = None
        del self.decoder

    def end(self) -> None:
        """The buffer is not used any more, beyond its first bytes."""
        count, self._granted_bytes = self._granted_bytes - self._first_bytes, self._first_bytes
        if count:
            self._account.give_back(count)
