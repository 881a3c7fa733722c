"""A claim: one writer of one directory, on all members of the store; its links, and the copies they fill.

- A *link* is one task per member: it connects, claims, and compares every object that the claim knows. Then
  the session's writer task requests bytes from the member's *copies* whenever the socket accepts more, and
  durability acks update the object's `WriteTarget`. When a session ends, for any reason, the link connects
  again. Only a FENCED error that shows a newer claim ends the claim.
- Nothing waits for a link: a member that does not respond keeps its own bytes in the window and delays no
  other member. One that lags is *filled* by tasks of its session.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

import trio

from dos_client import randomness
from dos_client.arguments import check_absent, check_run
from dos_client.core.claim import (
    ClaimMachine,
    ClaimState,
    Collecting,
    FenceReason,
    Garbage,
    climb,
    has_lost_objects,
    has_no_source,
    judge_fenced,
    proves_what_exists,
    was_held,
)
from dos_client.core.logs import longest, record_in
from dos_client.core.quorum import Quorums, TokenRefusal, refusal_of_token
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
    worst_state_text,
    worst_text,
)
from dos_client.core.status import MemberStatus, WaitBegan, WaitEnded, WaitTracker, waiting_reason
from dos_client.core.window import Chunk, SendWindow, append_frame, milestone_range
from dos_client.errors import MissingDataError, QuorumUnavailableError
from dos_client.file_token import FileToken
from dos_client.limits import (
    answer_timeout_s,
    answers_grace_s,
    catch_up_in_flight_bytes_max,
    catch_up_read_bytes,
    collect_pause_s,
    in_flight_bytes_max,
    read_bytes_max,
    read_timeout_s,
    send_batch_bytes,
    session_worked_s,
    superseded_joining_s,
    waiting_after_s,
)
from dos_client.randomness import backoff_s
from dos_client.reading.copying import MemberSource, copy_bytes, fold_at
from dos_client.reading.damage import CopyFault
from dos_client.reading.member_queries import ReadableStore, ReadAhead, bytes_of, query_bytes
from dos_client.sessions.connection import Connection
from dos_client.sessions.members import Watch, admit_or_act, open_member_session
from dos_client.writing.object_writer import LocalCopy, ObjectWriter, WriteTarget
from dos_protocol.digests import Buffer
from dos_protocol.errors import (
    BeingAppendedError,
    BrokenConnectionError,
    BusyError,
    ClosedError,
    CorruptError,
    DosError,
    FencedError,
    ForbiddenError,
    LocalProtocolError,
    NoSpaceError,
    NotAMemberError,
    NotFoundError,
    PoisonedError,
    QuotaExceededError,
    RefusedError,
    RemoteProtocolError,
    RolledBackError,
    StaleGenerationError,
    UnauthorisedError,
    UnsupportedError,
    WrongStoreError,
)
from dos_protocol.limits import digest_block_bytes
from dos_protocol.messages import DirectoryOpened, DurabilityAck, ObjectInfo
from dos_protocol.names import NO_ID, check_name, id_text
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")


class ClaimStore(ReadableStore, Protocol):
    def forget(self, claim: object) -> None: ...


class Claim:
    """The claim of one directory, made by `Store.claim`. An async context manager that closes it.

    `answers`: per trusted member, the objects it had when it took the claim; a take-over reads them. A member
    with a damaged object is not included (R4). `epoch_seen`: the highest epoch seen.
    """

    def __init__(
        self, store: ClaimStore, directory: str, epoch: int, writer_id: bytes, *, claiming: bool = True
    ) -> None:
        self.store = store
        self.directory = check_name(directory)
        self.epoch, self.writer_id, self.claiming = epoch, writer_id, claiming
        self.disregard = frozenset[str]()
        self.epoch_seen = epoch
        self.answers: dict[bytes, dict[str, ObjectInfo]] = {}
        self._with_loss: set[bytes] = set()
        self.targets: dict[str, WriteTarget] = {}
        self.garbage: Garbage = lambda _: False
        self.deleting: set[str] = set()
        self.lost: FencedError | None = None
        self.refused: TokenRefusal | None = None
        self.waited = False
        self._quorums = Quorums(record_in(store.record, directory))
        self._machine = ClaimMachine(self._quorums)
        self._links: dict[bytes, MemberLink] = {}
        self.waits = ClaimWaits(self)
        self.reads = ClaimReads(self)
        self._nursery: trio.Nursery | None = None
        self._change = trio.Event()
        self._end = trio.Event()
        self._ended = trio.Event()
        self._next_tag = 1

    # For owners

    @property
    def ended(self) -> DosError | None:
        if self.lost is not None or self.refused is not None:
            return self.lost or self.refused
        if self._machine.state is ClaimState.CLOSED:
            return ClosedError(f"the claim of {self.directory} is closed")
        return None

    @property
    def state(self) -> ClaimState:
        return self._machine.state

    @property
    def waiting(self) -> bool:
        """WAITING_FOR_STORE: too few members are connected, or none acknowledges pending bytes."""
        if self._machine.state is ClaimState.WAITING:
            return True
        late = trio.current_time() - waiting_after_s
        return any(one.synced < one.size and one.moved_at < late for one in self.targets.values())

    @property
    def needed(self) -> int:
        """How many members it needs now: to be granted, and later to acknowledge."""
        claiming = self._machine.state is ClaimState.CLAIMING
        return self._quorums.claims_needed if claiming else self._quorums.ack_quorum

    def status(self) -> "ClaimStatus":
        return self.waits.status()

    async def wait_quorum(self) -> None:
        """Wait until it is not `waiting`. Raises FencedError, ClosedError."""
        while self.waiting:
            self.check()
            await self.wait_changed(waiting_after_s / 2)
        self.check()

    async def wait_all(self, timeout_s: float) -> bool:
        """Wait until every member that is "in" has answered (R16). Return False on timeout."""
        with trio.move_on_after(timeout_s):
            while not self._quorums.sets[0] <= self.answers.keys():
                self.check()
                await self.wait_changed(1.0)
        return self._quorums.sets[0] <= self.answers.keys()

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes:
        """Read durable bytes of an object from `member` or the best one; short only at that member's end.
        Raises QuorumUnavailableError or BrokenConnectionError after `read_timeout_s`, otherwise the errors of
        the members.
        """
        return await self.reads.read(name, offset, max_bytes, member)

    async def settle(self, name: str, size: int, digest: int, local: LocalCopy | None = None) -> None:
        """Sync the prefix of that size, with that digest, on a quorum of claimed members (R7).

        Members that lack it are filled from `local`, if that has exactly this content, otherwise from a
        member. When cancelled, and for members beyond the quorum, it continues in the background. Raises
        MissingDataError if as many undamaged members as a take-over needs, or all, answered and none holds
        it; QuorumUnavailableError if a new claim must decide; FencedError, ClosedError.
        """
        self.check()
        target = self.targets.get(name)
        if target is None:
            target = self._add(name, local=local)
            target.seal(size, digest)
            self._enter(target)
        elif target.size != size or target.digest_at(size) != digest:
            raise LocalProtocolError(f"{name} is known to this claim with {target.size} bytes, not {size}")
        deadline = trio.current_time() + answer_timeout_s
        while target.synced < size:
            self.check()
            lacking = target.without | target.spoiled
            if not self._has_no_source(target):
                deadline = trio.current_time() + answer_timeout_s
            elif trio.current_time() > deadline or not was_held(self.answers, target, lacking):
                raise self._unsettled_error(target)
            await self.wait_changed(1.0)

    def open_object(self, name: str, local: LocalCopy | None = None) -> ObjectWriter:
        """Create an object. `local`: this machine's copy of it, to fill members that lag. Raises FencedError,
        ClosedError, LocalProtocolError if it is known or exists.
        """
        if name not in self.deleting:  # an object being deleted is rejected below
            check_absent(self.directory, name, self.answers, self.store.record)
        return self._open(name, SendWindow(), local)

    def resume_object(self, name: str, base: int, base_digest: int, tail: bytes) -> ObjectWriter:
        """Continue a plain object: `base` is a multiple of 64 KiB, `base_digest` the digest there, `tail` the
        bytes after it.
        """
        return self._open(name, SendWindow(base, base_digest, tail))

    async def delete(self, name: str) -> None:
        """Delete an object of a server that is in no store (`connect`), durably. Its name can be used again.
        Raises LocalProtocolError for an object in use or in a store, FencedError, ClosedError, and as
        `Requests.delete`.
        """
        self.check()
        if not self.store.of_one_server:
            raise LocalProtocolError(
                f"{self.directory}/{name} belongs to a store, where a deleted copy would count as missing",
                remedy="use collect() for objects that an acknowledged record releases",
            )
        if name in self.targets or name in self.deleting:
            raise LocalProtocolError(f"{name} is in use by this claim of {self.directory}")
        (link,) = self.links()
        if link.connection is None:
            raise BrokenConnectionError(f"no session with {link.member.address}: {link.error}")
        self.deleting.add(name)
        try:
            await link.connection.delete(name)
            self.answers.get(link.server_id, {}).pop(name, None)
            self.reads.drop_ahead()
            link.copies.forget(name)
        finally:
            self.deleting.discard(name)

    def collect(self, garbage: Garbage) -> None:
        """Delete, on every member and until the claim ends, objects that are no longer needed, in the
        background. The caller guarantees that an acknowledged record releases them and that nothing retained
        needs them (R14). Raises LocalProtocolError for an object being written, FencedError, ClosedError.
        """
        self.check()
        selected = [target for target in self.targets.values() if garbage(target.name)]
        for target in selected:
            if target.window is not None:
                raise LocalProtocolError(
                    f"{self.directory}/{target.name} is being written and cannot be deleted"
                )
        self.garbage = garbage
        # It stops being an object of the claim before it is deleted. From then on nothing of it is sent,
        # filled or waited for: an append of this claim could recreate it after its DELETE.
        for target in selected:
            target.count(self.store.counts)
            del self.targets[target.name]
        for link in self.links():
            for target in selected:
                link.copies.drop(target)
            link.copies.collectable.set()

    async def wait_collected(self, timeout_s: float) -> bool:
        """Wait until no connected member holds garbage; False: timeout. Raises FencedError, ClosedError."""

        def remaining() -> bool:
            links = (link for link in self.links() if link.connection is not None)
            return any(link.copies.held.next(self.garbage) is not None for link in links)

        with trio.move_on_after(timeout_s):
            while remaining():
                self.check()
                await self.wait_changed(1.0)
        return not remaining()

    async def aclose(self) -> None:
        """End the sessions. Unacknowledged bytes may or may not arrive. Waits raise ClosedError."""
        self._machine.close()
        self.finish()
        self.store.forget(self)
        await self._ended.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            await self.aclose()

    # For the store, the writers and the links

    def check(self) -> None:
        """Raise the reason if the claim has ended, or LocalProtocolError in another trio run."""
        check_run(self.store.run_token)
        match self.ended:
            case RefusedError() as refused:  # FencedError, ForbiddenError, UnauthorisedError
                raise type(refused)(str(refused.args[0]), actual=refused.actual)
            case DosError() as closed:
                raise ClosedError(str(closed.args[0]))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._make_links()
                task_status.started()
                await self._end.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._ended.set()

    async def wait_granted(self) -> None:
        """Wait until F members hold it (R1), shortly for the others. Raises why the claim has ended."""
        while self._machine.state is ClaimState.CLAIMING and self.ended is None:
            await self.wait_changed(1.0)
        with trio.move_on_after(answers_grace_s):
            while self.ended is None and not self._quorums.sets[0] <= self.answers.keys():
                await self.wait_changed(1.0)
        self.check()

    def record_changed(self) -> None:
        self._quorums = Quorums(record_in(self.store.record, self.directory))
        for link in self._links.values():
            link.replace()
        # Before the new links: a session of the old record must not count in the new quorums.
        self._machine.record_changed(self._quorums)
        for target in self.targets.values():
            target.requorum(self._quorums)
        if self._nursery is not None and self.ended is None:
            self._make_links()
        self.changed()

    def _make_links(self) -> None:
        assert self._nursery is not None
        record = record_in(self.store.record, self.directory)
        self._links = {one.server_id: MemberLink(self, one) for one in record.members}
        for link in self._links.values():
            self._nursery.start_soon(link.run)

    def member_claimed(self, server_id: bytes, opened: DirectoryOpened) -> None:
        """Record that a member took the claim. Its first answer counts if it proves what exists."""
        trusted = proves_what_exists(opened.entries, self.disregard)
        if has_lost_objects(self.answers.get(server_id, {}), opened.entries):
            self._with_loss.add(server_id)
        if trusted and server_id not in self.answers and server_id in self._quorums.sets[0]:
            self.answers[server_id] = {  # without what this claim itself wrote there
                one.name: one for one in opened.entries if one.name not in self.targets and not one.corrupt
            }
        self.epoch_seen = max(self.epoch_seen, opened.epoch)
        self._machine.claimed(server_id, trusted=trusted)
        self.changed()

    def member_left(self, link: "MemberLink") -> None:
        if self._links.get(link.server_id) is link:
            self._machine.left(link.server_id)
        self.changed()

    def member_fenced(self, server_id: bytes, error: FencedError) -> None:
        """End the claim for good: a member holds a newer one."""
        held = error.epoch_held
        self.epoch_seen = max(self.epoch_seen, held)
        if self._machine.fenced(server_id):
            text = f"epoch {self.epoch} of {self.directory} is superseded by epoch {held}"
            if not self.claiming:
                text = f"{self.directory} has a writer, at epoch {held}; claim it to write"
            self.lost = FencedError(text, actual=held)
            log.info("%s", self.lost)
        self.finish()

    def finish(self) -> None:
        self._end.set()
        self.reads.drop_ahead()
        self.waits.inspect()
        for target in self.targets.values():
            target.wake_all()
        self.changed()

    def changed(self) -> None:
        if self.waited:
            self.waited = False
            self._change.set()
            self._change = trio.Event()

    async def wait_changed(self, timeout_s: float) -> None:
        self.waited = True
        with trio.move_on_after(timeout_s):
            await self._change.wait()

    def addresses(self) -> dict[bytes, str]:
        return {link.server_id: link.member.address for link in self._links.values()}

    def wake_links(self) -> None:
        for link in self._links.values():
            if link.copies.connection is not None:
                link.copies.connection.wake()

    def seal(self, target: WriteTarget) -> None:
        target.on_complete = self._sealed
        if target.synced >= target.size:
            self._sealed(target)

    def _sealed(self, target: WriteTarget) -> None:
        target.on_complete = None
        if target.window is not None:
            target.seal(target.window.size, target.window.digest)
            for link in self._links.values():
                link.copies.sealed(target)

    def source_for(self, target: WriteTarget, at_least: int, excluding: object) -> Connection | None:
        """Return a member with at least that much of the object and an agreeing digest, or None."""
        connections = [
            link.connection
            for link in self._links.values()
            if link is not excluding
            and link.connection is not None
            and target.sizes.get(link.server_id, 0) >= at_least
            and link.copies.agrees(target.name)
        ]
        return self.store.rng.choice(connections) if connections else None

    def links(self) -> "Iterable[MemberLink]":
        return self._links.values()

    def link(self, server_id: bytes) -> "MemberLink | None":
        return self._links.get(server_id)

    def _has_no_source(self, target: WriteTarget) -> bool:
        connected = [one.server_id for one in self._links.values() if one.connection is not None]
        here = target.local.size() >= target.size > 0
        return not here and has_no_source(self._quorums, target, connected)

    def _unsettled_error(self, target: WriteTarget) -> DosError:
        content = f"{target.size} bytes of {self.directory}/{target.name}"
        if was_held(self.answers, target, target.without - self._with_loss):
            return QuorumUnavailableError(
                f"a member had {content} at the claim of epoch {self.epoch}, but became unavailable or"
                " damaged since; take over again with a new claim"
            )
        return MissingDataError(f"no member holds {content} with digest {target.goal_digest:016x}")

    def _open(self, name: str, window: SendWindow, local: LocalCopy | None = None) -> ObjectWriter:
        self.check()
        if name in self.targets:
            raise LocalProtocolError(f"{name} is already known to this claim of {self.directory}")
        target = self._add(name, window, local)
        self._enter(target)
        return ObjectWriter(self, target)

    def _add(
        self, name: str, window: SendWindow | None = None, local: LocalCopy | None = None
    ) -> WriteTarget:
        if name in self.deleting:
            raise LocalProtocolError(f"{name} is being deleted by this claim of {self.directory}")
        target = self.targets[name] = WriteTarget(
            check_name(name), self._next_tag, self._quorums, window, local
        )
        self._next_tag += 1
        return target

    def _enter(self, target: WriteTarget) -> None:
        for link in self._links.values():
            link.copies.enter(target)


class ClaimReads:
    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._ahead = ReadAhead(claim.store.start, self._read)

    async def read(self, name: str, offset: int, max_bytes: int, only: bytes | None) -> bytes:
        self._claim.check()
        return await self._ahead.read(name, offset, max_bytes, only)

    def drop_ahead(self) -> None:
        self._ahead.drop()

    async def _read(self, name: str, offset: int, max_bytes: int, only: bytes | None) -> bytes:
        claim = self._claim
        deadline = trio.current_time() + read_timeout_s
        wanted = min(max_bytes, read_bytes_max)
        while wanted > 0:
            claim.check()
            tiers = self._readers(name, offset + wanted, only)
            answers = await query_bytes(claim.store, tiers, claim.directory, name, offset, wanted, self)
            data, error = bytes_of(answers), answers.error()
            if data:
                return data
            disconnected = [] if only is not None else self._disconnected_with_more(name, offset)
            if disconnected:
                error = QuorumUnavailableError(
                    f"byte {offset} of {claim.directory}/{name} is on members that are unavailable",
                    disconnected,
                )
            elif data is not None:
                return data
            # A session of an older generation was ended by its server; its link connects again.
            reconnects = isinstance(error, BrokenConnectionError | StaleGenerationError)
            unavailable = reconnects or isinstance(error, QuorumUnavailableError)
            if not unavailable or trio.current_time() > deadline:
                raise error
            await claim.wait_changed(0.5)
        return b""

    def _disconnected_with_more(self, name: str, offset: int) -> list[str]:
        return [
            f"{link.member.address}: {link.error or 'no session'}"
            for link in self._claim.links()
            if link.connection is None and self._known_size(link, name) > offset
        ]

    def _known_size(self, link: "MemberLink", name: str) -> int:
        """Return how much of the object a member is known to have, or had when it was last connected."""
        claim = self._claim
        target, info = claim.targets.get(name), claim.answers.get(link.server_id, {}).get(name)
        known = target.sizes.get(link.server_id, 0) if target is not None else 0
        return max(known, info.synced if info is not None else 0)

    def _readers(self, name: str, end: int, only: bytes | None) -> list[list[Member]]:
        """Return connected members in the order to query them: those that have the object up to `end` and
        whose digest agreed, then those that have it, then the others, longest first.
        """
        claim = self._claim

        def has(link: "MemberLink") -> int:
            return self._known_size(link, name)

        joined = [link for link in claim.links() if link.connection is not None]
        if only is not None:
            return [[link.member] for link in joined if link.server_id == only]
        voters = sorted((link for link in joined if link.member.state == "in"), key=has, reverse=True)
        longest = min(end, max(map(has, voters), default=0))
        full = [link for link in voters if has(link) >= longest]
        agreed = [link.member for link in full if link.copies.agrees(name)]
        unproved = [link.member for link in full if not link.copies.agrees(name)]
        return [agreed, unproved, *([link.member] for link in voters if has(link) < longest)]

    async def session(self, member: Member) -> Connection:
        link = self._claim.link(member.server_id)
        if link is None or link.connection is None:
            raise BrokenConnectionError(f"the session with {member.address} ended")
        return link.connection

    def owed(self, member: Member) -> int:
        link = self._claim.link(member.server_id)
        return 0 if link is None or link.connection is None else link.connection.owed

    def is_connected(self, member: Member) -> bool:
        link = self._claim.link(member.server_id)
        return link is not None and link.connection is not None


@dataclass(frozen=True, slots=True)
class ClaimStatus:
    """The status of a claim. `waiting`: for what and why, ''. `lag_bytes`: not yet synced on a quorum; the
    oldest is at most `lag_s` old.
    """

    directory: str
    epoch: int
    state: ClaimState
    waiting: str
    waiting_s: float
    lag_bytes: int
    lag_s: float
    members: tuple[MemberStatus, ...]


class ClaimWaits:
    """Whether one claim waits, why, and since when. Logs the beginning and the end of a wait."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._waiting = WaitTracker()
        self._begun = trio.current_time()
        self._counted_s = 0.0

    def status(self) -> ClaimStatus:
        self.inspect()
        claim, now = self._claim, trio.current_time()
        targets = list(claim.targets.values())
        return ClaimStatus(
            claim.directory,
            claim.epoch,
            claim.state,
            self._waiting.reason,
            self._waiting.seconds(now),
            sum(target.unsynced for target in targets),
            max((target.times.age(target.synced, now) for target in targets if target.unsynced), default=0.0),
            tuple(member_in_claim(link) for link in claim.links()),
        )

    def inspect(self) -> None:
        claim = self._claim
        match self._waiting.inspect(self._reason(), trio.current_time()):
            case WaitBegan(reason):
                log.warning("%s is waiting for the store: %s", claim.directory, reason)
            case WaitEnded(seconds):
                end = "continues" if claim.ended is None else "ended"
                log.warning("%s %s after waiting %.1f s for the store", claim.directory, end, seconds)
        claim.store.counts.waiting_s += self._waiting.total_s - self._counted_s
        self._counted_s = self._waiting.total_s
        for target in claim.targets.values():
            target.count(claim.store.counts)

    def _reason(self) -> str:
        claim = self._claim
        if claim.refused is not None:
            return f"members refuse its token: {claim.refused.args[0]}"
        if claim.ended is not None:
            return ""
        slow = claim.state is ClaimState.CLAIMING and trio.current_time() - self._begun > waiting_after_s
        if not slow and not claim.waiting:
            return ""
        statuses = [member_in_claim(link) for link in claim.links()]
        return waiting_reason(
            claim.needed,
            sum(one.connected for one in statuses),
            statuses,
        )


