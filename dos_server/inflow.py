"""The receive buffer of one connection: a decoder for version 1, or an inlet for version 0.

The first byte identifies the protocol version of the peer: zero is version 0 (`core.version0.wire`). Every
buffer begins small. Memory beyond that is taken from the account of all connections when the small buffer is
full. It is returned when the connection is idle, or when the buffer is empty and others wait for memory.
Before HELLO is answered no frame may be larger than the small buffer.
"""

from collections.abc import Callable

from dos_protocol.frames import FrameDecoder
from dos_protocol.limits import meta_bytes_max, payload_bytes_max
from dos_server.buffers import BufferAccount
from dos_server.core.requests import version0_wire as wire0
from dos_server.limits import connection_buffer_bytes, connection_buffer_fair_bytes, hello_bytes_max


class Inflow:
    """The receive buffer of one connection.

    `inlet` is set once the peer is known to speak version 0. `delivered`: a frame larger than the small
    buffer was completed. `on_room` is called when a wait for memory may be over.
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
        """Bytes that are not passed on yet."""
        return (self.inlet or self.decoder).buffered

    @property
    def holds_large_buffer(self) -> bool:
        """Whether it has a large buffer that holds an incomplete frame."""
        return self._granted_bytes > self._first_bytes and self.buffered > 0

    @property
    def lacks_bytes(self) -> int:
        """Bytes that the incoming frame needs beyond those that were granted."""
        return max(self.decoder.needed - self._granted_bytes, 0)

    def welcome(self) -> None:
        """Allow frames of any length that the protocol allows: HELLO was answered."""
        self.decoder.allow(meta_bytes_max, payload_bytes_max)

    def writable(self) -> memoryview:
        """Return the free part of the buffer."""
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
        """Shrink to the small buffer if the buffer is empty.

        A frame that has begun keeps what it was granted, even before it fills it, because it will need it.
        """
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
