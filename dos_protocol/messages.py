"""Messages: what frames mean. One row of `TABLE` per opcode gives the layout of its meta; encode and decode
walk the row.

Meta is the row's fixed fields, packed big-endian in order, then its variable fields in order:

    name   u8 length, then that many bytes (latin-1, so that a bad name is answered BAD_NAME and not lost in
    decoding) text   u16 length, then UTF-8 bytes  u16 length, then that many bytes

and nothing after them. `payload` fields are the frame's payload; `entries` are a payload of u32 count and
then, per entry, name | received u64 | synced u64 | digest u64 | marks u8 (1 being appended, 2 corrupt, 4
poisoned).

A message is valid if and only if (1) its opcode has a row, (2) meta is exactly as the row says, (3) payload
is empty unless the row has it. Opcodes below 128 are requests, from 128 on answers. Numbers are never reused.
"""

import struct
from enum import IntEnum, unique
from typing import Any, Final, NamedTuple

import msgspec

from dos_protocol.digests import Buffer
from dos_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from dos_protocol.frames import Frame
from dos_protocol.limits import u64_max
from dos_protocol.names import NO_ID

NO_DIGEST: Final = u64_max
"""In `Stat.digest_at`: no digest of a prefix is wanted."""


@unique
class Opcode(IntEnum):
    """The second byte of meaning in a frame."""

    HELLO = 1
    CHANGE_DIRECTORY = 2
    APPEND = 3
    GET = 4
    LIST = 5
    STAT = 6
    DELETE = 7
    CONFIGURE = 8
    PING = 9
    QUIT = 10

    WELCOME = 129
    DIRECTORY_OPENED = 130
    WATERMARK = 131
    DATA = 132
    LISTING = 133
    STAT_RESULT = 134
    CONFIGURED = 136
    PONG = 137
    BYE = 138
    ERROR = 255


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object as a server holds it, or in a listing of directories one directory (sizes 0).

    `synced <= received`; `digest` is the prefix digest at `synced`. `corrupt`: this copy must not be counted,
    it is damaged from `synced` on or `poisoned` (a write or sync failed since the server started)."""

    name: str
    received: int = 0
    synced: int = 0
    digest: int = 0
    appending: bool = False
    corrupt: bool = False
    poisoned: bool = False


class Hello(msgspec.Struct, frozen=True):
    """First message of a session. `store_id` NO_ID: it speaks to this one server, not to a store."""

    version: int = 1
    token: bytes = b""
    store_id: bytes = NO_ID
    generation: int = 0
    client: str = ""


class Welcome(msgspec.Struct, frozen=True):
    """The server's identity, its limits, and its store record (empty: it is in no store)."""

    version: int
    server_id: bytes
    payload_bytes_max: int
    in_flight_bytes_max: int
    entries_max: int
    store_record: bytes = b""


class ChangeDirectory(msgspec.Struct, frozen=True):
    """Open a directory to read, or claim it as its one writer."""

    directory: str
    claim: bool = False
    epoch: int = 0
    writer_id: bytes = NO_ID


class DirectoryOpened(msgspec.Struct, frozen=True):
    """The claim that holds now (epoch 0: none ever) and every object."""

    epoch: int
    writer_id: bytes
    entries: tuple[ObjectInfo, ...] = ()


class Append(msgspec.Struct, frozen=True):
    """Bytes to go at exactly `expected_size`, after content with exactly `prefix_digest`."""

    name: str
    expected_size: int
    prefix_digest: int
    payload: Buffer


class Watermark(msgspec.Struct, frozen=True):
    """Cumulative: everything below `received` is in the server's file, below `synced` on stable storage."""

    name: str
    received: int
    synced: int


class Get(msgspec.Struct, frozen=True):
    """Bytes from `offset` on, at most `max_bytes`.

    Waits up to `wait_ms` for the first when there are none yet.
    """

    name: str
    offset: int
    max_bytes: int
    wait_ms: int = 0


class Data(msgspec.Struct, frozen=True):
    """Durable bytes; empty at the synced end."""

    name: str
    offset: int
    synced: int
    payload: Buffer


class List(msgspec.Struct, frozen=True):
    """Names with a prefix, after a name, in order. Directories before CWD, objects after it."""

    prefix: str = ""
    after: str = ""
    entries_max: int = 1_000


class Listing(msgspec.Struct, frozen=True):
    """One page; `more`: ask again after its last name."""

    entries: tuple[ObjectInfo, ...] = ()
    more: bool = False


