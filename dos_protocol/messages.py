"""Messages as frames. One row of `TABLE` per opcode defines the layout; `vocabulary` has the message classes.

Meta is the row's fixed fields, packed big-endian in order, then its variable fields in order, and nothing
after them:

    name   u8 length, then that many bytes (latin-1: a bad name is answered BAD_NAME, not lost in decoding)
    text   u16 length, then UTF-8
    bytes  u16 length, then that many bytes

`payload` fields are the payload. `entries` are a payload of u32 count and then, per entry: name | received
u64 | synced u64 | digest u64 | marks u8 (1 being appended, 2 corrupt, 4 poisoned).

A message is valid if and only if (1) its opcode has a row, (2) meta is exactly as the row defines, (3)
payload is empty unless the row has one. Opcodes below 128 are requests, from 128 on answers. Numbers are
never reused.
"""

import functools
import struct
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from dos_protocol.digests import Buffer
from dos_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from dos_protocol.frames import Frame
from dos_protocol.limits import id_bytes
from dos_protocol.names import check_id
from dos_protocol.vocabulary import (
    NO_DIGEST,
    Append,
    Bye,
    ChangeDirectory,
    Configure,
    Configured,
    Data,
    Delete,
    Deleted,
    DirectoryOpened,
    DurabilityAck,
    Error,
    Get,
    Hello,
    List,
    Listing,
    Message,
    ObjectInfo,
    Opcode,
    Ping,
    Pong,
    Quit,
    RepairAck,
    RepairChunk,
    ScrubProgress,
    ScrubRequest,
    Stamp,
    Stamped,
    Stat,
    StatResult,
    Welcome,
    Witness,
    Witnessed,
)

__all__ = [
    "NO_DIGEST",
    "TABLE",
    "Append",
    "Bye",
    "ChangeDirectory",
    "Configure",
    "Configured",
    "Data",
    "Delete",
    "Deleted",
    "DirectoryOpened",
    "DurabilityAck",
    "Error",
    "Get",
    "Hello",
    "List",
    "Listing",
    "Message",
    "MessageLayout",
    "ObjectInfo",
    "Opcode",
    "Ping",
    "Pong",
    "Quit",
    "RepairAck",
    "RepairChunk",
    "ScrubProgress",
    "ScrubRequest",
    "Stamp",
    "Stamped",
    "Stat",
    "StatResult",
    "Welcome",
    "Witness",
    "Witnessed",
    "decode",
    "decode_entries",
    "encode",
    "encode_entries",
    "opcode_of",
]


class MessageLayout(NamedTuple):
    """The layout of one message: `fixed` (field, struct code), `variable` (field, kind), and the payload."""

    cls: type[Any]
    fixed: tuple[tuple[str, str], ...] = ()
    variable: tuple[tuple[str, str], ...] = ()
    payload: str = ""
    entries: str = ""


