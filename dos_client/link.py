"""What connects one claim with one member: session after session, for ever.

Rules of this file: the life of a session, from the dial to the wait before the next. What a member's
answers mean is decided in `core`: `admission` (is it the member?), `claim` (what does FENCED mean?),
`replica` (what is its copy?). How an object gets from another member to this one is in `catch_up`.

Theory. A link is one task. It dials, is admitted, claims, compares every object that the claim knows, and
then its session's writer task asks `_feed` for bytes whenever the socket takes more; watermarks come back
into `target`. Nothing waits for a link: a member that stands still holds its own bytes in the window and
nobody up. When the session ends, whatever the reason, the link waits with back-off and jitter and begins
again; only being fenced ends the claim.
"""

import logging
import random
from typing import TYPE_CHECKING, Final

import trio

from dos_client import catch_up
from dos_client.connection import Connection, open_connection
from dos_client.core.backoff import backoff_s
from dos_client.core.claim import Refusal, climb, judge_fenced
from dos_client.core.replica import Comparison, ReplicaEvent, ReplicaState, compare, step
from dos_client.core.window import append_head
from dos_client.limits import in_flight_bytes_max, send_batch_bytes, session_worked_s, superseded_joining_s
from dos_client.members import admit_or_act
from dos_client.target import Target
from dos_protocol.digests import Buffer
from dos_protocol.errors import (
    BrokenConnectionError,
    CorruptError,
    DosError,
    FencedError,
    NotAMemberError,
    PoisonedError,
    RefusedError,
    RemoteProtocolError,
    StaleGenerationError,
    WrongStoreError,
)
from dos_protocol.names import id_text
from dos_protocol.store_record import Member
from dos_protocol.vocabulary import DirectoryOpened, ObjectInfo, Watermark

if TYPE_CHECKING:
    from dos_client.claim import Claim

log: Final = logging.getLogger("dos.client")


