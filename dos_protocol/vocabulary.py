"""The messages as values.

One frozen class each, fields in the words of the design. Their bytes are in `messages`.
"""

from enum import IntEnum, unique
from typing import Final

import msgspec

from dos_protocol.digests import Buffer
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
    MEND = 11
    STAMP = 12
    WITNESS = 13

    WELCOME = 129
    DIRECTORY_OPENED = 130
    WATERMARK = 131
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
    ERROR = 255


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object as a server holds it, or in a listing of directories one directory (sizes 0).

    `synced <= received`; `digest` is the prefix digest at `synced`. `corrupt`: this copy must not be counted,
    it is damaged from `synced` on (0: the damage is somewhere inside) or `poisoned` (a write or sync failed
    since the server started).
    """

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
    """The server's identity, its limits, and its store record (empty: it is in no store).

    `rolled_back`: its disk is known to have gone back in time. In a session of a store, `stamp_number` and
    `stamp_id`: the newest stamp of its disk; `witnessed`: what it was told of the other members', see
    `stamps`."""

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


class DurabilityAck(msgspec.Struct, frozen=True):
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
    """Take a whole object away, for ever."""

    name: str


class Deleted(msgspec.Struct, frozen=True):
    """It is gone, durably, and the name is free."""

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


class RepairChunk(msgspec.Struct, frozen=True):
    """Bytes of a new copy of an object, at `offset` of it. The new copy is put in the place of the old one
    once it has `goal_size` bytes with the digest `goal_digest`.

    `old_size`, `old_digest`: the copy that is to go, as its entry told of it (0, 0: none). `overwrite`: the
    caller has shown that nothing it holds beyond the new copy was ever acknowledged."""

    name: str
    offset: int
    goal_size: int
    goal_digest: int
    old_size: int
    old_digest: int
    overwrite: bool
    payload: Buffer


class RepairAck(msgspec.Struct, frozen=True):
    """`size` bytes of the new copy are there; `done`: it stands in the place of the old one."""

    name: str
    size: int
    done: bool


class Stamp(msgspec.Struct, frozen=True):
    """Another member was told that the server's disk has this stamp. Number 0: nobody was; only asked."""

    number: int = 0
    stamp_id: bytes = NO_ID


class Stamped(msgspec.Struct, frozen=True):
    """It has. The newest stamp."""

    number: int
    stamp_id: bytes


class Witness(msgspec.Struct, frozen=True):
    """The newest stamp of another member's disk, to be kept.

    `before_*`: what the server was told of it before (number 0: nothing); that member was shown to have it.
    """

    server_id: bytes
    number: int
    stamp_id: bytes
    before_number: int = 0
    before_id: bytes = NO_ID


class Witnessed(msgspec.Struct, frozen=True):
    """What is kept now, on stable storage: another stamp than that told, if `before` was not what was."""

    server_id: bytes
    number: int
    stamp_id: bytes


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
    | DurabilityAck
    | Get
    | Data
    | List
    | Listing
    | Stat
    | StatResult
    | Delete
    | Deleted
    | Configure
    | Configured
    | Ping
    | Pong
    | Quit
    | Bye
    | RepairChunk
    | RepairAck
    | Stamp
    | Stamped
    | Witness
    | Witnessed
    | Error
)
