"""Messages: which one is legal when, one frozen class for each, and their bytes in frames.

Meta is the fixed fields of the message's row in `TABLE`, packed big-endian in order, then its variable
fields in order, and nothing after them:

    name   u8 length, then that many bytes (latin-1: a bad name is answered BAD_NAME, not lost in decoding)
    text   u16 length, then UTF-8
    bytes  u16 length, then that many bytes

`payload` fields are the payload. `entries` are a payload of u32 count and then, per entry: name | received
u64 | synced u64 | digest u64 | marks u8 (1 being appended, 2 corrupt, 4 poisoned).

A message is valid if and only if (1) its opcode has a row, (2) meta is exactly as the row defines, (3)
payload is empty unless the row has one.
"""

import functools
import struct
from collections.abc import Callable
from enum import Enum, IntEnum, unique
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from dos_protocol.digests import Buffer
from dos_protocol.errors import (
    ERRORS_BY_CODE,
    ErrorCode,
    LocalProtocolError,
    RefusedError,
    RemoteProtocolError,
)
from dos_protocol.frames import DURABILITY_ACK, Frame
from dos_protocol.limits import id_bytes, u64_max
from dos_protocol.names import NO_ID, check_id, printable

# --- The states of a session. The diagram in protocol.md is drawn from the table ----------------------------


class SessionState(Enum):
    """The state of a session on the server. A client derives its copy from the answers."""

    NEW = "NEW"
    """Connected. Only HELLO and QUIT are answered, for 5 s."""
    READY = "READY"
    """HELLO was answered. LIST names directories."""
    READING = "READING"
    """In a directory, without a claim."""
    CLAIMED = "CLAIMED"
    """In a directory, as its writer."""
    SUPERSEDED = "SUPERSEDED"
    """In a directory that another writer has claimed since, or in which an object was repaired since: reads
    continue."""
    CLOSED = "CLOSED"


class SessionEvent(Enum):
    WELCOMED = "HELLO answered WELCOME"
    OPENED = "CWD answered DIRECTORY_OPENED"
    CLAIMED = "claim answered DIRECTORY_OPENED"
    SUPERSEDED = "a later claim of the directory, or a repaired object in it"
    ENDED = "the end"


_OPENING: Final = {
    SessionEvent.OPENED: SessionState.READING,
    SessionEvent.CLAIMED: SessionState.CLAIMED,
    SessionEvent.ENDED: SessionState.CLOSED,
}

SESSION_TABLE: Final[dict[SessionState, dict[SessionEvent, SessionState]]] = {
    SessionState.NEW: {
        SessionEvent.WELCOMED: SessionState.READY,
        SessionEvent.ENDED: SessionState.CLOSED,
    },
    SessionState.READY: _OPENING,
    SessionState.READING: _OPENING | {SessionEvent.SUPERSEDED: SessionState.SUPERSEDED},
    SessionState.CLAIMED: _OPENING | {SessionEvent.SUPERSEDED: SessionState.SUPERSEDED},
    SessionState.SUPERSEDED: _OPENING,
    SessionState.CLOSED: {},
}


def step(state: SessionState, event: SessionEvent) -> SessionState:
    try:
        return SESSION_TABLE[state][event]
    except KeyError:
        raise LocalProtocolError(
            f"event {event.name} is not valid for a session in state {state.name}"
        ) from None


def diagram() -> str:
    lines = ["stateDiagram-v2", "    [*] --> NEW"]
    for state, row in SESSION_TABLE.items():
        lines += [f"    {state.name} --> {after.name}: {event.value}" for event, after in row.items()]
    return "\n".join([*lines, "    CLOSED --> [*]"])


# --- The messages -------------------------------------------------------------------------------------------


NO_DIGEST: Final = u64_max
"""Value of `Stat.digest_at` that requests no digest."""


@unique
class Opcode(IntEnum):
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
    REPAIR = 11
    STAMP = 12
    WITNESS = 13
    SCRUB = 14

    WELCOME = 129
    DIRECTORY_OPENED = 130
    DURABILITY_ACK = 131
    DATA = 132
    LISTING = 133
    STAT_RESULT = 134
    DELETED = 135
    CONFIGURED = 136
    PONG = 137
    BYE = 138
    REPAIRED = 139
    STAMPED = 140
    WITNESSED = 141
    SCRUBBED = 142
    ERROR = 255


class Message(msgspec.Struct, frozen=True):
    """One message, of a class that has a row in `TABLE`."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object as a server holds it. In a listing of directories: one directory, with sizes 0.

    `synced <= received`. `digest` is the prefix digest at `synced`. `corrupt`: this copy must not be counted,
    because it is damaged from `synced` on (0: somewhere inside), or `poisoned`: a write or sync failed since
    the start.
    """

    name: str
    received: int = 0
    synced: int = 0
    digest: int = 0
    appending: bool = False
    corrupt: bool = False
    poisoned: bool = False


