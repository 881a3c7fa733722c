"""Events and effects of the server core: plain values, no behavior.

The shell reports events one at a time and performs the effects of each in the order given. Each effect
that has an outcome is reported back with exactly one event. `session` is a number that the shell assigns
to a connection and never reuses.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from dos_protocol.digests import Buffer
from dos_protocol.frames import Frame
from dos_protocol.messages import DurabilityAck, Message
from dos_server.core.access import Tokens
from dos_server.core.files.records import ClaimRecord, ObjectMark
from dos_server.core.files.recovery import RecoveredObject
from dos_server.core.files.scan import ExtentStart, FoldStarts, VerifiedChain, VerifyGoal
from dos_server.core.quotas import Quota

Event = tuple[Any, ...]
Effect = tuple[Any, ...]

# --- How disk operations end -------------------------------------------------------------------------------


class DiskFailure(Enum):
    NONE = "done"
    NO_SPACE = "no space left; nothing of it is in the file"
    TEMPORARY = "temporarily not possible; nothing of it is in the file"
    FAILED = "failed, its effect is unknown"
    GONE = "the file was removed or replaced under the running server"


class Removal(Enum):
    """The outcome of a removal."""

    GONE = "removed durably"
    INTACT = "failed; the object is unchanged"
    NOT_NOW = "temporarily not possible; the object is unchanged"
    LATER = "started, to be continued: the cause is temporary"
    UNKNOWN = "failed; only a restart can determine whether the object exists"


# --- Loading directories and objects -----------------------------------------------------------------------


class LoadDirectory(NamedTuple):
    """Load the directory's claim and objects from the disk, then report."""

    directory: str


class ForgetDirectory(NamedTuple):
    """The directory was dropped from memory: close its files."""

    directory: str


class DirectoryLoaded(NamedTuple):
    """`LoadDirectory` finished. `problem`: why the directory cannot be used, or ''. `temporary`: the next
    attempt may succeed.
    """

    directory: str
    exists: bool
    claim: ClaimRecord
    objects: dict[str, RecoveredObject]
    problem: str = ""
    temporary: bool = False


class DirectoriesLost(NamedTuple):
    """The folders of these directories were removed under the running server. The disk has noted it."""

    directories: tuple[str, ...]


class LoadObject(NamedTuple):
    """Judge a loaded object again, because its torn tail can now be copied aside and cut; then report."""

    directory: str
    name: str


class ObjectLoaded(NamedTuple):
    """`LoadObject` finished. `found`: the object now; None if it could not be judged and is unchanged."""

    directory: str
    name: str
    found: RecoveredObject | None


# --- Reads for GET and STAT --------------------------------------------------------------------------------


class ReadData(NamedTuple):
    """Read the verified content [start, end) of an object, walking from `extent`."""

    session: int
    request_id: int
    directory: str
    name: str
    extent: ExtentStart
    start: int
    end: int
    version: int = 0


class ReadDigest(NamedTuple):
    """Compute the prefix digest at a size, walking from `extents`."""

    session: int
    request_id: int
    directory: str
    name: str
    extents: FoldStarts
    size: int
    version: int = 0


class GotData(NamedTuple):
    """The answer to ReadData: the range in pieces, or its beginning. `damaged_at`: offset of damaged bytes.
    `missed`: why nothing was read, if that proves nothing. `after`: where a following read can continue.
    """

    read: ReadData
    parts: Sequence[Buffer] = ()
    damaged_at: int | None = None
    missed: str = ""
    after: ExtentStart | None = None


class GotDigest(NamedTuple):
    """The answer to ReadDigest, as `GotData`."""

    read: ReadDigest
    digest: int
    damaged_at: int | None = None
    missed: str = ""


# --- New copies (REPAIR) -----------------------------------------------------------------------------------


class WriteRepair(NamedTuple):
    """Write at a position of a new copy's own file. `copy`: unique among the copies of this incarnation of
    the server.
    """

    session: int
    directory: str
    name: str
    copy: int
    position: int
    buffers: list[Buffer]
    create: bool


class InstallRepair(NamedTuple):
    """Put the new copy on stable storage, then replace the old one by it. After a crash there is the old
    copy, the new one, or one that is known to be lost. `keep`: retain the old copy aside. `durable`,
    `poisoned`, `damaged`: for its mark.
    """

    session: int
    directory: str
    name: str
    copy: int
    exists: bool
    durable: int
    poisoned: bool
    damaged: bool
    keep: bool
    goal_size: int


class DropRepair(NamedTuple):
    """Delete the file of a new copy that is no longer wanted."""

    session: int
    directory: str
    name: str
    copy: int


