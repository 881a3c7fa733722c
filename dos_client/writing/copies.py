"""The copies of one member: every object of a claim, through all sessions with that member.

Rules of this file: it performs what `core.replica` says of each copy, and hands the session's writer its
bytes. The life of the sessions is `link`'s; how bytes from elsewhere get to the member is in `catch_up`.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from dos_client.core.collecting import Collecting
from dos_client.core.replica import (
    AGREED,
    Effect,
    Event,
    LocalKnown,
    Replica,
    ReplicaDiffered,
    ReplicaEntered,
    ReplicaFellBehind,
    ReplicaLeft,
    ReplicaState,
)
from dos_client.core.window import append_head
from dos_client.limits import in_flight_bytes_max, send_batch_bytes
from dos_client.reading.damage import CopyFault
from dos_client.sessions.connection import Connection
from dos_client.writing import catch_up, collecting
from dos_client.writing.target import WriteTarget
from dos_protocol.digests import Buffer
from dos_protocol.errors import CorruptError, PoisonedError, RefusedError, RemoteProtocolError
from dos_protocol.vocabulary import DirectoryOpened, DurabilityAck, ObjectInfo

if TYPE_CHECKING:
    from dos_client.writing.link import MemberLink

log: Final = logging.getLogger("dos.client")


class ObjectCopy:
    """One object on the member: what `core.replica` knows of it, and who waits for it to move. `had`: so much
    it had told this claim to be synced, when it came back with less."""

    __slots__ = ("had", "moved", "replica", "target")

    def __init__(self, target: WriteTarget) -> None:
        self.target = target
        self.replica = Replica(trio.current_time())
        self.moved = trio.Event()
        self.had = 0


class MemberCopies:
    """See the module.

    Invariants: `connection` is the live session's, None without one; copies are in ENTER while an attempt
    is made, and in DISCOVER_LOCAL_SIZE between two attempts; `_active` are those that follow the window."""

    def __init__(self, link: "MemberLink") -> None:
        self.link = link
        self.claim = link.claim
        self.server_id = link.server_id
        self.connection: Connection | None = None
        self.worked = False
        self._all: dict[str, ObjectCopy] = {}
        self._by_tag: dict[int, ObjectCopy] = {}
        self._active: dict[str, ObjectCopy] = {}
        self._infos: dict[str, ObjectInfo] = {}
        self.held = Collecting()
        self.collectable = trio.Event()
        self._dropped: set[str] = set()
        self._nursery: trio.Nursery | None = None
        self._attempting = False
        self._in_flight_max = in_flight_bytes_max

    # The sessions, as the link has them

    def attempt(self) -> None:
        """An attempt at a session begins: what is here is looked at first."""
        self._attempting = True
        self.worked = False
        for target in self.claim.targets.values():
            self._know(target)

    def begin(self, connection: Connection, opened: DirectoryOpened, nursery: trio.Nursery) -> None:
        """The member holds the claim on this session, and told what it has."""
        self._infos = {info.name: info for info in opened.entries}
        self._in_flight_max = min(in_flight_bytes_max, connection.welcome.in_flight_bytes_max)
        self.connection, self._nursery = connection, nursery
        for copy in list(self._all.values()):
            self._discover(copy)
        connection.feed = self._feed
        connection.on_durability_ack = self._durability_ack
        connection.on_append_refused = self._append_refused
        connection.wake()
        self.held.entered(self._infos)
        nursery.start_soon(collecting.sweep, self)

    def end(self) -> None:
        """The session breaks: its nursery closes, and an object entered now waits for the next session."""
        self._nursery = None

    def left(self, why: str) -> None:
        """The attempt, or the session, is over."""
        self.connection = self._nursery = None
        self._attempting = False
        self._active.clear()
        now = trio.current_time()
        for copy in self._all.values():
            copy.target.unsure.discard(self.server_id)
            if copy.replica.state is not ReplicaState.DISCOVER_LOCAL_SIZE:
                copy.replica.handle(ReplicaLeft(why), now)
            copy.moved.set()

    # What the claim uses

    def states(self) -> list[ReplicaState]:
        """Of every copy."""
        return [copy.replica.state for copy in self._all.values()]

    def trouble(self) -> str:
        """What is wrong with a copy that is broken, '' when none is."""
        broken = (copy for copy in self._all.values() if copy.replica.state is ReplicaState.BROKEN)
        return next((self._named(copy) for copy in broken), "")

    def agrees(self, name: str) -> bool:
        """Whether the digest of that copy agreed in the session that lives now."""
        copy = self._all.get(name)
        return copy is not None and self.connection is not None and copy.replica.state in AGREED

    def may_give(self, name: str, size: int) -> bool:
        """Whether the member has, or may have, that much of the object, as far as is known."""
        copy = self._all.get(name)
        if copy is None or self.connection is None:
            return True
        claimed = copy.replica.claimed
        if claimed is None or copy.replica.state is ReplicaState.BROKEN:
            return claimed is None
        return max(claimed.synced, copy.target.sizes.get(self.server_id, 0)) >= size

    def enter(self, target: WriteTarget) -> None:
        """The claim has one more object."""
        self._know(target)
        if self._nursery is not None:
            self._discover(self._all[target.name])

    def forget(self, name: str) -> None:
        """The member has deleted that object, of which the claim knows nothing."""
        self._infos.pop(name, None)
        self.claim.store.damage.repaired(self.server_id, self.claim.directory, name)

    def drop(self, target: WriteTarget) -> None:
        """The claim has that object no longer: what is under way for it ends, and it may be taken away."""
        copy = self._all.pop(target.name)
        self._by_tag.pop(target.tag)
        self._active.pop(target.name, None)
        self._dropped.add(target.name)
        if copy.replica.state is not ReplicaState.DISCOVER_LOCAL_SIZE:
            copy.replica.handle(ReplicaLeft("nobody needs it any more"), trio.current_time())
        copy.moved.set()
        self.held.made(target.name)

    def sealed(self, target: WriteTarget) -> None:
        """The writer is done with the object; what is missing comes from elsewhere."""
        copy = self._active.pop(target.name, None)
        if copy is not None and copy.replica.sent < target.goal_size:
            self.handle(copy, ReplicaFellBehind())

    def wake(self) -> None:
        """There may be something to send."""
        if self.connection is not None:
            self.connection.wake()

    def count_sent(self, count: int, source: str = "") -> None:
        """So many bytes are handed to the session; from `source`, when the memory did not have them."""
        counts, address = self.claim.store.counts, self.link.member.address
        counts.sent_bytes[address] += count
        if source:
            counts.filled_bytes[address, source] += count

    # What the copies do

    def handle(self, copy: ObjectCopy, event: Event, *, filling: bool = False) -> None:
        """Let the event happen, and do what follows from it. `filling`: the caller fills the copy itself."""
        for effect in copy.replica.handle(event, trio.current_time()):
            match effect:
                case Effect.COUNT:
                    self._count(copy)
                case Effect.DISCOUNT:
                    self._discount(copy)
                case Effect.ASK_MEMBER:
                    copy.target.unsure.add(self.server_id)
                    self._start(copy, catch_up.compare_there)
                case Effect.FIND_DIGEST:
                    assert copy.replica.claimed is not None
                    self._lacks(copy.target, copy.replica.claimed.synced)
                    self._start(copy, catch_up.fill)
                case Effect.FILL:
                    if not filling:
                        self._start(copy, catch_up.fill)
                case Effect.FOLLOW:
                    self._follow(copy)
        self.claim.changed()

    def _know(self, target: WriteTarget) -> None:
        copy = self._all.get(target.name)
        if copy is None:
            copy = self._all[target.name] = self._by_tag[target.tag] = ObjectCopy(target)
        if self._attempting and copy.replica.state is ReplicaState.DISCOVER_LOCAL_SIZE:
            copy.replica.handle(LocalKnown(target.local.size()), trio.current_time())

    def _discover(self, copy: ObjectCopy) -> None:
        if copy.replica.state is ReplicaState.ENTER:
            info = self._infos.get(copy.target.name, ObjectInfo(copy.target.name))
            self._compare_with_told(copy, info)
            self.handle(copy, ReplicaEntered(info, copy.target.view))

    def _compare_with_told(self, copy: ObjectCopy, info: ObjectInfo) -> None:
        """A member that has less than it told this claim to be synced does not count with what it told."""
        target = copy.target
        told = target.sizes.get(self.server_id, 0)
        copy.had = max(copy.had, told) if info.synced < max(copy.had, told) else 0
        if info.synced < told:
            target.uncount(self.server_id)
            log.error(
                "%s has %d bytes of %s/%s, and had acknowledged %d: its disk lost them, or went back in time."
                " Other directories may lack more: replace the member (`dos store replace`)",
                self.link.member.address, info.synced, self.claim.directory, target.name, told,
            )  # fmt: skip

    def _start(self, copy: ObjectCopy, work: "catch_up.Work") -> None:
        if self._nursery is not None:  # else the session is ending, and the next one begins anew
            self._nursery.start_soon(work, self, copy)

    def _count(self, copy: ObjectCopy) -> None:
        replica, target = copy.replica, copy.target
        if self.link.scope.cancel_called:
            return
        target.unsure.discard(self.server_id)
        target.spoiled.discard(self.server_id)
        self._lacks(target, replica.synced)
        target.note(self.server_id, replica.received, replica.synced)
        info, damage = replica.claimed, self.claim.store.damage
        where = (self.server_id, self.claim.directory, target.name)
        if info is not None and info.synced <= target.size and not info.corrupt and damage.avoid(*where):
            damage.repaired(*where)  # all that it has is what was written: somebody put it right

    def _discount(self, copy: ObjectCopy) -> None:
        target = copy.target
        self._active.pop(target.name, None)
        target.unsure.discard(self.server_id)
        target.uncount(self.server_id)
        (target.spoiled if copy.replica.spoiled else target.without).add(self.server_id)
        copy.moved.set()
        log.warning("%s: %s", self.link.member.address, self._named(copy))
        info = copy.replica.claimed
        marked = (
            CopyFault.POISONED
            if info and info.poisoned
            else CopyFault.DAMAGED
            if info and info.corrupt
            else None
        )
        self._note(copy, marked or CopyFault.DIFFERENT)

    def _note(self, copy: ObjectCopy, why: CopyFault) -> None:
        """For readers, who avoid it, and for repair. What is known of it already stays."""
        damage, where = self.claim.store.damage, (self.server_id, self.claim.directory, copy.target.name)
        if not damage.avoid(*where):
            damage.note(*where, 0, why)

    def _named(self, copy: ObjectCopy) -> str:
        return f"{self.claim.directory}/{copy.target.name} there: {copy.replica.why}"

    def _lacks(self, target: WriteTarget, synced: int) -> None:
        if synced < target.size:
            target.without.add(self.server_id)

    def _follow(self, copy: ObjectCopy) -> None:
        """From here on the window has what it needs; a sealed object needs nothing more."""
        if copy.target.window is not None:
            self._active[copy.target.name] = copy
            self.wake()

    # The session's bytes

    def _feed(self, buffers: list[Buffer]) -> None:
        """The session's writer wants more to send."""
        room = send_batch_bytes
        for copy in list(self._active.values()):
            replica, window = copy.replica, copy.target.window
            assert window is not None
            if replica.sent == window.size:
                continue
            if replica.sent < window.base:
                del self._active[copy.target.name]
                self.handle(copy, ReplicaFellBehind())
                continue
            allowed = min(room, self._in_flight_max - (replica.sent - replica.received))
            if allowed > 0:
                room -= self._take(copy, buffers, allowed)
                self._active[copy.target.name] = self._active.pop(copy.target.name)  # the others come first

    def _take(self, copy: ObjectCopy, buffers: list[Buffer], room: int) -> int:
        target, replica, taken = copy.target, copy.replica, 0
        assert target.window is not None
        for chunk in target.window.chunks_from(replica.sent):
            buffers.append(append_head(target.name, target.tag, chunk))
            buffers.append(chunk.payload)
            replica.sent = chunk.end
            taken += len(chunk.payload)
            if taken >= room:
                break
        self.count_sent(taken)
        return taken

    def _durability_ack(self, mark: DurabilityAck) -> None:
        if self.link.scope.cancel_called:
            return  # of the store record before; its members tell again what they have
        copy = self._all.get(mark.name)
        if copy is None and mark.name in self._dropped:
            return
        if copy is None:
            raise RemoteProtocolError(f"a watermark of {mark.name}, which this session does not append to")
        replica = copy.replica
        limited = replica.sent - replica.received >= self._in_flight_max
        if not replica.told(mark.received, mark.synced):
            return
        self.worked = True
        copy.target.note(self.server_id, mark.received, mark.synced)
        if limited:
            self.wake()
        if replica.state is ReplicaState.CATCH_UP:
            copy.moved.set()
        if self.claim.waited:
            self.claim.changed()

    def _append_refused(self, tag: int, error: RefusedError) -> None:
        """Content and disk troubles concern one object; anything else ends the session, which sorts it
        out."""
        copy = self._by_tag.get(tag)
        if copy is not None and isinstance(error, PoisonedError | CorruptError):
            if copy.replica.state is not ReplicaState.BROKEN:
                self._note(
                    copy, CopyFault.POISONED if isinstance(error, PoisonedError) else CopyFault.DAMAGED
                )
                self.handle(copy, ReplicaDiffered(str(error.args[0]), spoiled=True))
            return
        if self.connection is not None:
            self.connection.fail(error)
