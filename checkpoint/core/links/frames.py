"""The frame of every link of a region: worker to worker (exchange) and worker to coordinator (control).

Pure: it converts bytes to frames and back, without regard to their meaning. Tests compare it with
`tests/specifications/channel_frames.py`.

A control message (`messages.py`) is one CONTROL frame of JSON. The header repeats its address, so that a
stray frame is detected without decoding.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag, unique
from typing import Any, Final, NamedTuple

import msgspec
import xxhash

from checkpoint import limits
from checkpoint.core.links.messages import (
    BatchShare,
    ControlMessage,
    FromTask,
    FromWorker,
    ToCoordinator,
    ToDesk,
    ToTask,
    ToWorker,
)
from checkpoint.errors import ChannelFrameError, ControlMessageError, RecordTooLargeError
from dos_protocol.digests import digest64
from dos_protocol.errors import MALFORMED_JSON, ErrorCode

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"\xd0\x43"
VERSION: Final = 1
COORDINATOR: Final = 0xFFFF
"""The sender field of the coordinator."""

# Layout, 64 bytes, big-endian, then the payload:
#
#     offset  0  magic          2  D0 43
#             2  version        1  1
#             3  type           1  see FrameType
#             4  flags          2  see FrameFlag; other bits are zero
#             6  sender         2  worker index; 65535 is the coordinator
#             8  job            8  xxh3-64 of the region's name: detects a stray link of another region
#            16  sender_epoch   8  the incarnation the sender is in
#            24  step           8
#            32  checkpoint            8  the requested checkpoint number, 0 for none
#            40  seq            4  counts the frames of one (sender, channel, step), from 0
#            44  channel        4  index of the exchange; 0 on a control link
#            48  payload_bytes  4
#            52  reserved       4  zero
#            56  digest         8  xxh3-64 over the 56 bytes before and the payload
#
# A frame is valid if and only if
#
# 1. the magic and the version are these,
# 2. the type is known,
# 3. undefined flags and reserved bits are zero,
# 4. payload_bytes is within the limit of its type,
# 5. the digest matches.
#
# Rules 1 to 4 are checked on the header alone, before any of the payload is kept.
_HEAD: Final = struct.Struct(">2sBBHHQQQQIIII")
_DIGEST: Final = struct.Struct(">Q")
HEADER_BYTES: Final = _HEAD.size + _DIGEST.size
assert HEADER_BYTES == limits.frame_header_bytes == 64


@unique
class FrameType(IntEnum):
    """The type of a frame. Numbers are never reused."""

    DATA = 1
    """One Arrow record batch (IPC stream) of one step."""
    WATERMARK = 2
    """Event time has reached a point on this channel."""
    STEP_END = 3
    """The barrier: the sender sends nothing more of this step here. `checkpoint` > 0 requests a checkpoint
    at its end.
    """
    DURABLE = 4
    """The sender's input division of this step is durable."""
    EOF = 5
    """The sender's sources are exhausted: it makes further steps only for its peers."""
    RESET = 6
    """The sender begins a new incarnation on this link; earlier frames do not count."""
    CONTROL = 7
    """A control message (`core/links/messages.py`) as JSON."""
    HANDSHAKE = 8
    """Mutual proof of the job key, before anything else (`core/links/handshake.py`)."""
    HAVE = 9
    """Local recovery: what the acceptor of an exchange link has used of the dialler, as JSON. It comes before
    anything that the dialler sends.
    """
    PING = 10
    """Local recovery: the dialler asks whether the acceptor's process lives. The acceptor returns it."""
    AT = 11
    """Local recovery: the acceptor has produced this step. A dialler that sends retained steps stays near."""


@unique
class FrameFlag(IntFlag):
    """Bits of `flags`. Frames with other bits are rejected."""

    FINAL = 1
    """On STEP_END with a checkpoint: all sources are exhausted, and this is the region's last checkpoint."""


_FLAGS_KNOWN: Final = 1
_PAYLOAD_BYTES_MAX: Final[dict[int, int]] = {
    FrameType.DATA: limits.data_bytes_max,
    FrameType.WATERMARK: limits.handshake_bytes_max,
    FrameType.STEP_END: limits.control_bytes_max,
    FrameType.DURABLE: 0,
    FrameType.EOF: 0,
    FrameType.RESET: 0,
    FrameType.CONTROL: limits.control_bytes_max,
    FrameType.HANDSHAKE: limits.handshake_bytes_max,
    FrameType.HAVE: limits.control_bytes_max,
    FrameType.PING: 0,
    FrameType.AT: 0,
}
_TYPES: Final = {int(kind): kind for kind in FrameType}


