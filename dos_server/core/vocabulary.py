"""What the core hears and what it asks for. Events come in one at a time, effects go out in order.

Rules of this file: values only. The shell performs effects in the order given, and reports each that has an
answer with exactly one event. `session` is a number that the shell gives to a connection and never uses
again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dos_protocol.digests import Buffer
from dos_protocol.frames import Frame
from dos_protocol.messages import Message
from dos_server.core import copies, loads, readings, scrub_reads
from dos_server.core.copies import DropRepair as DropRepair
from dos_server.core.copies import InstallRepair as InstallRepair
from dos_server.core.copies import RepairInstalled as RepairInstalled
from dos_server.core.copies import RepairWritten as RepairWritten
from dos_server.core.copies import WriteRepair as WriteRepair
from dos_server.core.failures import DiskFailure as DiskFailure
from dos_server.core.failures import Removal as Removal
from dos_server.core.loads import DirectoryLoaded as DirectoryLoaded
from dos_server.core.loads import ForgetDirectory as ForgetDirectory
from dos_server.core.loads import LoadDirectory as LoadDirectory
from dos_server.core.loads import LoadObject as LoadObject
from dos_server.core.loads import ObjectLoaded as ObjectLoaded
from dos_server.core.readings import GotData as GotData
from dos_server.core.readings import GotDigest as GotDigest
from dos_server.core.readings import ReadData as ReadData
from dos_server.core.readings import ReadDigest as ReadDigest
from dos_server.core.records import ClaimRecord, ObjectMark

# Events


class Connected(NamedTuple):
    session: int


class Received(NamedTuple):
    """A whole frame. Its payload may be a view that is good only until `BatchEnded` has been handled."""

    session: int
    frame: Frame


class ReceivedAppends(NamedTuple):
    """Whole frames with the opcode of APPEND, in order: the same as each of them alone."""

    session: int
    frames: Sequence[Frame]


class BatchEnded(NamedTuple):
    """No more frames at hand: what was accepted may be written now."""


class HalfClosed(NamedTuple):
    """The peer sends no more, and may still read: it gets its answers, then the session ends."""

    session: int


class ConnectionEnded(NamedTuple):
    """The connection is gone. What it had accepted is still carried out."""

    session: int


class ClaimStored(NamedTuple):
    directory: str
    claim: ClaimRecord
    trouble: DiskFailure


class Written(NamedTuple):
    directory: str
    name: str
    trouble: DiskFailure


class SyncBegins(NamedTuple):
    """The sync that was asked for starts now: it covers what was written until here, and no more."""

    directory: str
    name: str


class Synced(NamedTuple):
    directory: str
    name: str
    trouble: DiskFailure


class RecordStored(NamedTuple):
    session: int
    request_id: int
    record: bytes
    trouble: DiskFailure


class StampsStored(NamedTuple):
    session: int
    request_id: int
    name: str
    data: bytes
    trouble: DiskFailure


class Removed(NamedTuple):
    """A removal has ended."""

    session: int
    request_id: int
    directory: str
    name: str
    ending: Removal


class DirectoryMade(NamedTuple):
    """The directory is there, durably, or not."""

    session: int
    directory: str
    trouble: DiskFailure


class Requested(NamedTuple):
    """A whole request of a version 0 session, without its length."""

    session: int
    body: bytes


class Streamed(NamedTuple):
    """Bytes that a version 0 session appends. A view that is good only until this has been handled."""

    session: int
    data: Buffer


class SpaceSeen(NamedTuple):
    """What is free on the file system, and its size; 0: it does not say. `room_before`: `ServerCore`'s
    `room_bytes` before the look."""

    free_bytes: int
    total_bytes: int
    room_before: int


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    Connected
    | Received
    | ReceivedAppends
    | BatchEnded
    | HalfClosed
    | ConnectionEnded
    | ClaimStored
    | Written
    | SyncBegins
    | Synced
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

# Effects


class Send(NamedTuple):
    session: int
    message: Message
    request_id: int = 0


class CloseSession(NamedTuple):
    """Close the connection once everything before this has been sent."""

    session: int


class WriteClaim(NamedTuple):
    """Put the claim on stable storage, the folder and its ancestors too, then report."""

    directory: str
    claim: ClaimRecord


class Write(NamedTuple):
    """Write the buffers at a position of the object's file, whole or not at all; `create` makes the file."""

    directory: str
    name: str
    position: int
    buffers: list[Buffer]
    create: bool


class Sync(NamedTuple):
    """Put everything written so far on stable storage; with `entry` the directory entry and its ancestors.
    It may wait for a thread; `SyncBegins` says when it really begins, which is what it covers."""

    directory: str
    name: str
    entry: bool


class SetMark(NamedTuple):
    """Note what is synced at least, before it is told to anyone. Need not be synced itself, unless poisoned
    or damaged."""

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
    """Take a settled object away, durably, then report.

    After a crash on the way there is the whole object or nothing. `durable`, `damaged`: as its mark says.
    """

    session: int
    request_id: int
    directory: str
    name: str
    durable: int
    damaged: bool


class MakeDirectory(NamedTuple):
    """Make the directory, durably, then report."""

    session: int
    directory: str


class SendBytes(NamedTuple):
    """Bytes to a version 0 session, as they are."""

    session: int
    data: Buffer


class LogReason(NamedTuple):
    """Why the session ends, for the log: the peer may be told in fewer words, or in none."""

    session: int
    text: str


Effect = (
    Send
    | CloseSession
    | WriteClaim
    | Write
    | Sync
    | SetMark
    | WriteStoreRecord
    | WriteStamps
    | RemoveObject
    | MakeDirectory
    | SendBytes
    | LogReason
    | loads.Effect
    | readings.Effect
    | copies.Effect
    | scrub_reads.Effect
)
