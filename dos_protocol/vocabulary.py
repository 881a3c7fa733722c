"""The messages as values: one frozen class per message. `messages` encodes and decodes them."""

from enum import IntEnum, unique
from typing import Final

import msgspec

from dos_protocol.digests import Buffer
from dos_protocol.errors import ERRORS_BY_CODE, ErrorCode, RefusedError
from dos_protocol.limits import u64_max
from dos_protocol.names import NO_ID, printable

NO_DIGEST: Final = u64_max
"""Value of `Stat.digest_at` that requests no digest."""


@unique
class Opcode(IntEnum):
    """The message type in a frame. Values below 128 are requests, from 128 on answers. Never reused."""

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
    SCRUB = 14

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
    MENDED = 139
    STAMPED = 140
    WITNESSED = 141
    SCRUBBED = 142
    ERROR = 255


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object as a server holds it. In a listing of directories: one directory, with sizes 0.

    `synced <= received`. `digest` is the prefix digest at `synced`. `appending`: an append is in progress.
    `corrupt`: this copy must not be counted. It is damaged from `synced` on (0: the damage is somewhere
    inside), or it is `poisoned`: a write or sync failed since the server started.
    """

    name: str
    received: int = 0
    synced: int = 0
    digest: int = 0
    appending: bool = False
    corrupt: bool = False
    poisoned: bool = False


class Hello(msgspec.Struct, frozen=True):
    """The first message of a session. `store_id` NO_ID: the session is with this one server only."""

    version: int = 1
    token: bytes = b""
    store_id: bytes = NO_ID
    generation: int = 0
    client: str = ""


class Welcome(msgspec.Struct, frozen=True):
    """The server's identity, its limits, and its store record (empty: it is in no store).

    `rolled_back`: its disk is known to have gone back in time. `refuses_appends`: its disk is full. In a
    session of a store also `stamp_number` and `stamp_id`, the newest stamp of its disk, and `witnessed`, the
    stamps of other members that it keeps (see `stamps`).
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


class ChangeDirectory(msgspec.Struct, frozen=True):
    """CWD: open a directory to read, or claim it as its one writer."""

    directory: str
    claim: bool = False
    epoch: int = 0
    writer_id: bytes = NO_ID


class DirectoryOpened(msgspec.Struct, frozen=True):
    """The answer to CWD: the claim held now (epoch 0: there never was one) and every object."""

    epoch: int
    writer_id: bytes
    entries: tuple[ObjectInfo, ...] = ()


class Append(msgspec.Struct, frozen=True):
    """Append bytes at exactly `expected_size`, after content with exactly `prefix_digest`."""

    name: str
    expected_size: int
    prefix_digest: int
    payload: Buffer


class DurabilityAck(msgspec.Struct, frozen=True):
    """The durability ack: bytes below `received` are in the server's file, below `synced` on stable storage.

    Cumulative. Not related to event-time watermarks.
    """

    name: str
    received: int
    synced: int


class Get(msgspec.Struct, frozen=True):
    """Read at most `max_bytes` bytes from `offset` on.

    If there are none yet, the answer waits up to `wait_ms` milliseconds for the first ones.
    """

    name: str
    offset: int
    max_bytes: int
    wait_ms: int = 0


class Data(msgspec.Struct, frozen=True):
    """The answer to GET: durable bytes; empty at the synced end."""

    name: str
    offset: int
    synced: int
    payload: Buffer


class List(msgspec.Struct, frozen=True):
    """List names in order: those with the prefix that sort after `after`.

    Lists directories before CWD, objects after it.
    """

    prefix: str = ""
    after: str = ""
    entries_max: int = 1_000


class Listing(msgspec.Struct, frozen=True):
    """One page of names. `more`: request the next page with the last name as `after`."""

    entries: tuple[ObjectInfo, ...] = ()
    more: bool = False


class Stat(msgspec.Struct, frozen=True):
    """Read the sizes of one object and the digest of a prefix of it (NO_DIGEST: none)."""

    name: str
    digest_at: int = NO_DIGEST


