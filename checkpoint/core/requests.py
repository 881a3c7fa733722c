"""The records of requests to a region and of their answers, in objects of its store, which
`checkpoint/requests/queue.py` reads and writes. What a request does: `verbs.py`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from checkpoint import limits
from dos_protocol.digests import digest64
from dos_protocol.errors import MALFORMED_JSON

MAGIC: Final = b"\xffDRQ"
VERSION: Final = 1
# A record, integers big-endian:
#
#     offset  0  magic           ff 44 52 51
#             4  version         u8, 1
#             5  kind            u8, RecordKind
#             6  reserved        u16, 0
#             8  payload bytes   u32
#            12  digest          u64, xxh3-64 of the 12 bytes before it and the payload
#            20  payload         JSON
#
# A record is valid if and only if
#
# 1. the magic is this,
# 2. the version and the kind are known,
# 3. reserved is 0,
# 4. the payload is within the limit of its kind,
# 5. the digest matches,
# 6. the payload is JSON of its kind.
#
# UTF-8 has no byte ff, so a payload contains no magic. If a magic follows within an incomplete record, that
# record was torn, possibly within its header, and reading continues at the magic. Bytes that are no valid
# record are skipped and counted.
_HEAD: Final = struct.Struct(">4sBBHI")
_DIGEST: Final = struct.Struct(">Q")
HEADER_BYTES: Final = _HEAD.size + _DIGEST.size
assert HEADER_BYTES == 20

Verdict: TypeAlias = Literal["accepted", "refused", "done", "failed"]
"""| verdict | meaning |
|---|---|
| accepted | the request is carried out; another answer follows |
| refused | nothing was done; final |
| done | carried out, with the result; final |
| failed | begun and not completed; final |
"""


class RecordKind(IntEnum):
    """The kind of a record. Numbers are never reused."""

    REQUEST = 1
    ANSWER = 2


PAYLOAD_BYTES_MAX: Final = {
    RecordKind.REQUEST: limits.request_bytes_max,
    RecordKind.ANSWER: limits.answer_bytes_max,
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a region."""

    id: str
    """32 random hexadecimal digits. Two records with one id are one request."""
    region: str
    what: str
    """The name of a row of `VERBS` (`verbs.py`)."""
    wall_time_ms: int
    patience_ms: int
    """How long after `wall_time_ms` the request may still be begun."""
    incarnation: int = 0
    """The incarnation whose driver is addressed, 0 for any."""
    # What follows belongs to single verbs.
    name: str = ""
    """The name of a savepoint, or the checkpoint to restore as `lines.find_target` names it."""
    allow_republish: bool = False
    """Restore although rows come again that were shown."""
    why: str = ""
    """What a person says of a savepoint."""
    fork: str = ""
    """The region that begins as a fork of the checkpoint of a savepoint."""
    checkpoint: int = 0
    """The checkpoint of a savepoint, 0 for the last one."""
    workers: int = 0
    """The number of workers to go to."""
    replaces: tuple[int, ...] = ()
    """The workers that get other processes, in this order; none: all."""
    asked_by: str = ""
    """user@host, for the log."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one or more requests."""

    requests: tuple[str, ...]
    region: str
    incarnation: int
    """The manifest epoch that the driver held when it wrote the answer."""
    verdict: Verdict
    wall_time_ms: int
    driver: str = ""
    """host:pid of the driver."""
    reason: str = ""
    result: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Bytes that are no valid record."""

    count: int
    why: str


QueueItem: TypeAlias = Request | Answer | Skipped

_TYPES: Final[dict[RecordKind, type[Request] | type[Answer]]] = {
    RecordKind.REQUEST: Request,
    RecordKind.ANSWER: Answer,
}


def encode_record(record: Request | Answer) -> bytes:
    """Return the bytes of a record. Raises ValueError above the limit of its kind."""
    kind = RecordKind.REQUEST if isinstance(record, Request) else RecordKind.ANSWER
    payload = msgspec.json.encode(record)
    if len(payload) > PAYLOAD_BYTES_MAX[kind]:
        raise ValueError(f"{kind.name} of {len(payload)} bytes exceeds the limit {PAYLOAD_BYTES_MAX[kind]}")
    head = _HEAD.pack(MAGIC, VERSION, kind, 0, len(payload))
    return head + _DIGEST.pack(digest64(head + payload)) + payload


class RecordReader:
    """An incremental reader: takes the bytes of one object in any pieces, returns the records in them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[QueueItem]:
        """Return the records that are now complete, and the skipped bytes, in order. Never raises."""
        self._buffer += data
        return list(self._items())

    def _items(self) -> Iterator[QueueItem]:
        while self._buffer:
            if (junk_bytes := self._before_magic()) > 0:
                yield self._skip(junk_bytes, "no record begins here")
                continue
            if len(self._buffer) < HEADER_BYTES:
                return
            kind, size, problem = _check_header(bytes(self._buffer[:HEADER_BYTES]))
            if problem:
                yield self._skip(1, problem)
                continue
            end = HEADER_BYTES + size
            assert kind is not None
            if self._is_complete(end):
                yield self._take(kind, end)
            elif (torn_at := self._buffer.find(MAGIC, 1, end)) > 0:
                yield self._skip(torn_at, "torn record, followed by another one")
            elif len(self._buffer) < end:
                return
            else:
                yield self._skip(1, "record with a wrong digest")

    def _is_complete(self, end: int) -> bool:
        """Return whether the record is complete and its digest matches."""
        if len(self._buffer) < end:
            return False
        stated = _DIGEST.unpack_from(self._buffer, _HEAD.size)[0]
        signed = bytes(self._buffer[: _HEAD.size] + self._buffer[HEADER_BYTES:end])
        return bool(digest64(signed) == stated)

    def _before_magic(self) -> int:
        """Return how many bytes precede a magic, or the beginning of one at the end of the buffer."""
        at = self._buffer.find(MAGIC)
        if at >= 0:
            return at
        for length in range(min(len(MAGIC) - 1, len(self._buffer)), 0, -1):
            if self._buffer.endswith(MAGIC[:length]):
                return len(self._buffer) - length
        return len(self._buffer)

    def _take(self, kind: RecordKind, end: int) -> QueueItem:
        payload = bytes(self._buffer[HEADER_BYTES:end])
        del self._buffer[:end]
        try:
            record: Request | Answer = msgspec.json.decode(payload, type=_TYPES[kind])
        except MALFORMED_JSON as error:
            return Skipped(end, f"{kind.name} does not decode: {error}")
        return record

    def _skip(self, count: int, why: str) -> Skipped:
        del self._buffer[:count]
        return Skipped(count, why)


def _check_header(header: bytes) -> tuple[RecordKind | None, int, str]:
    """Return (kind, payload bytes, why the header is invalid or empty)."""
    _, version, number, reserved, size = _HEAD.unpack_from(header)
    if version != VERSION:
        return None, 0, f"record of version {version}, this program reads version {VERSION}"
    try:
        kind = RecordKind(number)
    except ValueError:
        return None, 0, f"record of unknown kind {number}"
    if reserved:
        return None, 0, f"record with reserved bytes {reserved}"
    if size > PAYLOAD_BYTES_MAX[kind]:
        return None, 0, f"{kind.name} of {size} bytes exceeds the limit {PAYLOAD_BYTES_MAX[kind]}"
    return kind, size, ""
