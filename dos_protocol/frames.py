"""Frames: the unit on the wire, in both directions. `messages` interprets them. Pure.

Layout (big-endian), a header of 32 bytes, then meta, then payload:

    offset 0  magic 2 = D0 5E       offset 8   request id u64 (0: not an answer to one request)
    offset 2  version u8 = 1        offset 16  meta bytes u32, at most 64 KiB
    offset 3  opcode u8             offset 20  payload bytes u32, at most 1 MiB
    offset 4  flags u16 = 0         offset 24  digest u64: xxh3-64 over the first 24 bytes, meta and payload
    offset 6  reserved u16 = 0

A frame is valid if and only if

1. magic and version match,
2. reserved is zero,
3. both lengths are within their limits,
4. the digest matches.

(1) to (3) are checked as soon as the header is there, the magic as soon as a byte of it is, before anything
is allocated for the rest. After an invalid frame nothing on that connection can be framed: the decoder raises
the same error from then on.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from dos_protocol.digests import Buffer
from dos_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from dos_protocol.limits import PROTOCOL_VERSION, frame_header_bytes, meta_bytes_max, payload_bytes_max

MAGIC: Final = b"\xd0\x5e"
_BEFORE_DIGEST: Final = struct.Struct(">2sBBHHQII")
_HEADER: Final = struct.Struct(">2sBBHHQIIQ")
_DIGEST: Final = struct.Struct(">Q")
_DIGESTED_BYTES: Final = _BEFORE_DIGEST.size
_OPCODE_AT: Final = 3
assert _HEADER.size == frame_header_bytes == 32
assert _DIGESTED_BYTES == 24

DURABILITY_ACK: Final = 131
_ACK: Final = struct.Struct(">QQIIQQQB")
"""A durability ack up to its name: the first 8 bytes of the header as one number, request id, bytes of meta
and of payload, digest; received, synced, bytes of the name.
"""
_ACK_FIRST: Final = int.from_bytes(MAGIC + bytes((PROTOCOL_VERSION, DURABILITY_ACK, 0, 0, 0, 0)), "big")
_ACK_META_BYTES: Final = _ACK.size - frame_header_bytes
"""Bytes of the meta of an ack without its name."""

_OTHER_PROTOCOLS: Final = {
    b"HT": "an HTTP response",
    b"GE": "an HTTP request",
    b"PO": "an HTTP request",
    b"SS": "ssh",
    b"\x15\x03": "TLS",
    b"\x16\x03": "TLS",
}
"""The first two bytes of peers that speak another protocol, for the error message."""
IS_TLS: Final = "that is TLS, not DOS"
"""The end of the message for a peer that speaks TLS."""
_FIRST_CAPACITY: Final = 16 * 1024
_CAPACITY_GROWN: Final = 512 * 1024

_hasher: Final = xxhash.xxh3_64
_one_shot: Final = xxhash.xxh3_64_intdigest


class Frame(NamedTuple):
    """One frame. `payload` may be a view into the decoder's buffer, see `FrameDecoder`."""

    opcode: int
    request_id: int
    meta: bytes
    payload: Buffer = b""
    flags: int = 0


def frame_head(frame: Frame, rest: Sequence[Buffer] = ()) -> bytes:
    """Return the header and meta of the frame; `frame.payload` and `rest` follow on the wire, so they are not
    copied. Raises LocalProtocolError if a limit is exceeded.
    """
    opcode, request_id, meta, payload, flags = frame
    meta_bytes, payload_bytes = len(meta), len(payload)
    for part in rest:
        payload_bytes += len(part)
    if meta_bytes > meta_bytes_max or payload_bytes > payload_bytes_max:
        raise LocalProtocolError(
            f"a frame carries at most {meta_bytes_max} bytes of meta and {payload_bytes_max} of payload:"
            f" {meta_bytes} and {payload_bytes}"
        )
    head = _BEFORE_DIGEST.pack(
        MAGIC, PROTOCOL_VERSION, opcode, flags, 0, request_id, meta_bytes, payload_bytes
    )
    if not payload_bytes:
        return head + _DIGEST.pack(_one_shot(head + meta)) + meta
    digest = _hasher(head + meta)
    digest.update(payload)
    for part in rest:
        digest.update(part)
    return head + _DIGEST.pack(digest.intdigest()) + meta


