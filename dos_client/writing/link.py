"""The connection of one claim with one member: one session after the other, until the claim ends.

This module handles the life of a session, from connecting to the pause before the next. What a member's
answers mean is decided in `core`: `admission` (is it the member?) and `claim` (what does FENCED mean?). What
a session does for the objects of the claim is in `copies`.

A link is one task. It connects, is admitted, claims, and compares every object that the claim knows. Then the
session's writer task requests bytes from `copies` whenever the socket accepts more, and durability acks
update `target`. Nothing waits for a link: a member that does not respond keeps its own bytes in the window
and delays no other member.

When the session ends, for any reason, the link waits with backoff and jitter, and connects again. Only a
FENCED error that shows a newer claim ends the claim. To keep the log short, it has a line when a member
disconnects and one when it is back, and none for each attempt.
"""

import logging
from typing import Final

import trio

from dos_client import randomness
from dos_client.core.backoff import backoff_s
from dos_client.core.claim import FenceReason, climb, judge_fenced
from dos_client.core.quorum import Quorums, TokenRefusal, refusal_of_token
from dos_client.core.record_log import record_in
from dos_client.file_token import FileToken
from dos_client.limits import session_worked_s, superseded_joining_s
from dos_client.sessions.connection import Connection
from dos_client.sessions.members import admit_or_act
from dos_client.sessions.witnesses import open_member_session
from dos_client.writing.copies import MemberCopies
from dos_client.writing.views import ClaimView
from dos_protocol.errors import (
    BrokenConnectionError,
    DosError,
    FencedError,
    ForbiddenError,
    NoSpaceError,
    NotAMemberError,
    QuotaExceededError,
    RolledBackError,
    StaleGenerationError,
    UnauthorisedError,
    WrongStoreError,
)
from dos_protocol.messages import DirectoryOpened
from dos_protocol.names import NO_ID
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")


class Outage:
    """The outage of a member for a claim: its start, the failed attempts, and what was logged of it."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.since = trio.current_time()
        self.attempts = 0
        self._was_connected = False
        self._logged: set[type[DosError]] = set()

    def failed(self, error: DosError, *, worked: bool) -> None:
        """Record a failed attempt or the end of a session. Each kind of error is logged once.

        `worked`: the member acknowledged something in the session.
        """
        if worked:
            self._logged.clear()
        if not self.attempts and not self._logged:
            self.since = trio.current_time()
        self.attempts += 1
        known = type(error) in self._logged
        self._logged.add(type(error))
        log.log(logging.DEBUG if known else logging.INFO, "%s: %s; retrying", self._label, error.args[0])

    def over(self) -> bool:
        """End the outage. Returns whether the member was connected before."""
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
    """The link of one claim with one member. `error`: why there is no session, '' while there is one.
    `refusal`: set if the reason is that the member refuses the token.
    """

    def __init__(self, claim: ClaimView, member: Member) -> None:
        self.claim = claim
        self.member = member
        self.server_id = member.server_id
        self.error = "not connected yet"
        self.refusal: TokenRefusal | None = None
        self.scope = trio.CancelScope()
        self.copies = MemberCopies(self)
        self.outage = Outage(f"{member.address} for {claim.directory}")

    @property
    def connection(self) -> Connection | None:
        """The session on which the member holds the claim, or None."""
        return self.copies.connection

    async def run(self) -> None:
        """Run one session after the other until the claim ends."""
        attempt = 0
        with self.scope:
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
        """Return whether so many members refuse the token that the others are not enough. One of a file may
        be replaced by a valid one: the claim waits for that.
        """
        if isinstance(error, UnauthorisedError) and isinstance(self.claim.store.token, FileToken):
            return False
        quorums = Quorums(record_in(self.claim.store.record, self.claim.directory))
        refusals = {link.server_id: link.refusal for link in self.claim.links()}
        return refusal_of_token(quorums, refusals) is not None

    def _distrust(self) -> None:
        """Discard what the member reported: its disk went back in time.

        It may no longer have what it reported, and what it lacks proves nothing (R4).
        """
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
        """Connect, claim and serve until the session breaks. Raises the reason."""
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
        """Open or claim the directory. Returns None if the claim is lost thereby."""
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
        """Claim in steps, because the server rejects a large jump of the epoch (R17)."""
        for epoch in climb(epoch_held, self.claim.epoch):
            opened = await connection.claim(self.claim.directory, epoch, self.claim.writer_id)
        return opened

    async def _serve(self, connection: Connection, opened: DirectoryOpened) -> None:
        """Bring the member up to the claim's objects until the session breaks."""
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
