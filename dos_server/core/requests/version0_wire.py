"""The bytes of version 0: requests out of a buffer, replies as frames. Pure.

    offset 0   4   length of the body, big-endian; of a request at most 255
    offset 4       body

The first byte of a connection identifies the version: it is 0 in version 0, because request lengths are
below 256, and D0 in version 1. After an `a` that was answered `ok`, bytes are not framed: `take` returns them
as they are. The caller knows which of the two applies.

The bodies do not depend on how the bytes are divided into calls. `requests` interprets them. Memory: 16 KiB,
or `capacity_grown` after the peer has filled that.
"""

from typing import Final

from dos_protocol.digests import Buffer
from dos_protocol.limits import KIB
from dos_server.limits import version0_request_bytes_max

LENGTH_BYTES: Final = 4
FIRST_BYTE: Final = 0
"""The first byte of a version 0 connection."""
REPLY_BYTES_MAX: Final = (1 << 32) - 1

_FIRST_CAPACITY: Final = 16 * KIB


class RequestTooLongError(Exception):
    """The length of a request is above the limit, so nothing after it can be framed."""

    def __init__(self, count: int) -> None:
        super().__init__(f"a request has at most {version0_request_bytes_max} bytes, not {count}")


def head(count: int) -> bytes:
    """Return the length prefix of a reply of that many bytes."""
    return count.to_bytes(LENGTH_BYTES, "big")


def reply(body: bytes) -> bytes:
    """Return a whole reply."""
    return head(len(body)) + body


class Inlet:
    """The receive buffer of a version 0 connection.

    Invariant: `_start <= _end <= len(_buffer)`; the bytes in between have not been consumed.
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
        """Bytes received and not consumed."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        """Bytes of memory in use."""
        return len(self._buffer)

    def writable(self) -> memoryview:
        """Return space for the next bytes, at least one. Overwrites views returned before."""
        if self._start:
            count = self.buffered
            # the ranges may overlap, which slice assignment of a memoryview handles
            self._view[:count] = self._view[self._start : self._end]
            self._start, self._end = 0, count
        if self._filled and self.capacity < self.capacity_grown:
            self._resize(self.capacity_grown)
        return self._view[self._end :]

    def wrote(self, count: int) -> None:
        """Record that `count` bytes of the view from `writable` are filled."""
        self._end += count
        self._filled = self._end == self.capacity

    def receive(self, data: Buffer) -> None:
        """Copy bytes in."""
        if len(self.writable()) < len(data):
            self._resize(self._end + len(data))
        self._view[self._end : self._end + len(data)] = data
        self.wrote(len(data))

    def next_request(self) -> bytes | None:
        """Return the body of the next request; None if incomplete. Raises RequestTooLongError."""
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
        """Return all received bytes; valid until the next call of `writable`."""
        data = self._view[self._start : self._end]
        self._start = self._end = 0
        return data

    def shrink(self) -> None:
        """Release memory, if the buffer is empty."""
        if not self.buffered and self.capacity > _FIRST_CAPACITY:
            self._start = self._end = 0
            self._filled = False
            self._resize(_FIRST_CAPACITY)

    def _resize(self, capacity: int) -> None:
        resized = bytearray(capacity)
        resized[: self._end] = self._view[: self._end]
        self._buffer, self._view = resized, memoryview(resized)
