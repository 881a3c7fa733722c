"""A claim: one writer of one directory, on all members of the store.

This module has what the owner of a claim may do. `core.claim` decides when a claim is granted or lost,
`core.quorum` what is acknowledged. The sessions are in `link`.
"""

import logging
from collections.abc import Iterable
from typing import Final, Self

import trio

from dos_client.arguments import check_absent, check_run
from dos_client.core.claim import (
    ClaimClosed,
    ClaimLost,
    ClaimMachine,
    ClaimState,
    MemberClaimed,
    MemberFenced,
    MemberLeft,
    RecordChanged,
    has_lost_objects,
    has_no_source,
    proves_what_exists,
    was_held,
)
from dos_client.core.collecting import Garbage
from dos_client.core.quorum import Quorums, TokenRefusal
from dos_client.core.record_log import record_in
from dos_client.core.window import SendWindow
from dos_client.errors import MissingDataError, QuorumUnavailableError
from dos_client.limits import answer_timeout_s, answers_grace_s, waiting_after_s
from dos_client.sessions.connection import Connection
from dos_client.status.claim_status import ClaimStatus, ClaimWaits
from dos_client.writing import collecting
from dos_client.writing.claim_reads import ClaimReads
from dos_client.writing.link import MemberLink
from dos_client.writing.local_copy import LocalCopy
from dos_client.writing.object_writer import ObjectWriter
from dos_client.writing.target import WriteTarget
from dos_client.writing.views import ClaimStore, LinkView
from dos_protocol.errors import ClosedError, DosError, FencedError, LocalProtocolError, RefusedError
from dos_protocol.messages import DirectoryOpened, ObjectInfo
from dos_protocol.names import check_name

log: Final = logging.getLogger("dos.client")


class Claim:
    """The claim of one directory, made by `Store.claim`. An async context manager that closes it.

    `answers`: per trusted member, the objects it had when it took the claim. A take-over reads them. A member
    with a damaged object is not included (R4). `epoch_seen`: the highest epoch seen, this one or a newer one.
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
        """Why the claim can no longer be used, or None."""
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

    def status(self) -> ClaimStatus:
        """Return the current status: what it waits for and why, the pending bytes, and the members."""
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

        Hedged: if one is slow, another is also queried. A session that is being reconnected is waited for.
        Raises QuorumUnavailableError or BrokenConnectionError if no claimed member can answer for
        `read_timeout_s`, otherwise the errors of the members.
        """
        return await self.reads.read(name, offset, max_bytes, member)

    async def settle(self, name: str, size: int, digest: int, local: LocalCopy | None = None) -> None:
        """Sync the prefix of that size, with that digest, on a quorum of claimed members (R7).

        Members that lack it are filled from `local`, if that has exactly this content, otherwise from a
        member. The call may be repeated. When cancelled, and for members beyond the quorum, it continues in
        the background. Raises MissingDataError if as many undamaged members as a take-over needs, or all,
        have answered and none holds it; QuorumUnavailableError if the one that had it is not available or
        damaged now, so that a new claim must decide; FencedError, ClosedError.
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
        """Create an object. `local`: this machine's copy of it, to fill members that lag.

        Raises FencedError, ClosedError, LocalProtocolError if the object is known or exists.
        """
        if name not in self.deleting:  # an object being deleted is rejected below
            check_absent(self.directory, name, self.answers, self.store.record)
        return self._open(name, SendWindow(), local)

    def resume_object(self, name: str, base: int, base_digest: int, tail: bytes) -> ObjectWriter:
        """Continue an object that has content: `base` is a multiple of 64 KiB, `base_digest` the prefix
        digest there, `tail` the bytes after it. For plain objects only; a journal never continues a segment.
        """
        return self._open(name, SendWindow(base, base_digest, tail))

    async def delete(self, name: str) -> None:
        """Delete an object of a server that is in no store (`connect`), durably. Its name can be used again.

        Raises LocalProtocolError in a store, or for an object that this claim writes or settles; FencedError,
        ClosedError, and the errors of `Requests.delete`; BrokenConnectionError, also without a session now:
        then the object may or may not be deleted.
        """
        self.check()
        await collecting.delete(self, name)

    def collect(self, garbage: Garbage) -> None:
        """Delete, on every member and until the claim ends, objects that are no longer needed: in the
        background, one at a time, also on members that reconnect later. Replaces an earlier `garbage`.

        The caller guarantees that an acknowledged record releases them and that nothing retained needs them
        (R14). Raises LocalProtocolError for an object being written, FencedError, ClosedError.
        """
        self.check()
        collecting.collect(self, garbage)

    async def wait_collected(self, timeout_s: float) -> bool:
        """Wait until no connected member holds garbage; False: timeout. Raises FencedError, ClosedError."""
        return await collecting.wait_collected(self, timeout_s)

    async def aclose(self) -> None:
        """End the sessions. Unacknowledged bytes may or may not arrive. Waits raise ClosedError."""
        if self._machine.state is not ClaimState.CLOSED:
            self._machine.handle(ClaimClosed())
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
        """Run the links until the claim ends."""
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
        """Reconnect every session, because another store record is in use."""
        self._quorums = Quorums(record_in(self.store.record, self.directory))
        for link in self._links.values():
            link.scope.cancel()
        self._machine.handle(RecordChanged(self._quorums))
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
        self._machine.handle(MemberClaimed(server_id, trusted))
        self.changed()

    def member_left(self, link: LinkView) -> None:
        """Record that a session ended. A link of an older record does not affect its successor."""
        if self._links.get(link.server_id) is link:
            self._machine.handle(MemberLeft(link.server_id))
        self.changed()

    def member_fenced(self, server_id: bytes, error: FencedError) -> None:
        """End the claim for good: a member holds a newer one."""
        self.epoch_seen = max(self.epoch_seen, error.epoch_held)
        for effect in self._machine.handle(MemberFenced(server_id, error.epoch_held)):
            if isinstance(effect, ClaimLost):
                text = f"epoch {self.epoch} of {self.directory} is superseded by epoch {effect.epoch_held}"
                if not self.claiming:
                    text = f"{self.directory} has a writer, at epoch {effect.epoch_held}; claim it to write"
                self.lost = FencedError(text, actual=effect.epoch_held)
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
        """Wake the tasks in `wait_changed`."""
        if self.waited:
            self.waited = False
            self._change.set()
            self._change = trio.Event()

    async def wait_changed(self, timeout_s: float) -> None:
        """Wait for the next change, or until the time is up."""
        self.waited = True
        with trio.move_on_after(timeout_s):
            await self._change.wait()

    def wake_links(self) -> None:
        """Wake the links: there is more to send."""
        for link in self._links.values():
            link.copies.wake()

    def seal(self, target: WriteTarget) -> None:
        """Seal an object: its memory is freed once a quorum has all of it."""
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

    def links(self) -> Iterable[MemberLink]:
        return self._links.values()

    def link(self, server_id: bytes) -> MemberLink | None:
        """Return the link with a member of the record, or None."""
        return self._links.get(server_id)

    def _has_no_source(self, target: WriteTarget) -> bool:
        connected = [one.server_id for one in self._links.values() if one.connection is not None]
        here = target.local.size() >= target.size > 0
        return not here and has_no_source(self._quorums, target, connected)

    def _unsettled_error(self, target: WriteTarget) -> DosError:
        """Return the error for content that cannot be settled: lost, or gone since the claim."""
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