_STAMP: Final = (("number", "Q"), ("stamp_id", "16s"))
TABLE: Final[dict[Opcode, MessageLayout]] = {
    Opcode.HELLO: MessageLayout(
        Hello,
        (("version", "B"), ("store_id", "16s"), ("generation", "Q")),
        (("token", "bytes"), ("client", "text")),
    ),
    Opcode.WELCOME: MessageLayout(
        Welcome,
        (
            ("version", "B"),
            ("server_id", "16s"),
            ("payload_bytes_max", "I"),
            ("in_flight_bytes_max", "I"),
            ("entries_max", "I"),
            ("stamp_number", "Q"),
            ("stamp_id", "16s"),
            ("rolled_back", "?"),
            ("refuses_appends", "?"),
        ),
        (("store_record", "bytes"), ("witnessed", "bytes")),
    ),
    Opcode.CHANGE_DIRECTORY: MessageLayout(
        ChangeDirectory,
        (("claim", "?"), ("epoch", "Q"), ("writer_id", "16s")),
        (("directory", "name"),),
    ),
    Opcode.DIRECTORY_OPENED: MessageLayout(
        DirectoryOpened, (("epoch", "Q"), ("writer_id", "16s")), (), entries="entries"
    ),
    Opcode.APPEND: MessageLayout(
        Append, (("expected_size", "Q"), ("prefix_digest", "Q")), (("name", "name"),), payload="payload"
    ),
    Opcode.WATERMARK: MessageLayout(DurabilityAck, (("received", "Q"), ("synced", "Q")), (("name", "name"),)),
    Opcode.GET: MessageLayout(
        Get, (("offset", "Q"), ("max_bytes", "I"), ("wait_ms", "I")), (("name", "name"),)
    ),
    Opcode.DATA: MessageLayout(
        Data, (("offset", "Q"), ("synced", "Q")), (("name", "name"),), payload="payload"
    ),
    Opcode.LIST: MessageLayout(List, (("entries_max", "I"),), (("prefix", "name"), ("after", "name"))),
    Opcode.LISTING: MessageLayout(Listing, (("more", "?"),), (), entries="entries"),
    Opcode.STAT: MessageLayout(Stat, (("digest_at", "Q"),), (("name", "name"),)),
    Opcode.STAT_RESULT: MessageLayout(StatResult, (("digest_at", "Q"), ("digest", "Q")), (), entries="info"),
    Opcode.DELETE: MessageLayout(Delete, (), (("name", "name"),)),
    Opcode.DELETED: MessageLayout(Deleted, (), (("name", "name"),)),
    Opcode.CONFIGURE: MessageLayout(Configure, (), (("store_record", "bytes"),)),
    Opcode.CONFIGURED: MessageLayout(Configured, (("generation", "Q"),)),
    Opcode.PING: MessageLayout(Ping, payload="payload"),
    Opcode.PONG: MessageLayout(Pong, payload="payload"),
    Opcode.QUIT: MessageLayout(Quit),
    Opcode.BYE: MessageLayout(Bye),
    Opcode.MEND: MessageLayout(
        RepairChunk,
        (
            ("offset", "Q"),
            ("goal_size", "Q"),
            ("goal_digest", "Q"),
            ("old_size", "Q"),
            ("old_digest", "Q"),
            ("overwrite", "?"),
        ),
        (("name", "name"),),
        payload="payload",
    ),
    Opcode.MENDED: MessageLayout(RepairAck, (("size", "Q"), ("done", "?")), (("name", "name"),)),
    Opcode.STAMP: MessageLayout(Stamp, _STAMP),
    Opcode.STAMPED: MessageLayout(Stamped, _STAMP),
    Opcode.WITNESS: MessageLayout(
        Witness, (("server_id", "16s"), *_STAMP, ("before_number", "Q"), ("before_id", "16s"))
    ),
    Opcode.WITNESSED: MessageLayout(Witnessed, (("server_id", "16s"), *_STAMP)),
    Opcode.SCRUB: MessageLayout(ScrubRequest, (("begin", "?"), ("bytes_per_s", "Q"))),
    Opcode.SCRUBBED: MessageLayout(
        ScrubProgress,
        (("rounds", "Q"), ("objects", "Q"), ("bytes", "Q"), ("damaged", "Q"), ("directories_left", "Q")),
    ),
    Opcode.ERROR: MessageLayout(
        Error,
        (("code", "H"), ("actual", "Q")),
        (("message", "text"), ("remedy", "text"), ("record", "bytes")),
    ),
}


_ID: Final = f"{id_bytes}s"


class _Plan(NamedTuple):
    """A row prepared for coding. `names`: its fixed fields. `values_of`: returns their values in a message.
    `flagged`: a field is 0 or 1. `ids`: the fields that are an id."""

    opcode: Opcode
    row: MessageLayout
    layout: struct.Struct
    names: tuple[str, ...]
    values_of: Callable[[Any], tuple[Any, ...]]
    flagged: bool
    ids: tuple[str, ...]


def _plan_of(opcode: Opcode, row: MessageLayout) -> _Plan:
    names, codes = tuple(name for name, _ in row.fixed), "".join(code for _, code in row.fixed)

    def values_of(message: Any) -> tuple[Any, ...]:
        return tuple(getattr(message, name) for name in names)

    many = len(names) > 1  # attrgetter is faster, but returns no tuple for one name
    getter = attrgetter(*names) if many else values_of
    ids = tuple(name for name, code in row.fixed if code == _ID)
    return _Plan(opcode, row, struct.Struct(">" + codes), names, getter, "?" in codes, ids)


