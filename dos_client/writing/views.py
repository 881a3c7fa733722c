"""The parts of a claim as they see each other: the claim, its links with members, the copies of a member.

The parts need each other in both directions: a link serves the claim, and the claim wakes its links. Each
imports this file, and none imports another for its type. The classes are in `claim`, `link` and `copies`.
"""

from collections.abc import Iterable
from typing import Protocol

import trio

from dos_client.core.claim import ClaimState
from dos_client.core.collecting import Collecting, Garbage
from dos_client.core.quorum import TokenRefusal
from dos_client.core.replica import Event, Replica, ReplicaState
from dos_client.reading.sessions import ReadableStore
from dos_client.sessions.connection import Connection
from dos_client.writing.target import WriteTarget
from dos_protocol.errors import DosError, FencedError
from dos_protocol.messages import DirectoryOpened, ObjectInfo
from dos_protocol.store_record import Member


class ObjectCopy:
    """One object on one member: its state machine, and an event for tasks that wait for a change.

    `had`: the size that the member had reported as synced to this claim, if it came back with less.
    """

    __slots__ = ("had", "moved", "replica", "target")

    def __init__(self, target: WriteTarget) -> None:
        self.target = target
        self.replica = Replica(trio.current_time())
        self.moved = trio.Event()
        self.had = 0


class ClaimStore(ReadableStore, Protocol):
    """The store of a claim."""

    def forget(self, claim: object) -> None:
        """Remove a claim that has ended."""
        ...


class CopiesView(Protocol):
    """All copies of one member (`copies.MemberCopies`)."""

    server_id: bytes
    connection: Connection | None
    held: Collecting
    collectable: trio.Event

    @property
    def claim(self) -> "ClaimView": ...

    @property
    def link(self) -> "LinkView": ...

    def gone(self, name: str) -> None: ...

    def states(self) -> list[ReplicaState]: ...

    def problem(self) -> str: ...

    def agrees(self, name: str) -> bool: ...

    def may_have(self, name: str, size: int) -> bool: ...

    def handle(self, copy: ObjectCopy, event: Event, *, filling: bool = False) -> None: ...

    def count_sent(self, count: int, source: str = "") -> None: ...

    def drop(self, target: WriteTarget) -> None: ...

    def forget(self, name: str) -> None: ...


class LinkView(Protocol):
    """The link of the claim with one member (`link.MemberLink`)."""

    member: Member
    server_id: bytes
    error: str
    refusal: TokenRefusal | None
    scope: trio.CancelScope

    @property
    def claim(self) -> "ClaimView": ...

    @property
    def copies(self) -> CopiesView: ...

    @property
    def connection(self) -> Connection | None: ...


class ReadsView(Protocol):
    """The reads of the claim (`claim_reads.ClaimReads`)."""

    def drop_ahead(self) -> None: ...


class ClaimView(Protocol):
    """The claim (`claim.Claim`)."""

    directory: str
    epoch: int
    writer_id: bytes
    claiming: bool
    answers: dict[bytes, dict[str, ObjectInfo]]
    refused: TokenRefusal | None
    targets: dict[str, WriteTarget]
    garbage: Garbage
    deleting: set[str]
    waited: bool

    @property
    def store(self) -> ReadableStore: ...

    @property
    def reads(self) -> ReadsView: ...

    @property
    def ended(self) -> DosError | None: ...

    @property
    def state(self) -> ClaimState: ...

    @property
    def waiting(self) -> bool: ...

    @property
    def needed(self) -> int: ...

    def check(self) -> None: ...

    def links(self) -> Iterable[LinkView]: ...

    def link(self, server_id: bytes) -> LinkView | None: ...

    def source_for(self, target: WriteTarget, at_least: int, excluding: object) -> Connection | None: ...

    def changed(self) -> None: ...

    def finish(self) -> None: ...

    async def wait_changed(self, timeout_s: float) -> None: ...

    def wake_links(self) -> None: ...

    def seal(self, target: WriteTarget) -> None: ...

    def member_claimed(self, server_id: bytes, opened: DirectoryOpened) -> None: ...

    def member_left(self, link: LinkView) -> None: ...

    def member_fenced(self, server_id: bytes, error: FencedError) -> None: ...