class Hello(Message, frozen=True):
    """The first message of a session. `store_id` NO_ID: the session is with this one server only."""

    version: int = 1
    token: bytes = b""
    store_id: bytes = NO_ID
    generation: int = 0
    client: str = ""


class Welcome(Message, frozen=True):
    """The server's identity, its limits, and its store record (empty: it is in no store).

    In a session of a store also the newest stamp of its disk, and `witnessed`: the stamps of other members.
    """

    version: int
    server_id: bytes
    payload_bytes_max: int
    in_flight_bytes_max: int
    entries_max: int
    store_record: bytes = b""
    stamp_number: int = 0
    stamp_id: bytes = NO_ID
    rolled_back: bool = False
    witnessed: bytes = b""
    refuses_appends: bool = False


class ChangeDirectory(Message, frozen=True):
    """CWD: open a directory to read, or claim it as its one writer."""

    directory: str
    claim: bool = False
    epoch: int = 0
    writer_id: bytes = NO_ID


class DirectoryOpened(Message, frozen=True):
    """The answer to CWD: the claim held now (epoch 0: there never was one) and every object."""

    epoch: int
    writer_id: bytes
    entries: tuple[ObjectInfo, ...] = ()


class Append(Message, frozen=True):
    """Append bytes at exactly `expected_size`, after content with exactly `prefix_digest`."""

    name: str
    expected_size: int
    prefix_digest: int
    payload: Buffer


class DurabilityAck(Message, frozen=True):
    """Bytes below `received` are in the server's file, below `synced` on stable storage. Cumulative."""

    name: str
    received: int
    synced: int


class Get(Message, frozen=True):
    """Read at most `max_bytes` from `offset` on. If there are none yet, wait up to `wait_ms` for the first
    ones.
    """

    name: str
    offset: int
    max_bytes: int
    wait_ms: int = 0


class Data(Message, frozen=True):
    """The answer to GET: durable bytes; empty at the synced end."""

    name: str
    offset: int
    synced: int
    payload: Buffer


class List(Message, frozen=True):
    """List names in order: those with the prefix that sort after `after`. Directories before CWD, objects
    after it.
    """

    prefix: str = ""
    after: str = ""
    entries_max: int = 1_000


class Listing(Message, frozen=True):
    """One page of names. `more`: request the next page with the last name as `after`."""

    entries: tuple[ObjectInfo, ...] = ()
    more: bool = False


class Stat(Message, frozen=True):
    """Read the sizes of one object and the digest of a prefix of it (NO_DIGEST: none)."""

    name: str
    digest_at: int = NO_DIGEST


class StatResult(Message, frozen=True):
    """The answer to STAT. `digest` is 0 if none was requested."""

    info: ObjectInfo
    digest_at: int
    digest: int


class Delete(Message, frozen=True):
    """Delete a whole object permanently."""

    name: str


class Deleted(Message, frozen=True):
    """The object was deleted durably. Its name is free."""

    name: str


class Configure(Message, frozen=True):
    """Install a newer store record."""

    store_record: bytes


class Configured(Message, frozen=True):
    generation: int


class Ping(Message, frozen=True):
    """Request an answer with the same payload."""

    payload: Buffer = b""


class Pong(Message, frozen=True):
    payload: Buffer = b""


class Quit(Message, frozen=True):
    """End the session after everything before it is answered."""


class Bye(Message, frozen=True):
    """The last message of a server."""


class RepairChunk(Message, frozen=True):
    """Bytes of a new copy of an object, at `offset` of it.

    It replaces the old copy, which its entry reports as `old_size`, `old_digest` (0, 0: none), when it has
    `goal_size` bytes with the digest `goal_digest`. `overwrite`: the caller has shown that nothing that the
    old copy holds beyond the new one was ever acknowledged.
    """

    name: str
    offset: int
    goal_size: int
    goal_digest: int
    old_size: int
    old_digest: int
    overwrite: bool
    payload: Buffer


class RepairAck(Message, frozen=True):
    """The answer to REPAIR: `size` bytes of the new copy are there. `done`: it has replaced the old one."""

    name: str
    size: int
    done: bool


class Stamp(Message, frozen=True):
    """Announce that another member witnessed this stamp of the server's disk. Number 0: none."""

    number: int = 0
    stamp_id: bytes = NO_ID


class Stamped(Message, frozen=True):
    """The announced stamp proves nothing against the disk. The answer is its newest stamp."""

    number: int
    stamp_id: bytes


