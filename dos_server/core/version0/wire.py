"""The bytes of version 0: requests out of a buffer, replies as frames.

    0   4   length of the body, big-endian; of a request at most 255
    4       body

The length of a request is what tells the versions apart: the first byte of a connection that speaks version 0
is zero, that of version 1 is D0. Behind an `a` that was answered `ok` nothing is framed any more: `take`
gives the bytes as they are. The caller knows which of the two is due.

Rules of this file: bytes in, bodies out; any cut of the bytes gives the same bodies. What a body means is
`requests`'s. Memory: 16 KiB, `capacity_grown` once the peer fills that.
"""

from typing import Final

from dos_protocol.digests import Buffer
from dos_protocol.limits import KIB
from dos_server.limits import version0_request_bytes_max

LENGTH_BYTES: Final = 4
FIRST_BYTE: Final = 0
"""Of a connection that speaks version 0."""
REPLY_BYTES_MAX: Final = (1 << 32) - 1

_FIRST_CAPACITY: Final = 16 * KIB


class RequestTooLongError(Exception):
    """The length of a request is beyond the limit: nothing after it can be framed."""

    def __init__(self, count: int) -> None:
        super().__init__(f"a request has at most {version0_request_bytes_max} bytes, not {count}")


def head(count: int) -> bytes:
    """What comes before a reply of so many bytes."""
    return count.to_bytes(LENGTH_BYTES, "big")


def reply(body: bytes) -> bytes:
    """A whole reply."""
    return head(len(body)) + body


class Inlet:
    """See the module.

    Invariant: `_start <= _end <= len(_buffer)`; what lies between is not given out yet.
    """

    def __init__(self, capacity_grown: int) -> None:
        self.capacity_grown = capacity_grown
        self._buffer = bytearray(_FIRST_CAPACITY)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._filled = False

    @property
    def buffered(self) -> int:
        """Bytes taken in and not yet given out."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        """Bytes of memory held."""
        return len(self._buffer)

    def writable(self) -> memoryview:
        """Room for the next bytes, at least one. Views given out before are overwritten."""
        if self._start:
            count = self.buffered
            self._view[:count] = self._view[self._start : self._end]  # they may overlap: it is a move
            self._start, self._end = 0, count
        if self._filled and self.capacity < self.capacity_grown:
            self._resize(self.capacity_grown)
        return self._view[self._end :]

    def wrote(self, count: int) -> None:
        """`count` bytes of the view from `writable` are filled."""
        self._end += count
        self._filled = self._end == self.capacity

    def receive(self, data: Buffer) -> None:
        """Take bytes in by copy."""
        if len(self.writable()) < len(data):
            self._resize(self._end + len(data))
        self._view[self._end : self._end + len(data)] = data
        self.wrote(len(data))

    def next_request(self) -> bytes | None:
        """The body of the next request, or None: more bytes are needed. Raises RequestTooLongError."""
        if self.buffered < LENGTH_BYTES:
            return None
        start = self._start + LENGTH_BYTES
        count = int.from_bytes(self._view[self._start : start], "big")
        if count > version0_request_bytes_max:
            raise RequestTooLongError(count)
        if self._end < start + count:
            return None
        self._start = start + count
        return bytes(self._view[start : self._start])

    def take(self) -> memoryview:
        """All bytes there are; good until the next call of `writable`."""
        data = self._view[self._start : self._end]
        self._start = self._end = 0
        return data

    def shrink(self) -> None:
        """Give memory back, if nothing is in it."""
        if not self.buffered and self.capacity > _FIRST_CAPACITY:
            self._start = self._end = 0
            self._filled = False
            self._resize(_FIRST_CAPACITY)

    def _resize(self, capacity: int) -> None:
        resized = bytearray(capacity)
        resized[: self._end] = self._view[: self._end]
        self._buffer, self._view = resized, memoryview(resized)