_PLANS: Final = {int(opcode): _plan_of(opcode, row) for opcode, row in TABLE.items()}
_PLANS_BY_CLASS: Final[dict[type[Any], _Plan]] = {plan.row.cls: plan for plan in _PLANS.values()}
_ENTRY: Final = struct.Struct(">QQQB")
_COUNT: Final = struct.Struct(">I")
_U16: Final = struct.Struct(">H")
_APPEND: Final = struct.Struct(">QQB")
_APPEND_OPCODE: Final = int(Opcode.APPEND)
_DURABILITY_ACK: Final = struct.Struct(">QQB")
_DURABILITY_ACK_OPCODE: Final = int(Opcode.WATERMARK)
assert _ENTRY.size == 25
assert len(_PLANS_BY_CLASS) == len(TABLE) == len(Opcode)


def opcode_of(message: Message) -> Opcode:
    """Return the opcode of the message's class."""
    return _PLANS_BY_CLASS[type(message)].opcode


def encode(message: Message, request_id: int = 0) -> Frame:
    """Return the frame of a message. Raises LocalProtocolError if a value does not fit its field."""
    if type(message) is DurabilityAck:
        return _encode_durability_ack(message, request_id)
    opcode, row, layout, _, values_of, _, ids = _PLANS_BY_CLASS[type(message)]
    for field in ids:  # struct would truncate a longer one and pad a shorter one
        check_id(getattr(message, field), field)
    try:
        parts = [layout.pack(*values_of(message))]
        for field, kind in row.variable:
            parts.append(_pack_variable(kind, getattr(message, field)))
        payload: Buffer = b""
        if row.payload:
            payload = getattr(message, row.payload)
        elif row.entries:
            entries = getattr(message, row.entries)
            payload = encode_entries((entries,) if isinstance(entries, ObjectInfo) else entries)
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(
            f"a value of {type(message).__name__} does not fit its field: {error}"
        ) from error
    return Frame(int(opcode), request_id, b"".join(parts), payload)


def _encode_durability_ack(message: DurabilityAck, request_id: int) -> Frame:
    """`encode` for the most frequent answer. Property tests compare it with the table."""
    try:
        name = message.name.encode("latin-1")
        meta = _DURABILITY_ACK.pack(message.received, message.synced, len(name)) + name
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"a value of Watermark does not fit its field: {error}") from error
    return Frame(_DURABILITY_ACK_OPCODE, request_id, meta)


def decode(frame: Frame) -> Message:
    """Return the message in a frame.

    Raises RemoteProtocolError: UNKNOWN_OPCODE, or BAD_FRAME for a wrong layout. The frame itself was valid,
    so the caller may answer the error and continue reading.
    """
    if frame.opcode == _APPEND_OPCODE:
        return _decode_append(frame)
    if frame.opcode == _DURABILITY_ACK_OPCODE:
        return _decode_durability_ack(frame)
    plan = _PLANS.get(frame.opcode)
    if plan is None:
        raise RemoteProtocolError(
            f"unknown opcode {frame.opcode}", code=ErrorCode.UNKNOWN_OPCODE, request_id=frame.request_id
        )
    try:
        return _decode_row(frame, plan)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise RemoteProtocolError(
            f"the layout of {plan.opcode.name} is wrong: {error}", request_id=frame.request_id
        ) from error


def _decode_append(frame: Frame) -> Append:
    """`decode` for the most frequent request. Property tests compare it with the table."""
    meta = frame.meta
    if len(meta) < _APPEND.size or len(meta) != _APPEND.size + meta[16]:
        raise RemoteProtocolError("the layout of APPEND is wrong", request_id=frame.request_id)
    size, digest, _ = _APPEND.unpack_from(meta)
    return Append(meta[17:].decode("latin-1"), size, digest, frame.payload)