class Stat(msgspec.Struct, frozen=True):
    """Sizes of one object and the digest of a prefix of it (NO_DIGEST: none)."""

    name: str
    digest_at: int = NO_DIGEST


class StatResult(msgspec.Struct, frozen=True):
    """The answer; `digest` is 0 when none was asked for."""

    info: ObjectInfo
    digest_at: int
    digest: int


class Delete(msgspec.Struct, frozen=True):
    """Reserved; refused UNSUPPORTED."""

    name: str


class Configure(msgspec.Struct, frozen=True):
    """Install a newer store record."""

    store_record: bytes


class Configured(msgspec.Struct, frozen=True):
    """It is on stable storage."""

    generation: int


class Ping(msgspec.Struct, frozen=True):
    payload: Buffer = b""


class Pong(msgspec.Struct, frozen=True):
    payload: Buffer = b""


class Quit(msgspec.Struct, frozen=True):
    """Ends the session once everything before it is answered."""


class Bye(msgspec.Struct, frozen=True):
    """The last message of a server."""


class Error(msgspec.Struct, frozen=True):
    """A refusal.

    `actual`: the number the code speaks of; `record`: the server's store record where it helps.
    """

    code: int
    message: str = ""
    remedy: str = ""
    actual: int = 0
    record: bytes = b""


Message = (
    Hello
    | Welcome
    | ChangeDirectory
    | DirectoryOpened
    | Append
    | Watermark
    | Get
    | Data
    | List
    | Listing
    | Stat
    | StatResult
    | Delete
    | Configure
    | Configured
    | Ping
    | Pong
    | Quit
    | Bye
    | Error
)


class Row(NamedTuple):
    """The layout of one message.

    `fixed` (field, struct code), `variable` (field, kind), what the payload is.
    """

    cls: type[Any]
    fixed: tuple[tuple[str, str], ...] = ()
    variable: tuple[tuple[str, str], ...] = ()
    payload: str = ""
    entries: str = ""


TABLE: Final[dict[Opcode, Row]] = {
    Opcode.HELLO: Row(
        Hello,
        (("version", "B"), ("store_id", "16s"), ("generation", "Q")),
        (("token", "bytes"), ("client", "text")),
    ),
    Opcode.WELCOME: Row(
        Welcome,
        (
            ("version", "B"),
            ("server_id", "16s"),
            ("payload_bytes_max", "I"),
            ("in_flight_bytes_max", "I"),
            ("entries_max", "I"),
        ),
        (("store_record", "bytes"),),
    ),
    Opcode.CHANGE_DIRECTORY: Row(
        ChangeDirectory,
        (("claim", "?"), ("epoch", "Q"), ("writer_id", "16s")),
        (("directory", "name"),),
    ),
    Opcode.DIRECTORY_OPENED: Row(
        DirectoryOpened, (("epoch", "Q"), ("writer_id", "16s")), (), entries="entries"
    ),
    Opcode.APPEND: Row(
        Append, (("expected_size", "Q"), ("prefix_digest", "Q")), (("name", "name"),), payload="payload"
    ),
    Opcode.WATERMARK: Row(Watermark, (("received", "Q"), ("synced", "Q")), (("name", "name"),)),
    Opcode.GET: Row(Get, (("offset", "Q"), ("max_bytes", "I"), ("wait_ms", "I")), (("name", "name"),)),
    Opcode.DATA: Row(Data, (("offset", "Q"), ("synced", "Q")), (("name", "name"),), payload="payload"),
    Opcode.LIST: Row(List, (("entries_max", "I"),), (("prefix", "name"), ("after", "name"))),
    Opcode.LISTING: Row(Listing, (("more", "?"),), (), entries="entries"),
    Opcode.STAT: Row(Stat, (("digest_at", "Q"),), (("name", "name"),)),
    Opcode.STAT_RESULT: Row(StatResult, (("digest_at", "Q"), ("digest", "Q")), (), entries="info"),
    Opcode.DELETE: Row(Delete, (), (("name", "name"),)),
    Opcode.CONFIGURE: Row(Configure, (), (("store_record", "bytes"),)),
    Opcode.CONFIGURED: Row(Configured, (("generation", "Q"),)),
    Opcode.PING: Row(Ping, payload="payload"),
    Opcode.PONG: Row(Pong, payload="payload"),
    Opcode.QUIT: Row(Quit),
    Opcode.BYE: Row(Bye),
    Opcode.ERROR: Row(
        Error,
        (("code", "H"), ("actual", "Q")),
        (("message", "text"), ("remedy", "text"), ("record", "bytes")),
    ),
}