class Witness(Message, frozen=True):
    """The newest stamp of another member's disk, to be kept. `before_*`: the stamp that the server kept
    before, which the member was shown to have; number 0: none.
    """

    server_id: bytes
    number: int
    stamp_id: bytes
    before_number: int = 0
    before_id: bytes = NO_ID


class Witnessed(Message, frozen=True):
    """The stamp that is kept now, on stable storage. Another than the one sent if `before` did not match."""

    server_id: bytes
    number: int
    stamp_id: bytes


class ScrubRequest(Message, frozen=True):
    """Report the progress of the scrub. `begin`: first begin a round over everything, at `bytes_per_s` (0:
    the server's rate).
    """

    begin: bool = False
    bytes_per_s: int = 0


class ScrubProgress(Message, frozen=True):
    """The answer to SCRUB. `rounds`: completed since the start; `directories_left`: in this round, 0 between
    rounds.
    """

    rounds: int
    objects: int
    bytes: int
    damaged: int
    directories_left: int


class Error(Message, frozen=True):
    """A refusal. The code defines what `actual` means. `record`: the server's store record where it helps."""

    code: int
    message: str = ""
    remedy: str = ""
    actual: int = 0
    record: bytes = b""


def refused(error: Error) -> RefusedError:
    """Return the exception for an ERROR message. What is not printable in its texts is escaped: they reach
    terminals.
    """
    error = msgspec.structs.replace(error, message=printable(error.message), remedy=printable(error.remedy))
    try:
        code = ErrorCode(error.code)
    except ValueError:
        return RefusedError(
            f"the server refused with code {error.code}, unknown to this client: {error.message}",
            code=ErrorCode.INTERNAL,
            remedy=error.remedy,
            actual=error.actual,
            record=error.record,
        )
    cls = ERRORS_BY_CODE.get(code, RefusedError)
    return cls(error.message, code=code, remedy=error.remedy, actual=error.actual, record=error.record)


# --- Their bytes --------------------------------------------------------------------------------------------


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
    Opcode.DURABILITY_ACK: MessageLayout(
        DurabilityAck, (("received", "Q"), ("synced", "Q")), (("name", "name"),)
    ),
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
    Opcode.REPAIR: MessageLayout(
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
    Opcode.REPAIRED: MessageLayout(RepairAck, (("size", "Q"), ("done", "?")), (("name", "name"),)),
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
_DURABILITY_ACK_OPCODE: Final = int(Opcode.DURABILITY_ACK)
assert _ENTRY.size == 25
assert _DURABILITY_ACK_OPCODE == DURABILITY_ACK
assert len(_PLANS_BY_CLASS) == len(TABLE) == len(Opcode)


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
    try:
        name = message.name.encode("latin-1")
        meta = _DURABILITY_ACK.pack(message.received, message.synced, len(name)) + name
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"a value of Watermark does not fit its field: {error}") from error
    return Frame(_DURABILITY_ACK_OPCODE, request_id, meta)


def decode(frame: Frame) -> Message:
    """Return the message in a frame. Raises RemoteProtocolError, UNKNOWN_OPCODE or BAD_FRAME; the frame
    itself was valid, so reading may continue.
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
    """`decode` for the most frequent request. Property tests compare these fast paths with the table."""
    meta = frame.meta
    if len(meta) < _APPEND.size or len(meta) != _APPEND.size + meta[16]:
        raise RemoteProtocolError("the layout of APPEND is wrong", request_id=frame.request_id)
    size, digest, _ = _APPEND.unpack_from(meta)
    return Append(meta[17:].decode("latin-1"), size, digest, frame.payload)


def _decode_durability_ack(frame: Frame) -> DurabilityAck:
    meta = frame.meta
    if len(meta) < _DURABILITY_ACK.size or len(meta) != _DURABILITY_ACK.size + meta[16] or len(frame.payload):
        raise RemoteProtocolError("the layout of DURABILITY_ACK is wrong", request_id=frame.request_id)
    received, synced, _ = _DURABILITY_ACK.unpack_from(meta)
    return DurabilityAck(meta[17:].decode("latin-1"), received, synced)


def _decode_row(frame: Frame, plan: _Plan) -> Message:
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
    parts = [_COUNT.pack(len(entries))]
    for info in entries:
        name = info.name.encode("latin-1")
        marks = info.appending | info.corrupt << 1 | info.poisoned << 2
        entry = _entry_of(len(name))
        parts.append(entry.pack(len(name), name, info.received, info.synced, info.digest, marks))
    return b"".join(parts)


@functools.cache
def _entry_of(name_bytes: int) -> struct.Struct:
    return struct.Struct(f">B{name_bytes}sQQQB")


def decode_entries(payload: Buffer) -> tuple[ObjectInfo, ...]:
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
