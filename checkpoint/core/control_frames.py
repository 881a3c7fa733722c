"""Control messages as frames: each is one CONTROL frame of JSON. Pure.

The header of the frame repeats the message's address, so that a stray frame is detected without decoding.
"""

from typing import Any, Final

import msgspec

from checkpoint import limits
from checkpoint.core.links.frames import COORDINATOR, ChannelFrame, FrameType
from checkpoint.core.links.messages import FromWorker, ToCoordinator, ToWorker
from checkpoint.errors import ControlMessageError, RecordTooLargeError
from dos_protocol.digests import digest64
from dos_protocol.errors import MALFORMED_JSON

_to_coordinator: Final[msgspec.json.Decoder[ToCoordinator]] = msgspec.json.Decoder(ToCoordinator)
_to_worker: Final[msgspec.json.Decoder[ToWorker]] = msgspec.json.Decoder(ToWorker)
_encoder: Final = msgspec.json.Encoder()


def job_digest(job: str) -> int:
    """Return the `job` field of a frame header: xxh3-64 of the region's name in UTF-8."""
    return digest64(job.encode())


def control_frame(message: ToCoordinator | ToWorker) -> ChannelFrame:
    """Return the CONTROL frame of a message.

    Its header repeats the address, so that a stray frame is detected without decoding JSON.
    """
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
    """Return the message in a worker's CONTROL frame.

    Raises ControlMessageError; the link must then be closed.
    """
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