class RepairInstalled(NamedTuple):
    """`InstallRepair` finished. `found`: None if it failed and only a restart can determine which copy is
    there.
    """

    session: int
    directory: str
    name: str
    found: RecoveredObject | None


# --- The scrub ---------------------------------------------------------------------------------------------


class ScrubDue(NamedTuple):
    """The next read of the scrub is due. `busy`: the disk is working for clients."""

    busy: bool


class ScrubRead(NamedTuple):
    """Read the next part of an object from the disk, bypassing the cache, and verify it. `goal`: what was
    synced when its verification began.
    """

    directory: str
    name: str
    chain: VerifiedChain
    goal: VerifyGoal


class ScrubReadDone(NamedTuple):
    """`ScrubRead` finished. `chain`: where to continue; `damaged_at`: where damage begins; both None: it
    could not be read.
    """

    read: ScrubRead
    chain: VerifiedChain | None
    damaged_at: int | None
    what: str
    seconds: float


class ScrubLater(NamedTuple):
    """Report `ScrubDue` after that many seconds."""

    seconds: float


class ScrubNow(NamedTuple):
    """End the wait for the next `ScrubDue`, if there is one."""


class LogNotice(NamedTuple):
    """Log a line for the operator. `bad`: action may be needed."""

    text: str
    bad: bool = True


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


class EffectDone(NamedTuple):
    """An effect finished that has no event of its own."""

    effect: Effect
    failure: DiskFailure


class WrittenMany(NamedTuple):
    """The first writes of a `WriteMany` finished, all or some. `failures`: of each of them."""

    writes: "Sequence[Write]"
    failures: Sequence[DiskFailure]


class SyncBegins(NamedTuple):
    """The requested sync starts now. It covers only what was written before this event."""

    directory: str
    name: str


class Synced(NamedTuple):
    """`Sync` finished. It covers what was written before its `SyncBegins`."""

    directory: str
    name: str
    failure: DiskFailure


class LogDue(NamedTuple):
    """All writes that were ordered in this round are reported, so that one record can have them all."""


class LogSynced(NamedTuple):
    """The record is on stable storage; a failure ends the server. `gone`: objects whose files were
    removed.
    """

    gone: frozenset[tuple[str, str]] = frozenset()


class Removed(NamedTuple):
    """`RemoveObject` finished."""

    session: int
    request_id: int
    directory: str
    name: str
    ending: Removal


class Requested(NamedTuple):
    """A complete request of a version 0 session, without its length prefix."""

    session: int
    body: bytes


class Streamed(NamedTuple):
    """Bytes that a version 0 session appends. The view is valid only until this event has been handled."""

    session: int
    data: Buffer


class SpaceSeen(NamedTuple):
    """Free space was measured. `total_bytes` 0: unknown. `room_before`: `room_bytes` when the measurement
    began.
    """

    free_bytes: int
    total_bytes: int
    room_before: int


class Tick(NamedTuple):
    """Time has passed."""


# --- Effects: what the core orders the shell to do ---


class Send(NamedTuple):
    """Send a message, whose payload `rest` continues. `request_id`: 0 if it answers no request."""

    session: int
    message: Message
    request_id: int = 0
    rest: Sequence[Buffer] = ()


class SendAcks(NamedTuple):
    """Send durability acks, each to a session, as `Send` does."""

    acks: Sequence[tuple[int, DurabilityAck]]


class CloseSession(NamedTuple):
    """Close the connection after everything before this effect has been sent."""

    session: int


class WriteClaim(NamedTuple):
    """Put the claim on stable storage, with the directory's folder and its ancestors, then report."""

    directory: str
    claim: ClaimRecord


class Write(NamedTuple):
    """Write the buffers at a position of the object's file, all or nothing. `create` makes the file. It is a
    part of `WriteMany`.
    """

    directory: str
    name: str
    position: int
    buffers: list[Buffer]
    create: bool


class WriteMany(NamedTuple):
    """Make writes of several objects. Each succeeds or fails alone; `WrittenMany` reports each once."""

    writes: Sequence[Write]


class Sync(NamedTuple):
    """Put everything written on stable storage; with `entry` the directory entry and its ancestors, too.
    `SyncBegins` reports its actual start, which determines what it covers.
    """

    directory: str
    name: str
    entry: bool


class WriteLog(NamedTuple):
    """Put a record of the group log on stable storage, and note it in `seen`. `objects`: whose names are
    checked afterwards.
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
    """Store the object's mark before its size is reported to any client. It is synced only if it says
    poisoned or damaged.
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
    """Delete a settled object durably. `durable`, `damaged`: for its mark. A crash leaves all of it or
    nothing.
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