def member_in_claim(link: "MemberLink") -> MemberStatus:
    targets = list(link.claim.targets.values())
    connected = link.connection is not None
    lag_bytes = sum(target.lag(link.server_id) for target in targets)
    state = worst_state_text(link.copies.states()) if connected else "unavailable"
    if connected and state != "broken" and link.member.state != "in":
        state = link.member.state
    return MemberStatus(
        link.member.address,
        link.server_id,
        "catching up" if state == "in sync" and lag_bytes else state,
        lag_bytes,
        connected,
        link.copies.problem() or link.error,
        max((target.lag_s(link.server_id) for target in targets), default=0.0),
    )


def of_member(claims: Iterable[Claim], server_id: bytes) -> list[MemberStatus]:
    return [member_in_claim(link) for claim in claims if (link := claim.link(server_id)) is not None]


def member_in_store(watch: Watch, seen: Sequence[MemberStatus], fault: str) -> MemberStatus:
    member, connected = watch.member, watch.connection is not None
    state = "broken" if connected and fault else worst_text(one.state for one in seen)
    if state != "broken":
        if not connected:
            state = "unavailable"
        elif member.state != "in":
            state = member.state
        elif state == "unavailable":
            state = "entering"
    return MemberStatus(
        member.address,
        member.server_id,
        state,
        sum(one.lag_bytes for one in seen),
        connected,
        next((one.error for one in seen if one.error), "") or watch.error or fault,
        max((one.lag_s for one in seen), default=0.0),
    )