class Replica:
    """One object in one session. `sent` is where the next append goes; `synced <= received <= sent`."""

    __slots__ = ("moved", "received", "sent", "state", "synced", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.state = step(ReplicaState.AWAY, ReplicaEvent.ENTERED)
        self.sent = self.received = self.synced = 0
        self.moved = trio.Event()

    def move(self, event: ReplicaEvent) -> None:
        """Step by the table."""
        self.state = step(self.state, event)


class Link:
    """See the module."""

    def __init__(self, claim: "Claim", member: Member) -> None:
        self.claim = claim
        self.member = member
        self.server_id = member.server_id
        self.connection: Connection | None = None
        self.error = "not connected yet"
        self.scope = trio.CancelScope()
        self.replicas: dict[str, Replica] = {}
        self._by_tag: dict[int, Replica] = {}
        self._active: dict[str, Replica] = {}
        self._infos: dict[str, ObjectInfo] = {}
        self._nursery: trio.Nursery | None = None
        self._in_flight_max = in_flight_bytes_max
        self._worked = False

    @property
    def connected(self) -> bool:
        """Whether the member holds the claim on a live session."""
        return self.connection is not None

    async def run(self) -> None:
        """Sessions, one after the other, until the claim ends."""
        attempt = 0
        with self.scope:
            while True:
                self._worked = False
                try:
                    await self._session()
                except FencedError as error:
                    if judge_fenced(self.claim.epoch, error.epoch_held, at_claim=False) is Refusal.LOST:
                        self.claim.member_fenced(self.server_id, error)
                        return
                    self._note_error(error)
                    if self.member.state == "joining":
                        await trio.sleep(superseded_joining_s)
                except DosError as error:
                    self._note_error(error)
                attempt = 1 if self._worked else attempt + 1
                await trio.sleep(backoff_s(attempt, random.random()))  # noqa: S311 - jitter is no secret

    def _note_error(self, error: DosError) -> None:
        text = str(error.args[0])
        if text != self.error:
            log.info("%s for %s: %s", self.member.address, self.claim.directory, text)
        self.error = text

    async def _session(self) -> None:
        """Dial, claim, serve, until it breaks. Raises why."""
        store = self.claim.store
        try:
            async with open_connection(
                self.member.address,
                token=store.token,
                store_id=store.record.store_id,
                generation=store.record.generation,
                client=store.client,
            ) as connection:
                if connection.server_id != self.server_id:
                    raise RemoteProtocolError(
                        f"{self.member.address} is server {id_text(connection.server_id)} now,"
                        f" the record names {id_text(self.server_id)}"
                    )
                opened = await self._enter(connection)
                if opened is not None:
                    await self._serve(connection, opened)
        except (StaleGenerationError, WrongStoreError, NotAMemberError) as error:
            await admit_or_act(store, self.member, error)
            self._worked = True

    async def _enter(self, connection: Connection) -> DirectoryOpened | None:
        """Open or claim the directory; None when the claim is lost by it."""
        claim = self.claim
        if not claim.claiming:
            return await connection.open_directory(claim.directory)
        try:
            return await connection.claim(claim.directory, claim.epoch, claim.writer_id)
        except FencedError as error:
            match judge_fenced(claim.epoch, error.epoch_held, at_claim=True):
                case Refusal.CLIMB:
                    return await self._climb(connection, error.epoch_held)
                case Refusal.ASK:
                    held = await connection.open_directory(claim.directory)
                    if (held.epoch, held.writer_id) == (claim.epoch, claim.writer_id):
                        raise BrokenConnectionError(
                            f"{self.member.address} has a newer session of ours"
                        ) from error
            claim.member_fenced(self.server_id, error)
            return None

    async def _climb(self, connection: Connection, epoch_held: int) -> DirectoryOpened | None:
        """Claim in steps that the server does not take for a wild number (R17)."""
        for epoch in climb(epoch_held, self.claim.epoch):
            opened = await connection.claim(self.claim.directory, epoch, self.claim.writer_id)
        return opened

    async def _serve(self, connection: Connection, opened: DirectoryOpened) -> None:
        """Keep the member up to the claim's objects until the session breaks."""
        self._infos = {info.name: info for info in opened.entries}
        self._in_flight_max = min(in_flight_bytes_max, connection.welcome.in_flight_bytes_max)
        connection.feed = self._feed
        connection.on_watermark = self._watermark
        connection.on_append_refused = self._append_refused
        if self.error:
            log.debug("%s holds %s at epoch %d", self.member.address, self.claim.directory, self.claim.epoch)
        self.error, self.connection = "", connection
        begun = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.claim.member_claimed(self, opened)
                for target in list(self.claim.targets.values()):
                    self.enter(target)
                try:
                    await connection.wait_broken()
                finally:
                    self._nursery = None  # it closes: an object entered now waits for the next session
                nursery.cancel_scope.cancel()
        finally:
            self._worked = self._worked or trio.current_time() - begun > session_worked_s
            self._left()
        assert connection.failure is not None
        raise connection.failure

    def _left(self) -> None:
        self.connection = self._nursery = None
        for replica in self.replicas.values():
            replica.target.unsure.discard(self.server_id)
            replica.move(ReplicaEvent.LEFT)
            replica.moved.set()
        self.replicas.clear()
        self._by_tag.clear()
        self._active.clear()
        self.claim.member_left(self)

    def enter(self, target: Target) -> None:
        """Begin with an object, if there is a session: compare, then follow or catch up."""
        if self._nursery is None or target.name in self.replicas:
            return
        replica = self.replicas[target.name] = self._by_tag[target.tag] = Replica(target)
        info = self._infos.get(target.name, ObjectInfo(target.name))
        match compare(info, target.goal, target.digest_at):
            case Comparison.AGREES:
                self.agreed(replica, info.received, info.synced)
            case Comparison.DIFFERS:
                self.broken(replica, _difference(info, target))
            case Comparison.ASK_MEMBER:
                target.unsure.add(self.server_id)
                self._nursery.start_soon(catch_up.compare_there, self, replica)
            case Comparison.ASK_ANOTHER:
                self._lacks(replica, info.synced)
                self._fill(replica, info)

    def agreed(self, replica: Replica, received: int, synced: int, *, filling: bool = False) -> None:
        """The copy is a prefix: it counts, and goes on from there. `filling`: the caller is the one who
        fills it."""
        target = replica.target
        target.unsure.discard(self.server_id)
        replica.sent = replica.received = received
        replica.synced = synced
        self._lacks(replica, synced)
        target.note(self.server_id, received, synced)
        if target.window is not None and received >= target.window.base:
            self.follow(replica)
        elif target.window is None and received >= target.goal_size:
            replica.move(ReplicaEvent.IN_WINDOW)
        else:
            replica.move(ReplicaEvent.BEHIND)
            if not filling:
                self._fill(replica)
        self.claim.changed()

    def _fill(self, replica: Replica, info: ObjectInfo | None = None) -> None:
        if self._nursery is not None:  # else the session is ending, and the next one begins anew
            self._nursery.start_soon(catch_up.fill, self, replica, info)

    def _lacks(self, replica: Replica, synced: int) -> None:
        if synced < replica.target.size:
            replica.target.without.add(self.server_id)
            self.claim.changed()

    def follow(self, replica: Replica) -> None:
        """From here on the window has what it needs."""
        replica.move(ReplicaEvent.IN_WINDOW)
        self._active[replica.target.name] = replica
        self.wake()

    def broken(self, replica: Replica, why: str) -> None:
        """The copy is not ours, or its disk failed: it never counts in this session."""
        replica.move(ReplicaEvent.DIFFERS)
        self._active.pop(replica.target.name, None)
        target = replica.target
        target.unsure.discard(self.server_id)
        target.sizes.pop(self.server_id, None)
        target.received_sizes.pop(self.server_id, None)
        target.without.add(self.server_id)
        self.error = f"{self.claim.directory}/{target.name} there: {why}"
        log.warning("%s: %s", self.member.address, self.error)
        self.claim.changed()

    def sealed(self, target: Target) -> None:
        """The writer is done with the object; what is missing comes from other members."""
        replica = self._active.pop(target.name, None)
        if replica is not None and replica.sent < target.goal_size:
            replica.move(ReplicaEvent.FELL_BEHIND)
            self._fill(replica)

    def wake(self) -> None:
        """There may be something to send."""
        if self.connection is not None:
            self.connection.wake()

    def _feed(self, buffers: list[Buffer]) -> None:
        """The session's writer wants more to send."""
        room = send_batch_bytes
        for replica in list(self._active.values()):
            window = replica.target.window
            assert window is not None
            if replica.sent == window.size:
                continue
            if replica.sent < window.base:
                self._fell_behind(replica)
                continue
            allowed = min(room, self._in_flight_max - (replica.sent - replica.received))
            if allowed > 0:
                room -= self._take(replica, buffers, allowed)
                self._active[replica.target.name] = self._active.pop(
                    replica.target.name
                )  # the others come first

    def _take(self, replica: Replica, buffers: list[Buffer], room: int) -> int:
        target, taken = replica.target, 0
        assert target.window is not None
        for chunk in target.window.chunks_from(replica.sent):
            buffers.append(append_head(target.name, target.tag, chunk))
            buffers.append(chunk.payload)
            replica.sent = chunk.end
            taken += len(chunk.payload)
            if taken >= room:
                break
        return taken

    def _fell_behind(self, replica: Replica) -> None:
        del self._active[replica.target.name]
        replica.move(ReplicaEvent.FELL_BEHIND)
        self._fill(replica)

    def _watermark(self, mark: Watermark) -> None:
        replica = self.replicas.get(mark.name)
        if replica is None:
            raise RemoteProtocolError(f"a watermark of {mark.name}, which this session does not append to")
        if not replica.synced <= mark.synced <= mark.received <= replica.sent:
            raise RemoteProtocolError(
                f"watermark {mark.received}/{mark.synced} of {mark.name}: {replica.sent} bytes were sent,"
                f" {replica.synced} were synced before"
            )
        if replica.state is ReplicaState.BROKEN:
            return
        self._worked = True
        limited = replica.sent - replica.received >= self._in_flight_max
        replica.received, replica.synced = mark.received, mark.synced
        replica.target.note(self.server_id, mark.received, mark.synced)
        if limited:
            self.wake()
        if replica.state is ReplicaState.CATCHING_UP:
            replica.moved.set()
        if self.claim.waited:
            self.claim.changed()

    def _append_refused(self, tag: int, error: RefusedError) -> None:
        """Content and disk troubles concern one object; anything else ends the session, which sorts it
        out."""
        replica = self._by_tag.get(tag)
        if replica is not None and isinstance(error, PoisonedError | CorruptError):
            if replica.state is not ReplicaState.BROKEN:
                self.broken(replica, str(error.args[0]))
            return
        if self.connection is not None:
            self.connection.fail(error)


def _difference(info: ObjectInfo, target: Target) -> str:
    if info.poisoned:
        return "poisoned by a failed write or sync"
    if info.corrupt:
        return f"damaged from byte {info.synced} on"
    if info.received > target.size:
        return f"{info.received} bytes, of which this writer wrote {target.size}"
    return f"another content below byte {info.synced}"
