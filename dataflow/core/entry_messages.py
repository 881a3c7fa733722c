"""Messages between producers and entry points, and between entry points. Pure.

A message is one CONTROL frame of JSON on a link; the parts of a batch follow as DATA frames of Arrow streams.

    dialler                                     entry point
    Ask()                                  ->
                                           <-   EntryStatus(...)        any number of times
    OpenOrigin(producer, session, first)   ->
                                           <-   OriginOpened(batch, mark, position)
    SendBatch(batch, mark, parts), parts   ->
                                           <-   BatchRecorded(batch, position)      in the order of batches
                                           <-   EntryRefusal(reason), and the link closes
"""

import hashlib
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from checkpoint import ChannelFrame, FrameType
from checkpoint.errors import ControlMessageError
from dos_protocol.errors import MALFORMED_JSON

SESSION_BYTES: Final = 16


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Requests the status of an entry point. Peers measure their clocks with it."""


class EntryStatus(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An entry point at one time. now_us: its clock; is_good: whether it gives times. errors: peer ->
    (offset, bound) of its clock against the peer's, in microseconds, for peers that answered. marks: origin
    that it serves -> its newest mark, 0 for none. attended: origins whose producers are connected.
    """

    site: str
    now_us: int
    is_good: bool
    errors: dict[str, tuple[int, int]]
    marks: dict[str, int]
    attended: tuple[str, ...]


class OpenOrigin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Opens a producer name. first: the program has not opened it before; it fences an older program."""

    producer: str
    session: bytes
    first: bool


class OriginOpened(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of what is recorded: number and mark of the last batch, and the position after it."""

    batch: int
    mark: bytes
    position: int


class SendBatch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Announces a batch, whose parts follow. rows: of each part."""

    batch: int
    mark: bytes
    rows: tuple[int, ...]


class BatchRecorded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A batch, and all before it, is on stable storage of a majority."""

    batch: int
    position: int


class EntryRefusal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The link closes. kind: "moves", another entry point can serve the producer; "fenced", a program that
    opened the name later writes; "closed", the handle is closed; "refused", nobody can serve it, for
    `reason`.
    """

    kind: Literal["moves", "fenced", "closed", "refused"]
    reason: str
    remedy: str = ""


EntryMessage: TypeAlias = (
    Ask | EntryStatus | OpenOrigin | OriginOpened | SendBatch | BatchRecorded | EntryRefusal
)
_decoder: Final[msgspec.json.Decoder[EntryMessage]] = msgspec.json.Decoder(EntryMessage)


def message_frame(message: EntryMessage) -> ChannelFrame:
    return ChannelFrame(FrameType.CONTROL, payload=msgspec.json.encode(message))


def part_frame(data: bytes) -> ChannelFrame:
    return ChannelFrame(FrameType.DATA, payload=data)


def decode_message(frame: ChannelFrame) -> EntryMessage:
    """Return the message in a frame. Raises ControlMessageError."""
    if frame.type is not FrameType.CONTROL:
        raise ControlMessageError(f"expected a message, got a {frame.type.name} frame")
    try:
        return _decoder.decode(frame.payload)
    except MALFORMED_JSON as error:
        raise ControlMessageError(f"a message does not decode: {error}") from error


def link_job(application: str, handle: str) -> str:
    """Return the job of the links of a handle: a link of another handle is refused."""
    return f"entry {application}.in.{handle}"


def link_key(token: bytes) -> bytes:
    """Return the key that both ends of a link prove. Without a token everybody knows it."""
    return hashlib.sha256(b"dos entry point\0" + token).digest()


class UnrecordedBatch(NamedTuple):
    """A batch that a producer keeps until it is recorded: its parts as (rows, data)."""

    parts: list[tuple[int, bytes]]
    mark: bytes

    @property
    def bytes(self) -> int:
        return sum(len(data) for _, data in self.parts)


class UnrecordedBatches:
    """Batches that a producer has sent and must send again to another entry point."""

    def __init__(self) -> None:
        self.batches: dict[int, UnrecordedBatch] = {}
        self.bytes = 0

    def add(self, number: int, batch: UnrecordedBatch) -> None:
        self.batches[number] = batch
        self.bytes += batch.bytes

    def recorded(self, number: int) -> None:
        """Forget all batches up to a number."""
        for one in [one for one in self.batches if one <= number]:
            self.bytes -= self.batches.pop(one).bytes

    def after(self, number: int) -> int | None:
        """Return the next batch after a number, None if there is none yet."""
        return min((one for one in self.batches if one > number), default=None)