class Outage:
    """The outage of a member for a claim: its start, the failed attempts, and what was logged of it."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.since = trio.current_time()
        self.attempts = 0
        self._was_connected = False
        self._logged: set[type[DosError]] = set()

    def failed(self, error: DosError, *, worked: bool) -> None:
        if worked:
            self._logged.clear()
        if not self.attempts and not self._logged:
            self.since = trio.current_time()
        self.attempts += 1
        known = type(error) in self._logged
        self._logged.add(type(error))
        log.log(logging.DEBUG if known else logging.INFO, "%s: %s; retrying", self._label, error.args[0])

    @property
    def is_full(self) -> bool:
        """Whether the disk of the member is full, as far as this claim knows."""
        return NoSpaceError in self._logged

    def over(self) -> bool:
        again = self._was_connected
        self._was_connected = True
        if not self._logged.isdisjoint((NoSpaceError, QuotaExceededError)):
            return again  # a full member accepts every claim but no bytes: it is back only after it took some
        if self._logged:
            seconds = trio.current_time() - self.since
            log.info("%s: back after %.1f s and %d attempts", self._label, seconds, self.attempts)
        self.attempts = 0
        self._logged.clear()
        return again


class MemberLink:
    """The link of one claim with one member. `error`: why there is no session. `refusal`: that the member
    refuses the token. `replaced`: the store record has changed, and the claim has another link.
    """

    def __init__(self, claim: Claim, member: Member) -> None:
        self.claim = claim
        self.member = member
        self.server_id = member.server_id
        self.error = "not connected yet"
        self.refusal: TokenRefusal | None = None
        self.replaced = False
        self.copies = MemberCopies(self)
        self._scope = trio.CancelScope()
        self.outage = Outage(f"{member.address} for {claim.directory}")

    @property
    def connection(self) -> Connection | None:
        return self.copies.connection

    def replace(self) -> None:
        """End the session, because the store record has changed: its reports count no more."""
        self.replaced = True  # the scope would answer the same, but compares its deadline for each ack
        self._scope.cancel()

    async def run(self) -> None:
        attempt = 0
        with self._scope:
            while True:
                self.copies.attempt()
                try:
                    await self._session()
                except FencedError as error:
                    if judge_fenced(self.claim.epoch, error.epoch_held, at_claim=False) is FenceReason.LOST:
                        self.claim.member_fenced(self.server_id, error)
                        return
                    self._failed(error)
                    if self.member.state != "in":
                        await trio.sleep(superseded_joining_s)
                except (ForbiddenError, UnauthorisedError) as error:
                    self._failed(error)
                    if self._is_refused(error):
                        self.claim.refused = error
                        self.claim.finish()
                        return
                except RolledBackError as error:
                    self._distrust()
                    self._failed(error)
                except DosError as error:
                    self._failed(error)
                attempt = 1 if self.copies.worked else attempt + 1
                await trio.sleep(backoff_s(attempt, randomness.jitter()))

    def _is_refused(self, error: TokenRefusal) -> bool:
        """Return whether so many members refuse the token that the others are not enough."""
        if isinstance(error, UnauthorisedError) and isinstance(self.claim.store.access.token, FileToken):
            return False  # a valid token may be written into the file: the claim waits for that
        quorums = Quorums(record_in(self.claim.store.record, self.claim.directory))
        refusals = {link.server_id: link.refusal for link in self.claim.links()}
        return refusal_of_token(quorums, refusals) is not None

    def _distrust(self) -> None:
        # It may no longer have what it reported, and what it lacks proves nothing (R4).
        self.claim.answers.pop(self.server_id, None)
        for target in self.claim.targets.values():
            target.distrust(self.server_id)

    def _failed(self, error: DosError) -> None:
        self.error = str(error.args[0])
        self.refusal = error if isinstance(error, TokenRefusal) else None
        self.copies.left(self.error)
        self.claim.changed()
        self.outage.failed(error, worked=self.copies.worked)

    async def _session(self) -> None:
        store = self.claim.store
        try:
            async with open_member_session(store, self.member) as connection:
                opened = await self._enter(connection)
                if opened is not None:
                    await self._serve(connection, opened)
        except (StaleGenerationError, WrongStoreError, NotAMemberError) as error:
            await admit_or_act(store, self.member, error)
            self.copies.worked = True

    async def _enter(self, connection: Connection) -> DirectoryOpened | None:
        claim = self.claim
        if not claim.claiming:
            opened = await connection.open_directory(claim.directory)
            if opened.epoch:  # this unclaimed writer's appends would always be rejected
                claim.member_fenced(
                    self.server_id, FencedError("the directory has a writer", actual=opened.epoch)
                )
                return None
            return opened
        try:
            return await connection.claim(claim.directory, claim.epoch, claim.writer_id)
        except FencedError as error:
            match judge_fenced(claim.epoch, error.epoch_held, at_claim=True):
                case FenceReason.CLIMB:
                    return await self._climb(connection, error.epoch_held)
                case FenceReason.READ_HOLDER:
                    holder = await connection.open_directory(claim.directory)
                    if (holder.epoch, holder.writer_id) == (claim.epoch, claim.writer_id):
                        raise BrokenConnectionError(
                            f"{self.member.address} has a newer session of this claim"
                        ) from error
            claim.member_fenced(self.server_id, error)
            return None

    async def _climb(self, connection: Connection, epoch_held: int) -> DirectoryOpened | None:
        for epoch in climb(epoch_held, self.claim.epoch):
            opened = await connection.claim(self.claim.directory, epoch, self.claim.writer_id)
        return opened

    async def _serve(self, connection: Connection, opened: DirectoryOpened) -> None:
        self.error, self.refusal = "", None
        if self.outage.over():
            self.claim.store.counts.reconnects[self.member.address] += 1
        begun = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                self.claim.member_claimed(self.server_id, opened)
                self.copies.begin(connection, opened, nursery)
                if self.claim.claiming and self.claim.store.record.store_id != NO_ID:
                    nursery.start_soon(self.claim.store.witnesses.renew, self.server_id)
                try:
                    await connection.wait_broken()
                finally:
                    self.copies.end()
                nursery.cancel_scope.cancel()
        finally:
            self.copies.worked |= trio.current_time() - begun > session_worked_s
            self.copies.left(
                "the session ended" if connection.failure is None else str(connection.failure.args[0])
            )
            self.claim.member_left(self)
        assert connection.failure is not None
        raise connection.failure


class ObjectCopy:
    """One object on one member. `had`: the size that it had reported as synced, if it came back with less."""

    __slots__ = ("had", "moved", "replica", "target")

    def __init__(self, target: WriteTarget) -> None:
        self.target = target
        self.replica = Replica(trio.current_time())
        self.moved = trio.Event()
        self.had = 0


class MemberCopies:
    """All copies of one member. `connection`: of the live session. Copies are in ENTER during an attempt to
    connect, and in DISCOVER_LOCAL_SIZE between attempts. `_active`: those that follow the window.
    """

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
        """Objects that the claim no longer has: this session may still deliver durability acks of them."""
        self._nursery: trio.Nursery | None = None
        self._attempting = False
        self._in_flight_max = in_flight_bytes_max

    # For the link: the sessions

    def attempt(self) -> None:
        self._attempting = True
        self.worked = False
        for target in self.claim.targets.values():
            self._add(target)

    def begin(self, connection: Connection, opened: DirectoryOpened, nursery: trio.Nursery) -> None:
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
        nursery.start_soon(_sweep, self)

    def end(self) -> None:
        self._nursery = None

    def left(self, why: str) -> None:
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
        return [copy.replica.state for copy in self._all.values()]

    def problem(self) -> str:
        broken = (copy for copy in self._all.values() if copy.replica.state is ReplicaState.BROKEN)
        return next((self._named(copy) for copy in broken), "")

    def agrees(self, name: str) -> bool:
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
        self._add(target)
        if self._nursery is not None:
            self._discover(self._all[target.name])

    def gone(self, name: str) -> None:
        self.held.gone(name)
        self._dropped.discard(name)

    def forget(self, name: str) -> None:
        self._infos.pop(name, None)
        self.claim.store.damage.repaired(self.server_id, self.claim.directory, name)

    def drop(self, target: WriteTarget) -> None:
        copy = self._all.pop(target.name)
        self._by_tag.pop(target.tag)
        self._active.pop(target.name, None)
        self._dropped.add(target.name)
        if copy.replica.state is not ReplicaState.DISCOVER_LOCAL_SIZE:
            copy.replica.handle(ReplicaLeft("it is no longer needed"), trio.current_time())
        copy.moved.set()
        self.held.made(target.name)

    def sealed(self, target: WriteTarget) -> None:
        copy = self._active.pop(target.name, None)
        if copy is not None and copy.replica.sent < target.goal_size:
            self.handle(copy, ReplicaFellBehind())

    def wake(self) -> None:
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
        for effect in copy.replica.handle(event, trio.current_time()):
            match effect:
                case ReplicaEffect.COUNT:
                    self._count(copy)
                case ReplicaEffect.DISCOUNT:
                    self._discount(copy)
                case ReplicaEffect.QUERY_MEMBER:
                    copy.target.unsure.add(self.server_id)
                    self._start(_CatchUp(self, copy).compare_at_goal)
                case ReplicaEffect.FIND_DIGEST:
                    assert copy.replica.claimed is not None
                    self._lacks(copy.target, copy.replica.claimed.synced)
                    self._start(_CatchUp(self, copy).fill)
                case ReplicaEffect.FILL:
                    if not filling:
                        self._start(_CatchUp(self, copy).fill)
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
        """Stop counting a reported size if the member now has less than it had reported to this claim."""
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

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        # otherwise the session is ending, and the next one starts the work again
        if self._nursery is not None:
            self._nursery.start_soon(work)

    def _count(self, copy: ObjectCopy) -> None:
        replica, target = copy.replica, copy.target
        if self.link.replaced:  # compared under the previous store record, whose quorums count no more
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
        if copy.target.window is not None:
            self._active[copy.target.name] = copy
            self.wake()

    # The session's bytes

    def _feed(self, buffers: list[Buffer]) -> bool:
        budget, several = send_batch_bytes, len(self._active) > 1
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
                if several:  # move it to the end, so that objects take turns
                    self._active[copy.target.name] = self._active.pop(copy.target.name)
        return budget <= 0

    def _take_chunks(self, copy: ObjectCopy, buffers: list[Buffer], budget: int) -> int:
        target, replica, count = copy.target, copy.replica, 0
        assert target.window is not None
        for chunk in target.window.chunks_from(replica.sent):
            buffers += append_frame(target.name, target.tag, chunk)
            replica.sent = chunk.end
            count += len(chunk.payload)
            if count >= budget:
                break
        self.count_sent(count)
        return count

    def _durability_ack(self, mark: DurabilityAck) -> None:
        if self.link.replaced:
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
        """Handle a rejected append: damage concerns one object; other errors end the session."""
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


class _CatchUp:
    """Compares one copy of one member, and fills it: from the writer's local copy, or from another member.

    Only one chunk is in memory, and the next one is read after the kernel has taken it. Local bytes come
    first: they do not load the other members, and are available if no other member is.
    """

    def __init__(self, copies: MemberCopies, copy: ObjectCopy) -> None:
        self._copies = copies
        self._copy = copy
        self._replica = copy.replica
        self._target = copy.target

    async def compare_at_goal(self) -> None:
        target, connection = self._target, self._copies.connection
        assert connection is not None
        try:
            result = await connection.stat(target.name, target.goal_size)
        except DosError as error:
            if connection.failure is None and self._replica.state is ReplicaState.DISCOVER_REMOTE_SIZE:
                self._differs(str(error.args[0]), spoiled=isinstance(error, CorruptError | PoisonedError))
            return
        if self._replica.state is not ReplicaState.DISCOVER_REMOTE_SIZE:
            return
        if result.digest == target.goal_digest:
            self._copies.handle(self._copy, ReplicaAgreed(target.goal_size, target.view))
        else:
            self._differs(f"different content before byte {target.goal_size}")

    async def fill(self) -> None:
        claim, attempt = self._copies.claim, 0
        while not self._reached():
            if await self._fill_locally():
                continue
            before = self._offset()
            source = claim.source_for(self._target, before + 1, self._copies.link)
            if source is None and not self._another_may_have(before + 1):
                went_back = self._copy.had > before
                had = f", after it had acknowledged {self._copy.had}" if went_back else ""
                self._differs(f"{before} bytes{had}; no other member has the rest", spoiled=went_back)
                return
            if source is None:
                await claim.wait_changed(1.0)
                continue
            try:
                await self._fill_from(MemberSource(source, self._target.name))
            except LocalProtocolError:
                raise
            except DosError as error:
                log.debug("%s from %s: %s", self._target.name, source.address, error)
                attempt = 1 if self._offset() > before else attempt + 1
                await trio.sleep(backoff_s(attempt, randomness.jitter()))

    async def wanted(self, offset: int) -> int:
        if self._reached():
            return 0
        await self._wait_room()
        _, end = milestone_range(offset, self._target.size)
        return min(end - offset, catch_up_read_bytes)

    async def put(self, chunk: Chunk) -> None:
        self._append(chunk, "member")

    async def _fill_from(self, source: MemberSource) -> None:
        fold = await fold_at(source, self._offset())
        if self._agrees(fold.value):
            await copy_bytes(source, self, fold, self._target.digest_at)
            if not self._reached():
                await self._copies.claim.wait_changed(0.1)  # the source has no more: its sync may follow

    async def _fill_locally(self) -> bool:
        await self._wait_room()
        if self._target.local.size() <= self._offset():
            return False
        proved = await self._target.local.proved(self._offset())
        if proved is None:
            return False
        if self._agrees(proved.digest) and proved.payload:
            self._append(proved, "local")
        return True

    def _another_may_have(self, size: int) -> bool:
        """Return whether another member may have that much: it is not connected, or its copy is longer."""
        others = (link for link in self._copies.claim.links() if link is not self._copies.link)
        return any(link.copies.may_have(self._target.name, size) for link in others)

    def _offset(self) -> int:
        if self._replica.state is ReplicaState.DISCOVER_REMOTE_SIZE:
            assert self._replica.claimed is not None
            return self._replica.claimed.synced
        return self._replica.sent

    def _reached(self) -> bool:
        if self._replica.state not in (ReplicaState.DISCOVER_REMOTE_SIZE, ReplicaState.CATCH_UP):
            return True
        if self._replica.state is ReplicaState.CATCH_UP and self._replica.sent >= self._target.base:
            self._copies.handle(self._copy, ReplicaReached(self._target.view))
            return True
        return False

    def _agrees(self, digest: int) -> bool:
        if self._replica.state is ReplicaState.DISCOVER_REMOTE_SIZE:
            claimed = self._replica.claimed
            assert claimed is not None
            if digest != claimed.digest:
                self._differs(f"different content before byte {claimed.synced}")
            else:
                agreed = ReplicaAgreed(claimed.synced, self._target.view)
                self._copies.handle(self._copy, agreed, filling=True)
        return self._replica.state is ReplicaState.CATCH_UP

    async def _wait_room(self) -> None:
        """Wait until the copy's bytes have left this process, and one more chunk may be in flight."""
        if self._copies.connection is not None:
            await self._copies.connection.wait_sent()
        while self._replica.sent - self._replica.received >= catch_up_in_flight_bytes_max:
            self._copy.moved = trio.Event()
            await self._copy.moved.wait()

    def _append(self, chunk: Chunk, source: str) -> None:
        connection = self._copies.connection
        if connection is None or self._replica.state is not ReplicaState.CATCH_UP:
            return
        self._copies.count_sent(len(chunk.payload), source)
        connection.post(*append_frame(self._target.name, self._target.tag, chunk))
        self._replica.sent_to(chunk.end)

    def _differs(self, why: str, *, spoiled: bool = False) -> None:
        self._copies.handle(self._copy, ReplicaDiffered(why, spoiled))