def encode_frame(frame: Frame) -> bytes:
    """Return the whole frame as one byte string. Raises LocalProtocolError if a limit is exceeded."""
    return frame_head(frame) + bytes(frame.payload)


class FrameDecoder:
    """Decodes a stream of bytes into frames, independent of how the bytes are divided into calls.

    Bytes enter by `receive(data)`, or without a copy by `writable()` and `wrote(count)`. With `copy=False` a
    frame's payload is a view that is valid until the next call of `writable` or `receive`.

    Memory: 16 KiB at first, `capacity_grown` after the peer has filled that, and at most one maximum frame.
    An announced frame takes no memory until the buffer is full.
    """

    def __init__(
        self,
        *,
        copy: bool = True,
        capacity_grown: int = _CAPACITY_GROWN,
        meta_max: int = meta_bytes_max,
        payload_max: int = payload_bytes_max,
    ) -> None:
        self._copy = copy
        self.capacity_grown = capacity_grown
        self._meta_max = meta_max
        self._payload_max = payload_max
        self._buffer = bytearray(_FIRST_CAPACITY)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._needed = frame_header_bytes
        self._failure: tuple[ErrorCode, str, int] | None = None

    @property
    def buffered(self) -> int:
        """Bytes received and not consumed. Above 0 between calls means that a frame has begun."""
        return self._end - self._start

    @property
    def needed(self) -> int:
        return self._needed

    def allow(self, meta_max: int, payload_max: int) -> None:
        """Set the maximum lengths of meta and payload, from the next frame on."""
        self._meta_max, self._payload_max = meta_max, payload_max

    def shrink(self) -> None:
        if self._start == self._end and len(self._buffer) > _FIRST_CAPACITY:
            self._buffer = bytearray(_FIRST_CAPACITY)
            self._view = memoryview(self._buffer)
            self._start = self._end = 0

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    def writable(self) -> memoryview:
        """Return space for the next bytes, at least one. Overwrites views returned before."""
        if self._start == self._end:
            self._start = self._end = 0
        capacity = len(self._buffer)
        if self._end == capacity and self._start == 0:
            self._grow(max(self.capacity_grown, self._needed))
        elif self._start and (self._start + self._needed > capacity or 2 * self._end > capacity):
            self._compact()
        return self._view[self._end :]

    def wrote(self, count: int) -> None:
        self._end += count

    def receive(self, data: Buffer) -> None:
        view = memoryview(data)
        if self.buffered + len(view) > len(self._buffer):
            self._grow(self.buffered + len(view))
        elif self._end + len(view) > len(self._buffer):
            self._compact()
        self._view[self._end : self._end + len(view)] = view
        self._end += len(view)

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, or None if more bytes are needed. Raises RemoteProtocolError, then at
        every later call.
        """
        if self._failure is not None:
            self._fail(*self._failure)
        start = self._start
        held = self._end - start
        if held < frame_header_bytes:
            if held:
                self._check_magic(start, min(held, len(MAGIC)))
            return None
        magic, version, opcode, flags, reserved, request_id, meta_bytes, payload_bytes, digest = (
            _HEADER.unpack_from(self._buffer, start)
        )
        # Before more is received: a false length must not take memory, nor hold a connection.
        if (
            magic != MAGIC
            or version != PROTOCOL_VERSION
            or reserved
            or meta_bytes > self._meta_max
            or payload_bytes > self._payload_max
        ):
            self._refuse(magic, version, reserved, request_id, meta_bytes, payload_bytes)
        meta_start = start + frame_header_bytes
        payload_start = meta_start + meta_bytes
        end = payload_start + payload_bytes
        if end > self._end:
            self._needed = end - start
            return None
        view = self._view
        hasher = _hasher(view[start : start + _DIGESTED_BYTES])
        hasher.update(view[meta_start:end])
        if hasher.intdigest() != digest:
            self._fail(
                ErrorCode.BAD_DIGEST, f"digest of a frame with opcode {opcode} does not match", request_id
            )
        self._start = end
        self._needed = frame_header_bytes
        payload = view[payload_start:end]
        return Frame(
            opcode,
            request_id,
            bytes(view[meta_start:payload_start]),
            bytes(payload) if self._copy else payload,
            flags,
        )

    def next_run(self, opcode: int, count_max: int) -> list[Frame]:
        """Return the whole frames of one opcode at the front of the buffer, `count_max` at most: what as many
        calls of `next_frame` would return. Raises as that, after the frames before the error were returned.
        """
        run: list[Frame] = []
        try:
            while self._end - self._start >= frame_header_bytes and len(run) < count_max:
                if self._buffer[self._start + _OPCODE_AT] != opcode or (frame := self.next_frame()) is None:
                    break
                run.append(frame)
        except RemoteProtocolError:
            if not run:
                raise
        return run  # the next call raises again

    def next_acks(self) -> list[tuple[str, int, int]]:
        """Return name, received and synced of the durability acks at the front, the most frequent frames of a
        server. Every other frame, an invalid one too, is left to `next_frame`.
        """
        acks: list[tuple[str, int, int]] = []
        start, end, buffer = self._start, self._end, self._buffer
        while end - start >= _ACK.size and self._failure is None:
            first, _, meta_bytes, payload_bytes, digest, received, synced, name_bytes = _ACK.unpack_from(
                buffer, start
            )
            stop = start + frame_header_bytes + meta_bytes
            is_ack = first == _ACK_FIRST and meta_bytes == _ACK_META_BYTES + name_bytes and not payload_bytes
            if not is_ack or stop > end:
                break
            meta = buffer[start + frame_header_bytes : stop]
            if _one_shot(buffer[start : start + _DIGESTED_BYTES] + meta) != digest:
                break
            acks.append((meta[_ACK_META_BYTES:].decode("latin-1"), received, synced))
            start = stop
        if acks:
            self._start, self._needed = start, frame_header_bytes
        return acks

    def _check_magic(self, start: int, held: int) -> None:
        """Check the magic of an incomplete header: a peer of another protocol may never send 32 bytes."""
        begun = bytes(self._view[start : start + held])
        if not MAGIC.startswith(begun):
            self._fail(ErrorCode.BAD_FRAME, _foreign_bytes_text(begun), 0)

    def _refuse(
        self, magic: bytes, version: int, reserved: int, request_id: int, meta_bytes: int, payload_bytes: int
    ) -> None:
        if magic != MAGIC:
            self._fail(ErrorCode.BAD_FRAME, _foreign_bytes_text(magic), 0)
        if version != PROTOCOL_VERSION:
            self._fail(
                ErrorCode.BAD_VERSION,
                f"frame version {version} is not supported; this end speaks {PROTOCOL_VERSION}",
                request_id,
            )
        if reserved:
            self._fail(ErrorCode.BAD_FRAME, f"reserved bytes must be zero: {reserved:#06x}", request_id)
        self._fail(
            ErrorCode.TOO_LARGE,
            f"a frame carries at most {self._meta_max} bytes of meta and {self._payload_max} of payload:"
            f" {meta_bytes} and {payload_bytes} announced",
            request_id,
        )

    def _fail(self, code: ErrorCode, message: str, request_id: int) -> None:
        # The values and not the exception: its traceback would keep the decoder and its buffer alive.
        self._failure = (code, message, request_id)
        raise RemoteProtocolError(message, code=code, request_id=request_id)

    def _compact(self) -> None:
        count = self._end - self._start
        # the ranges may overlap, which slice assignment of a memoryview handles
        self._view[:count] = self._view[self._start : self._end]
        self._start, self._end = 0, count

    def _grow(self, capacity: int) -> None:
        grown = bytearray(max(capacity, len(self._buffer)))
        count = self._end - self._start
        grown[:count] = self._view[self._start : self._end]
        self._buffer, self._view = grown, memoryview(grown)
        self._start, self._end = 0, count


def _foreign_bytes_text(begun: bytes) -> str:
    text = f"a frame begins with {MAGIC.hex()}, not {begun.hex()}"
    protocol = next((name for first, name in _OTHER_PROTOCOLS.items() if begun.startswith(first)), "")
    return f"{text}: that is {protocol}, not DOS" if protocol else text