class ChannelFrame(NamedTuple):
    """One frame. Immutable; it owns `payload`."""

    type: FrameType
    sender: int = 0
    job: int = 0
    sender_epoch: int = 0
    step: int = 0
    checkpoint: int = 0
    seq: int = 0
    channel: int = 0
    flags: int = 0
    payload: Buffer = b""


def encode_header(frame: ChannelFrame) -> bytes:
    """Return the 64 header bytes, without the payload. Raises ValueError above the limit of its type."""
    payload = frame.payload
    size = len(payload)
    if size > _PAYLOAD_BYTES_MAX[frame.type]:
        raise ValueError(
            f"a {frame.type.name} frame carries at most {_PAYLOAD_BYTES_MAX[frame.type]} bytes, got {size}"
        )
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        frame.type,
        frame.flags,
        frame.sender,
        frame.job,
        frame.sender_epoch,
        frame.step,
        frame.checkpoint,
        frame.seq,
        frame.channel,
        size,
        0,
    )
    return head + _DIGEST.pack(_digest(head, payload))


def encode(frame: ChannelFrame) -> bytes:
    """Return header and payload in one piece, for small frames."""
    return encode_header(frame) + frame.payload


def _digest(head: Buffer, payload: Buffer) -> int:
    fold = xxhash.xxh3_64(head)
    fold.update(payload)
    value: int = fold.intdigest()
    return value


class _Header(NamedTuple):
    kind: FrameType
    fields: tuple[int, ...]
    payload_bytes: int


def _check_header(head: Buffer) -> _Header:
    magic, version, kind, flags, *rest, payload_bytes, reserved = _HEAD.unpack(head)
    if magic != MAGIC:
        raise ChannelFrameError(f"not a channel frame: it begins with {bytes(magic).hex()}, expected d043")
    if version != VERSION:
        raise ChannelFrameError(
            f"channel frame of version {version}; this program supports version {VERSION}",
            code=ErrorCode.BAD_VERSION,
        )
    if kind not in _TYPES:
        raise ChannelFrameError(f"unknown frame type {kind}", code=ErrorCode.UNKNOWN_OPCODE)
    if flags & ~_FLAGS_KNOWN or reserved:
        raise ChannelFrameError(f"undefined bits in a frame: flags {flags:#06x}, reserved {reserved:#x}")
    if payload_bytes > _PAYLOAD_BYTES_MAX[kind]:
        raise ChannelFrameError(
            f"{_TYPES[kind].name} frame of {payload_bytes} bytes exceeds {_PAYLOAD_BYTES_MAX[kind]}",
            code=ErrorCode.TOO_LARGE,
        )
    return _Header(_TYPES[kind], (flags, *rest), payload_bytes)


class ChannelFrameDecoder:
    """An incremental decoder: takes bytes in any pieces, returns whole frames. It repeats an error."""

    def __init__(self, *, handshake: bool = False) -> None:
        self.handshake = handshake
        """Whether to accept only HANDSHAKE frames, so that a peer without proof cannot make us keep much."""
        self._buffer = bytearray()
        self._start = 0
        self._header: _Header | None = None
        self._error: ChannelFrameError | None = None

    @property
    def mid_frame(self) -> bool:
        """Whether bytes of an unfinished frame are held. If the link ends now, it was broken."""
        return len(self._buffer) > self._start

    def receive_data(self, data: Buffer) -> None:
        """Take the next bytes of the link."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def next_frame(self) -> ChannelFrame | None:
        """Return the next whole frame, None if more bytes are needed. Raises ChannelFrameError."""
        if self._error is not None:
            raise self._error
        try:
            return self._next()
        except ChannelFrameError as error:
            self._error = error
            raise

    def frames(self) -> Iterator[ChannelFrame]:
        """Yield the whole frames received so far."""
        while (frame := self.next_frame()) is not None:
            yield frame

    def _next(self) -> ChannelFrame | None:
        held = len(self._buffer) - self._start
        if self._header is None:
            if held < HEADER_BYTES:
                self._refuse_early(held)
                return None
            with memoryview(self._buffer) as view:
                self._header = _check_header(view[self._start : self._start + _HEAD.size])
            if self.handshake and self._header.kind is not FrameType.HANDSHAKE:
                raise ChannelFrameError(
                    f"received a {self._header.kind.name} frame before the handshake was complete"
                )
        if held < HEADER_BYTES + self._header.payload_bytes:
            return None
        return self._take(self._header)

    def _refuse_early(self, held: int) -> None:
        """Reject another protocol (HTTP, TLS) by its first two bytes: it may never send 64."""
        seen = bytes(self._buffer[self._start : self._start + min(held, 2)])
        if not MAGIC.startswith(seen):
            raise ChannelFrameError(f"not a channel frame: it begins with {seen.hex()}, expected d043")

    def _take(self, header: _Header) -> ChannelFrame:
        start, end = self._start, self._start + HEADER_BYTES + header.payload_bytes
        with memoryview(self._buffer) as view:
            head = bytes(view[start : start + HEADER_BYTES])
            payload = bytes(view[start + HEADER_BYTES : end])
        expected = _DIGEST.unpack_from(head, _HEAD.size)[0]
        found = _digest(head[: _HEAD.size], payload)
        if expected != found:
            raise ChannelFrameError(
                f"{header.kind.name} frame has digest {found:016x}, its header states {expected:016x}",
                code=ErrorCode.BAD_DIGEST,
            )
        self._start, self._header = end, None
        flags, sender, job, epoch, step, checkpoint, seq, channel = header.fields
        return ChannelFrame(header.kind, sender, job, epoch, step, checkpoint, seq, channel, flags, payload)


_to_coordinator: Final[msgspec.json.Decoder[ToCoordinator]] = msgspec.json.Decoder(ToCoordinator)
_to_worker: Final[msgspec.json.Decoder[ToWorker]] = msgspec.json.Decoder(ToWorker)
_from_task: Final[msgspec.json.Decoder[FromTask]] = msgspec.json.Decoder(FromTask)
_to_task: Final[msgspec.json.Decoder[ToTask]] = msgspec.json.Decoder(ToTask)
_to_desk: Final[msgspec.json.Decoder[ToDesk]] = msgspec.json.Decoder(ToDesk)
_share: Final[msgspec.json.Decoder[BatchShare]] = msgspec.json.Decoder(BatchShare)
_encoder: Final = msgspec.json.Encoder()


def job_digest(job: str) -> int:
    """Return the `job` field of a frame header: xxh3-64 of the region's name in UTF-8."""
    return digest64(job.encode())