async def _sweep(copies: MemberCopies) -> None:
    """Delete the garbage on one member during its session, one object at a time. Nothing waits for it."""
    connection, claim, held = copies.connection, copies.claim, copies.held
    assert connection is not None
    while True:
        name = held.next(claim.garbage)
        if name is None:
            copies.collectable = trio.Event()
            await copies.collectable.wait()
            continue
        try:
            await connection.delete(name)
        except NotFoundError:
            copies.gone(name)
        except (BusyError, BeingAppendedError) as error:
            log.debug("%s/%s cannot be deleted yet: %s", claim.directory, name, error)
            await trio.sleep(collect_pause_s)
        except (PoisonedError, UnsupportedError) as error:
            log.info("%s/%s cannot be deleted on %s: %s", claim.directory, name, connection.address, error)
            held.postpone(name)
        except RefusedError as error:
            log.debug("%s/%s: %s", claim.directory, name, error)
            return  # fenced: the session receives the same error
        except DosError:
            return  # the session is over; the next one lists the objects again
        else:
            copies.gone(name)
            copies.forget(name)
            claim.answers.get(copies.server_id, {}).pop(name, None)
            claim.reads.drop_ahead()
            claim.store.counts.collected_objects += 1
            log.debug("%s/%s deleted on %s", claim.directory, name, connection.address)
        claim.changed()


