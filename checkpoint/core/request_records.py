"""Requests to a region and the answers to them, as bytes in objects of the store: the codec.

Rules of this file: nouns, encode, and a reader that survives anything. Who may ask what, and what
follows, is `core/request_handling.py`'s; the objects are `checkpoint/requests/queue.py`'s.

A record, integers big-endian:

    offset  0  magic           ff 44 52 51
            4  version         u8, 1
            5  kind            u8, RecordKind
            6  reserved        u16, 0
            8  payload bytes   u32
           12  digest          u64, xxh3-64 of the 12 bytes before it and the payload
           20  payload         JSON

A record is valid if and only if (1) the magic, (2) the version and the kind are known, (3) reserved is 0,
(4) the payload is at most what its kind allows, (5) the digest is right, (6) the payload is JSON of its kind.
JSON in UTF-8 has no byte ff: so a magic further on in what is no whole record means that this one was torn,
be it within its header, and reading goes on there. Whatever is not a valid record is skipped, and counted.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from checkpoint import limits
from dos_protocol.digests import digest64

MAGIC: Final = b"\xffDRQ"
VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBBHI")
_DIGEST: Final = struct.Struct(">Q")
HEADER_BYTES: Final = _HEAD.size + _DIGEST.size
assert HEADER_BYTES == 20

Verdict: TypeAlias = Literal["accepted", "refused", "done", "failed"]
"""accepted: it is being carried out, another answer follows. The others are the last word: refused,
nothing was done; done, with the result; failed, it was begun and its end did not come.
"""


class RecordKind(IntEnum):
    """Numbers are never reused."""

    REQUEST = 1
    ANSWER = 2


PAYLOAD_BYTES_MAX: Final = {
    RecordKind.REQUEST: limits.request_bytes_max,
    RecordKind.ANSWER: limits.answer_bytes_max,
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants something of a region."""

    id: str
    """32 hexadecimal digits, random: the same request twice is one request."""
    region: str
    what: str
    """status, checkpoint, reset, pause, resume, pin, unpin or stop."""
    wall_time_ms: int
    patience_ms: int
    """How long after `wall_time_ms` it may still be begun."""
    incarnation: int = 0
    """Only the driver of this incarnation is meant; 0: whichever runs the region."""
    name: str = ""
    """Of a pin."""
    cut: int = 0
    """The cut to pin; 0: the last one."""
    asked_by: str = ""
    """user@host, for the log."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of some requests."""

    requests: tuple[str, ...]
    region: str
    incarnation: int
    """The manifest's epoch that the answering driver held when it wrote this."""
    verdict: Verdict
    wall_time_ms: int
    driver: str = ""
    """host:pid of the driver."""
    reason: str = ""
    result: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Bytes that are no record of ours."""

    count: int
    why: str


Found: TypeAlias = Request | Answer | Skipped

_TYPES: Final[dict[RecordKind, type[Request] | type[Answer]]] = {
    RecordKind.REQUEST: Request,
    RecordKind.ANSWER: Answer,
}


def encode_record(record: Request | Answer) -> bytes:
    """The bytes of a record. Raises ValueError above its kind's limit."""
    kind = RecordKind.REQUEST if isinstance(record, Request) else RecordKind.ANSWER
    payload = msgspec.json.encode(record)
    if len(payload) > PAYLOAD_BYTES_MAX[kind]:
        raise ValueError(
            f"a record of {len(payload)} bytes; a {kind.name} has at most {PAYLOAD_BYTES_MAX[kind]}"
        )
    head = _HEAD.pack(MAGIC, VERSION, kind, 0, len(payload))
    return head + _DIGEST.pack(digest64(head + payload)) + payload


class RecordReader:
    """Takes the bytes of one object in any pieces and gives the records in them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Found]:
        """The records that are complete now, and what was skipped, in order. Raises nothing."""
        self._buffer += data
        return list(self._found())

    def _found(self) -> Iterator[Found]:
        while self._buffer:
            if (strange := self._before_magic()) > 0:
                yield self._skip(strange, "no record begins there")
                continue
            if len(self._buffer) < HEADER_BYTES:
                return
            kind, size, problem = _judge(bytes(self._buffer[:HEADER_BYTES]))
            if problem:
                yield self._skip(1, problem)
                continue
            end = HEADER_BYTES + size
            assert kind is not None
            if self._is_whole(end):
                yield self._take(kind, end)
            elif (torn_at := self._buffer.find(MAGIC, 1, end)) > 0:
                yield self._skip(torn_at, "a record that was cut off by the next one")
            elif len(self._buffer) < end:
                return
            else:
                yield self._skip(1, "a record with a wrong digest")

    def _is_whole(self, end: int) -> bool:
        """Whether all of the record is there, with the right digest."""
        if len(self._buffer) < end:
            return False
        stated = _DIGEST.unpack_from(self._buffer, _HEAD.size)[0]
        signed = bytes(self._buffer[: _HEAD.size] + self._buffer[HEADER_BYTES:end])
        return bool(digest64(signed) == stated)

    def _before_magic(self) -> int:
        """How many bytes come before what is, or may become, a magic."""
        at = self._buffer.find(MAGIC)
        if at >= 0:
            return at
        for length in range(min(len(MAGIC) - 1, len(self._buffer)), 0, -1):
            if self._buffer.endswith(MAGIC[:length]):
                return len(self._buffer) - length
        return len(self._buffer)

    def _take(self, kind: RecordKind, end: int) -> Found:
        payload = bytes(self._buffer[HEADER_BYTES:end])
        del self._buffer[:end]
        try:
            record: Request | Answer = msgspec.json.decode(payload, type=_TYPES[kind])
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
            return Skipped(end, f"a {kind.name} that does not decode: {error}")
        return record

    def _skip(self, count: int, why: str) -> Skipped:
        del self._buffer[:count]
        return Skipped(count, why)


def _judge(header: bytes) -> tuple[RecordKind | None, int, str]:
    """(kind, payload bytes, '' or what is wrong with the header)."""
    _, version, number, reserved, size = _HEAD.unpack_from(header)
    if version != VERSION:
        return None, 0, f"a record of version {version}, {VERSION} is known here"
    try:
        kind = RecordKind(number)
    except ValueError:
        return None, 0, f"a record of kind {number}, which is not known here"
    if reserved:
        return None, 0, f"a record whose reserved bytes are {reserved}"
    if size > PAYLOAD_BYTES_MAX[kind]:
        return None, 0, f"a {kind.name} of {size} bytes, at most {PAYLOAD_BYTES_MAX[kind]} are allowed"
    return kind, size, ""
