"""Events and effects of the server core: plain values, no behavior.

The shell reports events one at a time and performs the effects of each in the order given. Each effect that
has an outcome is reported back with exactly one event. `session` is a number that the shell assigns to a
connection and never reuses.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dos_protocol.digests import Buffer
from dos_protocol.frames import Frame
from dos_protocol.messages import Message
from dos_server.core import copies, loads, readings, scrub_reads
from dos_server.core.access import Tokens
from dos_server.core.copies import DropRepair as DropRepair
from dos_server.core.copies import InstallRepair as InstallRepair
from dos_server.core.copies import RepairInstalled as RepairInstalled
from dos_server.core.copies import RepairWritten as RepairWritten
from dos_server.core.copies import WriteRepair as WriteRepair
from dos_server.core.failures import DiskFailure as DiskFailure
from dos_server.core.failures import Removal as Removal
from dos_server.core.files.records import ClaimRecord, ObjectMark
from dos_server.core.loads import DirectoriesLost as DirectoriesLost
from dos_server.core.loads import DirectoryLoaded as DirectoryLoaded
from dos_server.core.loads import ForgetDirectory as ForgetDirectory
from dos_server.core.loads import LoadDirectory as LoadDirectory
from dos_server.core.loads import LoadObject as LoadObject
from dos_server.core.loads import ObjectLoaded as ObjectLoaded
from dos_server.core.quota_file import Quota
from dos_server.core.readings import GotData as GotData
from dos_server.core.readings import GotDigest as GotDigest
from dos_server.core.readings import ReadData as ReadData
from dos_server.core.readings import ReadDigest as ReadDigest

# --- Events: what the shell reports to the core ---


class Connected(NamedTuple):
    """A connection was accepted. host: the address of the client, without its port."""

    session: int
    host: str = ""


class QuotasChanged(NamedTuple):
    """Other quotas are in force from now on."""

    quotas: tuple[Quota, ...]


class TokensChanged(NamedTuple):
    """From now on these tokens are valid."""

    tokens: Tokens


class Received(NamedTuple):
    """A complete frame arrived. Its payload may be a view, valid only until `BatchEnded` is handled."""

    session: int
    frame: Frame


class ReceivedAppends(NamedTuple):
    """Complete APPEND frames arrived, in order. Equivalent to one `Received` for each of them."""

    session: int
    frames: Sequence[Frame]


class BatchEnded(NamedTuple):
    """No more frames are available now, so the accepted appends can be written."""


class HalfClosed(NamedTuple):
    """The peer shut down its sending side and can still read. After its answers the session ends."""

    session: int


class ConnectionEnded(NamedTuple):
    """The connection is closed. Requests accepted from it are still carried out."""

    session: int


class ClaimStored(NamedTuple):
    """`WriteClaim` finished."""

    directory: str
    claim: ClaimRecord
    failure: DiskFailure


class Written(NamedTuple):
    """`Write` finished."""

    directory: str
    name: str
    failure: DiskFailure


class SyncBegins(NamedTuple):
    """The requested sync starts now. It covers only what was written before this event."""

    directory: str
    name: str


class Synced(NamedTuple):
    """`Sync` finished. It covers what was written before its `SyncBegins`."""

    directory: str
    name: str
    failure: DiskFailure


class RecordStored(NamedTuple):
    """`WriteStoreRecord` finished."""

    session: int
    request_id: int
    record: bytes
    failure: DiskFailure


class LogDue(NamedTuple):
    """All writes that were ordered in this round are reported, so that one record can have them all."""


class LogSynced(NamedTuple):
    """`WriteLog` finished: the record is on stable storage. There is no event for a failure, which ends the
    server. `gone`: objects whose files were removed or replaced under the running server.
    """

    gone: frozenset[tuple[str, str]] = frozenset()


class ClaimFiled(NamedTuple):
    """`FileClaim` finished."""

    directory: str
    claim: ClaimRecord
    failure: DiskFailure


class StampsStored(NamedTuple):
    """`WriteStamps` finished."""

    session: int
    request_id: int
    name: str
    data: bytes
    failure: DiskFailure


class Removed(NamedTuple):
    """`RemoveObject` finished."""

    session: int
    request_id: int
    directory: str
    name: str
    ending: Removal


class DirectoryMade(NamedTuple):
    """`MakeDirectory` finished. Without trouble, the directory is durable."""

    session: int
    directory: str
    failure: DiskFailure


class Requested(NamedTuple):
    """A complete request of a version 0 session, without its length prefix."""

    session: int
    body: bytes


class Streamed(NamedTuple):
    """Bytes that a version 0 session appends. The view is valid only until this event has been handled."""

    session: int
    data: Buffer


class SpaceSeen(NamedTuple):
    """Free space of the file system was measured.

    `free_bytes`: free space. `total_bytes`: size of the file system; 0 if it does not report it.
    `room_before`: the core's `room_bytes` when the measurement began.
    """

    free_bytes: int
    total_bytes: int
    room_before: int


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    Connected
    | TokensChanged
    | QuotasChanged
    | Received
    | ReceivedAppends
    | BatchEnded
    | HalfClosed
    | ConnectionEnded
    | ClaimStored
    | Written
    | SyncBegins
    | Synced
    | LogDue
    | LogSynced
    | ClaimFiled
    | RecordStored
    | StampsStored
    | Removed
    | DirectoryMade
    | Requested
    | Streamed
    | SpaceSeen
    | Tick
    | loads.Event
    | readings.Event
    | copies.Event
    | scrub_reads.Event
)

# --- Effects: what the core orders the shell to do ---


class Send(NamedTuple):
    """Send a message. `request_id` is 0 for a message that answers no request."""

    session: int
    message: Message
    request_id: int = 0


class CloseSession(NamedTuple):
    """Close the connection after everything before this effect has been sent."""

    session: int


class WriteClaim(NamedTuple):
    """Put the claim on stable storage, with the directory's folder and its ancestors, then report."""

    directory: str
    claim: ClaimRecord