def control_frame(message: ControlMessage) -> ChannelFrame:
    """Return the CONTROL frame of a message."""
    payload = _encoder.encode(message)
    if len(payload) > limits.control_bytes_max:
        raise RecordTooLargeError(
            f"{type(message).__name__} of {len(payload)} bytes exceeds the limit {limits.control_bytes_max}",
            remedy="read fewer files or splits in one region",
        )
    sender = message.worker if isinstance(message, FromWorker) else COORDINATOR
    return ChannelFrame(
        FrameType.CONTROL,
        sender=sender,
        job=job_digest(message.job),
        sender_epoch=message.incarnation,
        checkpoint=message.checkpoint,
        payload=payload,
    )


def decode_from_worker(frame: ChannelFrame) -> ToCoordinator:
    """Return the message in a worker's CONTROL frame. Raises ControlMessageError; close the link then."""
    message: ToCoordinator = _decode(_to_coordinator, frame)
    if frame.sender != message.worker:
        raise ControlMessageError(
            f"frame of worker {frame.sender} carries a message of worker {message.worker}"
        )
    return message


def decode_from_coordinator(frame: ChannelFrame) -> ToWorker:
    """Return the message in the coordinator's CONTROL frame. Raises ControlMessageError."""
    message: ToWorker = _decode(_to_worker, frame)
    if frame.sender != COORDINATOR:
        raise ControlMessageError(
            f"frame of sender {frame.sender} carries a {type(message).__name__} of the coordinator"
        )
    return message


def decode_from_task(frame: ChannelFrame) -> FromTask:
    """Return the message in the CONTROL frame of a task. Raises ControlMessageError."""
    message: FromTask = _decode(_from_task, frame)
    return message


def decode_to_desk(frame: ChannelFrame) -> ToDesk:
    """Return the message in the CONTROL frame of a task at the driver. Raises ControlMessageError."""
    message: ToDesk = _decode(_to_desk, frame)
    return message


def decode_share(frame: ChannelFrame) -> BatchShare:
    """Return the BatchShare in a CONTROL frame between a task and a worker. Raises ControlMessageError."""
    message: BatchShare = _decode(_share, frame)
    return message


def decode_to_task(frame: ChannelFrame) -> ToTask:
    """Return the message in the CONTROL frame that the coordinator sends to a task. Raises
    ControlMessageError.
    """
    message: ToTask = _decode(_to_task, frame)
    return message


def _decode(decoder: "msgspec.json.Decoder[Any]", frame: ChannelFrame) -> Any:
    if frame.type is not FrameType.CONTROL:
        raise ControlMessageError(f"received a {frame.type.name} frame on a control link")
    try:
        message = decoder.decode(frame.payload)
    except MALFORMED_JSON as error:
        raise ControlMessageError(f"control message does not decode: {error}") from error
    stated = (frame.job, frame.sender_epoch, frame.checkpoint)
    if stated != (job_digest(message.job), message.incarnation, message.checkpoint):
        raise ControlMessageError(
            f"header and JSON of a {type(message).__name__} differ in job, incarnation or checkpoint"
        )
    return message