class StatResult(msgspec.Struct, frozen=True):
    """The answer to STAT. `digest` is 0 if none was requested."""

    info: ObjectInfo
    digest_at: int
    digest: int


class Delete(msgspec.Struct, frozen=True):
    """Delete a whole object permanently."""

    name: str


class Deleted(msgspec.Struct, frozen=True):
    """The object was deleted durably. Its name is free."""

    name: str


class Configure(msgspec.Struct, frozen=True):
    """Install a newer store record."""

    store_record: bytes


class Configured(msgspec.Struct, frozen=True):
    """The store record of that generation is on stable storage."""

    generation: int


class Ping(msgspec.Struct, frozen=True):
    """Request an answer with the same payload."""

    payload: Buffer = b""


class Pong(msgspec.Struct, frozen=True):
    """The answer to PING, with its payload."""

    payload: Buffer = b""


class Quit(msgspec.Struct, frozen=True):
    """End the session after everything before it is answered."""


class Bye(msgspec.Struct, frozen=True):
    """The last message of a server."""


class RepairChunk(msgspec.Struct, frozen=True):
    """Bytes of a new copy of an object, at `offset` of it (a repair).

    The new copy replaces the old one when it has `goal_size` bytes with the digest `goal_digest`. `old_size`,
    `old_digest`: the copy to be replaced, as its entry reports it (0, 0: none). `overwrite`: the caller has
    shown that nothing that the old copy holds beyond the new one was ever acknowledged.
    """

    name: str
    offset: int
    goal_size: int
    goal_digest: int
    old_size: int
    old_digest: int
    overwrite: bool
    payload: Buffer


class RepairAck(msgspec.Struct, frozen=True):
    """The answer to MEND: `size` bytes of the new copy were received. `done`: it has replaced the old one."""

    name: str
    size: int
    done: bool


class Stamp(msgspec.Struct, frozen=True):
    """Announce that another member witnessed this stamp of the server's disk. Number 0: none."""

    number: int = 0
    stamp_id: bytes = NO_ID


class Stamped(msgspec.Struct, frozen=True):
    """The announced stamp proves nothing against the disk. The answer is its newest stamp."""

    number: int
    stamp_id: bytes


class Witness(msgspec.Struct, frozen=True):
    """The newest stamp of another member's disk, to be kept.

    `before_*`: the stamp of that member that the server kept before (number 0: none). The member was shown to
    have it.
    """

    server_id: bytes
    number: int
    stamp_id: bytes
    before_number: int = 0
    before_id: bytes = NO_ID


class Witnessed(msgspec.Struct, frozen=True):
    """The stamp that is kept now, on stable storage. Another than the one sent if `before` did not match."""

    server_id: bytes
    number: int
    stamp_id: bytes


class ScrubRequest(msgspec.Struct, frozen=True):
    """Report the progress of the scrub, which verifies all stored objects on the disk. `begin`: first begin a
    round over everything. `bytes_per_s`: the rate of that round; 0: the server's own.
    """

    begin: bool = False
    bytes_per_s: int = 0


class ScrubProgress(msgspec.Struct, frozen=True):
    """The answer to SCRUB. `rounds`: completed since the server started; a round that `begin` began is
    complete when this number has grown. `objects`, `bytes`, `damaged`: verified and found damaged since the
    start. `directories_left`: in this round; 0 between rounds.
    """

    rounds: int
    objects: int
    bytes: int
    damaged: int
    directories_left: int


class Error(msgspec.Struct, frozen=True):
    """A refusal.

    `actual`: a number whose meaning depends on the code. `record`: the server's store record where it helps.
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
    | ScrubRequest
    | ScrubProgress
    | Error
)


def refused(error: Error) -> RefusedError:
    """Return the exception for an ERROR message, of the class for its code. Its texts reach terminals and
    logs, so what is not printable is escaped.
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
