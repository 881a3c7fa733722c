"""The link of a claim with one member: session after session, and the copies of the claim's objects there.

It performs on virtual time what `core.replica` decides about each copy and `core.claim` about FENCED. Each
link is a task, and so is each comparison or filling of a copy.
"""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from dos_client.core.claim import Collecting, FenceReason, climb, judge_fenced
from dos_client.core.replica import (
    AGREED,
    Event,
    LocalKnown,
    Replica,
    ReplicaAgreed,
    ReplicaDiffered,
    ReplicaEffect,
    ReplicaEntered,
    ReplicaFellBehind,
    ReplicaLeft,
    ReplicaReached,
    ReplicaState,
)
from dos_client.core.window import Chunk, append_id
from dos_client.limits import collect_pause_s, delete_timeout_s, session_worked_s
from dos_client.randomness import backoff_s
from dos_client.reading.copying import MemberSource, fold_at
from dos_protocol.errors import (
    BeingAppendedError,
    BrokenConnectionError,
    BusyError,
    CorruptError,
    DosError,
    FencedError,
    NotFoundError,
    PoisonedError,
    RefusedError,
    RemoteProtocolError,
    UnsupportedError,
)
from dos_protocol.messages import Append, Delete, Deleted, DirectoryOpened, DurabilityAck, ObjectInfo
from dos_protocol.store_record import Member
from tests.sim.store.session import Session

if TYPE_CHECKING:
    from tests.sim.store.claim import SimClaim, SimTarget

_CHUNK_BYTES = 16 * 1024


class Copy:
    """The copy of one object on the member."""

    def __init__(self, target: "SimTarget", now: float) -> None:
        self.target = target
        self.replica = Replica(now)