_OPCODES: Final[dict[type[Any], Opcode]] = {row.cls: opcode for opcode, row in TABLE.items()}
_STRUCTS: Final = {
    opcode: struct.Struct(">" + "".join(code for _, code in row.fixed)) for opcode, row in TABLE.items()
}
_ENTRY: Final = struct.Struct(">QQQB")
_COUNT: Final = struct.Struct(">I")
_U16: Final = struct.Struct(">H")
_APPEND: Final = struct.Struct(">QQB")
_APPEND_OPCODE: Final = int(Opcode.APPEND)
assert _ENTRY.size == 25
assert len(_OPCODES) == len(TABLE) == len(Opcode)


def opcode_of(message: Message) -> Opcode:
    """The opcode of a message's class."""
    return _OPCODES[type(message)]


def encode(message: Message, request_id: int = 0) -> Frame:
    """The frame of a message. Raises LocalProtocolError when a value does not fit its field."""
    opcode = _OPCODES[type(message)]
    row = TABLE[opcode]
    try:
        parts = [_STRUCTS[opcode].pack(*[getattr(message, field) for field, _ in row.fixed])]
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


def decode(frame: Frame) -> Message:
    """The message in a frame. Raises RemoteProtocolError: UNKNOWN_OPCODE, or BAD_FRAME for a meta unlike its
    row.

    The frame around it was whole, so the caller may answer the error and read on.
    """
    if frame.opcode == _APPEND_OPCODE:
        return _decode_append(frame)
    try:
        opcode = Opcode(frame.opcode)
    except ValueError:
        raise RemoteProtocolError(
            f"opcode {frame.opcode} is not known", code=ErrorCode.UNKNOWN_OPCODE, request_id=frame.request_id
        ) from None
    row = TABLE[opcode]
    try:
        return _decode_row(frame, opcode, row)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise RemoteProtocolError(
            f"{opcode.name} with a meta unlike its layout: {error}", request_id=frame.request_id
        ) from error


def _decode_append(frame: Frame) -> Append:
    """`decode` for the one hot request; the property tests hold it to the table."""
    meta = frame.meta
    if len(meta) < _APPEND.size or len(meta) != _APPEND.size + meta[16]:
        raise RemoteProtocolError("APPEND with a meta unlike its layout", request_id=frame.request_id)
    size, digest, _ = _APPEND.unpack_from(meta)
    return Append(meta[17:].decode("latin-1"), size, digest, frame.payload)


def _decode_row(frame: Frame, opcode: Opcode, row: Row) -> Message:
    layout = _STRUCTS[opcode]
    values: dict[str, Any] = dict(
        zip((field for field, _ in row.fixed), layout.unpack_from(frame.meta), strict=True)
    )
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
            raise ValueError(f"one entry, not {len(entries)}")
        values[row.entries] = entries[0] if row.entries == "info" else entries
    elif len(frame.payload):
        raise ValueError(f"a payload of {len(frame.payload)} bytes where none belongs")
    message: Message = row.cls(**values)
    return message


def encode_entries(entries: tuple[ObjectInfo, ...]) -> bytes:
    """A payload of entries."""
    parts = [_COUNT.pack(len(entries))]
    for info in entries:
        marks = info.appending | info.corrupt << 1 | info.poisoned << 2
        parts += [
            _pack_variable("name", info.name),
            _ENTRY.pack(info.received, info.synced, info.digest, marks),
        ]
    return b"".join(parts)


def decode_entries(payload: Buffer) -> tuple[ObjectInfo, ...]:
    """The entries of a payload; ValueError or struct.error when it is not exactly that."""
    data = bytes(payload)
    (count,) = _COUNT.unpack_from(data)
    position = _COUNT.size
    entries = []
    for _ in range(count):
        name, position = _unpack_variable("name", data, position)
        received, synced, digest, marks = _ENTRY.unpack_from(data, position)
        if marks > 7:
            raise ValueError(f"marks {marks:#x} are not known")
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
    raise struct.error(f"{count} bytes do not fit a {kind}")


def _unpack_variable(kind: str, meta: bytes, position: int) -> tuple[Any, int]:
    if kind == "name":
        start, count = position + 1, meta[position] if position < len(meta) else 0
    else:
        start, (count,) = position + 2, _U16.unpack_from(meta, position)
    end = start + count
    if end > len(meta):
        raise ValueError(f"a {kind} of {count} bytes goes past the end")
    data = meta[start:end]
    if kind == "name":
        return data.decode("latin-1"), end
    return (data.decode() if kind == "text" else data), end