class Write(NamedTuple):
    """Write the buffers at a position of the object's file, all or nothing. `create` makes the file."""

    directory: str
    name: str
    position: int
    buffers: list[Buffer]
    create: bool


class Sync(NamedTuple):
    """Put everything written so far on stable storage; with `entry` the directory entry, too.

    `entry` includes the ancestors of the directory. The sync may wait for a thread. `SyncBegins` reports its
    actual start, which determines what it covers.
    """

    directory: str
    name: str
    entry: bool


class WriteLog(NamedTuple):
    """Put a record of the group log on stable storage, note it in `seen`, then report.

    `seen_bytes`: the length of its header and table. `objects`: directory and name of objects whose bytes it
    has, and whose names are checked afterwards. A failure ends the server: see `Halt`.
    """

    slot: int
    offset: int
    record: bytearray
    seen_bytes: int
    objects: Sequence[tuple[str, str]]


class FileClaim(NamedTuple):
    """Put a claim that the group log has on stable storage in its file, then report."""

    directory: str
    claim: ClaimRecord


class Halt(NamedTuple):
    """End the server at once, without syncing anything: only a restart can tell what is on the disk."""

    reason: str


class SetMark(NamedTuple):
    """Store the object's mark, a lower bound of its synced size, before that size is reported to any client.

    The mark itself need not be synced, unless it says poisoned or damaged.
    """

    directory: str
    mark: ObjectMark


class WriteStoreRecord(NamedTuple):
    """Put the store record on stable storage, then report."""

    session: int
    request_id: int
    record: bytes


class WriteStamps(NamedTuple):
    """Put one of the files `stamps` and `witnessed` on stable storage, then report."""

    session: int
    request_id: int
    name: str
    data: bytes


class RemoveObject(NamedTuple):
    """Delete a settled object durably, then report.

    After a crash during the removal, either the whole object exists or none of it. `durable` and `damaged`
    are the values for its mark.
    """

    session: int
    request_id: int
    directory: str
    name: str
    durable: int
    damaged: bool


class MakeDirectory(NamedTuple):
    """Create the directory durably, then report."""

    session: int
    directory: str


class SendBytes(NamedTuple):
    """Send bytes to a version 0 session without framing."""

    session: int
    data: Buffer


class LogReason(NamedTuple):
    """Log why a session ends. The peer may receive a shorter reason, or none."""

    session: int
    text: str


class Audit(NamedTuple):
    """Log for an operator what was changed or refused. session: 0 is the server itself. token: its name."""

    session: int
    token: str
    action: str


Effect = (
    Send
    | CloseSession
    | WriteClaim
    | Write
    | Sync
    | WriteLog
    | FileClaim
    | Halt
    | SetMark
    | WriteStoreRecord
    | WriteStamps
    | RemoveObject
    | MakeDirectory
    | SendBytes
    | LogReason
    | Audit
    | loads.Effect
    | readings.Effect
    | copies.Effect
    | scrub_reads.Effect
)