class Link:
    """One link. `session`: the session on which the member has granted the claim, None without one."""

    def __init__(self, claim: "SimClaim", member: Member) -> None:
        self.claim = claim
        self.member = member
        self.server_id = member.server_id
        self.session: Session | None = None
        self._attempted: Session | None = None
        self._copies: dict[str, Copy] = {}
        self._active: dict[str, Copy] = {}
        self._infos: dict[str, ObjectInfo] = {}
        self._attempting = False
        self._worked = False
        self._woken = False
        self._dropped: set[str] = set()
        self.held = Collecting()
        self._sweeping: Session | None = None

    async def run(self) -> None:
        """Open one session after the other until the claim ends."""
        attempt, claim = 0, self.claim
        while not claim.over:
            self._begin_attempt()
            try:
                await self._one_session()
            except FencedError as error:
                if judge_fenced(claim.epoch, error.epoch_held, at_claim=False) is FenceReason.LOST:
                    claim.member_fenced(self, error)
                    return
                self._left(str(error))
            except DosError as error:
                self._left(str(error))
            attempt = 1 if self._worked else attempt + 1
            await claim.process.sleep(backoff_s(attempt, claim.rng.random()))

    def leave(self) -> None:
        """End the session, because the claim is over."""
        if self._attempted is not None:
            self._attempted.fail(BrokenConnectionError("the claim is over"))

    async def _one_session(self) -> None:
        claim = self.claim
        record = claim.store.record
        session = self._attempted = Session(claim.process, claim.network, self.member.address)
        try:
            await session.open(record.store_id, record.generation)
            if session.server_id != self.server_id:
                raise RemoteProtocolError(f"{self.member.address} is another server now")
            opened = await self._enter(session)
            if opened is None:
                return
            begun = claim.process.now
            claim.member_claimed(self, opened)
            self._serve(session, opened)
            while session.failure is None:
                await claim.process.wait(session.changed)
            self._worked |= claim.process.now - begun > session_worked_s
            raise session.failure
        finally:
            session.fail(BrokenConnectionError("the session ended"))
            self._left("the session ended")
            claim.member_left(self)

    async def _enter(self, session: Session) -> DirectoryOpened | None:
        claim = self.claim
        try:
            return await session.claim(claim.directory, claim.epoch, claim.writer_id)
        except FencedError as error:
            match judge_fenced(claim.epoch, error.epoch_held, at_claim=True):
                case FenceReason.CLIMB:
                    for epoch in climb(error.epoch_held, claim.epoch):
                        opened = await session.claim(claim.directory, epoch, claim.writer_id)
                    return opened
                case FenceReason.READ_HOLDER:
                    held = await session.open_directory(claim.directory)
                    if (held.epoch, held.writer_id) == (claim.epoch, claim.writer_id):
                        raise BrokenConnectionError("a newer session of ours is there") from error
            claim.member_fenced(self, error)
            return None

    def _begin_attempt(self) -> None:
        self._attempting, self._worked = True, False
        for target in self.claim.targets.values():
            self._ensure_copy(target)

    def _serve(self, session: Session, opened: DirectoryOpened) -> None:
        self.session = session
        self._infos, self._dropped = {info.name: info for info in opened.entries}, set()
        session.on_durability_ack = self._watermark
        session.on_append_refused = self._append_refused
        for copy in list(self._copies.values()):
            self._discover(copy)
        self.held.entered(self._infos)
        self.sweep()

    def _left(self, why: str) -> None:
        self.session = self._sweeping = None
        self._attempting = False
        self._active.clear()
        for copy in self._copies.values():
            copy.target.unsure.discard(self.server_id)
            if copy.replica.state is not ReplicaState.DISCOVER_LOCAL_SIZE:
                copy.replica.handle(ReplicaLeft(why), self.claim.process.now)

    # What the claim uses

    def agrees(self, name: str) -> bool:
        copy = self._copies.get(name)
        return copy is not None and self.session is not None and copy.replica.state in AGREED

    def enter(self, target: "SimTarget") -> None:
        self._ensure_copy(target)
        if self.session is not None:
            self._discover(self._copies[target.name])

    def drop(self, target: "SimTarget") -> None:
        """Forget an object that the claim no longer has, so that it may be deleted."""
        copy = self._copies.pop(target.name)
        self._active.pop(target.name, None)
        self._dropped.add(target.name)
        if copy.replica.state is not ReplicaState.DISCOVER_LOCAL_SIZE:
            copy.replica.handle(ReplicaLeft("it is not needed any more"), self.claim.process.now)
        self.held.made(target.name)

    def sweep(self) -> None:
        """Delete the garbage, one object at a time."""
        if self.session is not None and self._sweeping is None and self.held.next(self.claim.garbage):
            self._sweeping = self.session
            self._start(self._sweep(self.session))

    async def _sweep(self, session: Session) -> None:
        while self._sweeping is session and (name := self.held.next(self.claim.garbage)) is not None:
            try:
                await session.call(Delete(name), Deleted, delete_timeout_s)
            except NotFoundError:
                self._gone(name)
            except (BusyError, BeingAppendedError):
                await self.claim.process.sleep(collect_pause_s)
            except (PoisonedError, UnsupportedError):
                self.held.postpone(name)
            except DosError:
                break
            else:
                self._gone(name)
                self.claim.process.env.sometimes["collected"] += 1
                self.claim.collected(self.server_id, name)
        if self._sweeping is session:
            self._sweeping = None

    def _gone(self, name: str) -> None:
        self._dropped.discard(name)
        self.held.gone(name)
        self._infos.pop(name, None)
        self.claim.answers.get(self.server_id, {}).pop(name, None)

    def sealed(self, target: "SimTarget") -> None:
        copy = self._active.pop(target.name, None)
        if copy is not None and copy.replica.sent < target.goal_size:
            self.handle(copy, ReplicaFellBehind())

    def wake(self) -> None:
        """Schedule the sending of new data: soon, so that appends of one moment are sent together."""
        if self.session is not None and not self._woken:
            self._woken = True
            self.claim.process.soon(self._feed)

    # What the copies do

    def handle(self, copy: Copy, event: Event, *, filling: bool = False) -> None:
        """Pass the event to the replica and perform its effects."""
        target, sometimes = copy.target, self.claim.process.env.sometimes
        for effect in copy.replica.handle(event, self.claim.process.now):
            sometimes[f"copy: {effect.name}"] += 1
            match effect:
                case ReplicaEffect.COUNT:
                    target.unsure.discard(self.server_id)
                    target.spoiled.discard(self.server_id)
                    self._lacks(target, copy.replica.synced)
                    target.note(self.server_id, copy.replica.synced)
                case ReplicaEffect.DISCOUNT:
                    self._active.pop(target.name, None)
                    target.unsure.discard(self.server_id)
                    target.sizes.pop(self.server_id, None)
                    (target.spoiled if copy.replica.spoiled else target.without).add(self.server_id)
                case ReplicaEffect.QUERY_MEMBER:
                    target.unsure.add(self.server_id)
                    self._start(self._compare_there(copy, self.session))
                case ReplicaEffect.FIND_DIGEST:
                    assert copy.replica.claimed is not None
                    self._lacks(target, copy.replica.claimed.synced)
                    self._start(self._fill(copy, self.session))
                case ReplicaEffect.FILL:
                    if not filling:
                        self._start(self._fill(copy, self.session))
                case ReplicaEffect.FOLLOW:
                    if target.window is not None:
                        self._active[target.name] = copy
                        self.wake()
        self.claim.changed()

    def _ensure_copy(self, target: "SimTarget") -> None:
        copy = self._copies.get(target.name)
        if copy is None:
            copy = self._copies[target.name] = Copy(target, self.claim.process.now)
        if self._attempting and copy.replica.state is ReplicaState.DISCOVER_LOCAL_SIZE:
            copy.replica.handle(LocalKnown(0), self.claim.process.now)

    def _discover(self, copy: Copy) -> None:
        if copy.replica.state is ReplicaState.ENTER:
            info = self._infos.get(copy.target.name, ObjectInfo(copy.target.name))
            self.handle(copy, ReplicaEntered(info, copy.target.view))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.claim.process.start("copy", work)

    def _lacks(self, target: "SimTarget", synced: int) -> None:
        if synced < target.size:
            target.without.add(self.server_id)

    def _feed(self) -> None:
        self._woken = False
        for copy in list(self._active.values()):
            window = copy.target.window
            if window is None or self.session is None:
                continue
            if copy.replica.sent < window.base:
                del self._active[copy.target.name]
                self.handle(copy, ReplicaFellBehind())
                continue
            for chunk in window.chunks_from(copy.replica.sent):
                self._append(copy, chunk)

    def _append(self, copy: Copy, chunk: Chunk) -> None:
        assert self.session is not None
        copy.replica.sent_to(chunk.end)
        request_id = append_id(copy.target.tag, chunk.end)
        self.session.append(Append(copy.target.name, chunk.start, chunk.digest, chunk.payload), request_id)

    def _watermark(self, watermark: DurabilityAck) -> None:
        copy = self._copies.get(watermark.name)
        if copy is None and watermark.name in self._dropped:
            return
        if copy is None:
            raise RemoteProtocolError(f"a durability ack of {watermark.name}, which is not appended to here")
        if copy.replica.acknowledge(watermark.received, watermark.synced):
            self._worked = True
            copy.target.note(self.server_id, watermark.synced)
            self.claim.changed()

    def _append_refused(self, tag: int, error: RefusedError) -> None:
        copy = next((one for one in self._copies.values() if one.target.tag == tag), None)
        if copy is not None and isinstance(error, PoisonedError | CorruptError):
            if copy.replica.state is not ReplicaState.BROKEN:
                self.handle(copy, ReplicaDiffered(str(error.args[0]), spoiled=True))
        elif self.session is not None:
            self.session.fail(error)

    # Comparing and filling, which end with their session

    async def _compare_there(self, copy: Copy, session: Session | None) -> None:
        assert session is not None
        target = copy.target
        try:
            result = await session.stat(target.name, target.goal_size)
        except DosError as error:
            if self._still_discovers(copy, session):
                spoiled = isinstance(error, PoisonedError | CorruptError)
                self.handle(copy, ReplicaDiffered(str(error.args[0]), spoiled))
            return
        if self._still_discovers(copy, session):
            agrees = result.digest == target.goal_digest
            self.handle(
                copy,
                ReplicaAgreed(target.goal_size, target.view)
                if agrees
                else ReplicaDiffered("another content"),
            )

    def _still_discovers(self, copy: Copy, session: Session) -> bool:
        return self.session is session and copy.replica.state is ReplicaState.DISCOVER_REMOTE_SIZE

    async def _fill(self, copy: Copy, session: Session | None) -> None:
        claim, attempt = self.claim, 0
        while self.session is session and not claim.over and not self._reached(copy):
            source = claim.source_for(copy.target, self._offset(copy) + 1, self)
            if source is None:
                await claim.wait_changed(1.0)
                continue
            try:
                await self._fill_from(source, copy, session)
            except DosError:
                attempt += 1
                await claim.process.sleep(backoff_s(attempt, claim.rng.random()))

    @staticmethod
    def _offset(copy: Copy) -> int:
        replica = copy.replica
        if replica.state is ReplicaState.DISCOVER_REMOTE_SIZE:
            assert replica.claimed is not None
            return replica.claimed.synced
        return replica.sent

    def _reached(self, copy: Copy) -> bool:
        state = copy.replica.state
        if state not in (ReplicaState.DISCOVER_REMOTE_SIZE, ReplicaState.CATCH_UP):
            return True
        if state is ReplicaState.CATCH_UP and copy.replica.sent >= copy.target.view.base:
            self.handle(copy, ReplicaReached(copy.target.view))
            return True
        return False

    async def _fill_from(self, source: "Link", copy: Copy, session: Session | None) -> None:
        there = source.session
        if there is None:
            return
        fold = await fold_at(MemberSource(there, copy.target.name), self._offset(copy))  # type: ignore[arg-type]
        if self.session is not session or not self._compared(copy, fold.value):
            return
        while not self._reached(copy):
            wanted = min(copy.target.size - fold.size, _CHUNK_BYTES)
            data = await there.get(copy.target.name, fold.size, wanted)
            if self.session is not session or copy.replica.state is not ReplicaState.CATCH_UP:
                return
            if not data:
                await self.claim.wait_changed(0.1)
                continue
            chunk = Chunk(fold.size, fold.value, data)
            fold.update(data)
            self._append(copy, chunk)

    def _compared(self, copy: Copy, digest: int) -> bool:
        replica = copy.replica
        if replica.state is ReplicaState.DISCOVER_REMOTE_SIZE:
            assert replica.claimed is not None
            if digest != replica.claimed.digest:
                self.handle(copy, ReplicaDiffered("another content"))
            else:
                self.handle(copy, ReplicaAgreed(replica.claimed.synced, copy.target.view), filling=True)
        return replica.state is ReplicaState.CATCH_UP