async def resume(store: ReadableStore, claim: Claim, name: str) -> ObjectWriter:
    """Return a writer that continues at the object's end. Raises CorruptError if members differ."""
    base, digest, tail = await end_of(store, claim, name)
    return claim.resume_object(name, base, digest, tail)


async def end_of(store: ReadableStore, claim: Claim, name: str) -> tuple[int, int, bytes]:
    """Return the end of an object: the last block boundary, the prefix digest there, and the bytes after
    it.
    """
    copy = longest(claim.answers, name)
    if copy is None or not copy[1].synced:
        return 0, 0, b""
    member = store.record.member(copy[0])
    assert member is not None
    reader = await store.reader(member, claim.directory)
    for server_id, objects in claim.answers.items():
        info = objects.get(name)
        # The longest copy is continued only if all others are prefixes of it: nothing here says which one
        # counts.
        if info is not None and info.synced and (await reader.stat(name, info.synced)).digest != info.digest:
            other = store.record.member(server_id)
            raise CorruptError(
                f"{member.address} and {other.address if other else id_text(server_id)} hold different bytes"
                f" of {claim.directory}/{name}: nothing was appended",
                remedy="compare them with `dos get`, one server at a time; replace the wrong member",
                actual=info.synced,
            )
    size = copy[1].synced
    base = size - size % digest_block_bytes
    digest = (await reader.stat(name, base)).digest if base else 0
    tail = await reader.get(name, base, size - base) if size > base else b""
    return base, digest, tail
