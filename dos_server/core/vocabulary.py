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
from dos_server.core import looks
from dos_server.core.endings import Removal as Removal
from dos_server.core.endings import Trouble as Trouble
from dos_server.core.index import Place
from dos_server.core.records import Claim
from dos_server.core.recovery_scan import Found

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


class Ended(NamedTuple):
    """The connection is gone. What it had accepted is still carried out."""

    session: int


class DirectoryLoaded(NamedTuple):
    """`objects` by name; `problem` non-empty: it cannot be used, and why."""

    directory: str
    exists: bool
    claim: Claim
    objects: dict[str, Found]
    problem: str = ""


class ClaimStored(NamedTuple):
    directory: str
    claim: Claim
    trouble: Trouble


class Written(NamedTuple):
    directory: str
    name: str
    trouble: Trouble


class SyncBegins(NamedTuple):
    """The sync that was asked for starts now: it covers what was written until here, and no more."""

    directory: str
    name: str


class Synced(NamedTuple):
    directory: str
    name: str
    trouble: Trouble


class GotData(NamedTuple):
    """The answer to ReadData. `damaged_at`: the logical offset where stored bytes are not good, else None.
    `missed`: why nothing was read, when that says nothing about what is stored."""

    read: "ReadData"
    data: bytes
    damaged_at: int | None = None
    missed: str = ""


class GotDigest(NamedTuple):
    read: "ReadDigest"
    digest: int
    damaged_at: int | None = None
    missed: str = ""


class RecordStored(NamedTuple):
    session: int
    request_id: int
    record: bytes
    trouble: Trouble


class MendWritten(NamedTuple):
    """Bytes of a new copy are in its file, or not."""

    session: int
    trouble: Trouble


class MendInstalled(NamedTuple):
    """The new copy stands in the place of the old one; `found` is what is there now. None: it failed, and
    which of the two is there only a restart can say."""

    session: int
    directory: str
    name: str
    found: Found | None


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
    trouble: Trouble


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
    | Ended
    | DirectoryLoaded
    | ClaimStored
    | Written
    | SyncBegins
    | Synced
    | GotData
    | GotDigest
    | RecordStored
    | MendWritten
    | MendInstalled
    | Removed
    | DirectoryMade
    | Requested
    | Streamed
    | SpaceSeen
    | Tick
    | looks.Event
)

# Effects


class Send(NamedTuple):
    session: int
    message: Message
    request_id: int = 0


class CloseSession(NamedTuple):
    """Close the connection once everything before this has been sent."""

    session: int


class LoadDirectory(NamedTuple):
    directory: str


class ForgetDirectory(NamedTuple):
    """Nothing of it is in use: close its files."""

    directory: str


class StoreClaim(NamedTuple):
    """Put the claim on stable storage, the folder and its ancestors too, then report."""

    directory: str
    claim: Claim


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
    name: str
    synced: int
    poisoned: bool
    damaged: bool = False


class ReadData(NamedTuple):
    """Verified content [start, end) of an object, found by walking from `place`."""

    session: int
    request_id: int
    directory: str
    name: str
    place: Place
    start: int
    end: int
    version: int = 0
    """Of the object's file: a mended object has another."""


class ReadDigest(NamedTuple):
    """The prefix digest at a size, found by walking from `place`."""

    session: int
    request_id: int
    directory: str
    name: str
    place: Place
    size: int
    version: int = 0


class StoreRecord(NamedTuple):
    """Put the store record on stable storage, then report."""

    session: int
    request_id: int
    record: bytes


class WriteMend(NamedTuple):
    """Write the buffers at a position of the new copy's own file, seen by nobody; `create` makes it. `copy`:
    a number that no other new copy has in this life of the server."""

    session: int
    directory: str
    name: str
    copy: int
    position: int
    buffers: list[Buffer]
    create: bool


class InstallMend(NamedTuple):
    """Put the new copy on stable storage, and in the place of the old one; then report. `keep`: the old one
    goes aside; else the new one begins with all of it.

    After a crash anywhere on the way there is the old copy, the new one, or one that is known to be lost.
    `durable`: what the old one had synced at least, `poisoned`, `damaged` as its mark is to say;
    `exists`: there is an old one.
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


class DropMend(NamedTuple):
    """Nobody wants the new copy: take its file away."""

    session: int
    directory: str
    name: str
    copy: int


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


class Note(NamedTuple):
    """Why the session ends, for the log: the peer may be told in fewer words, or in none."""

    session: int
    text: str


Effect = (
    Send
    | CloseSession
    | LoadDirectory
    | ForgetDirectory
    | StoreClaim
    | Write
    | Sync
    | SetMark
    | ReadData
    | ReadDigest
    | StoreRecord
    | WriteMend
    | InstallMend
    | DropMend
    | RemoveObject
    | MakeDirectory
    | SendBytes
    | Note
    | looks.Effect
)
