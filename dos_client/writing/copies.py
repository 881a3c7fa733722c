"""The copies of one member: every object of a claim, over all sessions with that member.

This module performs the effects of `core.replica` for each copy, and supplies the session's writer with
bytes. The life of the sessions is in `link`; filling from elsewhere is in `catch_up`.
"""

import logging
from typing import Final

import trio

from dos_client.core.collecting import Collecting
from dos_client.core.replica import (
    AGREED,
    Event,
    LocalKnown,
    ReplicaDiffered,
    ReplicaEffect,
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
from dos_client.writing.views import LinkView, ObjectCopy
from dos_protocol.digests import Buffer
from dos_protocol.errors import CorruptError, PoisonedError, RefusedError, RemoteProtocolError
from dos_protocol.messages import DirectoryOpened, DurabilityAck, ObjectInfo

log: Final = logging.getLogger("dos.client")


class MemberCopies:
    """All copies of one member.

    Invariants: `connection` is that of the live session, None without one. Copies are in ENTER during an
    attempt to connect, and in DISCOVER_LOCAL_SIZE between attempts. `_active` are the copies that follow the
    window.
    """

    def __init__(self, link: LinkView) -> None:
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
        """Objects that the claim no longer has, and of which this session may still deliver durability acks:
        the member has not answered their deletion.
        """
        self._nursery: trio.Nursery | None = None
        self._attempting = False
        self._in_flight_max = in_flight_bytes_max

    # For the link: the sessions

    def attempt(self) -> None:
        """Begin an attempt at a session: first determine the sizes of the local copies."""
        self._attempting = True
        self.worked = False
        for target in self.claim.targets.values():
            self._add(target)

    def begin(self, connection: Connection, opened: DirectoryOpened, nursery: trio.Nursery) -> None:
        """Begin a session: the member holds the claim and has listed its objects."""
        self._infos = {info.name: info for info in opened.entries}
        self._dropped.clear()  # of objects that were dropped before, this session appends nothing
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
        """Note that the session breaks: its nursery closes, so objects entered now wait for the next
        session.
        """
        self._nursery = None

    def left(self, why: str) -> None:
        """Record that the attempt or the session is over."""
        self.connection = self._nursery = None
        self._attempting = False
        self._active.clear()
        now = trio.current_time()
        for copy in self._all.values():
            copy.target.unsure.discard(self.server_id)
            if copy.replica.state is not ReplicaState.DISCOVER_LOCAL_SIZE:
                copy.replica.handle(ReplicaLeft(why), now)
            copy.moved.set()

    # For the claim

    def states(self) -> list[ReplicaState]:
        """Return the states of all copies."""
        return [copy.replica.state for copy in self._all.values()]

    def problem(self) -> str:
        """Return the problem of a copy in state BROKEN, '' if there is none."""
        broken = (copy for copy in self._all.values() if copy.replica.state is ReplicaState.BROKEN)
        return next((self._named(copy) for copy in broken), "")

    def agrees(self, name: str) -> bool:
        """Return whether the digest of that copy agreed in the current session."""
        copy = self._all.get(name)
        return copy is not None and self.connection is not None and copy.replica.state in AGREED

    def may_have(self, name: str, size: int) -> bool:
        """Return whether the member has, or may have, that much of the object, as far as is known."""
        copy = self._all.get(name)
        if copy is None or self.connection is None:
            return True
        claimed = copy.replica.claimed
        if claimed is None or copy.replica.state is ReplicaState.BROKEN:
            return claimed is None
        return max(claimed.synced, copy.target.sizes.get(self.server_id, 0)) >= size

    def enter(self, target: WriteTarget) -> None:
        """Add an object of the claim."""
        self._add(target)
        if self._nursery is not None:
            self._discover(self._all[target.name])

    def gone(self, name: str) -> None:
        """Record that the member no longer has a garbage object: no durability ack of it can follow."""
        self.held.gone(name)
        self._dropped.discard(name)

    def forget(self, name: str) -> None:
        """Record that the member deleted an object that the claim does not write."""
        self._infos.pop(name, None)
        self.claim.store.damage.repaired(self.server_id, self.claim.directory, name)

    def drop(self, target: WriteTarget) -> None:
        """Remove an object of the claim: its transfers end, and it may be deleted."""
        copy = self._all.pop(target.name)
        self._by_tag.pop(target.tag)
        self._active.pop(target.name, None)
        self._dropped.add(target.name)
        if copy.replica.state is not ReplicaState.DISCOVER_LOCAL_SIZE:
            copy.replica.handle(ReplicaLeft("it is no longer needed"), trio.current_time())
        copy.moved.set()
        self.held.made(target.name)

    def sealed(self, target: WriteTarget) -> None:
        """Record that the writer sealed the object. Missing bytes come from elsewhere."""
        copy = self._active.pop(target.name, None)
        if copy is not None and copy.replica.sent < target.goal_size:
            self.handle(copy, ReplicaFellBehind())

    def wake(self) -> None:
        """Wake the session's writer: there may be something to send."""
        if self.connection is not None:
            self.connection.wake()

    def count_sent(self, count: int, source: str = "") -> None:
        """Count bytes passed to the session. `source`: where they were read if they were not in memory."""
        counts, address = self.claim.store.counts, self.link.member.address
        counts.sent_bytes[address] += count
        if source:
            counts.filled_bytes[address, source] += count

    # State changes of the copies

    def handle(self, copy: ObjectCopy, event: Event, *, filling: bool = False) -> None:
        """Apply the event and perform its effects. `filling`: the caller already fills the copy."""
        for effect in copy.replica.handle(event, trio.current_time()):
            match effect:
                case ReplicaEffect.COUNT:
                    self._count(copy)
                case ReplicaEffect.DISCOUNT:
                    self._discount(copy)
                case ReplicaEffect.QUERY_MEMBER:
                    copy.target.unsure.add(self.server_id)
                    self._start(copy, catch_up.compare_at_goal)
                case ReplicaEffect.FIND_DIGEST:
                    assert copy.replica.claimed is not None
                    self._lacks(copy.target, copy.replica.claimed.synced)
                    self._start(copy, catch_up.fill)
                case ReplicaEffect.FILL:
                    if not filling:
                        self._start(copy, catch_up.fill)
                case ReplicaEffect.FOLLOW:
                    self._follow(copy)
        self.claim.changed()

    def _add(self, target: WriteTarget) -> None:
        copy = self._all.get(target.name)
        if copy is None:
            copy = self._all[target.name] = self._by_tag[target.tag] = ObjectCopy(target)
        if self._attempting and copy.replica.state is ReplicaState.DISCOVER_LOCAL_SIZE:
            copy.replica.handle(LocalKnown(target.local.size()), trio.current_time())

    def _discover(self, copy: ObjectCopy) -> None:
        if copy.replica.state is ReplicaState.ENTER:
            info = self._infos.get(copy.target.name, ObjectInfo(copy.target.name))
            self._compare_with_reported(copy, info)
            self.handle(copy, ReplicaEntered(info, copy.target.view))

    def _compare_with_reported(self, copy: ObjectCopy, info: ObjectInfo) -> None:
        """Stop counting a member's reported size if it now has less than it had reported as synced to this
        claim.
        """
        target = copy.target
        expected = target.sizes.get(self.server_id, 0)
        copy.had = max(copy.had, expected) if info.synced < max(copy.had, expected) else 0
        if info.synced < expected:
            target.uncount(self.server_id)
            log.error(
                "%s has %d bytes of %s/%s, but had acknowledged %d: its disk lost data or went back in time."
                " Other directories may lack more: replace the member (`dos store replace`)",
                self.link.member.address, info.synced, self.claim.directory, target.name, expected,
            )  # fmt: skip

    def _start(self, copy: ObjectCopy, work: catch_up.Work) -> None:
        # otherwise the session is ending, and the next one starts the work again
        if self._nursery is not None:
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
        key = (self.server_id, self.claim.directory, target.name)
        if info is not None and info.synced <= target.size and not info.corrupt and damage.avoid(*key):
            damage.repaired(*key)  # all that it has is what was written, so it was repaired

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
        """Note the damage for readers, which avoid the copy, and for repair. An earlier note is kept."""
        damage, key = self.claim.store.damage, (self.server_id, self.claim.directory, copy.target.name)
        if not damage.avoid(*key):
            damage.note(*key, 0, why)

    def _named(self, copy: ObjectCopy) -> str:
        return f"{self.claim.directory}/{copy.target.name} on this member: {copy.replica.why}"

    def _lacks(self, target: WriteTarget, synced: int) -> None:
        if synced < target.size:
            target.without.add(self.server_id)

    def _follow(self, copy: ObjectCopy) -> None:
        """Send from the window from here on. A sealed object needs nothing more."""
        if copy.target.window is not None:
            self._active[copy.target.name] = copy
            self.wake()

    # The session's bytes

    def _feed(self, buffers: list[Buffer]) -> None:
        """Supply the session's writer with more bytes to send."""
        budget = send_batch_bytes
        for copy in list(self._active.values()):
            replica, window = copy.replica, copy.target.window
            assert window is not None
            if replica.sent == window.size:
                continue
            if replica.sent < window.base:
                del self._active[copy.target.name]
                self.handle(copy, ReplicaFellBehind())
                continue
            allowed = min(budget, self._in_flight_max - (replica.sent - replica.received))
            if allowed > 0:
                budget -= self._take_chunks(copy, buffers, allowed)
                # move it to the end, so that objects take turns
                self._active[copy.target.name] = self._active.pop(copy.target.name)

    def _take_chunks(self, copy: ObjectCopy, buffers: list[Buffer], budget: int) -> int:
        target, replica, count = copy.target, copy.replica, 0
        assert target.window is not None
        for chunk in target.window.chunks_from(replica.sent):
            buffers.append(append_head(target.name, target.tag, chunk))
            buffers.append(chunk.payload)
            replica.sent = chunk.end
            count += len(chunk.payload)
            if count >= budget:
                break
        self.count_sent(count)
        return count

    def _durability_ack(self, mark: DurabilityAck) -> None:
        if self.link.scope.cancel_called:
            return  # sent under the previous store record; members report their sizes again
        copy = self._all.get(mark.name)
        if copy is None and mark.name in self._dropped:
            return
        if copy is None:
            raise RemoteProtocolError(f"watermark for {mark.name}, to which this session does not append")
        replica = copy.replica
        limited = replica.sent - replica.received >= self._in_flight_max
        if not replica.acknowledge(mark.received, mark.synced):
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
        """Handle a rejected append. Damaged content and disk errors concern one object; other errors end the
        session.
        """
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