def _decode_durability_ack(frame: Frame) -> DurabilityAck:
    """`decode` for the most frequent answer. Property tests compare it with the table."""
    meta = frame.meta
    if len(meta) < _DURABILITY_ACK.size or len(meta) != _DURABILITY_ACK.size + meta[16] or len(frame.payload):
        raise RemoteProtocolError("the layout of WATERMARK is wrong", request_id=frame.request_id)
    received, synced, _ = _DURABILITY_ACK.unpack_from(meta)
    return DurabilityAck(meta[17:].decode("latin-1"), received, synced)


def _decode_row(frame: Frame, plan: _Plan) -> Message:
    """Return the message by the row's layout. Raises ValueError or struct.error."""
    _, row, layout, names, _, flagged, _ = plan
    fixed = layout.unpack_from(frame.meta)
    if flagged and layout.pack(*fixed) != frame.meta[: layout.size]:
        raise ValueError("a flag is neither 0 nor 1")
    values: dict[str, Any] = dict(zip(names, fixed, strict=True))
    position = layout.size
    for field, kind in row.variable:
        values[field], position = _unpack_variable(kind, frame.meta, position)
    if position != len(frame.meta):
        raise ValueError(f"{len(frame.meta) - position} bytes after the last field")
    if row.payload:
        values[row.payload] = frame.payload
    elif row.entries:
        entries = decode_entries(frame.payload)
        if row.entries == "info" and len(entries) != 1:
            raise ValueError(f"expected one entry, got {len(entries)}")
        values[row.entries] = entries[0] if row.entries == "info" else entries
    elif len(frame.payload):
        raise ValueError(f"unexpected payload of {len(frame.payload)} bytes")
    message: Message = row.cls(**values)
    return message


def encode_entries(entries: tuple[ObjectInfo, ...]) -> bytes:
    """Return the payload for the entries."""
    parts = [_COUNT.pack(len(entries))]
    for info in entries:
        name = info.name.encode("latin-1")
        marks = info.appending | info.corrupt << 1 | info.poisoned << 2
        entry = _entry_of(len(name))
        parts.append(entry.pack(len(name), name, info.received, info.synced, info.digest, marks))
    return b"".join(parts)


@functools.cache
def _entry_of(name_bytes: int) -> struct.Struct:
    """Return the layout of an entry whose name has that many bytes."""
    return struct.Struct(f">B{name_bytes}sQQQB")


def decode_entries(payload: Buffer) -> tuple[ObjectInfo, ...]:
    """Return the entries of a payload. Raises ValueError or struct.error for anything else."""
    data = bytes(payload)
    (count,) = _COUNT.unpack_from(data)
    position = _COUNT.size
    entries = []
    for _ in range(count):
        name, position = _unpack_variable("name", data, position)
        received, synced, digest, marks = _ENTRY.unpack_from(data, position)
        if marks > 7:
            raise ValueError(f"unknown marks {marks:#x}")
        position += _ENTRY.size
        entries.append(
            ObjectInfo(name, received, synced, digest, bool(marks & 1), bool(marks & 2), bool(marks & 4))
        )
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes after the last entry")
    return tuple(entries)


def _pack_variable(kind: str, value: Any) -> bytes:
    if kind == "name":
        data = value.encode("latin-1")
        return bytes((len(data),)) + data if len(data) < 256 else _too_long(kind, len(data))
    data = value.encode() if kind == "text" else bytes(value)
    return _U16.pack(len(data)) + data if len(data) < 65_536 else _too_long(kind, len(data))


def _too_long(kind: str, count: int) -> bytes:
    raise struct.error(f"{count} bytes do not fit in a field of kind {kind}")


def _unpack_variable(kind: str, meta: bytes, position: int) -> tuple[Any, int]:
    if kind == "name":
        start, count = position + 1, meta[position] if position < len(meta) else 0
    else:
        start, (count,) = position + 2, _U16.unpack_from(meta, position)
    end = start + count
    if end > len(meta):
        raise ValueError(f"a {kind} of {count} bytes extends past the end")
    data = meta[start:end]
    if kind == "name":
        return data.decode("latin-1"), end
    return (data.decode() if kind == "text" else data), end
